"""The Transformer: self-attention in encoder and decoder, no recurrence."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.buffers import append, empty_cache, grows
from keras_seq2seq.gathers import take_rows
from keras_seq2seq.layers import (
    LayerNormalization,
    PositionEncoding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    causal_mask,
    padding_mask,
)
from keras_seq2seq.models.base import Seq2Seq


@keras.saving.register_keras_serializable("keras_seq2seq")
class TransformerSeq2Seq(Seq2Seq):
    """Transformer encoder–decoder.

    The defaults are the paper's base model. Token vectors are scaled by the square
    root of their width, and start normal with the inverse of it, so that tied
    logits start small.

    Args:
        source_vocabulary_size: Number of source ids, padding included.
        target_vocabulary_size: Number of target ids, padding included.
        dim: Model width `D`.
        num_heads: Attention heads; divides `dim`.
        feedforward_dim: Width of the feed-forward layers.
        num_encoder_layers: Encoder blocks.
        num_decoder_layers: Decoder blocks.
        dropout: Dropout of each sub-layer's output and of the embeddings.
        attention_dropout: Dropout of the attention weights (not in the paper).
        attention_score: `"scaled_dot"` (the paper), `"dot"`, `"bilinear"` or
            `"additive"`, in every attention.
        attention_bias: Whether the attention's projections add a bias.
        window: Size `r` of the neighbourhood that self-attention is restricted to, in
            time linear in the length: the encoder's `r // 2` positions on both sides,
            the decoder's last `r`, its own among them. None: all positions.
        norm: `"post"` (the paper) or `"pre"`, which adds one final normalisation
            to each stack.
        positions: `"sinusoidal"`, `"learned"`, `"rotary"` (queries and keys of
            self-attention are rotated in every layer) or `"none"`.
        combine_positions: `"sum"` adds position vectors to token vectors;
            `"concat"` appends them, the two widths summing to `dim`.
        position_dim: Width of the position vectors under `"concat"`; None takes
            a quarter of `dim`.
        max_positions: Rows of the learned position table.
        sinusoid_layout: `"paper"`, sine and cosine in turn, or `"halves"`, first all
            sines, as in Tensor2Tensor and fairseq.
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
        model = TransformerSeq2Seq(8000, 8000, dim=128, num_heads=4,
                                   feedforward_dim=256, num_encoder_layers=4,
                                   num_decoder_layers=4)
        logits = model({"source_ids": source_ids, "target_ids": target_ids})
        ```

    Reference:
        Vaswani et al., 2017. Learned positions: table 3, row (E); `window`: section 4.
        Rotary positions: Su et al., 2021.
    """

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        dim: int = 512,
        num_heads: int = 8,
        feedforward_dim: int = 2048,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        attention_score: str = "scaled_dot",
        attention_bias: bool = True,
        window: int | None = None,
        norm: str = "post",
        positions: str = "sinusoidal",
        combine_positions: str = "sum",
        position_dim: int | None = None,
        max_positions: int = 1024,
        sinusoid_layout: str = "paper",
        share_embeddings: bool = False,
        tie_output: bool = True,
        **kwargs,
    ):
        super().__init__(source_vocabulary_size, target_vocabulary_size, **kwargs)
        self._arguments: dict[str, Any] = {
            "dim": dim,
            "num_heads": num_heads,
            "feedforward_dim": feedforward_dim,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "attention_score": attention_score,
            "attention_bias": attention_bias,
            "window": window,
            "norm": norm,
            "positions": positions,
            "combine_positions": combine_positions,
            "position_dim": position_dim,
            "max_positions": max_positions,
            "sinusoid_layout": sinusoid_layout,
            "share_embeddings": share_embeddings,
            "tie_output": tie_output,
        }
        self.dim = dim
        self.window = window
        self.max_positions = max_positions if positions == "learned" else None
        concat = combine_positions == "concat"
        position_dim = dim // 4 if position_dim is None else position_dim
        self.embedding_dim = dim - position_dim if concat else dim
        self._check(concat, position_dim)
        self._make_embeddings(positions, combine_positions, position_dim)
        self._make_blocks()

    def _check(self, concat, position_dim):
        arguments = self._arguments
        self._check_positions(concat)
        if concat and not 0 < position_dim < self.dim:
            raise ValueError(
                "`position_dim` must be between 0 and `dim` when positions are "
                f"concatenated. Received: position_dim={position_dim}, dim={self.dim}."
            )
        if concat and arguments["tie_output"]:
            raise ValueError(
                "`tie_output` needs token vectors as wide as `dim`; with "
                'combine_positions="concat" they are narrower. Received: '
                f"tie_output=True, dim={self.dim}, position_dim={position_dim}. "
                "Set tie_output=False."
            )

    def _check_positions(self, concat):
        positions = self._arguments["positions"]
        if positions not in ("sinusoidal", "learned", "rotary", "none"):
            raise ValueError(
                '`positions` must be "sinusoidal", "learned", "rotary" or "none". '
                f"Received: positions={positions!r}."
            )
        if concat and positions in ("rotary", "none"):
            raise ValueError(
                '`combine_positions="concat"` needs position vectors: '
                'positions="sinusoidal" or "learned". '
                f'Received: positions={positions!r}, combine_positions="concat".'
            )
        layout = self._arguments["sinusoid_layout"]
        if layout != "paper" and positions != "sinusoidal":
            raise ValueError(
                '`sinusoid_layout` is of positions="sinusoidal" only. '
                f"Received: sinusoid_layout={layout!r}, positions={positions!r}."
            )

    def _make_embeddings(self, positions, combine_positions, position_dim):
        arguments, policy = self._arguments, self.dtype_policy

        self._make_token_embeddings(
            self.embedding_dim,
            shared=arguments["share_embeddings"],
            stddev=self.embedding_dim**-0.5,
        )

        def encoding(name):
            if positions in ("rotary", "none"):
                return None
            layer = PositionEncoding(
                positions,
                dim=self.dim - self.embedding_dim or self.dim,
                combine=combine_positions,
                max_positions=arguments["max_positions"],
                sinusoid_layout=arguments["sinusoid_layout"],
                name=name,
                dtype=policy,
            )
            layer.build((None, None, self.embedding_dim))
            return layer

        self.output_projection = None
        if not arguments["tie_output"]:
            self.output_projection = keras.layers.Dense(
                self.target_vocabulary_size, name="output_projection", dtype=policy
            )
            self.output_projection.build((None, None, self.dim))
        self.source_positions = encoding("source_positions")
        self.target_positions = encoding("target_positions")
        self.embedding_dropout = keras.layers.Dropout(
            arguments["dropout"], name="embedding_dropout", dtype=policy
        )

    def _make_blocks(self):
        arguments, policy = self._arguments, self.dtype_policy

        def stack(block, name, count):
            blocks = [
                block(
                    self.dim,
                    arguments["num_heads"],
                    arguments["feedforward_dim"],
                    norm=arguments["norm"],
                    dropout=arguments["dropout"],
                    attention_dropout=arguments["attention_dropout"],
                    attention_score=arguments["attention_score"],
                    attention_bias=arguments["attention_bias"],
                    rotary=arguments["positions"] == "rotary",
                    window=self.window,
                    name=f"{name}_{index}",
                    dtype=policy,
                )
                for index in range(count)
            ]
            for layer in blocks:
                layer.build()
            return blocks

        def final_norm(name):
            # A pre-norm stack ends in an unnormalised sum.
            if arguments["norm"] == "post":
                return None
            layer = LayerNormalization(epsilon=1e-6, name=name, dtype=policy)
            layer.build((None, None, self.dim))
            return layer

        self.encoder_blocks = stack(
            TransformerEncoderBlock, "encoder", arguments["num_encoder_layers"]
        )
        self.decoder_blocks = stack(
            TransformerDecoderBlock, "decoder", arguments["num_decoder_layers"]
        )
        self.encoder_norm = final_norm("encoder_norm")
        self.decoder_norm = final_norm("decoder_norm")
        self.built = True

    def _embed(self, embedding, positions, ids, start=0, training=None):
        x = embedding(ids) * self.embedding_dim**0.5
        if positions is not None:
            x = positions(x, start=start)
        return self.embedding_dropout(x, training=training)

    def _logits(self, x, kernel=None):
        """Logits of decoder vectors; `kernel` `(D, V)` is the output matrix at hand."""
        if self.decoder_norm is not None:
            x = self.decoder_norm(x)
        if kernel is None:
            return self._vocabulary_logits(x)
        return ops.cast(ops.matmul(x, ops.cast(kernel, x.dtype)), "float32")

    def encode(self, source_ids, training=None):
        """Encodes a batch of sources.

        Args:
            source_ids: int32, `(B, S)`, 0 is padding.
            training: Whether dropout is on.

        Returns:
            `memory`: `mask` `(B, S)`, the encoder's `values` `(B, S, D)`, and for
            each decoder layer the `keys` and `values` of its cross-attention,
            `(B, H, S, K)`; where caches grow also the tied `output_kernel` `(D, V)`.
        """
        mask = padding_mask(source_ids)
        attention_mask = ops.expand_dims(ops.expand_dims(mask, 1), 1)
        x = self._embed(
            self.source_embedding, self.source_positions, source_ids, training=training
        )
        for block in self.encoder_blocks:
            x = block(x, attention_mask, training=training)
        if self.encoder_norm is not None:
            x = self.encoder_norm(x)
        caches = [
            block.cross_attention.project_memory(x) for block in self.decoder_blocks
        ]
        memory = {"mask": mask, "values": x, "layers": caches}
        if grows() and self.output_projection is None:
            # A graph's products with a transposed matrix take twice the time, from
            # several rows on; done here, it is done once.
            memory["output_kernel"] = ops.transpose(self.target_embedding.embeddings)
        return memory

    def decode(self, target_ids, memory, training=None):
        """Returns teacher-forced logits, `(B, T, V)`, for `target_ids` `(B, T)`."""
        # Padding stands on the right, where causality already hides it; a window looks
        # back only by itself.
        attention_mask = None
        if self.window is None:
            mask = causal_mask(ops.shape(target_ids)[1])
            attention_mask = ops.expand_dims(ops.expand_dims(mask, 0), 0)
        memory_mask = ops.expand_dims(ops.expand_dims(memory["mask"], 1), 1)
        x = self._embed(
            self.target_embedding, self.target_positions, target_ids, training=training
        )
        for block, cache in zip(self.decoder_blocks, memory["layers"], strict=True):
            x, _ = block(x, cache, memory_mask, attention_mask, training=training)
        return self._logits(x)

    def initial_state(self, memory, max_length: int):
        """Returns empty caches for up to `max_length` target positions.

        Args:
            memory: What `encode` returned.
            max_length: Longest target, START excluded.

        Returns:
            `state`: `position` `(B,)`; for each layer the `keys` and `values` of its
            self-attention, `(B, H, L, K)`, of the last `window` positions only where
            there is one; and `slots`, int32 `(B, 1, L)`: which of the rows that share
            a cache wrote what a row sees at each position.
        """
        rows = ops.shape(memory["mask"])[0]
        return {
            "position": ops.zeros((rows,), dtype="int32"),
            "slots": empty_cache(
                (rows, 1, max_length), axis=2, dtype="int32", window=self.window
            ),
            "layers": [
                block.self_attention.empty_cache(rows, max_length)
                for block in self.decoder_blocks
            ],
        }

    def step(self, token_ids, memory, state):
        """Decodes one more token of every hypothesis.

        Args:
            token_ids: int32, `(B * N,)`.
            memory: What `encode` returned, `B` rows.
            state: What `initial_state` or `step` returned, `B * N` rows; caches have
                fewer where rows share them.

        Returns:
            Logits, float32, `(B * N, V)`; the new state; and the last layer's
            attention over the source, averaged over its heads, `(B * N, S)`.
        """
        index = ops.max(state["position"])  # all rows are at the same position
        memory_mask = ops.expand_dims(ops.expand_dims(memory["mask"], 1), 1)
        slots, attention_mask = self._visible(state, index)
        x = self._embed(
            self.target_embedding,
            self.target_positions,
            ops.expand_dims(token_ids, 1),
            index,
        )
        x = ops.squeeze(x, 1)  # (R, D)
        caches = []
        for block, cross, own in zip(
            self.decoder_blocks, memory["layers"], state["layers"], strict=True
        ):
            x, cache, weights = block.step(
                x, cross, memory_mask, own, index, attention_mask, slots.shape[1]
            )
            caches.append(cache)
        weights = ops.mean(weights, axis=1)  # (B, N, S)
        rows, length = ops.shape(token_ids)[0], ops.shape(memory["mask"])[1]
        state = {"position": state["position"] + 1, "slots": slots, "layers": caches}
        logits = self._logits(x, memory.get("output_kernel"))
        return logits, state, ops.reshape(weights, (rows, length))

    def _visible(self, state, index):
        """The slots with the newest position, and the mask `(C, 1, N, L * N)`."""
        slots, keys = state["slots"], state["layers"][0]["keys"]
        num_rows = slots.shape[1]
        if num_rows == 1 and self.window is None and grows():
            return slots, None
        if num_rows == 1:
            written = ops.arange(ops.shape(keys)[2]) <= index
            return slots, ops.reshape(written, (1, 1, 1, -1))
        own = ops.reshape(ops.arange(num_rows, dtype="int32"), (1, num_rows, 1))
        new = ops.broadcast_to(own, (ops.shape(slots)[0], num_rows, 1))
        slots = append(slots, index, new, axis=2, window=self.window)
        length = ops.shape(slots)[2]
        # Positions that were never written hold slot 0.
        written = ops.reshape(ops.arange(length) <= index, (1, 1, length, 1))
        writers = ops.expand_dims(slots, 3) == ops.reshape(own, (1, 1, 1, num_rows))
        mask = ops.logical_and(writers, written)  # (C, N, L, N)
        return slots, ops.reshape(mask, (-1, 1, num_rows, length * num_rows))

    def repeat_state(self, state, count: int):
        """Repeats a fresh state, the `count` rows of a source sharing its caches."""
        return {
            "position": ops.repeat(state["position"], count, axis=0),
            "slots": ops.tile(state["slots"], (1, count, 1)),
            "layers": keras.tree.map_structure(
                lambda x: ops.tile(x, (1, 1, count, 1)), state["layers"]
            ),
        }

    def select_state(self, state, parents):
        """Chooses surviving hypotheses, those of each source among themselves.

        The caches stay: `slots` tell what in them a hypothesis comes from.
        """
        slots = state["slots"]
        caches, num_rows, length = ops.shape(slots)
        chosen = take_rows(ops.reshape(slots, (caches * num_rows, length)), parents)
        return {
            "position": take_rows(state["position"], parents),
            "slots": ops.reshape(chosen, (caches, num_rows, length)),
            "layers": state["layers"],
        }

    def select_memory(self, memory, sources):
        """Chooses sources; the output matrix is the same for all."""
        of_all = {k: x for k, x in memory.items() if k == "output_kernel"}
        own = {k: x for k, x in memory.items() if k != "output_kernel"}
        return super().select_memory(own, sources) | of_all

    def get_config(self):
        return {**super().get_config(), **self._arguments}
