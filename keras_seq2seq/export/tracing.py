"""Traces code written in `keras.ops` into graphs that a stock server can run."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras import ops


@contextlib.contextmanager
def without_xla() -> Iterator[None]:
    """Replaces, while graphs are traced, the operation of Keras that needs XLA.

    On TensorFlow `keras.ops.slice_update` is `XlaDynamicUpdateSlice`. Outside compiled
    functions that is compiled when it is first run and for every new shape, which
    takes a tenth of a second each time, and the stock TF Serving binary, where
    compilation is off, refuses it.
    """
    original = ops.slice_update
    ops.slice_update = _slice_update
    try:
        yield
    finally:
        ops.slice_update = original


def _slice_update(inputs: Any, start_indices: Sequence[Any], updates: Any) -> tf.Tensor:
    """`keras.ops.slice_update` along one axis, in core operations.

    Along the other axes the update covers everything: `Concat` refuses what does not.
    """
    axes = [
        axis
        for axis, start in enumerate(start_indices)
        if not (isinstance(start, int) and start == 0)
    ]
    if len(axes) != 1:
        raise ValueError(
            "`start_indices` must be 0 but for one axis where a graph is exported. "
            f"Received: {tuple(start_indices)}."
        )
    (axis,) = axes
    inputs = tf.convert_to_tensor(inputs)
    updates = tf.convert_to_tensor(updates, inputs.dtype)
    length, width = tf.shape(inputs)[axis], tf.shape(updates)[axis]
    # The last start where the update still fits, as in the original.
    start = tf.clip_by_value(start_indices[axis], 0, length - width)
    before, _, after = tf.split(inputs, [start, width, length - start - width], axis)
    result = tf.concat([before, updates, after], axis)
    return tf.ensure_shape(result, inputs.shape)
