"""Attention in general: a query, pairs of key and value, an exchangeable score.

`attention(q, {(k_i, v_i)}) = sum_i softmax_i(score(q, k_i)) v_i`. Every score has the
same two calls: `project_memory(memory)` gives the `keys`, all that can be computed
once per source, and `score(query, keys)` the attention scores. `attend` turns scores
into attention weights and the context. Recurrent models attend with one query of
width `units`, multi-head attention with a head axis in front: scores take any number
of leading axes.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers.masks import FLOOR, masked_softmax


def attend(attention_scores, values, attention_mask=None, dropout=None, factor=None):
    """Averages `values` by the softmax of `attention_scores`.

    Args:
        attention_scores: `(..., T, S)`.
        values: `(..., S, D)`.
        attention_mask: Bool, broadcastable to `attention_scores`, True may be
            attended to; of padded sources for example `(B, 1, S)`.
        dropout: Optional function applied to the attention weights.
        factor: Optional, broadcastable to the weights: multiplies them, and they
            are not normalised again (the Gaussian of local attention).

    Returns:
        `context`, `(..., T, D)` in the dtype of `values`, and `attention_weights`,
        `(..., T, S)` in float32: before dropout and factor they sum to 1 over the
        positions of the mask and are exactly 0 elsewhere; all 0 where a row has no
        position.
    """
    weights = masked_softmax(attention_scores, attention_mask)
    if factor is not None:
        weights = weights * factor
    kept = weights if dropout is None else dropout(weights)
    return ops.matmul(ops.cast(kept, values.dtype), values), weights


def score_vector(shape, dtype=None):
    """Glorot's uniform start of the `(units, 1)` matrix that the vector is."""
    start = keras.initializers.GlorotUniform()((*shape, 1), dtype=dtype)
    return ops.squeeze(start, -1)


def inner_products(query, keys):
    """Multiplies all queries with all keys.

    In float32: near 1000 float16 has steps of a half, and one step changes a softmax.

    Args:
        query: `(..., T, D)`.
        keys: `(..., S, D)`.

    Returns:
        Attention scores, float32, `(..., T, S)`.
    """
    query, keys = ops.cast(query, "float32"), ops.cast(keys, "float32")
    if len(query.shape) == 3:
        # A recurrent decoder's few queries are turned, not the keys: those would be
        # copied at each step, and every copy kept for the gradient.
        scores = ops.matmul(keys, ops.swapaxes(query, -1, -2))  # (B, S, T)
        return ops.swapaxes(scores, -1, -2)
    return ops.matmul(query, ops.swapaxes(keys, -1, -2))


def multiply_rows(function, x):
    """Applies a product with a matrix to the vectors of `x`.

    As a product of two matrices: a tensordot over more axes costs many small
    operations, a graph does not join it with bias and activation, and XLA cannot
    differentiate it inside the decoder's loop.

    Args:
        function: Of rows, `(R, D)`, such as a dense layer; gives `(R, Y)`.
        x: `(..., D)`.

    Returns:
        `(..., Y)`.
    """
    if len(x.shape) == 2:
        return function(x)
    rows = function(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))


@keras.saving.register_keras_serializable("keras_seq2seq")
class DotScore(keras.layers.Layer):
    """Scores by the inner product of query and memory: `q · k`.

    It has no weights, so query and memory must be equally wide.

    Args:
        scaled: Whether to divide by the square root of the width `D`.

    Call arguments:
        query: `(..., T, D)`.
        keys: What `project_memory` returned, `(..., S, D)`.

    Returns:
        Attention scores, float32, `(..., T, S)`.

    Reference:
        Luong et al., 2015, section 3.1 ("dot"); scaled: Vaswani et al., 2017,
        equation 1.
    """

    def __init__(self, scaled: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.scaled = scaled

    def build(self, query_shape, keys_shape):
        if query_shape[-1] != keys_shape[-1]:
            raise ValueError(
                "Dot attention needs decoder and encoder vectors of one width. "
                f"Received: decoder {query_shape[-1]}, encoder {keys_shape[-1]}. "
                'Use attention="bilinear", or a one-directional encoder with the '
                "decoder's units."
            )

    def project_memory(self, memory):
        """Returns the keys of `memory`, `(..., S, D)`: here `memory` itself."""
        return memory

    def call(self, query, keys):
        if self.scaled:  # here, not there: fewer queries than products
            query = ops.cast(query, "float32") * query.shape[-1] ** -0.5
        return inner_products(query, keys)

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[-2])

    def get_config(self):
        return {**super().get_config(), "scaled": self.scaled}


