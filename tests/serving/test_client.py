"""The client, over both protocols."""

import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from keras_seq2seq.serving import Client
from keras_seq2seq.serving.errors import RequestError


@pytest.fixture(params=["rest", "grpc"])
def address(request, tiny_server):
    return tiny_server.address if request.param == "rest" else tiny_server.grpc_address


@pytest.fixture
def client(address):
    with Client(address, model="tiny") as client:
        yield client


def test_texts_are_translated_in_order(client):
    texts = [f"t{number}" for number in range(13)]
    expected = [f"<{text}>v1" for text in texts]
    assert client.translate(texts, batch_size=6) == expected
    assert client.translate([]) == []


def test_outputs_are_nested_lists(client):
    found = client.predict({"source": ["a", b"bc"]})
    assert found == {"text": ["<a>v1", "<bc>v1"], "score": [1.0, 2.0]}
    inputs = {"ids": np.array([[4, 5, 9]]), "lengths": [2]}
    assert client.predict(inputs, signature_name="total") == {"total": [9]}
    halved = client.predict({"x": [[1, 3]]}, signature_name="halve")
    assert halved == {"half": [[0.5, 1.5]]}


def test_bytes_go_and_come_as_they_are(client):
    raw = bytes(range(256))
    found = client.predict({"data": [b"\xff\x00"]}, signature_name="copy")
    assert found == {"copy_bytes": [b"\xff\x00"]}
    with pytest.raises(RequestError, match="max_text_characters"):
        client.predict({"data": [raw]}, signature_name="copy")


def test_status_and_metadata_are_the_same_over_both(client):
    assert client.status() == [
        {"version": 1, "state": "AVAILABLE", "error_code": "OK", "error_message": ""}
    ]
    found = client.metadata()
    assert found["version"] == 1
    assert found["signatures"]["total"] == {
        "inputs": {
            "ids": {"dtype": "int32", "shape": [-1, -1]},
            "lengths": {"dtype": "int32", "shape": [-1]},
        },
        "outputs": {"total": {"dtype": "int32", "shape": [-1]}},
    }
    assert found["signatures"]["halve"]["inputs"]["x"]["dtype"] == "float"


def test_errors_carry_the_message_of_the_server(client, address):
    with pytest.raises(RequestError, match="max_rows") as caught:
        client.translate(["a"] * 9)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert str(caught.value).startswith(address)
    with pytest.raises(RequestError, match=r"Specific\(tiny, 5\)") as caught:
        Client(address, model="tiny", version=5).translate(["a"])
    assert caught.value.code == "NOT_FOUND"
    with pytest.raises(RequestError, match="signature .*no"):
        client.predict({"source": ["a"]}, signature_name="no")
    with pytest.raises(RequestError, match="max_body_bytes|larger than max") as caught:
        client.translate(["a" * 3000])
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    with pytest.raises(RequestError, match="any versions of model no"):
        Client(address, model="no").status()


def test_values_of_another_type_are_refused(client):
    with pytest.raises((RequestError, TypeError), match="int32"):
        client.predict({"ids": [["a"]], "lengths": [1]}, signature_name="total")


def test_one_text_is_no_list(client):
    with pytest.raises(TypeError, match=r"must be a list of texts. Received: 'abc'"):
        client.translate("abc")
    with pytest.raises(ValueError, match="`batch_size` must be positive. Received: 0"):
        client.translate(["a"], batch_size=0)


def test_model_without_text_is_named(client, monkeypatch):
    monkeypatch.setattr(client._connection, "predict", lambda *_: {"b": 1, "a": 2})
    with pytest.raises(ValueError, match="tiny at .* output `text`. Received: a, b"):
        client.translate(["a"])


def test_slow_answers_time_out(address):
    # The server does not hear that a client of REST has gone: not for too long.
    steps = 400_000
    client = Client(address, model="tiny", timeout=0.3)
    with pytest.raises(TimeoutError, match="DEADLINE|0.3 seconds"):
        client.predict({"steps": [steps]}, signature_name="slow")


def test_threads_may_share_a_client(client):
    wrong = []

    def work(number):
        for count in range(10):
            text = f"{number}-{count}"
            if client.translate([text]) != [f"<{text}>v1"]:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_missing_server_is_named(free_port, scheme):
    client = Client(f"{scheme}://127.0.0.1:{free_port}", model="tiny", timeout=5)
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{free_port}"):
        client.translate(["a"])


def test_answers_that_are_no_json_are_shown(free_port):
    with socket.create_server(("127.0.0.1", free_port)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\noops")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RequestError, match=r"oops \(status 502\)") as caught:
            Client(f"http://127.0.0.1:{free_port}", model="tiny").status()
        thread.join()
    assert caught.value.code == "UNKNOWN"


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8501", "http://", "ftp://a:1", "http://a", "http://a:x"]
)
def test_addresses_of_another_form_are_refused(address):
    with pytest.raises(ValueError, match="http://HOST:PORT.*Received"):
        Client(address, model="tiny")
    with pytest.raises(ValueError, match="`timeout` must be positive. Received: 0"):
        Client("http://a:1", model="tiny", timeout=0)


def test_client_for_rest_imports_the_standard_library_only():
    code = (
        "import sys, keras_seq2seq.serving as s; s.Client('http://a:1', model='m')\n"
        "heavy = {'numpy', 'tensorflow', 'keras', 'starlette', 'grpc', 'uvicorn'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8"
    )
    assert done.stdout == "[]\n", done.stderr
