"""Attention over an encoder's memory by one query vector, with exchangeable scores.

Every score has the same two calls: `project_memory(memory)` gives the `keys`, all
that can be computed once per source, and `score(query, keys)` the scores.
`attend` turns scores into attention weights and the context.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_seq2seq.layers.masks import masked_softmax


def attend(attention_scores, values, values_mask=None):
    """Averages `values` by the softmax of `attention_scores`.

    Args:
        attention_scores: `(B, T, S)`.
        values: `(B, S, D)`.
        values_mask: Bool, `(B, S)`, True where `values` is real.

    Returns:
        `context`, `(B, T, D)` in the dtype of `values`, and `attention_weights`,
        `(B, T, S)` in float32: they sum to 1 over the real positions and are
        exactly 0 elsewhere; all 0 where a row has no real position.
    """
    mask = None if values_mask is None else ops.expand_dims(values_mask, 1)
    weights = masked_softmax(attention_scores, mask)
    context = ops.matmul(ops.cast(weights, values.dtype), values)
    return context, weights


def _score_vector(shape, dtype=None):
    """Glorot's uniform start of the `(units, 1)` matrix that the vector is."""
    start = keras.initializers.GlorotUniform()((*shape, 1), dtype=dtype)
    return ops.squeeze(start, -1)


@keras.saving.register_keras_serializable("keras_seq2seq")
class DotScore(keras.layers.Layer):
    """Scores by the inner product of query and memory: `q · k`.

    It has no weights, so query and memory must be equally wide.

    Call arguments:
        query: `(B, T, D)`.
        keys: What `project_memory` returned, `(B, S, D)`.

    Returns:
        Attention scores, `(B, T, S)`.

    Reference:
        Luong et al., 2015, section 3.1 ("dot").
    """

    def build(self, query_shape, keys_shape):
        if query_shape[-1] != keys_shape[-1]:
            raise ValueError(
                "Dot attention needs decoder and encoder vectors of one width. "
                f"Received: decoder {query_shape[-1]}, encoder {keys_shape[-1]}. "
                'Use attention="bilinear", or a one-directional encoder with the '
                "decoder's units."
            )

    def project_memory(self, memory):
        """Returns the keys of `memory`, `(B, S, D)`: here `memory` itself."""
        return memory

    def call(self, query, keys):
        return ops.matmul(query, ops.transpose(keys, (0, 2, 1)))

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[1])


@keras.saving.register_keras_serializable("keras_seq2seq")
class BilinearScore(keras.layers.Layer):
    """Scores by a learned bilinear form: `q W k`.

    Call arguments:
        query: `(B, T, Q)`.
        keys: What `project_memory` returned, `(B, S, Q)`.

    Returns:
        Attention scores, `(B, T, S)`.

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
        """Returns the keys of `memory`, `(B, S, Q)`."""
        return self.memory_projection(memory)

    def call(self, query, keys):
        return ops.matmul(query, ops.transpose(keys, (0, 2, 1)))

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[1])


@keras.saving.register_keras_serializable("keras_seq2seq")
class AdditiveScore(keras.layers.Layer):
    """Scores by a small feed-forward network: `v · tanh(q W + k U)`.

    Args:
        units: Width of the hidden layer.

    Call arguments:
        query: `(B, T, Q)`.
        keys: What `project_memory` returned, `(B, S, units)`.

    Returns:
        Attention scores, `(B, T, S)`.

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
        """Returns the keys of `memory`, `(B, S, units)`."""
        return self.memory_projection(memory)

    def call(self, query, keys):
        # Products of two matrices only: a tensordot over more axes is what XLA
        # cannot differentiate inside the decoder's loop.
        batch, length = ops.shape(query)[0], ops.shape(query)[1]
        query = self.query_projection(ops.reshape(query, (-1, query.shape[-1])))
        query = ops.reshape(query, (batch, length, 1, self.units))
        hidden = ops.tanh(query + ops.expand_dims(keys, 1))  # (B, T, S, units)
        return ops.sum(hidden * self.vector, axis=-1)  # (B, T, S)

    def compute_output_shape(self, query_shape, keys_shape):
        return (*query_shape[:-1], keys_shape[1])

    def get_config(self):
        return {**super().get_config(), "units": self.units}
