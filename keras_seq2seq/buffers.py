"""Fixed-length buffers that a loop fills, one position a step."""

from typing import Any

import keras
from keras import ops


def write_at(buffer: Any, index: Any, values: Any, *, axis: int) -> Any:
    """Returns `buffer` with `values` at `index` of one axis.

    Args:
        buffer: Tensor of any rank.
        index: Scalar int32, the position; one outside the buffer writes nothing on
            TensorFlow and is moved to the nearest end on JAX.
        values: Tensor of the buffer's dtype and shape, but of length 1 along `axis`.
        axis: The axis.

    Returns:
        A tensor like `buffer`.
    """
    if keras.backend.backend() != "tensorflow":
        start = [0] * len(buffer.shape)
        start[axis] = index
        return ops.slice_update(buffer, start, values)
    # On TensorFlow slice_update is an XLA operation: outside compiled functions it
    # compiles anew for each shape, and stock TF Serving refuses it.
    shape = [1] * len(buffer.shape)
    shape[axis] = -1
    positions = ops.reshape(ops.arange(ops.shape(buffer)[axis]), shape)
    return ops.where(positions == index, values, buffer)
