"""One version of a model, run through the loader that TF Serving uses.

A SavedModel is a program. Its graph is read as data first, and loaded only if all its
operations are on the lists of `export.operations`.
"""

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from keras_seq2seq.serving.batching import Batcher, BatchingOptions
from keras_seq2seq.serving.errors import RequestError, invalid
from keras_seq2seq.serving.signatures import Signature, Tensor
from keras_seq2seq.serving.warmup import warmup_requests

_SHOWN = 5
_WARMUP_SECONDS = 600


def check_operations(folder: Path) -> None:
    """Reads a graph as data and refuses operations that are not allowed.

    Args:
        folder: The version folder.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ValueError: If it is damaged, or has an operation that is on no list.
    """
    from keras_seq2seq.export import operations

    graph = operations.Graph(folder)
    allowed = operations.CORE_OPERATIONS | operations.TEXT_OPERATIONS
    allowed |= operations.XLA_OPERATIONS
    wrong = graph.operations() - allowed - operations.SAVER_OPERATIONS
    wrong |= graph.initializer_operations() - allowed
    for name in graph.signatures:
        wrong |= graph.signature_operations(name) - allowed
    if wrong:
        names = ", ".join(sorted(wrong)[:_SHOWN])
        raise ValueError(
            "A SavedModel must have operations of the export's lists only; it is a "
            f"program, and others may read or write files. Received: {names} in "
            f"{folder}."
        )


class LoadedVersion:
    """A SavedModel in a session of its own.

    Args:
        folder: The version folder.
        version: Its number.
        batching: How requests are merged; None to run each alone.
        warmup: Whether to replay its warm-up requests, if it has any.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ValueError: If it may not be loaded, or can not.
    """

    def __init__(
        self,
        folder: Path,
        version: int,
        batching: BatchingOptions | None,
        *,
        warmup: bool,
    ) -> None:
        check_operations(folder)
        import tensorflow as tf

        # Registers the SentencePiece operations, as the stock server does.
        import tensorflow_text  # noqa: F401

        self.folder = folder
        self.version = version
        graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=graph)
        try:
            with graph.as_default():
                loaded = tf.compat.v1.saved_model.load(
                    self._session, ["serve"], str(folder)
                )
        except (tf.errors.OpError, OSError, ValueError, KeyError) as error:
            self._session.close()
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{folder} can not be loaded: {first}") from error
        # With those of the loader itself, which metadata shows as well.
        self.definitions: Mapping[str, Any] = dict(loaded.signature_def)
        self.signatures = {
            name: Signature(
                _tensors(definition.inputs),
                _tensors(definition.outputs),
                definition.method_name,
            )
            for name, definition in sorted(self.definitions.items())
            if not name.startswith("__saved_model")
        }
        if warmup:
            self._warm_up()
        self._idle = threading.Condition()
        self._leases = 0
        self._batcher = None if batching is None else Batcher(self._run, batching)
        self._alone = ThreadPoolExecutor(2 * (os.cpu_count() or 1), "session")

    def acquire(self) -> None:
        """Keeps the version loaded until `release`."""
        with self._idle:
            self._leases += 1

    def release(self) -> None:
        """Ends what `acquire` began."""
        with self._idle:
            self._leases -= 1
            self._idle.notify_all()

    def submit(
        self,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        outputs: tuple[str, ...],
        deadline: float,
    ) -> Future:
        """Runs a signature, alone or with others that wait for the same.

        Args:
            signature_name: A key of `signatures`.
            inputs: Tensors by name, as `check_inputs` wants them.
            outputs: Names of the outputs to compute.
            deadline: Time of `time.monotonic` until which the answer is of use.

        Returns:
            The outputs by name, once they are there.

        Raises:
            RequestError: If too many requests wait, or this one can not be merged.
        """
        key = (signature_name, outputs)
        if self._batcher is not None:
            return self._batcher.submit(key, inputs, deadline)
        return self._alone.submit(self._run, key, inputs, deadline)

    def close(self) -> None:
        """Answers what was submitted, then gives the session's memory back."""
        with self._idle:
            self._idle.wait_for(lambda: self._leases == 0)
        if self._batcher is not None:
            self._batcher.close()
        self._alone.shutdown(wait=True)
        self._session.close()

    def _warm_up(self) -> None:
        """Replays the warm-up requests; an error in one fails the version."""
        for name, inputs in warmup_requests(self.folder, self.signatures):
            outputs = tuple(self.signatures[name].outputs)
            due = time.monotonic() + _WARMUP_SECONDS
            self._run((name, outputs), inputs, due)

    def _run(
        self,
        key: tuple[str, tuple[str, ...]],
        inputs: Mapping[str, np.ndarray],
        deadline: float,
    ) -> dict[str, np.ndarray]:
        import tensorflow as tf

        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise RequestError(
                "DEADLINE_EXCEEDED", "The time of the request was over before it ran."
            )
        name, outputs = key
        definition = self.definitions[name]
        options = tf.compat.v1.RunOptions(timeout_in_ms=max(1, int(1000 * remaining)))
        try:
            found = self._session.run(
                {output: definition.outputs[output].name for output in outputs},
                {definition.inputs[key].name: value for key, value in inputs.items()},
                options=options,
            )
        except tf.errors.OpError as error:
            # Further lines tell where the exporting program made the operation.
            first = (error.message.splitlines() or ["no message"])[0]
            raise RequestError(code_name(error.error_code), first) from error
        except (ValueError, TypeError) as error:
            raise invalid(str(error).splitlines()[0]) from error
        return {output: np.asarray(value) for output, value in found.items()}


def code_name(number: int) -> str:
    """GRPC's name of a code that TensorFlow gives.

    Args:
        number: The code.
    """
    from tensorflow.errors import error_codes

    return error_codes.Code.Name(number)


def _tensors(infos: Mapping[str, Any]) -> dict[str, Tensor]:
    import tensorflow as tf

    found = {}
    for name, info in sorted(infos.items()):
        shape = info.tensor_shape
        sizes = None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
        dtype = {"float32": "float", "float64": "double"}.get(
            kind := tf.as_dtype(info.dtype).name, kind
        )
        found[name] = Tensor(dtype, sizes)
    return found
