"""Merging of requests that wait, as TF Serving does with `--enable_batching`.

Requests for the same outputs of one signature are put together along axis 0, run
once, and their rows handed back. Shorter tensors are filled up with their own first
element, if that is allowed, and a batch with copies of the first row of its last
request until it has an allowed size. A signature must therefore tell by other inputs
what is real, and no row may depend on another.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_seq2seq.serving.errors import RequestError, invalid

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class BatchingOptions:
    """How requests are merged; the names are TF Serving's.

    Args:
        max_batch_size: Most rows of a batch.
        batch_timeout_micros: How long a batch waits for more rows.
        max_enqueued_batches: Most batches that wait, for each signature.
        num_batch_threads: Batches that run at once.
        allowed_batch_sizes: Sizes that batches are filled up to, increasing, the last
            one `max_batch_size`; none for any size.
        pad_variable_length_inputs: Whether inputs of different widths may be merged.

    Raises:
        ValueError: If a number is out of range.
    """

    max_batch_size: int = 32
    batch_timeout_micros: int = 5000
    max_enqueued_batches: int = 16
    num_batch_threads: int = 1
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_enqueued_batches", "num_batch_threads"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` must be positive. Received: {getattr(self, name)}."
                )
        if self.batch_timeout_micros < 0:
            raise ValueError(
                "`batch_timeout_micros` must be 0 or more. Received: "
                f"{self.batch_timeout_micros}."
            )
        sizes = self.allowed_batch_sizes
        if sizes and (
            sizes[0] < 1
            or list(sizes) != sorted(set(sizes))
            or sizes[-1] != self.max_batch_size
        ):
            raise ValueError(
                "`allowed_batch_sizes` must increase and end with `max_batch_size`. "
                f"Received: {list(sizes)}, max_batch_size={self.max_batch_size}."
            )

    def filled_size(self, rows: int) -> int:
        """The rows that a batch is filled up to.

        Args:
            rows: Rows that it has.
        """
        return next((size for size in self.allowed_batch_sizes if size >= rows), rows)


def batch_rows(inputs: Arrays, options: BatchingOptions) -> int:
    """The rows that a request takes up in a batch.

    Args:
        inputs: Tensors by name.
        options: How requests are merged.

    Raises:
        RequestError: If the request can not be merged with others.
    """
    if any(not values.ndim for values in inputs.values()):
        raise invalid("Batching Run() input tensors must have at least one dimension")
    sizes = {len(values) for values in inputs.values()}
    if len(sizes) != 1:
        raise invalid("Batching Run() input tensors must have equal 0th-dimension size")
    (rows,) = sizes
    if rows > options.max_batch_size:
        raise invalid(
            f"Task size {rows} is larger than maximum input batch size "
            f"{options.max_batch_size}"
        )
    return rows


def merge(requests: Sequence[Arrays], options: BatchingOptions) -> dict[str, Any]:
    """Puts requests together along axis 0.

    Args:
        requests: Tensors by name, the same names in each.
        options: How requests are merged.

    Raises:
        RequestError: If their shapes differ where they may not.
    """
    rows = sum(len(next(iter(request.values()))) for request in requests)
    filler = options.filled_size(rows) - rows
    merged = {}
    for name in requests[0]:
        parts = [request[name] for request in requests]
        if options.pad_variable_length_inputs:
            parts = _padded(parts)
        elif any(part.shape[1:] != parts[0].shape[1:] for part in parts):
            raise RequestError(
                "FAILED_PRECONDITION",
                f"Tensors with name '{name}' from different tasks have different "
                "shapes and padding is turned off. Set pad_variable_length_inputs to "
                "true, or ensure that all tensors with the same name have equal "
                "dimensions starting with the first dim.",
            )
        merged[name] = np.concatenate([*parts, *[parts[-1][:1]] * filler])
    return merged


def _padded(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Tensors of the same widths, each filled up with its own first element."""
    if len({part.ndim for part in parts}) != 1:
        raise RequestError(
            "FAILED_PRECONDITION", "Tensors from different tasks have different ranks."
        )
    widths = [max(sizes) for sizes in zip(*(p.shape[1:] for p in parts), strict=True)]
    found = []
    for part in parts:
        if list(part.shape[1:]) == widths:
            found.append(part)
            continue
        if not part.size:
            raise invalid("Got empty tensor in batch of non-empty tensors.")
        padded = np.empty((len(part), *widths), part.dtype)
        padded.fill(part.flat[0])
        padded[tuple(slice(size) for size in part.shape)] = part
        found.append(padded)
    return found


