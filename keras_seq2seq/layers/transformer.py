"""The Transformer's blocks: multi-head attention, feed-forward, encoder and decoder.

Each attention has a form over a whole sequence, for training, and a form for one
position with cached keys and values, for decoding; both run the same weights.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_seq2seq.buffers import write_at
from keras_seq2seq.layers.attention import attend, make_score

_EPSILON = 1e-6


def split_heads(x, num_heads: int):
    """Reshapes `(B, T, H*K)` to `(B, H, T, K)`."""
    batch, length, width = ops.shape(x)[0], ops.shape(x)[1], x.shape[-1]
    x = ops.reshape(x, (batch, length, num_heads, width // num_heads))
    return ops.transpose(x, (0, 2, 1, 3))  # (B, H, T, K)


def merge_heads(x):
    """Reshapes `(B, H, T, K)` to `(B, T, H*K)`."""
    num_heads, width = x.shape[1], x.shape[3]
    x = ops.transpose(x, (0, 2, 1, 3))  # (B, T, H, K)
    batch, length = ops.shape(x)[0], ops.shape(x)[1]
    return ops.reshape(x, (batch, length, num_heads * width))


class _Attention(keras.layers.Layer):
    """What self-attention and cross-attention share: arguments and checks."""

    def __init__(
        self,
        num_heads: int,
        dim: int,
        dropout: float = 0.0,
        score: str = "scaled_dot",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if num_heads < 1 or dim % num_heads:
            raise ValueError(
                "`num_heads` must divide `dim`. "
                f"Received: num_heads={num_heads}, dim={dim}."
            )
        self.num_heads = num_heads
        self.dim = dim
        self.dropout = dropout
        self.score = score
        self.score_layer = make_score(
            score, dim // num_heads, name="score", dtype=self.dtype_policy
        )
        self.output_projection = self._dense(dim, "output_projection")
        self.weights_dropout = keras.layers.Dropout(
            dropout, name="weights_dropout", dtype="float32"
        )

    def _dense(self, units, name):
        return keras.layers.Dense(units, name=name, dtype=self.dtype_policy)

    def _attend(self, query, keys, values, attention_mask, training):
        context, weights = attend(
            self.score_layer(query, keys),
            values,
            attention_mask,
            lambda x: self.weights_dropout(x, training=training),
        )
        return self.output_projection(merge_heads(context)), weights

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dim": self.dim,
            "dropout": self.dropout,
            "score": self.score,
        }

    def _build_score(self):
        width = self.dim // self.num_heads
        shape = (None, self.num_heads, None, width)
        self.score_layer.build(shape, shape)
        self.score_layer.built = True


@keras.saving.register_keras_serializable("keras_seq2seq")
class SelfAttention(_Attention):
    """Multi-head attention of a sequence over itself.

    Queries, keys and values come from one product of width `3 D`.

    Args:
        num_heads: Number of heads `H`; divides `dim`.
        dim: Model width `D`; each head is `D / H` wide.
        dropout: Dropout of the attention weights.
        score: `"scaled_dot"` (the paper), `"dot"`, `"bilinear"` or `"additive"`,
            one for all heads.

    Call arguments:
        x: `(B, T, D)`.
        attention_mask: Bool, broadcastable to `(B, H, T, T)`, True may attend.

    Returns:
        `(B, T, D)` and the attention weights, `(B, H, T, T)`.

    Raises:
        ValueError: If `num_heads` does not divide `dim`.

    Reference:
        Vaswani et al., 2017, section 3.2.2.
    """

    def __init__(self, num_heads: int, dim: int, *args, **kwargs):
        super().__init__(num_heads, dim, *args, **kwargs)
        self.input_projection = self._dense(3 * dim, "input_projection")

    def build(self, x_shape):
        self.input_projection.build((None, None, self.dim))
        self.output_projection.build((None, None, self.dim))
        self._build_score()

    def _project(self, x):
        parts = ops.split(self.input_projection(x), 3, axis=-1)
        query, keys, values = [split_heads(part, self.num_heads) for part in parts]
        return query, self.score_layer.project_memory(keys), values

    def call(self, x, attention_mask=None, training=None):
        query, keys, values = self._project(x)
        return self._attend(query, keys, values, attention_mask, training)

    def step(self, x, cache, index, attention_mask):
        """Attends from one position over the cached ones and itself.

        Args:
            x: The newest position, `(R, 1, D)`.
            cache: `{"keys", "values"}`, each `(R, H, L, K)`.
            index: Scalar int32, the slot where the newest position belongs.
            attention_mask: Bool, broadcastable to `(R, H, 1, L)`.

        Returns:
            `(R, 1, D)` and the new cache.
        """
        query, keys, values = self._project(x)
        keys = write_at(cache["keys"], index, keys, axis=2)
        values = write_at(cache["values"], index, values, axis=2)
        output, _ = self._attend(query, keys, values, attention_mask, False)
        return output, {"keys": keys, "values": values}

    def empty_cache(self, rows, length: int):
        """Returns the cache of `rows` rows and `length` positions, all zeros."""
        shape = (rows, self.num_heads, length, self.dim // self.num_heads)
        return {
            name: ops.zeros(shape, dtype=self.compute_dtype)
            for name in ("keys", "values")
        }


@keras.saving.register_keras_serializable("keras_seq2seq")
class CrossAttention(_Attention):
    """Multi-head attention of the decoder over the encoder's memory.

    Args:
        num_heads: Number of heads `H`; divides `dim`.
        dim: Model width `D`; each head is `D / H` wide.
        dropout: Dropout of the attention weights.
        score: `"scaled_dot"` (the paper), `"dot"`, `"bilinear"` or `"additive"`,
            one for all heads.

    Call arguments:
        x: Decoder vectors, `(B, T, D)`.
        cache: What `project_memory` returned, `{"keys", "values"}` of
            `(B, H, S, K)` each.
        attention_mask: Bool, broadcastable to `(B, H, T, S)`; from the *source*.

    Returns:
        `(B, T, D)` and the attention weights, `(B, H, T, S)`.

    Raises:
        ValueError: If `num_heads` does not divide `dim`.

    Reference:
        Vaswani et al., 2017, section 3.2.3.
    """

    def __init__(self, num_heads: int, dim: int, *args, **kwargs):
        super().__init__(num_heads, dim, *args, **kwargs)
        self.query_projection = self._dense(dim, "query_projection")
        self.memory_projection = self._dense(2 * dim, "memory_projection")

    def build(self, *shapes, **named_shapes):
        shape = (None, None, self.dim)
        self.query_projection.build(shape)
        self.memory_projection.build(shape)
        self.output_projection.build(shape)
        self._build_score()
        self.built = True

    def project_memory(self, memory):
        """Returns the keys and values of `memory` `(B, S, D)`, once per source."""
        keys, values = ops.split(self.memory_projection(memory), 2, axis=-1)
        return {
            "keys": self.score_layer.project_memory(split_heads(keys, self.num_heads)),
            "values": split_heads(values, self.num_heads),
        }

    def call(self, x, cache, attention_mask=None, training=None):
        query = split_heads(self.query_projection(x), self.num_heads)
        return self._attend(
            query, cache["keys"], cache["values"], attention_mask, training
        )


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
        **kwargs,
    ):
        super().__init__(**kwargs)
        if norm not in ("post", "pre"):
            raise ValueError(
                f'`norm` must be "post" or "pre". Received: norm={norm!r}.'
            )
        self.dim = dim
        self.num_heads = num_heads
        self.feedforward_dim = feedforward_dim
        self.norm = norm
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        policy = self.dtype_policy
        self.self_attention = SelfAttention(
            num_heads, dim, attention_dropout, name="self_attention", dtype=policy
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

    def _normalization(self, name):
        return keras.layers.LayerNormalization(
            epsilon=_EPSILON, name=name, dtype=self.dtype_policy
        )

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
            lambda y: (self.outer(self.inner(y)), None),
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

    Call arguments:
        x: `(B, S, D)`.
        attention_mask: Bool, broadcastable to `(B, H, S, S)`, True may attend.

    Returns:
        `(B, S, D)`.

    Raises:
        ValueError: If `norm` is unknown or `num_heads` does not divide `dim`.

    Reference:
        Vaswani et al., 2017, section 3.1.
    """

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

    Call arguments:
        x: `(B, T, D)`.
        memory_cache: What `cross_attention.project_memory` returned.
        memory_mask: Bool, broadcastable to `(B, H, T, S)`.
        attention_mask: Bool, broadcastable to `(B, H, T, T)`.

    Returns:
        `(B, T, D)` and the cross-attention weights, `(B, H, T, S)`.

    Raises:
        ValueError: If `norm` is unknown or `num_heads` does not divide `dim`.

    Reference:
        Vaswani et al., 2017, section 3.1.
    """

    def __init__(self, dim: int, num_heads: int, feedforward_dim: int, **kwargs):
        super().__init__(dim, num_heads, feedforward_dim, **kwargs)
        self.cross_attention = CrossAttention(
            num_heads,
            dim,
            self.attention_dropout,
            name="cross_attention",
            dtype=self.dtype_policy,
        )
        self.cross_attention_norm = self._normalization("cross_attention_norm")

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
        x, weights = self._cross(x, memory_cache, memory_mask, training)
        return self._feedforward(x, training), weights

    def _cross(self, x, memory_cache, memory_mask, training):
        return self._sublayer(
            x,
            self.cross_attention_norm,
            lambda y: self.cross_attention(
                y, memory_cache, memory_mask, training=training
            ),
            training,
        )

    def step(self, x, memory_cache, memory_mask, cache, index):
        """Runs the block for one new position of every hypothesis.

        Args:
            x: The newest position, `(R, 1, D)`, `R = B * N`; the `N` rows of one
                source are adjacent.
            memory_cache: As in `call`, `B` rows.
            memory_mask: Bool, `(B, 1, 1, S)`.
            cache: Of the self-attention, `R` rows.
            index: Scalar int32, the number of earlier positions.

        Returns:
            `(R, 1, D)`, the new cache, and the cross-attention weights
            `(B, H, N, S)`.
        """
        # Within a training graph the length may be unknown: it is a tensor then.
        visible = ops.arange(ops.shape(cache["keys"])[2]) <= index
        visible = ops.reshape(visible, (1, 1, 1, -1))
        x, cache = self._sublayer(
            x,
            self.self_attention_norm,
            lambda y: self.self_attention.step(y, cache, index, visible),
            False,
        )
        # The hypotheses of one source are the queries of one block, so that its
        # memory is read once and never copied.
        rows, batch = ops.shape(x)[0], ops.shape(memory_mask)[0]
        x = ops.reshape(x, (batch, -1, self.dim))  # (B, N, D)
        x, weights = self._cross(x, memory_cache, memory_mask, False)
        x = ops.reshape(x, (rows, 1, self.dim))  # (R, 1, D)
        return self._feedforward(x, False), cache, weights
