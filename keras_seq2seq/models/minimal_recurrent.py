"""Encoder–decoders of minGRU or minLSTM, trained without a loop over time."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers import (
    MinimalDecoderBlock,
    MinimalEncoderBlock,
    padding_mask,
)
from keras_seq2seq.layers.minimal_recurrent import positive
from keras_seq2seq.models.base import Seq2Seq


@keras.saving.register_keras_serializable("keras_seq2seq")
class MinimalRecurrentSeq2Seq(Seq2Seq):
    """Encoder–decoder of minGRU or minLSTM blocks.

    Gates see the input alone, so training runs all positions at once, as in a
    Transformer, and a decoding step costs the same at every position: the state is
    one vector a layer. Order comes from the recurrence; there are no positions.

    A block is `x + W minRNN(norm x)`, in the decoder an attention over the memory,
    and `x + feedforward(norm x)`; each stack ends in a normalisation. The paper has
    language models of such blocks; the encoder and the attention are the
    Transformer's.

    Args:
        source_vocabulary_size: Number of source ids, padding included.
        target_vocabulary_size: Number of target ids, padding included.
        cell: `"mingru"` or `"minlstm"`.
        dim: Model width `D`.
        num_encoder_layers: Encoder blocks.
        num_decoder_layers: Decoder blocks.
        expansion: Width of the recurrent states, as a multiple of `dim`.
        feedforward_dim: Width of the feed-forward layers.
        bidirectional: Whether the encoder reads in both directions.
        attention: Score of the decoder's attention: `"scaled_dot"`, `"dot"`,
            `"bilinear"` or `"additive"`; or `"none"`: the decoder's first states
            then come from the encoder's last output, and its first where it reads
            backwards too, through a dense layer and `g`, which keeps them above 0.
            With attention they are `g(0)`.
        num_heads: Attention heads; divides `dim`.
        dropout: Dropout of each sub-layer's output and of the embeddings.
        share_embeddings: Whether source and target use one embedding table; both
            vocabularies must then be the same.
        tie_output: Whether the target embedding is also the output projection.

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}`, int32, 0 is padding;
            `target_ids` is the decoder's input and starts with START.

    Returns:
        Logits, float32, `(B, T, V)`.

    Raises:
        ValueError: If arguments contradict each other; the message says which.

    Example:
        ```
        model = MinimalRecurrentSeq2Seq(8000, 8000, cell="minlstm", dim=256)
        logits = model({"source_ids": source_ids, "target_ids": target_ids})
        ```

    Reference:
        Feng et al., 2024 ("Were RNNs all we needed?").
    """

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        cell: str = "mingru",
        dim: int = 256,
        num_encoder_layers: int = 2,
        num_decoder_layers: int = 2,
        expansion: float = 1.5,
        feedforward_dim: int = 1024,
        bidirectional: bool = True,
        attention: str = "scaled_dot",
        num_heads: int = 4,
        dropout: float = 0.1,
        share_embeddings: bool = False,
        tie_output: bool = True,
        **kwargs,
    ):
        super().__init__(source_vocabulary_size, target_vocabulary_size, **kwargs)
        self._arguments: dict[str, Any] = {
            "cell": cell,
            "dim": dim,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "expansion": expansion,
            "feedforward_dim": feedforward_dim,
            "bidirectional": bidirectional,
            "attention": attention,
            "num_heads": num_heads,
            "dropout": dropout,
            "share_embeddings": share_embeddings,
            "tie_output": tie_output,
        }
        self.dim = dim
        self.attention = attention
        self._check()
        self._make_embeddings()
        self._make_blocks()
        self.built = True

    def _check(self):
        arguments = self._arguments
        scores = ("none", "dot", "scaled_dot", "bilinear", "additive")
        if self.attention not in scores:
            raise ValueError(
                f"`attention` must be one of {', '.join(map(repr, scores))}. "
                f"Received: attention={self.attention!r}."
            )
        for name in ("dim", "num_encoder_layers", "num_decoder_layers"):
            if arguments[name] < 1:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={arguments[name]}."
                )
        if int(self.dim * arguments["expansion"]) < 1:
            raise ValueError(
                "`expansion` must leave at least one unit. Received: "
                f"expansion={arguments['expansion']}, dim={self.dim}."
            )

    def _make_embeddings(self):
        arguments, policy = self._arguments, self.dtype_policy
        self._make_token_embeddings(
            self.dim, shared=arguments["share_embeddings"], stddev=self.dim**-0.5
        )
        self.output_projection = (
            None
            if arguments["tie_output"]
            else self._dense(self.target_vocabulary_size, "output_projection", self.dim)
        )
        self.embedding_dropout = keras.layers.Dropout(
            arguments["dropout"], name="embedding_dropout", dtype=policy
        )

    def _dense(self, units, name, input_dim):
        layer = keras.layers.Dense(units, name=name, dtype=self.dtype_policy)
        layer.build((None, None, input_dim))
        return layer

    def _make_blocks(self):
        arguments = self._arguments

        def stack(block, name, count, **options):
            blocks = [
                block(
                    arguments["cell"],
                    self.dim,
                    arguments["feedforward_dim"],
                    expansion=arguments["expansion"],
                    dropout=arguments["dropout"],
                    name=f"{name}_{index}",
                    dtype=self.dtype_policy,
                    **options,
                )
                for index in range(count)
            ]
            for layer in blocks:
                layer.build()
            return blocks

        def final_norm(name):
            layer = keras.layers.RMSNormalization(
                epsilon=1e-6, name=name, dtype=self.dtype_policy
            )
            layer.build((None, None, self.dim))
            return layer

        self.encoder_blocks = stack(
            MinimalEncoderBlock,
            "encoder",
            arguments["num_encoder_layers"],
            bidirectional=arguments["bidirectional"],
        )
        self.decoder_blocks = stack(
            MinimalDecoderBlock,
            "decoder",
            arguments["num_decoder_layers"],
            attention=self.attention,
            num_heads=arguments["num_heads"],
        )
        self.encoder_norm = final_norm("encoder_norm")
        self.decoder_norm = final_norm("decoder_norm")
        sides = 2 if arguments["bidirectional"] else 1
        self.bridges = [
            self._dense(block.units, f"bridge_{index}", sides * self.dim)
            for index, block in enumerate(self.decoder_blocks)
            if self.attention == "none"
        ]

    def _embed(self, embedding, ids, training=None):
        return self.embedding_dropout(embedding(ids) * self.dim**0.5, training=training)

    def _logits(self, x):
        return self._vocabulary_logits(self.decoder_norm(x))

    def encode(self, source_ids, training=None):
        """Encodes a batch of sources.

        Args:
            source_ids: int32, `(B, S)`, 0 is padding.
            training: Whether dropout is on.

        Returns:
            `memory`: `mask` `(B, S)`; the decoder's first `states`, float32,
            `(B, units)` for each layer; and with attention `layers`: for each
            decoder layer the `keys` and `values`, `(B, H, S, K)`.
        """
        mask = padding_mask(source_ids)
        x = self._embed(self.source_embedding, source_ids, training)
        for block in self.encoder_blocks:
            x = block(x, mask, training=training)
        x = self.encoder_norm(x)
        if self.attention == "none":
            return {"mask": mask, "states": self._bridge(x, mask)}
        rows = ops.shape(source_ids)[0]
        return {
            "mask": mask,
            "states": [
                block.forward_layer.initial_state(rows) for block in self.decoder_blocks
            ],
            "layers": [
                block.cross_attention.project_memory(x) for block in self.decoder_blocks
            ],
        }

    def _bridge(self, x, mask):
        """First states of the decoder, from where each direction of `x` ends."""
        positions = ops.expand_dims(ops.arange(ops.shape(x)[1]), 0)
        lengths = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)

        def at(position):  # zeros where the source is empty
            here = ops.logical_and(mask, positions == position)
            return ops.sum(ops.where(ops.expand_dims(here, -1), x, 0), axis=1)

        ends = at(lengths - 1)
        if self._arguments["bidirectional"]:
            ends = ops.concatenate([ends, at(0)], axis=-1)
        return [positive(ops.cast(bridge(ends), "float32")) for bridge in self.bridges]

    def _caches(self, memory):
        return memory.get("layers", [None] * len(self.decoder_blocks))

    def decode(self, target_ids, memory, training=None):
        """Returns teacher-forced logits, `(B, T, V)`, for `target_ids` `(B, T)`."""
        memory_mask = ops.expand_dims(ops.expand_dims(memory["mask"], 1), 1)
        x = self._embed(self.target_embedding, target_ids, training)
        for block, state, cache in zip(
            self.decoder_blocks, memory["states"], self._caches(memory), strict=True
        ):
            x, _ = block(x, state, cache, memory_mask, training=training)
        return self._logits(x)

    def initial_state(self, memory, max_length: int | None = None):
        """Returns the state before the first step.

        Args:
            memory: What `encode` returned.
            max_length: Not used: a recurrent state does not grow.

        Returns:
            `state`: `layers`, float32, `(B, units)` for each layer.
        """
        return {"layers": memory["states"]}

    def step(self, token_ids, memory, state):
        """Decodes one more token of every hypothesis.

        Args:
            token_ids: int32, `(B * N,)`.
            memory: What `encode` returned, `B` rows.
            state: What `initial_state` or `step` returned, `B * N` rows.

        Returns:
            Logits, float32, `(B * N, V)`; the new state; and the last layer's
            attention over the source, averaged over its heads, `(B * N, S)`, all 0
            without attention.
        """
        memory_mask = ops.expand_dims(ops.expand_dims(memory["mask"], 1), 1)
        x = self._embed(self.target_embedding, token_ids)  # (R, D)
        states, weights = [], None
        for block, own, cache in zip(
            self.decoder_blocks, state["layers"], self._caches(memory), strict=True
        ):
            x, own, weights = block.step(x, own, cache, memory_mask)
            states.append(own)
        rows, length = ops.shape(token_ids)[0], ops.shape(memory["mask"])[1]
        if weights is None:
            weights = ops.zeros((rows, length), dtype="float32")
        else:
            weights = ops.reshape(ops.mean(weights, axis=1), (rows, length))
        return self._logits(x), {"layers": states}, weights

    def get_config(self):
        return {**super().get_config(), **self._arguments}
