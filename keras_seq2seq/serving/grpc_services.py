"""The gRPC interface of TF Serving: predictions, metadata and status."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from keras_seq2seq.serving.errors import RequestError, invalid
from keras_seq2seq.serving.service import Service, refuse_method, result_of
from keras_seq2seq.serving.signatures import find_signature
from keras_seq2seq.serving.tensor_messages import fill, read_inputs

_NO_LIMIT = -1


def start_grpc(service: Service, address: str) -> tuple[grpc.Server, int]:
    """Starts a server of both services.

    Args:
        service: What answers.
        address: `host:port`; port 0 for any that is free.

    Returns:
        The server, and its port.

    Raises:
        ValueError: If the port is not free.
    """
    limits = service.limits
    server = grpc.server(
        # Each waits for its answer; one more tells that there are too many.
        ThreadPoolExecutor(limits.max_waiting + 1, "grpc"),
        options=[
            ("grpc.max_receive_message_length", limits.max_body_bytes),
            ("grpc.max_send_message_length", _NO_LIMIT),
            ("grpc.so_reuseport", 0),
        ],
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(service), server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        _ModelService(service), server
    )
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise ValueError(
            f"`grpc_port` must be a free port of this machine. Received: {address}."
        )
    server.start()
    return server, port


@contextmanager
def _told(context: grpc.ServicerContext):
    """Turns errors into those of gRPC."""
    try:
        yield
    except RequestError as error:
        code = getattr(grpc.StatusCode, error.code, grpc.StatusCode.UNKNOWN)
        context.abort(code, error.message)


def _where(spec: Any) -> tuple[str, int | None, str | None]:
    """Name, version and label of a model."""
    version = spec.version.value if spec.HasField("version") else None
    return spec.name, version, spec.version_label or None


def _check_spec(request: Any) -> None:
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, service: Service) -> None:
        self._service = service

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802
        with _told(context), self._service.admitted() as due:
            _check_spec(request)
            if (remaining := context.time_remaining()) is not None:
                due = min(due, time.monotonic() + remaining)
            spec = request.model_spec
            with self._service.model.lease(*_where(spec)) as loaded:
                name, signature = find_signature(loaded.signatures, spec.signature_name)
                future = self._service.submit(
                    loaded,
                    name,
                    read_inputs(request.inputs, signature, self._service.limits),
                    outputs=tuple(request.output_filter),
                    deadline=due,
                )
                outputs = result_of(future, due)
                reply = predict_pb2.PredictResponse()
                reply.model_spec.name = spec.name
                reply.model_spec.signature_name = name
                reply.model_spec.version.value = loaded.version
                for key, value in outputs.items():
                    dtype = loaded.definitions[name].outputs[key].dtype
                    fill(reply.outputs[key], value, dtype)
                return reply

    def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        with _told(context):
            _check_spec(request)
            if not request.metadata_field:
                raise invalid(
                    "GetModelMetadataRequest must specify at least one metadata_field"
                )
            for field in request.metadata_field:
                if field != "signature_def":
                    raise invalid(f"Metadata field {field} is not supported")
            reply = get_model_metadata_pb2.GetModelMetadataResponse()
            with self._service.model.lease(*_where(request.model_spec)) as loaded:
                found = get_model_metadata_pb2.SignatureDefMap()
                for name, definition in loaded.definitions.items():
                    found.signature_def[name].CopyFrom(definition)
                reply.model_spec.name = request.model_spec.name
                reply.model_spec.version.value = loaded.version
                reply.metadata["signature_def"].Pack(found)
                return reply

    def Classify(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._refuse(request, "classify", context)
        return classification_pb2.ClassificationResponse()

    def Regress(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._refuse(request, "regress", context)
        return regression_pb2.RegressionResponse()

    def _refuse(self, request: Any, method: str, context: Any) -> None:
        with _told(context):
            _check_spec(request)
            with self._service.model.lease(*_where(request.model_spec)) as loaded:
                refuse_method(loaded, method, request.model_spec.signature_name)


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, service: Service) -> None:
        self._service = service

    def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        reply = get_model_status_pb2.GetModelStatusResponse()
        with _told(context):
            _check_spec(request)
            where = _where(request.model_spec)
            for found in self._service.model.statuses(*where):
                status = reply.model_version_status.add()
                status.version = found.version
                status.state = status.State.Value(found.state)
                codes = status.status.DESCRIPTOR.fields_by_name["error_code"].enum_type
                code = codes.values_by_name[found.error_code].number
                status.status.error_code = code
                status.status.error_message = found.error_message
        return reply
