"""Starting and stopping, also by the command line and by signals."""

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from keras_seq2seq.cli import app
from keras_seq2seq.serving import Client
from keras_seq2seq.serving.server import Addresses, Server, check_installed
from tests.serving.tiny import predict

ROOT = Path(__file__).parents[2]
PROGRAM = "from keras_seq2seq.cli import main; main()"
# So many steps that a request is under way while the server is told to stop.
STEPS = 200_000


def test_stop_answers_what_runs_and_closes_the_ports(tiny_model):
    server = Server(tiny_model, addresses=Addresses(port=0, grpc_port=0))
    found = []
    slow = {"signature_name": "slow", "instances": [STEPS]}
    threads = [
        threading.Thread(target=lambda: found.append(predict(server.port, slow)))
    ]
    grpc_client = Client(server.grpc_address, model="tiny")
    inputs = {"steps": [STEPS]}
    threads.append(
        threading.Thread(
            target=lambda: found.append(
                grpc_client.predict(inputs, signature_name="slow")
            )
        )
    )
    grpc_client.status()
    for thread in threads:
        thread.start()
    end = time.monotonic() + 10
    while server.service._waiting < 2 and len(found) < 2:
        assert time.monotonic() < end
        time.sleep(0.001)
    server.stop()
    for thread in threads:
        thread.join()
    assert (200, {"predictions": [STEPS]}) in found
    assert {"count": [STEPS]} in found
    with pytest.raises(ConnectionError):
        Client(server.address, model="tiny", timeout=5).status()
    with pytest.raises(ConnectionError):
        Client(server.grpc_address, model="tiny", timeout=5).status()


def test_requests_are_refused_while_the_server_stops(tiny_model):
    with Server(tiny_model, addresses=Addresses(port=0)) as server:
        assert server.service.stop(timeout=5)
        assert predict(server.port, {"instances": ["a"]}) == (
            503,
            {"error": "The server is stopping."},
        )


def test_taken_port_is_named_before_the_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"Received: 127.0.0.1:{port} "):
            Server("nowhere", addresses=Addresses(port=port))


def test_taken_grpc_port_is_named(tiny_model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"Received: 127.0.0.1:{port}"):
            Server(tiny_model, addresses=Addresses(port=0, grpc_port=port))


def test_server_that_does_not_start_is_told(tiny_model, monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    with pytest.raises(RuntimeError, match="No REST interface at http://127.0.0.1:"):
        Server(tiny_model, addresses=Addresses(port=0))


def test_new_version_is_served_under_the_same_address(tiny_model, tiny_versions):
    with Server(tiny_model, addresses=Addresses(port=0)) as server:
        client = Client(server.address, model="tiny")
        assert client.translate(["a"]) == ["<a>v1"]
        shutil.copytree(tiny_versions[2], tiny_model / "writing-2")
        (tiny_model / "writing-2").rename(tiny_model / "2")
        end = time.monotonic() + 20
        while client.translate(["a"]) != ["<a>v2"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        states = {found["version"]: found["state"] for found in client.status()}
        assert states[2] == "AVAILABLE"
        assert states[1] in ("UNLOADING", "END")


def test_only_this_machine_is_served_unless_told_otherwise(tiny_model):
    assert Addresses().host == "127.0.0.1"
    with Server(tiny_model, addresses=Addresses(port=0)) as server:
        assert server.is_loopback
        assert server.grpc_address is None
    with Server(tiny_model, addresses=Addresses("0.0.0.0", 0)) as server:
        assert not server.is_loopback


def test_missing_packages_are_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"starlette, uvicorn, .*seq2seq\[serving\]'"):
        check_installed(grpc=False)
    with pytest.raises(ImportError, match="grpc, tensorflow_serving"):
        check_installed(grpc=True)


def cli(*arguments):
    return CliRunner().invoke(app, ["serve", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "`PATH` must be a version folder"),
        (["nowhere", "--batching-config", "no.config"], "Received: no.config."),
        (["nowhere", "--timeout", "0"], "`timeout_seconds` must be positive"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_two(arguments, message):
    result = cli(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_missing_extra_is_one_message(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("nowhere")
    assert result.exit_code == 2
    assert "pip install 'keras-seq2seq[serving]'" in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_program_after_the_last_answer(tiny_model, number):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", str(tiny_model), "--name", "dates"]
        + ["--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        address = program.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/v1/models/dates")
        client = Client(address.split("/v1/")[0], model="dates")
        assert client.translate(["a"]) == ["<a>v1"]
        one = {"steps": [1]}
        assert client.predict(one, signature_name="slow") == {"count": [1]}
        found = []
        thread = threading.Thread(
            target=lambda: found.append(
                client.predict({"steps": [STEPS]}, signature_name="slow")
            )
        )
        thread.start()
        time.sleep(0.5)
        program.send_signal(number)
        thread.join()
        _, errors = program.communicate(timeout=30)
    finally:
        program.kill()
    assert found == [{"count": [STEPS]}]
    assert program.returncode == 0, errors
    assert errors.splitlines()[0].startswith("Serving dates, version 1 of ")
    assert errors.splitlines()[1].startswith("Stopping")


def test_page_has_every_option_with_its_default():
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(--[a-z-]+)`[^|]*\| ([^|]+) \|", page, re.M))
    command = typer.main.get_command(app).commands["serve"]
    known = {
        parameter.opts[0]: parameter.default
        for parameter in command.params
        if parameter.opts[0].startswith("--")
    }
    written = {"True": "on", "None": "none", "30.0": "30"}
    expected = {
        name: written.get(str(value), str(value)) for name, value in known.items()
    }
    assert {name: value.strip("`") for name, value in rows.items()} == {
        **expected,
        "--name": "the folder's",
    }
