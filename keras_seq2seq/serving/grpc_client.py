"""How a client speaks gRPC; imports TensorFlow, which the protocol is made of."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_seq2seq.serving.errors import RequestError
from keras_seq2seq.serving.server import check_installed


class GrpcConnection:
    """Speaks gRPC, over one channel that all threads share.

    Args:
        target: `host:port`.
        model: Name of the model.
        version: Number of a version; None for the newest.
        timeout: Most seconds to wait.

    Raises:
        ImportError: If gRPC is not installed.
    """

    def __init__(
        self, target: str, model: str, version: int | None, timeout: float
    ) -> None:
        check_installed(grpc=True)
        import grpc
        from tensorflow_serving.apis import (
            model_service_pb2_grpc,
            prediction_service_pb2_grpc,
        )

        self._target, self._model, self._version = target, model, version
        self._timeout = timeout
        self._channel = grpc.insecure_channel(
            target,
            options=[
                # A reply with attention weights can be larger than the 4 MB usual.
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(
            self._channel
        )
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._lock = threading.Lock()
        self._signatures: dict[str, Any] = {}

    def predict(self, inputs: Mapping[str, Any], signature_name: str) -> dict[str, Any]:
        """Asks for the outputs of a signature."""
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        self._fill_spec(request.model_spec)
        request.model_spec.signature_name = signature_name
        types = self._input_types(signature_name)
        for name, value in inputs.items():
            # What the server does not know it shall refuse itself.
            dtype = types.get(name)
            if dtype == "string":
                value = np.asarray(value, object)
            try:
                tensor = tf.make_tensor_proto(value, dtype and tf.as_dtype(dtype))
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"`{name}` must be a box of {dtype or 'one type'}. Received: "
                    f"{value!r:.200}."
                ) from error
            request.inputs[name].CopyFrom(tensor)
        reply = self._ask(self._predictions.Predict, request)
        return {
            name: _values(name, tf.make_ndarray(tensor))
            for name, tensor in reply.outputs.items()
        }

    def status(self) -> list[dict[str, Any]]:
        """Asks for the state of the versions."""
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest()
        self._fill_spec(request.model_spec)
        reply = self._ask(self._models.GetModelStatus, request)
        found = []
        for entry in reply.model_version_status:
            field = entry.status.DESCRIPTOR.fields_by_name["error_code"]
            code = field.enum_type.values_by_number[entry.status.error_code].name
            found.append(
                {
                    "version": entry.version,
                    "state": entry.State.Name(entry.state),
                    "error_code": code,
                    "error_message": entry.status.error_message,
                }
            )
        return found

    def metadata(self) -> dict[str, Any]:
        """Asks for the signatures."""
        version, definitions = self._definitions()
        return {
            "version": version,
            "signatures": {
                name: {
                    side: {
                        key: _tensor(value)
                        for key, value in getattr(definition, side).items()
                    }
                    for side in ("inputs", "outputs")
                }
                for name, definition in definitions.items()
                if not name.startswith("__saved_model")
            },
        }

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _definitions(self) -> tuple[int, dict[str, Any]]:
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest()
        self._fill_spec(request.model_spec)
        request.metadata_field.append("signature_def")
        reply = self._ask(self._predictions.GetModelMetadata, request)
        found = get_model_metadata_pb2.SignatureDefMap()
        reply.metadata["signature_def"].Unpack(found)
        return reply.model_spec.version.value, dict(found.signature_def)

    def _input_types(self, signature_name: str) -> dict[str, str]:
        """TensorFlow's types of a signature's inputs, asked for once."""
        with self._lock:
            if signature_name not in self._signatures:
                self._signatures = self.metadata()["signatures"]
            inputs = self._signatures.get(signature_name, {"inputs": {}})["inputs"]
        return {name: tensor["dtype"] for name, tensor in inputs.items()}

    def _fill_spec(self, spec: Any) -> None:
        spec.name = self._model
        if self._version is not None:
            spec.version.value = self._version

    def _ask(self, method: Any, request: Any) -> Any:
        import grpc

        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or ""
            message = f"grpc://{self._target}: {details} ({code})"
            if code == "DEADLINE_EXCEEDED":
                raise TimeoutError(message) from error
            if code == "UNAVAILABLE" and "connect" in details.lower():
                raise ConnectionError(message) from error
            raise RequestError(code, message) from error


def _values(name: str, array: np.ndarray) -> Any:
    """An output as nested lists, strings as REST gives them."""
    if array.dtype != object or name.endswith("_bytes"):
        return array.tolist()
    decoded = np.empty(array.shape, object)
    for place, text in np.ndenumerate(array):
        decoded[place] = text.decode("utf-8", errors="replace")
    return decoded.tolist()


def _tensor(info: Any) -> dict[str, Any]:
    """Type and shape of a tensor as metadata tell them, as `client` gives them."""
    import tensorflow as tf

    shape = info.tensor_shape
    dtype = tf.as_dtype(info.dtype).name
    return {
        "dtype": {"float32": "float", "float64": "double"}.get(dtype, dtype),
        "shape": None if shape.unknown_rank else [dim.size for dim in shape.dim],
    }
