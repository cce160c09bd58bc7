"""Positions for models that have no notion of order of their own."""

from __future__ import annotations

import keras
from keras import ops


def sinusoids(positions, dim: int):
    """Returns the Transformer's sinusoidal position vectors.

    Column `2i` is `sin(p / 10000^(2i/D))`, column `2i+1` the cosine of the same
    angle; an odd `dim` ends with a column of zeros. Always in float32: integers
    above 256 are not exact in bfloat16.

    Args:
        positions: Positions counted from 0, `(T,)`, any numeric dtype.
        dim: Width `D`.

    Returns:
        float32, `(T, D)`.

    Reference:
        Vaswani et al., 2017, section 3.5.
    """
    pairs = dim // 2
    exponents = ops.arange(pairs, dtype="float32") * (2.0 / dim)
    frequencies = ops.exp(exponents * -9.210340371976184)  # -ln 10000
    angles = ops.expand_dims(ops.cast(positions, "float32"), 1) * ops.expand_dims(
        frequencies, 0
    )  # (T, D/2)
    pair = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (T, D/2, 2)
    table = ops.reshape(pair, (-1, 2 * pairs))  # (T, D)
    return ops.pad(table, ((0, 0), (0, 1))) if dim % 2 else table


@keras.saving.register_keras_serializable("keras_seq2seq")
class PositionEncoding(keras.layers.Layer):
    """Adds or appends position vectors to token vectors.

    Args:
        kind: `"sinusoidal"` (fixed, any length) or `"learned"` (a table).
        combine: `"sum"` adds the position vectors, `"concat"` appends them.
        dim: Width of the position vectors; for `"sum"` that of the token vectors.
        max_positions: Rows of the learned table.
        stddev: Standard deviation of the learned table's normal start.

    Call arguments:
        embeddings: Token vectors, `(B, T, D)`.
        start: Position of the first one, an int or a scalar tensor.

    Returns:
        `(B, T, D)`, or `(B, T, D + dim)` for `"concat"`.

    Raises:
        ValueError: If `kind` or `combine` is unknown, or the static length of
            `embeddings` passes the learned table.

    Reference:
        Vaswani et al., 2017, section 3.5.
    """

    def __init__(
        self,
        kind: str = "sinusoidal",
        *,
        dim: int,
        combine: str = "sum",
        max_positions: int = 1024,
        stddev: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if kind not in ("sinusoidal", "learned"):
            raise ValueError(
                '`positions` must be "sinusoidal" or "learned". '
                f"Received: positions={kind!r}."
            )
        if combine not in ("sum", "concat"):
            raise ValueError(
                '`combine_positions` must be "sum" or "concat". '
                f"Received: combine_positions={combine!r}."
            )
        self.kind = kind
        self.dim = dim
        self.combine = combine
        self.max_positions = max_positions
        self.stddev = stddev

    def build(self, embeddings_shape):
        if self.kind == "learned":
            self.table = self.add_weight(
                name="table",
                shape=(self.max_positions, self.dim),
                initializer=keras.initializers.RandomNormal(stddev=self.stddev),
            )

    def call(self, embeddings, start=0):
        length = ops.shape(embeddings)[1]
        if self.kind == "sinusoidal":
            vectors = sinusoids(ops.arange(length) + start, self.dim)
        else:
            self._check_length(embeddings.shape[1])
            vectors = ops.take(self.table, ops.arange(length) + start, axis=0)
        vectors = ops.cast(ops.expand_dims(vectors, 0), embeddings.dtype)
        if self.combine == "sum":
            return embeddings + vectors
        batch = ops.shape(embeddings)[0]
        vectors = ops.broadcast_to(vectors, (batch, length, self.dim))
        return ops.concatenate([embeddings, vectors], axis=-1)

    def _check_length(self, length):
        if length is not None and length > self.max_positions:
            raise ValueError(
                f"A sequence of {length} tokens is longer than the learned position "
                f"table: max_positions={self.max_positions}. Cut the input, or train "
                "with a larger `max_positions` or sinusoidal positions."
            )

    def compute_output_shape(self, embeddings_shape):
        added = self.dim if self.combine == "concat" else 0
        return (*embeddings_shape[:-1], embeddings_shape[-1] + added)

    def get_config(self):
        return {
            **super().get_config(),
            "kind": self.kind,
            "dim": self.dim,
            "combine": self.combine,
            "max_positions": self.max_positions,
            "stddev": self.stddev,
        }
