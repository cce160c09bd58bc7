"""Batches for inference: texts of similar length, padded to few shapes.

Training batches are `datasets.PairDataset`; these here serve any list of texts, one
call at a time, and keep no state. A compiled decoder meets a handful of shapes.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")

# Batches that are decoded side by side.
_MOST_AT_ONCE = 8


class Batch(NamedTuple):
    """Which rows form a batch, and the shape that they are padded to.

    Args:
        rows: Indices into the list of lengths.
        height: Number of rows with filling; at least `len(rows)`.
        width: Number of positions; at least the longest length.
    """

    rows: list[int]
    height: int
    width: int


def inference_batches(
    lengths: Sequence[int],
    *,
    batch_tokens: int,
    max_width: int | None = None,
    exact: bool = False,
) -> Iterator[Batch]:
    """Group rows by length, the longest first, so that memory is tried at once.

    Args:
        lengths: Number of tokens of each row.
        batch_tokens: Most positions of a batch, padding included; a single row may
            have more.
        max_width: What widths are never rounded up beyond; no length is longer.
        exact: Whether batches are no higher and no wider than their rows, for programs
            that are not compiled for each shape.

    Yields:
        Batches that together have every row once. Heights are powers of two, and
        widths rounded up, unless `exact`. No row is padded beyond the double of its own
        rounded length, so that one long text does not make the short ones beside it
        long.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(order):
        width = round_up(lengths[order[start]], most=max_width)
        height = 2 ** int(math.log2(max(1, batch_tokens // width)))
        rows = [
            row
            for row in order[start : start + height]
            if 2 * round_up(lengths[row], most=max_width) > width
        ]
        if exact:
            yield Batch(rows, len(rows), lengths[rows[0]])
        else:
            height = min(height, 2 ** math.ceil(math.log2(len(rows))))
            yield Batch(rows, height, width)
        start += len(rows)


def threads_for_files() -> int:
    """How many threads TensorFlow should give an operation where files are decoded.

    Threads that wait for each other at every small operation do less than batches of
    one thread each, side by side; but more than eight batches take too much memory.
    It is what `TF_NUM_INTRAOP_THREADS` must be before TensorFlow starts.
    """
    return max(1, num_cores() // _MOST_AT_ONCE)


def _batches_at_once() -> int:
    """As many as the cores allow for the threads that each operation has.

    At least two, since a search has stretches that keep only one core busy.
    """
    threads = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    at_once = num_cores() // int(threads) if threads.isdecimal() and int(threads) else 1
    return min(max(at_once, 2), _MOST_AT_ONCE)


def num_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def side_by_side(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    count: int | None = None,
) -> Iterator[tuple[Item, Result]]:
    """Apply a function to items, a few of them at once, and yield in order.

    Args:
        function: What is done with each item, in a thread.
        items: The items; as many more as are worked on wait in line, so that a thread
            finds its next one whatever the first one still takes.
        count: How many at once; None for what TensorFlow's threads and the cores allow.

    Yields:
        Each item and what the function returned.
    """
    count = _batches_at_once() if count is None else count
    with ThreadPoolExecutor(count) as pool:
        begun: deque = deque()
        try:
            for item in items:
                begun.append((item, pool.submit(function, item)))
                if len(begun) == 2 * count:
                    first, result = begun.popleft()
                    yield first, result.result()
            while begun:
                first, result = begun.popleft()
                yield first, result.result()
        finally:
            for _, result in begun:
                result.cancel()


def round_up(length: int, *, most: int | None = None) -> int:
    """Round a length up to one of few values: 8, 12, 16, 24, 32, 48 and so on.

    Args:
        length: The length.
        most: Limit of the result; not below `length`.

    Returns:
        A power of two, or one and a half times one, or `most`.
    """
    size = 8
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size if most is None else min(size, most)


def pad_rows(
    rows: Sequence[Sequence[int]], height: int, width: int, *, pad_id: int = 0
) -> np.ndarray:
    """Return ids as one array.

    Args:
        rows: Token ids, at most `height` rows of at most `width`.
        height: Rows of the result.
        width: Positions of the result.
        pad_id: What fills it up.

    Returns:
        int32, `(height, width)`.
    """
    padded = np.full((height, width), pad_id, dtype="int32")
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
