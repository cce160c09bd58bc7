"""The REST interface, asked by plain HTTP."""

import http.client
import json
import socket
import threading
import time

import pytest

from keras_seq2seq.serving.limits import Limits
from keras_seq2seq.serving.server import Addresses, Server
from tests.serving.tiny import ask, predict


@pytest.fixture
def port(tiny_server):
    return tiny_server.port


def test_rows_and_columns_are_answered(port):
    assert predict(port, {"instances": ["a", "bü"]}) == (
        200,
        {
            "predictions": [
                {"score": 1.0, "text": "<a>v1"},
                {"score": 3.0, "text": "<bü>v1"},
            ]
        },
    )
    assert predict(port, {"inputs": {"source": ["a"]}}) == (
        200,
        {"outputs": {"score": [1.0], "text": ["<a>v1"]}},
    )


def test_named_signatures_are_answered(port):
    rows = [{"ids": [4, 5, 3], "lengths": 2}, {"ids": [7, 0, 0], "lengths": 1}]
    body = {"signature_name": "total", "instances": rows}
    assert predict(port, body) == (200, {"predictions": [9, 7]})
    body = {"signature_name": "halve", "inputs": [[1, 3.5]]}
    assert predict(port, body) == (200, {"outputs": [[0.5, 1.75]]})
    body = {"signature_name": "copy", "instances": [{"b64": "/wA="}]}
    assert predict(port, body) == (200, {"predictions": [{"b64": "/wA="}]})


def test_version_may_be_named(port):
    body = {"instances": ["a"]}
    assert predict(port, body, "tiny/versions/1")[0] == 200
    assert predict(port, body, "tiny/versions/2") == (
        404,
        {"error": "Servable not found for request: Specific(tiny, 2)"},
    )
    assert predict(port, body, "tiny/labels/best") == (
        400,
        {"error": "Unrecognized servable version label: best"},
    )
    assert predict(port, body, "tiny/versions/99999999999999999999") == (
        400,
        {"error": "Failed to convert version: 99999999999999999999 to numeric."},
    )


def test_status_tells_every_version(port):
    status = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    expected = (200, {"model_version_status": [status]})
    assert ask(port, "GET", "/v1/models/tiny") == expected
    assert ask(port, "GET", "/v1/models/t%69ny/versions/1") == expected
    assert ask(port, "GET", "/V1/Models/tiny?a=b") == expected
    assert ask(port, "GET", "/v1/models/tiny/versions/3") == (
        404,
        {"error": "Could not find version 3 of model tiny"},
    )


def test_metadata_tells_the_signatures(port):
    status, found = ask(port, "GET", "/v1/models/tiny/metadata")
    assert status == 200
    assert found["model_spec"] == {"name": "tiny", "signature_name": "", "version": "1"}
    signatures = found["metadata"]["signature_def"]["signature_def"]
    total = signatures["total"]
    assert total["method_name"] == "tensorflow/serving/predict"
    assert total["inputs"]["ids"]["dtype"] == "DT_INT32"
    assert total["inputs"]["ids"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}, {"size": "-1", "name": ""}],
        "unknown_rank": False,
    }
    assert set(signatures) == {
        *("__saved_model_init_op", "copy", "halve", "serving_default", "slow"),
        "total",
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/models/no", 404, "Could not find any versions of model no"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/no/metadata", 404, "not found for request: Latest(no)"),
        ("GET", "/v1/a", 400, "Malformed request: GET /v1/a"),
        ("POST", "/v1/models/tiny", 400, "Malformed request: POST /v1/models/tiny"),
        ("PUT", "/v1/models/tiny:predict", 400, "Malformed request: PUT"),
        ("GET", "/", 404, "Nothing is served at /"),
        ("POST", "/v1/models/no:predict", 404, "not found for request: Latest(no)"),
    ],
)
def test_other_addresses_are_refused(port, method, path, status, message):
    found, reply = ask(port, method, path, b"{}" if method == "POST" else None)
    assert found == status
    assert message in reply["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "JSON Parse error"),
        ({"instances": [1]}, "is not of expected type: string"),
        (
            {"signature_name": "no", "instances": [1]},
            'Serving signature name: "no" not found in signature def',
        ),
        (
            {"signature_name": "total", "instances": [{"ids": [1]}]},
            "keys must be equal to: ids,lengths",
        ),
        (
            {"signature_name": "halve", "instances": [[1, 2, 3]]},
            "`x` must have the shape [-1, 2], with any size for -1. Received: [1, 3].",
        ),
        (
            {"signature_name": "total", "inputs": {"ids": [[1]], "lengths": [1, 1]}},
            "must have equal 0th-dimension size",
        ),
        ({"inputs": []}, "`source` must have at least one row. Received: 0 rows."),
        ({"instances": ["a"] * 7}, "Task size 7 is larger than maximum input batch"),
        (
            {"instances": ["a"] * 9},
            "`max_rows` = 8 rows. Received: 9 rows of `source`",
        ),
        (
            {"instances": ["ü" * 20, "ü" * 21]},
            "`max_text_characters` = 20 characters. Received: 21 in `source`",
        ),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(port, body, message):
    status, reply = predict(port, body)
    assert status == 400
    assert message in reply["error"]


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        ("classify", {}, "method_name to be tensorflow/serving/classify. Was: tensorf"),
        ("regress", {"examples": [1]}, "Expected regression signature method_name"),
        (
            "regress",
            {"signature_name": "no"},
            "No signature was found with the name: n",
        ),
        ("classify", b"", "The document is empty"),
    ],
)
def test_other_methods_are_refused(port, method, body, message):
    status, reply = ask(port, "POST", f"/v1/models/tiny:{method}", body)
    assert status == 400
    assert message in reply["error"]


