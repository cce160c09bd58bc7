"""Multi-head attention of a sequence over itself, and of a decoder over a memory.

Self-attention has a form over a whole sequence, for training, and a form for one
position with cached keys and values, for decoding; both run the same weights.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_seq2seq.buffers import append, empty_cache, grows
from keras_seq2seq.layers.attention import attend, make_score, multiply_rows
from keras_seq2seq.layers.local_attention import local_attend
from keras_seq2seq.layers.positions import rotate


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


def split_rows(x, num_rows: int, num_heads: int):
    """Reshapes rows, `(C*N, H*K)`, to `(C, H, N, K)`."""
    width = x.shape[-1] // num_heads
    if num_rows == 1:
        return ops.reshape(x, (-1, num_heads, 1, width))
    return _swap(ops.reshape(x, (-1, num_rows, num_heads, width)))  # (C, H, N, K)


def merge_rows(x):
    """Reshapes `(C, H, N, K)` to rows, `(C*N, H*K)`."""
    num_heads, num_rows, width = x.shape[1:]
    if num_rows != 1:
        x = _swap(x)  # (C, N, H, K)
    return ops.reshape(x, (-1, num_heads * width))


def _swap(x):
    """Transposes the inner axes of a step's `(C, N, H, K)`, or of its inverse."""
    if grows():
        # In a graph, oneDNN's transposition of little takes four times as long.
        return ops.einsum("cnhk->chnk", x)
    return ops.transpose(x, (0, 2, 1, 3))


