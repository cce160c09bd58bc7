"""Picking by number, in one operation.

Keras's `take` allows negative numbers and its `take_along_axis` broadcasts, for which
TensorFlow runs five and some thirty operations, and copies what is picked from. In a
search those come at every step.
"""

from typing import Any

import keras
from keras import ops


def take_rows(x: Any, rows: Any, *, axis: int = 0) -> Any:
    """Returns the entries `rows` of one axis.

    Args:
        x: Tensor.
        rows: int32 of any shape, none negative and none too large.
        axis: The axis.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, rows, axis=axis)
    return ops.take(x, rows, axis=axis)


def take_by_row(x: Any, columns: Any) -> Any:
    """Returns entries of each row, its own ones.

    Args:
        x: `(R, C, …)`.
        columns: int32 `(R, K)`, none negative and none too large.

    Returns:
        `(R, K, …)`.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, columns, axis=1, batch_dims=1)
    places = (*ops.shape(columns), *[1] * (len(x.shape) - 2))
    return ops.take_along_axis(x, ops.reshape(columns, places), axis=1)


def take_last(x: Any, ids: Any) -> Any:
    """Returns one number of each vector.

    Args:
        x: `(…, V)`.
        ids: int32 `(…)`, none negative and none too large.

    Returns:
        `(…)`.
    """
    vectors = ops.reshape(x, (-1, x.shape[-1]))
    found = take_by_row(vectors, ops.reshape(ids, (-1, 1)))
    return ops.reshape(found, ops.shape(ids))
