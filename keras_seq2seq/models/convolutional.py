"""The convolutional encoder–decoder: every position of a target trained at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers import (
    ConvDecoderBlock,
    ConvEncoderBlock,
    PositionEncoding,
    WeightNormConv,
    padding_mask,
    scale_gradient,
)
from keras_seq2seq.models.base import Seq2Seq


@keras.saving.register_keras_serializable("keras_seq2seq")
class ConvSeq2Seq(Seq2Seq):
    """Convolutional encoder–decoder with attention in every decoder layer.

    Token vectors get learned position vectors. Both sides are stacks of gated
    convolutions with residuals, every product weight-normalised. Each decoder layer
    attends to the encoder's output `z`, and reads `(z + e) sqrt(1/2)`, `e` being the
    embedded source. The gradient into `z` is divided by twice the decoder's layers,
    since each uses `z` in keys and values; that into `e` is left alone.

    Where the paper and the authors' code differ, this is the code: the sum of query
    and embedded target, and `z + e`, are scaled by `sqrt(1/2)`.

    Args:
        source_vocabulary_size: Number of source ids, padding included.
        target_vocabulary_size: Number of target ids, padding included.
        embedding_dim: Width `E` of token and position vectors, of the encoder's
            output and of the attention.
        encoder_channels: Width of each encoder layer.
        encoder_kernel_size: Positions that an encoder layer sees; one number, or one
            for each layer.
        decoder_channels: Width of each decoder layer.
        decoder_kernel_size: The same for the decoder.
        output_dim: Width of the vectors that the logits come from.
        dropout: Dropout of embeddings, of each convolution's input and before the
            logits.
        max_positions: Rows of each position table.
        share_embeddings: Whether source and target use one embedding table; both
            vocabularies must then be the same.
        tie_output: Whether the target embedding is also the output projection; needs
            `output_dim == embedding_dim`.

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}`, int32, 0 is padding;
            `target_ids` is the decoder's input and starts with START.

    Returns:
        Logits, float32, `(B, T, V)`.

    Raises:
        ValueError: If arguments contradict each other; the message says which.

    Example:
        ```
        model = ConvSeq2Seq(8000, 8000, embedding_dim=256,
                            encoder_channels=[256] * 4, decoder_channels=[256] * 3)
        logits = model({"source_ids": source_ids, "target_ids": target_ids})
        ```

    Reference:
        Gehring et al., 2017.
    """

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        embedding_dim: int = 256,
        encoder_channels: Sequence[int] = (256, 256, 256, 256),
        encoder_kernel_size: int | Sequence[int] = 3,
        decoder_channels: Sequence[int] = (256, 256, 256),
        decoder_kernel_size: int | Sequence[int] = 3,
        output_dim: int = 256,
        dropout: float = 0.1,
        max_positions: int = 1024,
        share_embeddings: bool = False,
        tie_output: bool = False,
        **kwargs,
    ):
        super().__init__(source_vocabulary_size, target_vocabulary_size, **kwargs)
        self._arguments: dict[str, Any] = {
            "embedding_dim": embedding_dim,
            "encoder_channels": list(encoder_channels),
            "encoder_kernel_size": _plain(encoder_kernel_size),
            "decoder_channels": list(decoder_channels),
            "decoder_kernel_size": _plain(decoder_kernel_size),
            "output_dim": output_dim,
            "dropout": dropout,
            "max_positions": max_positions,
            "share_embeddings": share_embeddings,
            "tie_output": tie_output,
        }
        self.max_positions = max_positions
        self.embedding_dim = embedding_dim
        self._check()
        self._make_embeddings()
        self._make_encoder()
        self._make_decoder()
        self.built = True

    def _check(self):
        arguments = self._arguments
        for name in ("embedding_dim", "output_dim", "max_positions"):
            if arguments[name] < 1:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={arguments[name]}."
                )
        for side in ("encoder", "decoder"):
            channels = arguments[f"{side}_channels"]
            sizes = arguments[f"{side}_kernel_size"]
            if not channels:
                raise ValueError(
                    f"`{side}_channels` must name the width of at least one layer. "
                    f"Received: {side}_channels=[]."
                )
            if not isinstance(sizes, int) and len(sizes) != len(channels):
                raise ValueError(
                    f"`{side}_kernel_size` must be one number, or one for each of "
                    f"`{side}_channels`. Received: {side}_kernel_size={list(sizes)}, "
                    f"{side}_channels={list(channels)}."
                )
        if arguments["tie_output"] and arguments["output_dim"] != self.embedding_dim:
            raise ValueError(
                "`tie_output` needs output_dim == embedding_dim. Received: "
                f"output_dim={arguments['output_dim']}, "
                f"embedding_dim={self.embedding_dim}."
            )

    def _make_embeddings(self):
        arguments, policy = self._arguments, self.dtype_policy
        self._make_token_embeddings(
            self.embedding_dim, shared=arguments["share_embeddings"], stddev=0.1
        )

        def positions(name):
            layer = PositionEncoding(
                "learned",
                dim=self.embedding_dim,
                max_positions=self._arguments["max_positions"],
                stddev=0.1,
                name=name,
                dtype=policy,
            )
            layer.build((None, None, self.embedding_dim))
            return layer

        self.source_positions = positions("source_positions")
        self.target_positions = positions("target_positions")
        self.dropout = keras.layers.Dropout(
            arguments["dropout"], name="dropout", dtype=policy
        )

    def _projection(self, dim, name, input_dim, input_dropout=0.0):
        layer = WeightNormConv(
            dim, input_dropout=input_dropout, name=name, dtype=self.dtype_policy
        )
        layer.build((None, None, input_dim))
        return layer

    def _layer_sizes(self, side):
        """Width, kernel size and input width of each layer of a side."""
        channels = self._arguments[f"{side}_channels"]
        sizes = self._arguments[f"{side}_kernel_size"]
        sizes = [sizes] * len(channels) if isinstance(sizes, int) else sizes
        return zip(channels, sizes, [channels[0], *channels[:-1]], strict=True)

    def _make_encoder(self):
        arguments = self._arguments
        channels, dropout = arguments["encoder_channels"], arguments["dropout"]
        self.encoder_input = self._projection(
            channels[0], "encoder_input", self.embedding_dim, dropout
        )
        self.encoder_blocks = []
        for index, (dim, size, width) in enumerate(self._layer_sizes("encoder")):
            block = ConvEncoderBlock(
                dim,
                size,
                dropout=dropout,
                name=f"encoder_{index}",
                dtype=self.dtype_policy,
            )
            block.build((None, None, width))
            self.encoder_blocks.append(block)
        self.encoder_output = self._projection(
            self.embedding_dim, "encoder_output", channels[-1]
        )

    def _make_decoder(self):
        arguments = self._arguments
        channels, dropout = arguments["decoder_channels"], arguments["dropout"]
        self.decoder_input = self._projection(
            channels[0], "decoder_input", self.embedding_dim, dropout
        )
        self.decoder_blocks = []
        for index, (dim, size, width) in enumerate(self._layer_sizes("decoder")):
            block = ConvDecoderBlock(
                dim,
                size,
                dropout=dropout,
                name=f"decoder_{index}",
                dtype=self.dtype_policy,
            )
            block.build((None, None, width), (None, None, self.embedding_dim))
            self.decoder_blocks.append(block)
        output_dim, vocabulary = arguments["output_dim"], self.target_vocabulary_size
        self.decoder_output = self._projection(
            output_dim, "decoder_output", channels[-1]
        )
        self.output_projection: Any = None
        if arguments["tie_output"]:
            self.output_bias = self.add_weight(
                name="output_bias",
                shape=(vocabulary,),
                initializer="zeros",
                autocast=False,
            )
        else:
            self.output_projection = self._projection(
                vocabulary, "output_projection", output_dim, dropout
            )

    def _embed(self, embedding, positions, ids, start=0, training=None):
        return self.dropout(positions(embedding(ids), start=start), training=training)

    def _logits(self, x, training=None):
        x = self.dropout(self.decoder_output(x), training=training)
        logits = self._vocabulary_logits(x)
        return logits + self.output_bias if self.output_projection is None else logits

    def encode(self, source_ids, training=None):
        """Encodes a batch of sources.

        Args:
            source_ids: int32, `(B, S)`, 0 is padding.
            training: Whether dropout is on.

        Returns:
            `memory`: `mask` `(B, S)`, and the `keys` and `values` that every decoder
            layer attends to, `(B, S, E)`.
        """
        mask = padding_mask(source_ids)
        embedded = self._embed(
            self.source_embedding, self.source_positions, source_ids, training=training
        )
        x = self.encoder_input(embedded)
        for block in self.encoder_blocks:
            x = block(x, mask, training=training)
        keys = ops.where(ops.expand_dims(mask, -1), self.encoder_output(x), 0.0)
        keys = scale_gradient(keys, 1 / (2 * len(self.decoder_blocks)))
        return {"mask": mask, "keys": keys, "values": (keys + embedded) * 0.5**0.5}

    def decode(self, target_ids, memory, training=None):
        """Returns teacher-forced logits, `(B, T, V)`, for `target_ids` `(B, T)`."""
        # Padding stands on the right, where no earlier position sees it.
        embedded = self._embed(
            self.target_embedding, self.target_positions, target_ids, training=training
        )
        x = self.decoder_input(embedded)
        for block in self.decoder_blocks:
            x, _ = block(x, embedded, memory, training=training)
        return self._logits(x, training)

    def initial_state(self, memory, max_length: int | None = None):
        """Returns the state before the first step.

        Args:
            memory: What `encode` returned.
            max_length: Not used: a layer keeps what its kernel still sees.

        Returns:
            `state`: `position` `(B,)` and for each layer the `windows`, its last
            `k - 1` inputs, `(B, k - 1, D)`.
        """
        rows = ops.shape(memory["mask"])[0]
        return {
            "position": ops.zeros((rows,), dtype="int32"),
            "windows": [block.empty_window(rows) for block in self.decoder_blocks],
        }

    def step(self, token_ids, memory, state):
        """Decodes one more token of every hypothesis.

        Args:
            token_ids: int32, `(B * N,)`.
            memory: What `encode` returned, `B` rows.
            state: What `initial_state` or `step` returned, `B * N` rows.

        Returns:
            Logits, float32, `(B * N, V)`; the new state; and the attention over the
            source, averaged over the layers, `(B * N, S)`.
        """
        index = ops.max(state["position"])  # all rows are at the same position
        embedded = self._embed(
            self.target_embedding,
            self.target_positions,
            ops.expand_dims(token_ids, 1),
            index,
        )  # (R, 1, E)
        x = self.decoder_input(embedded)
        windows, attention = [], []
        for block, window in zip(self.decoder_blocks, state["windows"], strict=True):
            x, window, weights = block.step(x, embedded, memory, window)
            windows.append(window)
            attention.append(ops.squeeze(weights, 1))
        logits = self._logits(ops.squeeze(x, 1))
        state = {"position": state["position"] + 1, "windows": windows}
        return logits, state, ops.mean(ops.stack(attention), axis=0)

    def get_config(self):
        return {**super().get_config(), **self._arguments}


def _plain(kernel_size: int | Sequence[int]) -> int | list[int]:
    """One kernel size as it is, several as a list, as a file would give them."""
    return kernel_size if isinstance(kernel_size, int) else list(kernel_size)
