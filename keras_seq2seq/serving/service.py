"""Answers requests, whatever protocol they came by."""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from keras_seq2seq.serving.errors import RequestError, invalid
from keras_seq2seq.serving.limits import Limits
from keras_seq2seq.serving.loaded import LoadedVersion
from keras_seq2seq.serving.signatures import (
    DEFAULT_SIGNATURE,
    check_inputs,
    check_outputs,
    find_signature,
)
from keras_seq2seq.serving.versions import ServedModel


class Service:
    """One model with its limits.

    Args:
        model: The model.
        limits: What requests may ask.
    """

    def __init__(self, model: ServedModel, limits: Limits) -> None:
        self.model = model
        self.limits = limits
        self._changed = threading.Condition()
        self._waiting = 0
        self._stopping = False

    @contextmanager
    def admitted(self) -> Iterator[float]:
        """Counts a request while it is answered.

        Yields:
            Time of `time.monotonic` at which its answer is due.

        Raises:
            RequestError: If too many are being answered, or none will be any more.
        """
        with self._changed:
            if self._stopping:
                raise RequestError("UNAVAILABLE", "The server is stopping.")
            if self._waiting >= self.limits.max_waiting:
                raise RequestError(
                    "RESOURCE_EXHAUSTED",
                    f"`max_waiting` = {self.limits.max_waiting} requests are being "
                    "answered or wait for it. Try again later.",
                )
            self._waiting += 1
        try:
            yield time.monotonic() + self.limits.timeout_seconds
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def submit(
        self,
        version: LoadedVersion,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        *,
        outputs: tuple[str, ...] = (),
        deadline: float,
    ) -> Future:
        """Checks a request and puts it where it will run.

        Args:
            version: The version that it means.
            signature_name: Name of the signature; empty for the default.
            inputs: Tensors by name.
            outputs: Names of outputs; none for all.
            deadline: Time of `time.monotonic` at which the answer is due.

        Returns:
            The outputs by name, once they are there.

        Raises:
            RequestError: If the request is wrong, too large, or one too many.
        """
        name, signature = find_signature(version.signatures, signature_name)
        check_inputs(signature, inputs)
        self.limits.check_inputs(inputs)
        wanted = check_outputs(signature, outputs)
        return version.submit(name, inputs, wanted, deadline)

    def stop(self, timeout: float | None = None) -> bool:
        """Refuses new requests, and waits for those that are being answered.

        Args:
            timeout: Most seconds to wait; None for as long as they take.

        Returns:
            Whether all were answered.
        """
        with self._changed:
            self._stopping = True
            return self._changed.wait_for(lambda: self._waiting == 0, timeout)


def result_of(future: Future, deadline: float) -> dict[str, np.ndarray]:
    """Waits for an answer until it is due.

    Args:
        future: What `submit` returned.
        deadline: Time of `time.monotonic` at which it is due.

    Raises:
        RequestError: If it comes too late, or there is an error in its place.
    """
    try:
        return future.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError as error:
        future.cancel()
        raise too_late() from error


def too_late() -> RequestError:
    """The error of a request that took too long."""
    return RequestError(
        "DEADLINE_EXCEEDED",
        "The answer took longer than `timeout_seconds`. Send fewer or shorter rows.",
    )


def refuse_method(version: LoadedVersion, method: str, signature_name: str) -> None:
    """Answers `classify` and `regress`, which need signatures of another kind.

    Args:
        version: The version that the request means.
        method: `classify` or `regress`.
        signature_name: Name of the signature; empty for the default.

    Raises:
        RequestError: Always.
    """
    name = signature_name or DEFAULT_SIGNATURE
    if name not in version.signatures:
        raise invalid(f"No signature was found with the name: {name}")
    kind = {"classify": "classification", "regress": "regression"}[method]
    raise invalid(
        f"Expected {kind} signature method_name to be tensorflow/serving/{method}. "
        f"Was: {version.signatures[name].method_name}"
    )


def metadata_of(version: LoadedVersion, name: str) -> dict[str, Any]:
    """What REST answers of a version's signatures.

    Args:
        version: The version.
        name: Name of the model.
    """
    from google.protobuf import json_format

    signatures = {
        key: json_format.MessageToDict(
            definition,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        for key, definition in sorted(version.definitions.items())
    }
    spec = {"name": name, "signature_name": "", "version": str(version.version)}
    return {
        "model_spec": spec,
        "metadata": {"signature_def": {"signature_def": signatures}},
    }
