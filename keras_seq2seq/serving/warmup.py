"""Replays the warm-up requests of a version before it is offered, as TF Serving does.

The first request to a signature takes seconds, which no client should wait for.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_seq2seq.serving.limits import Limits
from keras_seq2seq.serving.signatures import (
    Signature,
    check_inputs,
    find_signature,
)
from keras_seq2seq.serving.tensor_messages import read_inputs

WARMUP = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_RECORDS = 1000


def warmup_requests(
    folder: Path, signatures: Mapping[str, Signature]
) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Reads the warm-up requests of a version.

    Args:
        folder: The version folder.
        signatures: What the version offers.

    Returns:
        For each request the signature's name and its inputs; none where there is no
        file, or `tensorflow-serving-api` is not installed.

    Raises:
        ValueError: If a record is damaged, of another kind, or does not fit, or there
            are too many.
    """
    file = folder / WARMUP
    if not file.is_file() or importlib.util.find_spec("tensorflow_serving") is None:
        return []
    import tensorflow as tf

    found: list[tuple[str, dict[str, np.ndarray]]] = []
    try:
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            if len(found) == MAX_RECORDS:
                raise ValueError(
                    f"{file} must have at most {MAX_RECORDS} requests. Received: more."
                )
            found.append(_request(record, file, signatures))
    except tf.errors.OpError as error:
        raise ValueError(f"{file} is damaged: {error.message}") from error
    return found


def _request(
    record: bytes, file: Path, signatures: Mapping[str, Signature]
) -> tuple[str, dict[str, np.ndarray]]:
    from google.protobuf.message import DecodeError
    from tensorflow_serving.apis import prediction_log_pb2

    log: Any = prediction_log_pb2.PredictionLog()
    try:
        log.ParseFromString(record)
    except DecodeError as error:
        raise ValueError(f"{file} has a record that is no PredictionLog.") from error
    if log.WhichOneof("log_type") != "predict_log":
        raise ValueError(
            f"{file} must have requests to predict. Received: "
            f"{log.WhichOneof('log_type')}."
        )
    request = log.predict_log.request
    name, signature = find_signature(signatures, request.model_spec.signature_name)
    inputs = read_inputs(request.inputs, signature, Limits())
    check_inputs(signature, inputs)
    return name, inputs