def test_long_bodies_are_refused_even_without_a_length(port):
    message = "`max_body_bytes` = 2000 bytes. Received: 3000 or more"
    status, reply = predict(port, b"x" * 3000)
    assert status == 413
    assert message in reply["error"]
    chunk = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/models/tiny:predict HTTP/1.1\r\nHost: a\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + 3 * chunk + b"0\r\n\r\n"
        )
        reply = connection.recv(4096).decode()
    assert " 413 " in reply.splitlines()[0]


def test_connection_is_used_again_after_errors(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.connect()
    kept = connection.sock
    for body, expected in (("{", 400), ("x" * 3000, 413), ('{"inputs": ["a"]}', 200)):
        connection.request("POST", "/v1/models/tiny:predict", body)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == expected
        assert connection.sock is kept
    connection.close()


def test_server_survives_a_client_that_goes_away(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/models/tiny:predict HTTP/1.1\r\nHost: a\r\n"
            b'Content-Length: 900\r\n\r\n{"inputs"'
        )
    assert predict(port, {"instances": ["a"]})[0] == 200


def test_requests_of_eight_threads_are_not_mixed_up(port):
    wrong = []

    def work(number):
        for count in range(15):
            text = f"{number}-{count}"
            rows = [text, "x" * (count % 5)]
            _, reply = predict(port, {"instances": rows})
            expected = [f"<{row}>v1" for row in rows]
            if [row["text"] for row in reply.get("predictions", [])] != expected:
                wrong.append(reply)
            ids = [number, count, *range(count % 4)]
            body = {"ids": [ids], "lengths": [2]}
            _, reply = predict(port, {"signature_name": "total", "inputs": body})
            if reply != {"outputs": [number + count]}:
                wrong.append(reply)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_slow_answers_and_too_many_requests_are_refused(tiny_model):
    limits = Limits(timeout_seconds=0.5, max_waiting=1)
    with Server(tiny_model, addresses=Addresses(port=0), limits=limits) as server:
        body = {"signature_name": "slow", "instances": [2**31 - 1]}
        found = []
        thread = threading.Thread(
            target=lambda: found.append(predict(server.port, body))
        )
        thread.start()
        end = time.monotonic() + 10
        while not server.service._waiting:
            assert time.monotonic() < end
            time.sleep(0.001)
        status, reply = predict(server.port, {"instances": ["a"]})
        assert status == 429
        assert "`max_waiting` = 1 requests are being answered" in reply["error"]
        thread.join()
        assert found[0][0] == 504
        assert "`timeout_seconds`" in json.dumps(found) or "deadline" in json.dumps(
            found
        )
        assert predict(server.port, {"instances": ["a"]})[0] == 200


def test_body_that_comes_too_slowly_is_refused(tiny_model):
    limits = Limits(timeout_seconds=0.2)
    with (
        Server(tiny_model, addresses=Addresses(port=0), limits=limits) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
    ):
        connection.sendall(
            b"POST /v1/models/tiny:predict HTTP/1.1\r\nHost: a\r\n"
            b"Content-Length: 900\r\n\r\n{"
        )
        assert b" 504 " in connection.recv(4096)


@pytest.mark.parametrize(
    "name",
    ["max_body_bytes", "max_rows", "max_text_characters", "max_waiting"],
)
def test_limits_must_be_positive(name):
    with pytest.raises(ValueError, match=f"`{name}` must be positive. Received: 0"):
        Limits(**{name: 0})
    with pytest.raises(ValueError, match="`timeout_seconds` must be positive"):
        Limits(timeout_seconds=float("nan"))


def test_fault_of_the_server_is_told_in_json(port, monkeypatch, caplog):
    def broken(*_, **__):
        raise KeyError("a fault")

    monkeypatch.setattr("keras_seq2seq.serving.rest.write_reply", broken)
    status, reply = predict(port, {"instances": ["a"]})
    assert (status, reply["error"]) == (500, "The server failed; its log tells more.")
    assert "a fault" in caplog.text
