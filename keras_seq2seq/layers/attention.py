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

from keras_seq2seq.layers.masks import masked_softmax


def attend(attention_scores, values, attention_mask=None, dropout=None):
    """Averages `values` by the softmax of `attention_scores`.

    Args:
        attention_scores: `(..., T, S)`.
        values: `(..., S, D)`.
        attention_mask: Bool, broadcastable to `attention_scores`, True may be
            attended to; of padded sources for example `(B, 1, S)`.
        dropout: Optional function applied to the attention weights.

    Returns:
        `context`, `(..., T, D)` in the dtype of `values`, and `attention_weights`,
        `(..., T, S)` in float32: before dropout they sum to 1 over the positions of
        the mask and are exactly 0 elsewhere; all 0 where a row has no position.
    """
    weights = masked_softmax(attention_scores, attention_mask)
    kept = weights if dropout is None else dropout(weights)
    return ops.matmul(ops.cast(kept, values.dtype), values), weights


def _score_vector(shape, dtype=None):
    """Glorot's uniform start of the `(units, 1)` matrix that the vector is."""
    start = keras.initializers.GlorotUniform()((*shape, 1), dtype=dtype)
    return ops.squeeze(start, -1)


def _inner_products(query, keys):
    """Products of all queries and keys, `(..., T, S)`, in float32.

    Near 1000 float16 has steps of a half, and one step changes a softmax.
    """
    query, keys = ops.cast(query, "float32"), ops.cast(keys, "float32")
    return ops.matmul(query, ops.swapaxes(keys, -1, -2))


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
        return _inner_products(query, keys)

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
        return _inner_products(query, keys)

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[-2])


@keras.saving.register_keras_serializable("keras_seq2seq")
class AdditiveScore(keras.layers.Layer):
    """Scores by a small feed-forward network: `v · tanh(q W + k U)`.

    Args:
        units: Width of the hidden layer.

    Call arguments:
        query: `(..., T, Q)`.
        keys: What `project_memory` returned, `(..., S, units)`.

    Returns:
        Attention scores, `(..., T, S)`.

    Raises:
        ValueError: If `units` is not positive.

    Reference:
        Bahdanau et al., 2015, section A.1.2.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        if units < 1:
            raise ValueError(f"`units` must be positive. Received: units={units}.")
        self.units = units
        self.query_projection = self._dense(units, "query_projection")
        self.memory_projection = self._dense(units, "memory_projection")

    def _dense(self, units, name):
        return keras.layers.Dense(
            units, use_bias=False, name=name, dtype=self.dtype_policy
        )

    def build(self, query_shape, keys_shape):
        self.query_projection.build(query_shape)
        self.memory_projection.build(keys_shape)
        self.vector = self.add_weight(
            name="vector", shape=(self.units,), initializer=_score_vector
        )

    def project_memory(self, memory):
        """Returns the keys of `memory`, `(..., S, units)`."""
        return self.memory_projection(memory)

    def call(self, query, keys):
        # Products of two matrices only: a tensordot over more axes is what XLA
        # cannot differentiate inside the decoder's loop.
        leading = ops.shape(query)[:-1]
        query = self.query_projection(ops.reshape(query, (-1, query.shape[-1])))
        query = ops.reshape(query, (*leading, 1, self.units))
        hidden = ops.tanh(query + ops.expand_dims(keys, -3))  # (..., T, S, units)
        return ops.sum(hidden * self.vector, axis=-1)  # (..., T, S)

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[-2])

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def make_score(score: str, units: int, **kwargs):
    """Returns the score named `"dot"`, `"scaled_dot"`, `"bilinear"` or `"additive"`.

    Args:
        score: The name.
        units: Width of the hidden layer of `"additive"`.
        **kwargs: Arguments of the layer: `name`, `dtype`.

    Raises:
        ValueError: If the name is unknown.
    """
    if score == "additive":
        return AdditiveScore(units, **kwargs)
    scores: dict[str, Any] = {
        "dot": DotScore,
        "scaled_dot": lambda **arguments: DotScore(scaled=True, **arguments),
        "bilinear": BilinearScore,
    }
    if score not in scores:
        names = ", ".join(map(repr, (*scores, "additive")))
        raise ValueError(f"`score` must be one of {names}. Received: score={score!r}.")
    return scores[score](**kwargs)
