"""Buffers that a loop fills, one position a step, as each runtime does it best."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

_fills = contextvars.ContextVar("fills", default="blend")


@contextlib.contextmanager
def filled_by(way: str) -> Iterator[None]:
    """Sets how buffers are filled in what is traced on TensorFlow meanwhile.

    Elsewhere they are of fixed length and written by `ops.slice_update`.

    Args:
        way: `"slice"`: fixed length, by `ops.slice_update`, for XLA and LiteRT.
            `"grow"`: caches grow by concatenation, which a plain graph copies in
            half the time and never reads past the end, in loops whose number of
            rows is not fixed. `"blend"`, the default: fixed length, rewritten each
            step; anywhere.

    Yields:
        Nothing.

    Raises:
        ValueError: If there is no such way.
    """
    if way not in ("slice", "grow", "blend"):
        raise ValueError(
            f'`way` must be "slice", "grow" or "blend". Received: way={way!r}.'
        )
    token = _fills.set(way)
    try:
        yield
    finally:
        _fills.reset(token)


def _way() -> str:
    """How buffers are filled here."""
    # On TensorFlow slice_update is an XLA operation: outside compiled functions it
    # compiles anew for each shape, and stock TF Serving refuses it.
    return _fills.get() if keras.backend.backend() == "tensorflow" else "slice"


def write_at(buffer: Any, index: Any, values: Any, *, axis: int) -> Any:
    """Returns `buffer` with `values` as block `index` of one axis.

    Args:
        buffer: Tensor of any rank, whole blocks along the axis.
        index: Scalar int32, the block; one outside the buffer writes nothing, or is
            moved to the nearest end, as the runtime does it.
        values: Tensor of the buffer's dtype and shape, but one block long along
            `axis`: mostly one position.
        axis: The axis.

    Returns:
        A tensor like `buffer`.
    """
    size = ops.shape(values)[axis]
    if _way() == "slice":
        start = [0] * len(buffer.shape)
        start[axis] = index * size
        return ops.slice_update(buffer, start, values)
    shape = ops.shape(buffer)
    num_blocks = shape[axis] // size
    places = [1] * (len(shape) + 1)
    places[axis] = -1
    positions = ops.reshape(ops.arange(num_blocks), places)
    blocks = ops.reshape(buffer, (*shape[:axis], num_blocks, size, *shape[axis + 1 :]))
    blocks = ops.where(positions == index, ops.expand_dims(values, axis), blocks)
    return ops.reshape(blocks, shape)


def empty_cache(
    shape: tuple, *, axis: int, dtype: str, window: int | None = None
) -> Any:
    """Returns a cache for `append`: zeros, or nothing where caches grow.

    Args:
        shape: Its full shape, the number of rows first.
        axis: The axis of its positions.
        dtype: Its dtype.
        window: How many positions it keeps, the newest; None for all.
    """
    if window is not None:
        shape = (*shape[:axis], min(shape[axis], window), *shape[axis + 1 :])
    elif _way() == "grow":
        # A loop wants to see that this axis has no fixed length: nothing of the
        # unknown number of rows.
        shape = (*shape[:axis], shape[0] * 0, *shape[axis + 1 :])
    return ops.zeros(shape, dtype=dtype)


def grows() -> bool:
    """Whether caches hold no more than what was appended."""
    return _way() == "grow"


def slices() -> bool:
    """Whether loops must do with buffers of fixed length, as XLA and LiteRT want it.

    On TensorFlow only: elsewhere every loop does.
    """
    return keras.backend.backend() == "tensorflow" and _way() == "slice"


def append(
    cache: Any, index: Any, values: Any, *, axis: int, window: int | None = None
) -> Any:
    """Returns a cache with one more position.

    Args:
        cache: What `empty_cache` or this function returned.
        index: Scalar int32, the number of positions before.
        values: Of the cache's dtype and shape, but one position along `axis`, which
            is more than one entry where hypotheses share the cache.
        axis: The axis of its positions.
        window: As in `empty_cache`: the newest position replaces the oldest of a ring.
    """
    if window is not None:
        index = index % (cache.shape[axis] // values.shape[axis])
    elif _way() == "grow":
        return ops.concatenate([cache, values], axis=axis)
    return write_at(cache, index, values, axis=axis)