@keras.saving.register_keras_serializable("keras_seq2seq")
class BilinearScore(keras.layers.Layer):
    """Scores by a learned bilinear form: `q W k`.

    Call arguments:
        query: `(..., T, Q)`.
        keys: What `project_memory` returned, `(..., S, Q)`.

    Returns:
        Attention scores, float32, `(..., T, S)`.

    Reference:
        Luong et al., 2015, section 3.1 ("general").
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.memory_projection: Any = None

    def build(self, query_shape, keys_shape):
        self.memory_projection = keras.layers.Dense(
            query_shape[-1],
            use_bias=False,
            name="memory_projection",
            dtype=self.dtype_policy,
        )
        self.memory_projection.build(keys_shape)

    def project_memory(self, memory):
        """Returns the keys of `memory`, `(..., S, Q)`."""
        return self.memory_projection(memory)

    def call(self, query, keys):
        return inner_products(query, keys)

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[-2])


@keras.saving.register_keras_serializable("keras_seq2seq")
class AdditiveScore(keras.layers.Layer):
    """Scores by a small feed-forward network: `v · tanh(q W + k U)`.

    It is also Luong's "concat", `v · tanh([q; k] W)`, whose matrix has the two
    blocks W and U.

    Args:
        units: Width of the hidden layer.
        tied: Whether U is the identity, so that the memory must be `units` wide: how
            the published "concat" numbers were made (Luong et al., footnote).

    Call arguments:
        query: `(..., T, Q)`.
        keys: What `project_memory` returned, `(..., S, units)`.

    Returns:
        Attention scores, float32, `(..., T, S)`.

    Raises:
        ValueError: If `units` is not positive, or not the memory's width where
            `tied`.

    Reference:
        Bahdanau et al., 2015, section A.1.2; Luong et al., 2015, section 3.1.
    """

    def __init__(self, units: int, tied: bool = False, **kwargs):
        super().__init__(**kwargs)
        if units < 1:
            raise ValueError(f"`units` must be positive. Received: units={units}.")
        self.units = units
        self.tied = tied
        self.query_projection = self._dense(units, "query_projection")
        self.memory_projection = (
            None if tied else self._dense(units, "memory_projection")
        )

    def _dense(self, units, name):
        return keras.layers.Dense(
            units, use_bias=False, name=name, dtype=self.dtype_policy
        )

    def build(self, query_shape, keys_shape):
        self.query_projection.build(query_shape)
        if self.memory_projection is not None:
            self.memory_projection.build(keys_shape)
        elif keys_shape[-1] != self.units:
            raise ValueError(
                "A tied additive score needs memory vectors as wide as its hidden "
                f"layer. Received: hidden {self.units}, memory {keys_shape[-1]}."
            )
        self.vector = self.add_weight(
            name="vector", shape=(self.units,), initializer=score_vector
        )

    def project_memory(self, memory):
        """Returns the keys of `memory`, `(..., S, units)`."""
        return (
            memory if self.memory_projection is None else self.memory_projection(memory)
        )

    def call(self, query, keys):
        query = ops.expand_dims(multiply_rows(self.query_projection, query), -2)
        hidden = ops.tanh(query + ops.expand_dims(keys, -3))  # (..., T, S, units)
        vector = ops.cast(self.vector, "float32")
        return ops.sum(ops.cast(hidden, "float32") * vector, axis=-1)  # (..., T, S)

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[-2])

    def get_config(self):
        return {**super().get_config(), "units": self.units, "tied": self.tied}


@keras.saving.register_keras_serializable("keras_seq2seq")
class LocationScore(keras.layers.Layer):
    """Scores source positions from the query alone: `q W`, one column a position.

    Args:
        max_positions: Columns of W; later source positions get no weight.

    Call arguments:
        query: `(..., T, Q)`.
        keys: What `project_memory` returned, `(..., S, D)`; only S counts.

    Returns:
        Attention scores, float32, `(..., T, S)`.

    Raises:
        ValueError: If `max_positions` is not positive.

    Reference:
        Luong et al., 2015, section 3.1 ("location", equation 8).
    """

    def __init__(self, max_positions: int = 128, **kwargs):
        super().__init__(**kwargs)
        if max_positions < 1:
            raise ValueError(
                "`max_source_positions` must be positive. "
                f"Received: max_source_positions={max_positions}."
            )
        self.max_positions = max_positions

    def build(self, query_shape, keys_shape):
        self.kernel = self.add_weight(
            name="kernel", shape=(query_shape[-1], self.max_positions)
        )

    def project_memory(self, memory):
        """Returns the keys of `memory`, `(..., S, D)`: here `memory` itself."""
        return memory

    def call(self, query, keys):
        length = ops.shape(keys)[-2]
        kernel = ops.cast(self.kernel, "float32")
        scores = multiply_rows(
            lambda rows: ops.matmul(rows, kernel), ops.cast(query, "float32")
        )  # (..., T, P)
        # Cut to S columns here: a cut of the kernel would cost a kernel of zeros at
        # each step of the gradient.
        later = [(0, 0)] * (len(query.shape) - 1) + [(0, length)]
        return ops.pad(scores, later, constant_values=FLOOR)[..., :length]

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[-2])

    def get_config(self):
        return {**super().get_config(), "max_positions": self.max_positions}


SCORES = ("dot", "scaled_dot", "bilinear", "additive", "tied_additive", "location")


def make_score(score: str, units: int, *, max_positions: int = 128, **kwargs):
    """Returns the score of a name.

    Args:
        score: One of `SCORES`.
        units: Width of the hidden layer of the additive scores.
        max_positions: Of `"location"`.
        **kwargs: Arguments of the layer: `name`, `dtype`.

    Raises:
        ValueError: If the name is unknown.
    """
    if score not in SCORES:
        names = ", ".join(map(repr, SCORES))
        raise ValueError(f"`score` must be one of {names}. Received: score={score!r}.")
    if score in ("dot", "scaled_dot"):
        return DotScore(scaled=score == "scaled_dot", **kwargs)
    if score == "bilinear":
        return BilinearScore(**kwargs)
    if score == "location":
        return LocationScore(max_positions, **kwargs)
    return AdditiveScore(units, tied=score == "tied_additive", **kwargs)


@keras.saving.register_keras_serializable("keras_seq2seq")
class Attention(keras.layers.Layer):
    """Attention of queries over pairs of key and value, with any score.

    `sum_i softmax_i(score(q, k_i)) v_i`; zeros where no position may be attended to.

    Args:
        score: One of `SCORES`.
        units: Width of the hidden layer of the additive scores.

    Call arguments:
        query: `(..., T, Q)`.
        keys: `(..., S, K)`.
        values: `(..., S, D)`; None takes `keys`.
        attention_mask: Bool, broadcastable to `(..., T, S)`, True may attend.

    Returns:
        `context`, `(..., T, D)`, and `attention_weights`, `(..., T, S)`.

    Raises:
        ValueError: If `score` is unknown.

    Reference:
        Bahdanau et al., 2015; Luong et al., 2015; Vaswani et al., 2017, section 3.2.
    """

    def __init__(self, score: str = "scaled_dot", units: int = 64, **kwargs):
        super().__init__(**kwargs)
        self.score = score
        self.units = units
        self.score_layer = make_score(
            score, units, name="score", dtype=self.dtype_policy
        )

    def build(self, query_shape, keys_shape):
        self.score_layer.build(query_shape, keys_shape)
        self.score_layer.built = True

    def call(self, query, keys, values=None, attention_mask=None):
        scores = self.score_layer(query, self.score_layer.project_memory(keys))
        return attend(scores, keys if values is None else values, attention_mask)

    def get_config(self):
        return {**super().get_config(), "score": self.score, "units": self.units}