def split(
    outputs: Arrays, sizes: Sequence[int], total: int
) -> list[dict[str, np.ndarray]]:
    """Hands the rows of a batch back to its requests.

    Args:
        outputs: The batch's outputs by name.
        sizes: Rows of each request.
        total: Rows of the batch, fillers included.

    Raises:
        RequestError: If an output has not a row for each row that was put in.
    """
    for value in outputs.values():
        if not np.ndim(value):
            raise RequestError(
                "FAILED_PRECONDITION", "Batched output tensor has 0 dimensions"
            )
        if len(value) != total:
            raise RequestError(
                "FAILED_PRECONDITION",
                "Batched output tensor's 0th dimension does not equal the sum of the "
                "0th dimension sizes of the input tensors",
            )
    ends = np.cumsum(sizes)
    return [
        {name: value[end - size : end] for name, value in outputs.items()}
        for size, end in zip(sizes, ends, strict=True)
    ]


@dataclass
class _Task:
    inputs: Arrays
    rows: int
    deadline: float
    future: Future


@dataclass
class _Batch:
    opened: float
    tasks: list[_Task] = field(default_factory=list)
    rows: int = 0


class Batcher:
    """Collects requests into batches and runs these on threads of its own.

    Args:
        run: Runs one batch: the key of its requests, merged inputs, and the time of
            `time.monotonic` at which nobody waits any more.
        options: How requests are merged.
    """

    def __init__(
        self,
        run: Callable[[Any, Arrays, float], Arrays],
        options: BatchingOptions,
    ) -> None:
        self._run = run
        self._options = options
        self._queues: dict[Hashable, deque[_Batch]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"batch-{number}", daemon=True)
            for number in range(options.num_batch_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, key: Hashable, inputs: Arrays, deadline: float) -> Future:
        """Adds a request to the last batch of its kind, or to a new one.

        Args:
            key: What requests must share to be merged.
            inputs: Tensors by name.
            deadline: Time of `time.monotonic` until which the answer is of use.

        Returns:
            The outputs, once they are there.

        Raises:
            RequestError: If the request can not be merged, or too many wait.
        """
        rows = batch_rows(inputs, self._options)
        task = _Task(inputs, rows, deadline, Future())
        with self._changed:
            if self._closing:
                raise RequestError("UNAVAILABLE", "This version is being unloaded.")
            queue = self._queues.setdefault(key, deque())
            if not queue or queue[-1].rows + rows > self._options.max_batch_size:
                if len(queue) >= self._options.max_enqueued_batches:
                    raise RequestError(
                        "UNAVAILABLE",
                        "The batch scheduling queue to which this task was submitted "
                        "is full",
                    )
                queue.append(_Batch(time.monotonic()))
            queue[-1].tasks.append(task)
            queue[-1].rows += rows
            self._changed.notify()
        return task.future

    def close(self) -> None:
        """Takes no more requests, and returns once all are answered."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                found = self._next()
                while found is None:
                    if self._closing and not any(self._queues.values()):
                        return
                    self._changed.wait(self._until_next())
                    found = self._next()
                # Another thread may take what else is ready.
                self._changed.notify()
            self._answer(*found)

    def _next(self) -> tuple[Hashable, _Batch] | None:
        """Takes the oldest batch that is full or has waited long enough."""
        now = time.monotonic()
        ready = [
            key
            for key, queue in self._queues.items()
            if queue
            and (
                len(queue) > 1
                or self._closing
                or queue[0].rows >= self._options.max_batch_size
                or self._closes(queue[0]) <= now
            )
        ]
        if not ready:
            return None
        key = min(ready, key=lambda key: self._queues[key][0].opened)
        return key, self._queues[key].popleft()

    def _closes(self, batch: _Batch) -> float:
        return batch.opened + self._options.batch_timeout_micros / 1e6

    def _until_next(self) -> float | None:
        """Seconds until a batch has waited long enough; None if there is none."""
        closing = [self._closes(queue[0]) for queue in self._queues.values() if queue]
        return max(0.0, min(closing) - time.monotonic()) if closing else None

    def _answer(self, key: Hashable, batch: _Batch) -> None:
        tasks = []
        for task in batch.tasks:
            if not task.future.set_running_or_notify_cancel():
                continue
            if task.deadline <= time.monotonic():
                task.future.set_exception(
                    RequestError(
                        "RESOURCE_EXHAUSTED",
                        "Run() timeout exceeded while waiting in batching queue",
                    )
                )
                continue
            tasks.append(task)
        if not tasks:
            return
        try:
            merged = merge([task.inputs for task in tasks], self._options)
            outputs = self._run(key, merged, max(task.deadline for task in tasks))
            sizes = [task.rows for task in tasks]
            total = self._options.filled_size(sum(sizes))
            answers = split(outputs, sizes, total)
        except Exception as error:
            for task in tasks:
                task.future.set_exception(error)
            return
        for task, answer in zip(tasks, answers, strict=True):
            task.future.set_result(answer)
