"""Luong's local attention: a window of the source around an aligned position."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers.attention import multiply_rows, score_vector

CENTERS = ("monotonic", "predictive")


@keras.saving.register_keras_serializable("keras_seq2seq")
class LocalWindow(keras.layers.Layer):
    """Tells where a decoder step may look: at most `half_width` from its center.

    Positions count from 1 and `S` is the number of tokens of `memory_mask`, so
    padding moves nothing. What lies outside the source is ignored.

    Args:
        half_width: D of the paper (10 there); the window has `2 D + 1` positions.
        center: `"monotonic"` (local-m): `min(t, S)` for the t-th target token.
            `"predictive"` (local-p): `S * sigmoid(v · tanh(q W))`, a real number;
            the weights are then multiplied by a Gaussian around it with the
            deviation `D / 2`, and not normalised again.

    Call arguments:
        query: Decoder states, `(B, Q, units)`.
        memory_mask: Bool, `(B, S)`.
        positions: Target positions from 0, int32, `(B, Q)`; used by `"monotonic"`.

    Returns:
        The window, bool `(B, Q, S)`, and the Gaussian, float32 `(B, Q, S)`, or None
        for `"monotonic"`.

    Raises:
        ValueError: If `half_width` is not positive or `center` is unknown.

    Reference:
        Luong et al., 2015, section 3.2, equations 9 and 10.
    """

    def __init__(self, half_width: int, center: str = "predictive", **kwargs):
        super().__init__(**kwargs)
        if half_width < 1:
            raise ValueError(
                f"`window` must be positive. Received: window={half_width}."
            )
        if center not in CENTERS:
            raise ValueError(
                f"`window_center` must be one of {', '.join(map(repr, CENTERS))}. "
                f"Received: window_center={center!r}."
            )
        self.half_width = half_width
        self.center = center
        self.query_projection: Any = None

    def build(self, query_shape, *shapes):
        if self.center == "predictive":
            units = query_shape[-1]
            self.query_projection = keras.layers.Dense(
                units, use_bias=False, name="query_projection", dtype=self.dtype_policy
            )
            self.query_projection.build(query_shape)
            self.vector = self.add_weight(
                name="vector", shape=(units,), initializer=score_vector
            )
        self.built = True

    def call(self, query, memory_mask, positions=None):
        length = ops.shape(memory_mask)[1]
        source = ops.cast(ops.arange(1, length + 1), "float32")
        num_tokens = ops.sum(ops.cast(memory_mask, "float32"), axis=1, keepdims=True)
        if self.center == "monotonic":
            center = ops.minimum(ops.cast(positions, "float32") + 1, num_tokens)
        else:
            hidden = ops.tanh(multiply_rows(self.query_projection, query))
            vector = ops.cast(self.vector, "float32")
            sums = ops.sum(ops.cast(hidden, "float32") * vector, axis=-1)  # (B, Q)
            share = ops.sigmoid(sums)
            center = num_tokens * share
        distance = source - ops.expand_dims(center, -1)  # (B, Q, S)
        window = ops.abs(distance) <= self.half_width
        if self.center == "monotonic":
            return window, None
        deviation = self.half_width / 2
        return window, ops.exp(-ops.square(distance) / (2 * deviation**2))

    def get_config(self):
        return {
            **super().get_config(),
            "half_width": self.half_width,
            "center": self.center,
        }
