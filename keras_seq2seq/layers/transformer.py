"""The Transformer's blocks: attention and feed-forward, with residuals and norms.

The decoder block has a form over a whole target, for training, and a form for one
position with cached keys and values, for decoding; both run the same weights.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_seq2seq.layers.attention import multiply_rows
from keras_seq2seq.layers.multi_head_attention import CrossAttention, SelfAttention

_EPSILON = 1e-6


@keras.saving.register_keras_serializable("keras_seq2seq")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's layer over the last axis, in fewer operations.

    One position decoded by a graph is many small operations, where each one counts.
    """

    def call(self, inputs):
        x = ops.cast(inputs, "float32")
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        x = centred * ops.rsqrt(variance + self.epsilon) * self.gamma + self.beta
        return ops.cast(x, self.compute_dtype)


class _Block(keras.layers.Layer):
    """What encoder and decoder blocks share: sub-layers, residuals, norms."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feedforward_dim: int,
        *,
        norm: str = "post",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        attention_score: str = "scaled_dot",
        attention_bias: bool = True,
        rotary: bool = False,
        window: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if norm not in ("post", "pre"):
            raise ValueError(
                f'`norm` must be "post" or "pre". Received: norm={norm!r}.'
            )
        if window is not None and window < 1:
            raise ValueError(f"`window` must be positive. Received: window={window}.")
        self.dim = dim
        self.num_heads = num_heads
        self.feedforward_dim = feedforward_dim
        self.norm = norm
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.attention_score = attention_score
        self.attention_bias = attention_bias
        self.rotary = rotary
        self.window = window
        policy = self.dtype_policy
        self.self_attention = self._attention(
            SelfAttention,
            "self_attention",
            rotary=rotary,
            window=None if window is None else self._neighbourhood(window),
        )
        self.self_attention_norm = self._normalization("self_attention_norm")
        self.inner = keras.layers.Dense(
            feedforward_dim, activation="relu", name="inner", dtype=policy
        )
        self.outer = keras.layers.Dense(dim, name="outer", dtype=policy)
        self.feedforward_norm = self._normalization("feedforward_norm")
        self.residual_dropout = keras.layers.Dropout(
            dropout, name="residual_dropout", dtype=policy
        )

    def _attention(self, layer, name, **arguments):
        return layer(
            self.num_heads,
            self.dim,
            self.attention_dropout,
            self.attention_score,
            self.attention_bias,
            name=name,
            dtype=self.dtype_policy,
            **arguments,
        )

    def _normalization(self, name):
        return LayerNormalization(epsilon=_EPSILON, name=name, dtype=self.dtype_policy)

    def build(self, *shapes, **named_shapes):
        shape = (None, None, self.dim)
        self.self_attention.build(shape)
        self.self_attention_norm.build(shape)
        self.inner.build(shape)
        self.outer.build((None, None, self.feedforward_dim))
        self.feedforward_norm.build(shape)
        self.built = True

    def _sublayer(self, x, norm, function, training):
        """Runs one sub-layer with its residual; returns also what it kept aside."""
        output, aside = function(norm(x) if self.norm == "pre" else x)
        x = x + self.residual_dropout(output, training=training)
        return (x if self.norm == "pre" else norm(x)), aside

    def _feedforward(self, x, training):
        x, _ = self._sublayer(
            x,
            self.feedforward_norm,
            lambda y: (multiply_rows(lambda z: self.outer(self.inner(z)), y), None),
            training,
        )
        return x

    def get_config(self):
        return {
            **super().get_config(),
            "dim": self.dim,
            "num_heads": self.num_heads,
            "feedforward_dim": self.feedforward_dim,
            "norm": self.norm,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "attention_score": self.attention_score,
            "attention_bias": self.attention_bias,
            "rotary": self.rotary,
            "window": self.window,
        }


@keras.saving.register_keras_serializable("keras_seq2seq")
class TransformerEncoderBlock(_Block):
    """Self-attention and feed-forward, each with residual and layer normalisation.

    Args:
        dim: Model width `D`.
        num_heads: Number of heads; divides `dim`.
        feedforward_dim: Width of the feed-forward layer.
        norm: `"post"` normalises after the residual sum (the paper), `"pre"`
            before the sub-layer.
        dropout: Dropout of each sub-layer's output.
        attention_dropout: Dropout of the attention weights (not in the paper).
        attention_score: Of the attention, see `SelfAttention`.
        attention_bias: Whether the attention's projections add a bias.
        rotary: Whether self-attention rotates queries and keys by their positions.
        window: Size `r` of the neighbourhood that self-attention is restricted to:
            `r // 2` positions on both sides; None: all positions.

    Call arguments:
        x: `(B, S, D)`.
        attention_mask: Bool, broadcastable to `(B, H, S, S)`, True may attend; with
            `window` to `(B, H, 1, S)`.

    Returns:
        `(B, S, D)`.

    Raises:
        ValueError: If `norm` is unknown, `window` is not positive, or the arguments
            of the attention contradict each other, see `SelfAttention`.

    Reference:
        Vaswani et al., 2017, section 3.1; `window`: section 4.
    """

    def _neighbourhood(self, window):
        return window // 2, window // 2

    def call(self, x, attention_mask=None, training=None):
        x, _ = self._sublayer(
            x,
            self.self_attention_norm,
            lambda y: self.self_attention(y, attention_mask, training=training),
            training,
        )
        return self._feedforward(x, training)


@keras.saving.register_keras_serializable("keras_seq2seq")
class TransformerDecoderBlock(_Block):
    """Causal self-attention, cross-attention and feed-forward.

    Args:
        dim: Model width `D`.
        num_heads: Number of heads; divides `dim`.
        feedforward_dim: Width of the feed-forward layer.
        norm: `"post"` or `"pre"`, see `TransformerEncoderBlock`.
        dropout: Dropout of each sub-layer's output.
        attention_dropout: Dropout of the attention weights (not in the paper).
        attention_score: Of both attentions, see `SelfAttention`.
        attention_bias: Whether the attentions' projections add a bias.
        rotary: Whether self-attention rotates queries and keys by their positions.
        window: Size `r` of the neighbourhood that self-attention is restricted to:
            the last `r` positions, its own among them; None: all positions.

    Call arguments:
        x: `(B, T, D)`.
        memory_cache: What `cross_attention.project_memory` returned.
        memory_mask: Bool, broadcastable to `(B, H, T, S)`.
        attention_mask: Bool, broadcastable to `(B, H, T, T)`; with `window` to
            `(B, H, 1, T)`, and None where padding stands on the right.

    Returns:
        `(B, T, D)` and the cross-attention weights, `(B, H, T, S)`.

    Raises:
        ValueError: As for `TransformerEncoderBlock`.

    Reference:
        Vaswani et al., 2017, section 3.1; `window`: section 4.
    """

    def __init__(self, dim: int, num_heads: int, feedforward_dim: int, **kwargs):
        super().__init__(dim, num_heads, feedforward_dim, **kwargs)
        self.cross_attention = self._attention(CrossAttention, "cross_attention")
        self.cross_attention_norm = self._normalization("cross_attention_norm")

    def _neighbourhood(self, window):
        return window - 1, 0

    def build(self, *shapes, **named_shapes):
        super().build()
        self.cross_attention.build()
        self.cross_attention_norm.build((None, None, self.dim))

    def call(
        self, x, memory_cache, memory_mask=None, attention_mask=None, training=None
    ):
        x, _ = self._sublayer(
            x,
            self.self_attention_norm,
            lambda y: self.self_attention(y, attention_mask, training=training),
            training,
        )
        x, weights = self._sublayer(
            x,
            self.cross_attention_norm,
            lambda y: self.cross_attention(
                y, memory_cache, memory_mask, training=training
            ),
            training,
        )
        return self._feedforward(x, training), weights

    def step(
        self, x, memory_cache, memory_mask, cache, index, attention_mask, num_rows=1
    ):
        """Runs the block for one new position of every hypothesis.

        Args:
            x: The newest position, `(R, D)`, `R = B * N`; the `N` rows of one source
                are adjacent.
            memory_cache: As in `call`, `B` rows.
            memory_mask: Bool, `(B, 1, 1, S)`.
            cache: Of the self-attention.
            index: Scalar int32, the number of earlier positions.
            attention_mask: Of the self-attention, see `SelfAttention.step`.
            num_rows: Rows that share a cache, see there.

        Returns:
            `(R, D)`, the new cache, and the cross-attention weights `(B, H, N, S)`.
        """
        x, cache = self._sublayer(
            x,
            self.self_attention_norm,
            lambda y: self.self_attention.step(
                y, cache, index, attention_mask, num_rows
            ),
            False,
        )
        x, weights = self._sublayer(
            x,
            self.cross_attention_norm,
            lambda y: self.cross_attention.step(y, memory_cache, memory_mask),
            False,
        )
        return self._feedforward(x, False), cache, weights
