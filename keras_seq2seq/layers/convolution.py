"""Blocks of the convolutional encoder–decoder: gated convolutions with attention.

Convolutions here do not pad: the encoder block pads on both sides, the decoder block
on the left only, and decoding hands over the window that it has kept.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers.attention import attend, inner_products

# Keeps the variance of a sum of two terms at that of one (Gehring et al., section 3.4).
_SQRT_HALF = 0.5**0.5


def scale_gradient(x, scale: float):
    """Returns `x` itself, whose gradient is multiplied by `scale` on the way back.

    Args:
        x: Tensor.
        scale: The factor.

    Returns:
        A tensor equal to `x`, bit for bit.

    Reference:
        Gehring et al., 2017, section 3.4.
    """
    scaled = x * scale
    # The difference is exactly 0: the value is that of x, the gradient that of scaled.
    return ops.stop_gradient(x) + (scaled - ops.stop_gradient(scaled))


@keras.saving.register_keras_serializable("keras_seq2seq")
class WeightNormConv(keras.layers.Layer):
    """Weight-normalised convolution without padding, gated on request.

    `y = x * w + b` with `w = g u / ||u||` for each output channel, computed in the
    variables' own dtype, float32 under mixed precision. `g` starts at `||u||`, so
    that the layer starts as if it were not normalised. A kernel of size 1 makes it a
    dense layer. A gated layer computes `[A; B]`, twice as wide, and returns the gated
    linear unit `A sigmoid(B)`.

    `u` starts normal with variance `p / (k D)`, `D` being the input's width and `p`
    the share of it that dropout keeps, and 4 times that where a gate follows, whose
    sigmoid halves the output; the bias starts at 0.

    Args:
        dim: Width of the output.
        kernel_size: Positions `k` that the kernel spans.
        gated: Whether a gated linear unit follows.
        input_dropout: Dropout that the input has passed; it sets the start only.

    Call arguments:
        x: `(B, T + k - 1, D)`.

    Returns:
        `(B, T, dim)`.

    Raises:
        ValueError: If `dim` or `kernel_size` is not positive.

    Reference:
        Gehring et al., 2017, sections 3.2 and 3.5; Salimans & Kingma, 2016 (weight
        normalisation); Dauphin et al., 2017 (gated linear units).
    """

    def __init__(
        self,
        dim: int,
        kernel_size: int = 1,
        *,
        gated: bool = False,
        input_dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, value in (("dim", dim), ("kernel_size", kernel_size)):
            if value < 1:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={value}."
                )
        self.dim = dim
        self.kernel_size = kernel_size
        self.gated = gated
        self.input_dropout = input_dropout

    def build(self, x_shape):
        fan_in = self.kernel_size * x_shape[-1]
        variance = (4 if self.gated else 1) * (1 - self.input_dropout) / fan_in
        channels = 2 * self.dim if self.gated else self.dim
        # Not cast down under mixed precision: the norm is taken in float32.
        self.direction = self.add_weight(
            name="direction",
            shape=(self.kernel_size, x_shape[-1], channels),
            initializer=keras.initializers.RandomNormal(stddev=variance**0.5),
            autocast=False,
        )
        self.gain = self.add_weight(
            name="gain",
            shape=(channels,),
            initializer=lambda shape, dtype=None: ops.sqrt(self._squared_norms()),
            autocast=False,
        )
        self.bias = self.add_weight(name="bias", shape=(channels,), initializer="zeros")

    def _squared_norms(self):
        """Sums of squares over all but the output channels."""
        return ops.sum(ops.square(self.direction), axis=(0, 1))

    def call(self, x):
        # A channel whose weights are all 0 stays 0 rather than NaN.
        inverse_norms = ops.rsqrt(ops.maximum(self._squared_norms(), 1e-30))
        kernel = ops.cast(self.direction * (self.gain * inverse_norms), x.dtype)
        if self.kernel_size == 1:
            x = ops.matmul(x, ops.squeeze(kernel, 0))
        else:
            x = ops.conv(x, kernel, padding="valid", data_format="channels_last")
        x = x + self.bias
        return ops.glu(x, axis=-1) if self.gated else x

    def compute_output_shape(self, x_shape):
        if self.kernel_size == 1 or x_shape[1] is None:
            return (*x_shape[:-1], self.dim)
        return (x_shape[0], x_shape[1] - self.kernel_size + 1, self.dim)

    def get_config(self):
        return {
            **super().get_config(),
            "dim": self.dim,
            "kernel_size": self.kernel_size,
            "gated": self.gated,
            "input_dropout": self.input_dropout,
        }


class _ConvBlock(keras.layers.Layer):
    """What both blocks share: dropout, the gated convolution and the residual."""

    def __init__(
        self, dim: int, kernel_size: int = 3, *, dropout: float = 0.0, **kwargs
    ):
        super().__init__(**kwargs)
        self.dim = dim
        self.kernel_size = kernel_size
        self.dropout = dropout
        self.convolution = WeightNormConv(
            dim,
            kernel_size,
            gated=True,
            input_dropout=dropout,
            name="convolution",
            dtype=self.dtype_policy,
        )
        self.input_dropout = keras.layers.Dropout(
            dropout, name="input_dropout", dtype=self.dtype_policy
        )
        self.residual_projection: Any = None

    def _projection(self, dim, name, input_dim):
        layer = WeightNormConv(dim, name=name, dtype=self.dtype_policy)
        layer.build((None, None, input_dim))
        return layer

    def _build_convolution(self, x_shape):
        self.input_dim = x_shape[-1]
        self.convolution.build((None, None, self.input_dim))
        if self.input_dim != self.dim:
            self.residual_projection = self._projection(
                self.dim, "residual_projection", self.input_dim
            )

    def _add_residual(self, x, inputs):
        if self.residual_projection is not None:
            inputs = self.residual_projection(inputs)
        return (x + inputs) * _SQRT_HALF

    def get_config(self):
        return {
            **super().get_config(),
            "dim": self.dim,
            "kernel_size": self.kernel_size,
            "dropout": self.dropout,
        }


@keras.saving.register_keras_serializable("keras_seq2seq")
class ConvEncoderBlock(_ConvBlock):
    """A gated convolution over both sides of each position, and a residual.

    `y = (GLU(conv(dropout(x))) + x) sqrt(1/2)`; where the width changes, the
    residual passes a projection. Padding is set to 0 before the convolution, so that
    a sequence's end sees what a batch of its own would show it. A kernel of even
    size looks one position further to the right.

    Args:
        dim: Width of the output.
        kernel_size: Positions `k` that a position sees, itself in the middle.
        dropout: Dropout of the convolution's input.

    Call arguments:
        x: `(B, S, D)`.
        mask: Bool, `(B, S)`, True where a position is real.

    Returns:
        `(B, S, dim)`.

    Raises:
        ValueError: If `dim` or `kernel_size` is not positive.

    Reference:
        Gehring et al., 2017, section 3.2.
    """

    def build(self, x_shape, mask_shape=None):
        self._build_convolution(x_shape)

    def call(self, x, mask, training=None):
        before = (self.kernel_size - 1) // 2
        seen = ops.where(ops.expand_dims(mask, -1), x, 0.0)
        seen = self.input_dropout(seen, training=training)
        seen = ops.pad(seen, ((0, 0), (before, self.kernel_size - 1 - before), (0, 0)))
        return self._add_residual(self.convolution(seen), x)

    def compute_output_shape(self, x_shape, mask_shape=None):
        return (*x_shape[:-1], self.dim)


@keras.saving.register_keras_serializable("keras_seq2seq")
class ConvDecoderBlock(_ConvBlock):
    """A gated convolution over earlier positions, attention, and a residual.

    With `v` the gated convolution of `x`, `g` the embedded target, `z` the memory's
    keys and `m` the real source positions::

        d = (v W_d + b_d + g) sqrt(1/2)
        c = sqrt(m) sum_j softmax_j(d . z_j) value_j
        y = ((c W_o + b_o + v) sqrt(1/2) + x) sqrt(1/2)

    The sum in `d` is scaled, as in the authors' code; equation 1 of the paper has it
    unscaled. Where the width changes, `x` in `y` passes a projection. A source
    without any real position gives `c = 0`.

    Args:
        dim: Width of the output.
        kernel_size: Positions `k` that a position sees, itself the last.
        dropout: Dropout of the convolution's input.

    Call arguments:
        x: `(B, T, D)`.
        embedded: The embedded target, `(B, T, E)`.
        memory: `{"mask", "keys", "values"}`: bool `(B, S)`, twice `(B, S, E)`.

    Returns:
        `(B, T, dim)` and the attention weights, `(B, T, S)`.

    Raises:
        ValueError: If `dim` or `kernel_size` is not positive.

    Reference:
        Gehring et al., 2017, sections 3.2, 3.3 and 3.4.
    """

    def build(self, x_shape, embedded_shape):
        self._build_convolution(x_shape)
        width = embedded_shape[-1]
        self.query_projection = self._projection(width, "query_projection", self.dim)
        self.context_projection = self._projection(
            self.dim, "context_projection", width
        )

    def call(self, x, embedded, memory, training=None):
        seen = self.input_dropout(x, training=training)
        seen = ops.pad(seen, ((0, 0), (self.kernel_size - 1, 0), (0, 0)))
        return self._attend(self.convolution(seen), x, embedded, memory)

    def _attend(self, convolved, x, embedded, memory):
        rows, length = ops.shape(convolved)[0], ops.shape(convolved)[1]
        batch, source_length = ops.shape(memory["mask"])
        query = (self.query_projection(convolved) + embedded) * _SQRT_HALF
        # The hypotheses of one source are the queries of one block, so that its
        # memory is read once and never copied.
        query = ops.reshape(query, (batch, -1, query.shape[-1]))
        context, weights = attend(
            inner_products(query, memory["keys"]),
            memory["values"],
            ops.expand_dims(memory["mask"], 1),
        )
        # A mean of m values has 1/m of their variance.
        count = ops.sum(ops.cast(memory["mask"], "float32"), axis=1)
        growth = ops.reshape(ops.cast(ops.sqrt(count), context.dtype), (-1, 1, 1))
        context = ops.reshape(context * growth, (rows, length, context.shape[-1]))
        attended = (self.context_projection(context) + convolved) * _SQRT_HALF
        weights = ops.reshape(weights, (rows, length, source_length))
        return self._add_residual(attended, x), weights

    def step(self, x, embedded, memory, window):
        """Runs the block for one new position of every hypothesis.

        Args:
            x: The newest position, `(R, 1, D)`, `R = B * N`; the `N` rows of one
                source are adjacent.
            embedded: The newest embedded token, `(R, 1, E)`.
            memory: As in `call`, `B` rows.
            window: The `k - 1` positions before it, `(R, k - 1, D)`.

        Returns:
            `(R, 1, dim)`, the new window, and the attention weights, `(R, 1, S)`.
        """
        seen = ops.concatenate([window, x], axis=1)  # (R, k, D)
        output, weights = self._attend(self.convolution(seen), x, embedded, memory)
        return output, seen[:, 1:], weights

    def empty_window(self, rows):
        """Returns the window before the first position: zeros, as in `call`."""
        shape = (rows, self.kernel_size - 1, self.input_dim)
        return ops.zeros(shape, dtype=self.compute_dtype)

    def compute_output_shape(self, x_shape, embedded_shape, memory_shape):
        weights_shape = (*x_shape[:-1], memory_shape["mask"][1])
        return (*x_shape[:-1], self.dim), weights_shape
