"""The gRPC interface, asked by the stubs of tensorflow-serving-api."""

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.serving.tiny import predict


@pytest.fixture
def channel(tiny_server):
    target = tiny_server.grpc_address.removeprefix("grpc://")
    with grpc.insecure_channel(target) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


def request(signature="", name="tiny", outputs=(), **inputs):
    found = predict_pb2.PredictRequest(output_filter=outputs)
    found.model_spec.name = name
    found.model_spec.signature_name = signature
    for key, value in inputs.items():
        found.inputs[key].CopyFrom(
            value if hasattr(value, "tensor_shape") else tf.make_tensor_proto(value)
        )
    return found


def test_answers_equal_those_of_rest(stub, tiny_server):
    reply = stub.Predict(request(source=["a", "bü"]), 20)
    found = {key: tf.make_ndarray(value) for key, value in reply.outputs.items()}
    _, rest = predict(tiny_server.port, {"inputs": ["a", "bü"]})
    assert [text.decode() for text in found["text"]] == rest["outputs"]["text"]
    assert found["score"].tolist() == rest["outputs"]["score"]
    spec = reply.model_spec
    assert (spec.name, spec.version.value) == ("tiny", 1)
    assert spec.signature_name == "serving_default"


def test_values_stand_where_tf_serving_writes_them(stub):
    outputs = stub.Predict(request(source=["a"]), 20).outputs
    assert list(outputs["text"].string_val) == [b"<a>v1"]
    assert list(outputs["score"].float_val) == [1.0]
    total = request("total", ids=[[4, 5]], lengths=[2])
    assert list(stub.Predict(total, 20).outputs["total"].int_val) == [9]


def test_only_outputs_that_are_asked_for_are_sent(stub):
    reply = stub.Predict(request(source=["a"], outputs=["text"]), 20)
    assert set(reply.outputs) == {"text"}


def huge():
    """One value that stands for a tensor of many rows of many columns."""
    found = tf.make_tensor_proto([[1]])
    found.tensor_shape.dim[1].size = 2**40
    return found


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        (request("no", source=["a"]), "FAILED_PRECONDITION", 'signature key "no" not'),
        (request(name="no"), "NOT_FOUND", "not found for request: Latest(no)"),
        (predict_pb2.PredictRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
        (request(), "INVALID_ARGUMENT", "Missing but required: {source}"),
        (request(text=["a"]), "INVALID_ARGUMENT", "alias not found in signature: text"),
        (request(source=[1]), "INVALID_ARGUMENT", "be string but int32 is provided"),
        (
            request("halve", x=[[1.0]]),
            "INVALID_ARGUMENT",
            "`x` must have the shape [-1, 2], with any size for -1. Received: [1, 1].",
        ),
        (
            request(source=["a"], outputs=["no"]),
            "INVALID_ARGUMENT",
            "alias not found in signature: no Outputs expected to be in the set {score",
        ),
        (
            request(source=["a"], outputs=["text", "text"]),
            "INVALID_ARGUMENT",
            "duplicate output tensor alias: text",
        ),
        (request(source=["a"] * 9), "INVALID_ARGUMENT", "Received: 9 rows of `source`"),
        (request(source=["a" * 21]), "INVALID_ARGUMENT", "Received: 21 in `source`"),
        (request(source=["a" * 3000]), "RESOURCE_EXHAUSTED", "larger than max"),
        (
            request("total", ids=huge(), lengths=[1]),
            "RESOURCE_EXHAUSTED",
            "`max_body_bytes` = 2000",
        ),
    ],
)
def test_wrong_requests_get_the_code_of_the_reference(stub, asked, code, message):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(asked, 20)
    assert caught.value.code().name == code
    assert message in caught.value.details()


def test_version_and_label_are_looked_at(stub):
    asked = request(source=["a"])
    asked.model_spec.version.value = 1
    assert "text" in stub.Predict(asked, 20).outputs
    asked.model_spec.version.value = 2
    with pytest.raises(grpc.RpcError, match=r"Specific\(tiny, 2\)"):
        stub.Predict(asked, 20)
    asked.model_spec.version_label = "best"
    with pytest.raises(grpc.RpcError, match="version label: best"):
        stub.Predict(asked, 20)


def test_deadline_of_the_client_stops_the_run(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(request("slow", steps=[2**31 - 1]), 0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "text" in stub.Predict(request(source=["a"]), 20).outputs


def test_metadata_has_the_signatures(stub):
    asked = get_model_metadata_pb2.GetModelMetadataRequest()
    asked.model_spec.name = "tiny"
    asked.metadata_field.append("signature_def")
    reply = stub.GetModelMetadata(asked, 20)
    found = get_model_metadata_pb2.SignatureDefMap()
    assert reply.metadata["signature_def"].Unpack(found)
    assert reply.model_spec.version.value == 1
    assert set(found.signature_def["total"].inputs) == {"ids", "lengths"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "must specify at least one metadata_field"),
        (["weights"], "Metadata field weights is not supported"),
    ],
)
def test_other_metadata_are_refused(stub, fields, message):
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    asked.model_spec.name = "tiny"
    with pytest.raises(grpc.RpcError, match=message):
        stub.GetModelMetadata(asked, 20)


def test_status_is_told(channel):
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    asked = get_model_status_pb2.GetModelStatusRequest()
    asked.model_spec.name = "tiny"
    (status,) = stub.GetModelStatus(asked, 20).model_version_status
    assert (status.version, status.State.Name(status.state)) == (1, "AVAILABLE")
    assert (status.status.error_code, status.status.error_message) == (0, "")
    asked.model_spec.name = "no"
    with pytest.raises(grpc.RpcError, match="Could not find any versions of model no"):
        stub.GetModelStatus(asked, 20)


def test_other_methods_are_refused(stub):
    asked = classification_pb2.ClassificationRequest()
    asked.model_spec.name = "tiny"
    with pytest.raises(grpc.RpcError, match="Expected classification signature method"):
        stub.Classify(asked, 20)
    asked = regression_pb2.RegressionRequest()
    asked.model_spec.name = "tiny"
    with pytest.raises(grpc.RpcError, match="Expected regression signature method"):
        stub.Regress(asked, 20)
