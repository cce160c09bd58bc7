"""What TF Serving reads beside the graph: warm-up requests and its configuration."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_seq2seq.export.text_signatures import DEFAULT, DEFAULT_IS, SIGNATURES
from keras_seq2seq.tokenizers import END_ID, TokenizerPair

#: Where a server looks for them in a version folder.
WARMUP = "assets.extra/tf_serving_warmup_requests"
# Tokens of the sources of the warm-up.
_WARMUP_LENGTHS = (4, 20)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32)
_DRAWING = {"seed": 1, "temperature": 1.0, "top_k": 10, "top_p": 0.9}


def write_warmup(folder: Path, tokenizers: TokenizerPair, names: list[str]) -> int:
    """Writes requests that a server replays before it offers a version.

    Without them the first requests of each signature wait for the graph to be
    prepared. They are protocol buffers of TF Serving: nothing is written where the
    package `tensorflow-serving-api` is not installed.

    Args:
        folder: The version folder.
        tokenizers: The tokenizers of the model.
        names: The signatures.

    Returns:
        How many requests were written.
    """
    if importlib.util.find_spec("tensorflow_serving") is None:
        return 0
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    requests = warmup_inputs(tokenizers, names)
    file = folder / WARMUP
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file)) as writer:
        for name, inputs in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = name
            for key, value in inputs.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictLog(request=request)
            record = prediction_log_pb2.PredictionLog(predict_log=log)
            writer.write(record.SerializeToString())
    return len(requests)


def read_warmup(file: Path) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Reads the requests of a warm-up file.

    Args:
        file: What `write_warmup` wrote.

    Returns:
        For each request the signature's name and its inputs.

    Raises:
        ImportError: If `tensorflow-serving-api` is not installed.
    """
    from tensorflow_serving.apis import prediction_log_pb2

    found = []
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(
            record
        ).predict_log.request
        inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        found.append((request.model_spec.signature_name, inputs))
    return found


def warmup_inputs(
    tokenizers: TokenizerPair, names: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Makes a few requests for each signature.

    Args:
        tokenizers: The tokenizers of the model.
        names: The signatures.

    Returns:
        For each request the signature's name and its inputs, arrays of one row.
    """
    requests = []
    for name in names:
        inputs, _ = SIGNATURES[DEFAULT_IS if name == DEFAULT else name]
        for length in _WARMUP_LENGTHS:
            ids = np.arange(4, 4 + length) % tokenizers.source.vocabulary_size
            ids = np.append(np.maximum(ids, 4), END_ID).astype("int32")
            values: dict[str, Any] = {
                "source": _bytes(tokenizers.source.decode(ids.tolist())),
                "target": _bytes(tokenizers.target.decode([4, 5])),
                "ids": ids,
                "lengths": np.int32(len(ids)),
                **_DRAWING,
            }
            requests.append(
                (
                    name,
                    {
                        key: np.asarray([values[key]], _numpy_type(kind))
                        for key, (_, kind) in inputs.items()
                    },
                )
            )
    return requests


def _bytes(text: str) -> bytes:
    return text.encode("utf-8")


def _numpy_type(kind: str) -> Any:
    return object if kind == "string" else kind


def write_server_files(path: Path, name: str) -> None:
    """Writes the configuration for TF Serving beside the versions, where none is.

    Args:
        path: The model's folder, whose subfolders are versions.
        name: What clients call the model.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name) or "model"
    place = f"/models/{name}"
    sizes = "\n".join(f"allowed_batch_sizes: {size}" for size in _BATCH_SIZES)
    contents = {
        "models.config": f"""\
model_config_list {{
  config {{
    name: "{name}"
    base_path: "{place}"
    model_platform: "tensorflow"
  }}
}}
""",
        "batching.config": f"""\
max_batch_size {{ value: {_BATCH_SIZES[-1]} }}
batch_timeout_micros {{ value: 5000 }}
max_enqueued_batches {{ value: 100 }}
{sizes}
pad_variable_length_inputs: true
""",
        "serve.sh": f"""\
#!/bin/sh
# Serves this folder with TF Serving: gRPC on port 8500, REST on port 8501.
cd "$(dirname "$0")" || exit 1
exec docker run --rm -p 8500:8500 -p 8501:8501 -v "$PWD:{place}:ro" \\
  tensorflow/serving --model_config_file={place}/models.config \\
  --enable_batching --batching_parameters_file={place}/batching.config "$@"
""",
    }
    for file, content in contents.items():
        if not (path / file).exists():
            (path / file).write_text(content, encoding="utf-8")
            if file.endswith(".sh"):
                (path / file).chmod(0o755)