class _Attention(keras.layers.Layer):
    """What self-attention and cross-attention share: arguments and checks."""

    def __init__(
        self,
        num_heads: int,
        dim: int,
        dropout: float = 0.0,
        score: str = "scaled_dot",
        use_bias: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if num_heads < 1 or dim % num_heads:
            raise ValueError(
                "`num_heads` must divide `dim`. "
                f"Received: num_heads={num_heads}, dim={dim}."
            )
        if score == "location":
            raise ValueError(
                "Multi-head attention needs a score of queries and keys; the location "
                "score reads positions. Received: score='location'."
            )
        self.num_heads = num_heads
        self.dim = dim
        self._head_dim = dim // num_heads
        self.dropout = dropout
        self.score = score
        self.use_bias = use_bias
        self.score_layer = make_score(
            score, self._head_dim, name="score", dtype=self.dtype_policy
        )
        self.output_projection = self._dense(dim, "output_projection")
        self.weights_dropout = keras.layers.Dropout(
            dropout, name="weights_dropout", dtype="float32"
        )

    def _dense(self, units, name):
        return keras.layers.Dense(
            units, use_bias=self.use_bias, name=name, dtype=self.dtype_policy
        )

    def _dropout(self, training):
        return lambda weights: self.weights_dropout(weights, training=training)

    def _attend(self, query, keys, values, attention_mask, training):
        context, weights = attend(
            self.score_layer(query, keys),
            values,
            attention_mask,
            self._dropout(training),
        )
        return multiply_rows(self.output_projection, merge_heads(context)), weights

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dim": self.dim,
            "dropout": self.dropout,
            "score": self.score,
            "use_bias": self.use_bias,
        }

    def _build_score(self):
        shape = (None, self.num_heads, None, self._head_dim)
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
        use_bias: Whether the projections add a bias.
        rotary: Whether queries and keys are rotated by their positions.
        window: How many positions before and after its own each position attends
            to, a pair of ints; None attends to all.

    Call arguments:
        x: `(B, T, D)`.
        attention_mask: Bool, broadcastable to `(B, H, T, T)`, True may attend; with
            `window` to `(B, H, 1, T)`, since the window is no part of it.

    Returns:
        `(B, T, D)` and the attention weights, `(B, H, T, T)`; with `window` those of
        its positions, see `local_attend`.

    Raises:
        ValueError: If `num_heads` does not divide `dim`, or for `rotary` the heads'
            width is odd or the score no inner product.

    Reference:
        Vaswani et al., 2017, section 3.2.2; `window`: section 4; `rotary`: Su et al.,
        2021, section 3.4.2.
    """

    def __init__(
        self,
        num_heads: int,
        dim: int,
        *args,
        rotary: bool = False,
        window: tuple[int, int] | None = None,
        **kwargs,
    ):
        super().__init__(num_heads, dim, *args, **kwargs)
        self.rotary = rotary
        self.window = None if window is None else tuple(window)
        if rotary and dim // num_heads % 2:
            raise ValueError(
                "Rotary positions turn pairs of features, so heads of an even width "
                f"are needed. Received: num_heads={num_heads}, dim={dim}."
            )
        if rotary and self.score not in ("scaled_dot", "dot", "bilinear"):
            raise ValueError(
                'Rotary positions need a score by inner product: "scaled_dot", "dot" '
                f'or "bilinear". Received: score={self.score!r}.'
            )
        self.input_projection = self._dense(3 * dim, "input_projection")

    def build(self, x_shape):
        self.input_projection.build((None, None, self.dim))
        self.output_projection.build((None, None, self.dim))
        self._build_score()

    def _project(self, x):
        parts = ops.split(multiply_rows(self.input_projection, x), 3, axis=-1)
        query, keys, values = [split_heads(part, self.num_heads) for part in parts]
        keys = self.score_layer.project_memory(keys)
        if self.rotary:
            positions = ops.arange(ops.shape(x)[1])
            query, keys = rotate(query, positions), rotate(keys, positions)
        return query, keys, values

    def call(self, x, attention_mask=None, training=None):
        query, keys, values = self._project(x)
        if self.window is None:
            return self._attend(query, keys, values, attention_mask, training)
        context, weights = local_attend(
            self.score_layer,
            query,
            keys,
            values,
            before=self.window[0],
            after=self.window[1],
            key_mask=attention_mask,
            dropout=self._dropout(training),
        )
        return multiply_rows(self.output_projection, merge_heads(context)), weights

    def step(self, x, cache, index, attention_mask=None, num_rows: int = 1):
        """Attends from one position over the cached ones and itself.

        Rows that share a cache keep what each of them writes in its place for all,
        and the mask tells which of it a row comes from. So rows that are chosen anew
        take no copy of a cache with them.

        Args:
            x: The newest position, `(R, D)`, `R = C * N`.
            cache: `{"keys", "values"}`, each `(C, H, L * N, K)`, the entries of one
                position adjacent; what `empty_cache` or `step` returned.
            index: Scalar int32, the newest position.
            attention_mask: Bool, broadcastable to `(C, 1, N, L * N)`, with the newest
                position; None where all of the cache may be attended to.
            num_rows: Number of rows `N` that share a cache.

        Returns:
            `(R, D)` and the new cache.
        """
        query, keys, values = self._project_step(x, index, num_rows)
        window = None if self.window is None else self.window[0] + 1
        keys = append(cache["keys"], index, keys, axis=2, window=window)
        values = append(cache["values"], index, values, axis=2, window=window)
        context, _ = attend(self.score_layer(query, keys), values, attention_mask)
        output = self.output_projection(merge_rows(context))
        return output, {"keys": keys, "values": values}

    def _project_step(self, x, index, num_rows):
        """Query, keys and values of rows `(R, D)`, each `(C, H, N, K)`."""
        x = self.input_projection(x)
        if num_rows > 1 and grows():  # as in `_swap`, and all three at once
            x = ops.reshape(x, (-1, num_rows, 3, self.num_heads, self._head_dim))
            query, keys, values = ops.unstack(ops.einsum("cnphk->pchnk", x), 3)
        else:
            query, keys, values = [
                split_rows(part, num_rows, self.num_heads)
                for part in ops.split(x, 3, axis=-1)
            ]
        keys = self.score_layer.project_memory(keys)
        if self.rotary:
            positions = ops.full((num_rows,), index, dtype="int32")
            query, keys = rotate(query, positions), rotate(keys, positions)
        return query, keys, values

    def empty_cache(self, rows, length: int):
        """Returns the cache of `rows` rows and `length` positions, all zeros.

        With a window it is no longer than that.
        """
        shape = (rows, self.num_heads, length, self._head_dim)
        window = None if self.window is None else self.window[0] + 1
        empty = empty_cache(shape, axis=2, dtype=self.compute_dtype, window=window)
        return {"keys": empty, "values": empty}

    def get_config(self):
        return {**super().get_config(), "rotary": self.rotary, "window": self.window}


@keras.saving.register_keras_serializable("keras_seq2seq")
class CrossAttention(_Attention):
    """Multi-head attention of the decoder over the encoder's memory.

    Args:
        num_heads: Number of heads `H`; divides `dim`.
        dim: Model width `D`; each head is `D / H` wide.
        dropout: Dropout of the attention weights.
        score: `"scaled_dot"` (the paper), `"dot"`, `"bilinear"` or `"additive"`,
            one for all heads.
        use_bias: Whether the projections add a bias.

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
        both = multiply_rows(self.memory_projection, memory)
        keys, values = ops.split(both, 2, axis=-1)
        return {
            "keys": self.score_layer.project_memory(split_heads(keys, self.num_heads)),
            "values": split_heads(values, self.num_heads),
        }

    def call(self, x, cache, attention_mask=None, training=None):
        query = split_heads(multiply_rows(self.query_projection, x), self.num_heads)
        return self._attend(
            query, cache["keys"], cache["values"], attention_mask, training
        )

    def step(self, x, cache, attention_mask):
        """Attends from one position of every hypothesis.

        Args:
            x: Decoder vectors, `(R, D)`, the `N` rows of one source adjacent: they are
                the queries of one block, so that its memory is read once and never
                copied.
            cache: As in `call`, `B` rows.
            attention_mask: Bool, `(B, 1, 1, S)`.

        Returns:
            `(R, D)` and the attention weights, `(B, H, N, S)`.
        """
        shape = (ops.shape(attention_mask)[0], -1, self.num_heads, self._head_dim)
        query = _swap(ops.reshape(self.query_projection(x), shape))  # (B, H, N, K)
        scores = self.score_layer(query, cache["keys"])
        context, weights = attend(scores, cache["values"], attention_mask)
        return self.output_projection(merge_rows(context)), weights
