"""Starts and stops a server of one model."""

import importlib.util
import ipaddress
import logging
import math
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_seq2seq.serving.batching import BatchingOptions
from keras_seq2seq.serving.limits import Limits
from keras_seq2seq.serving.service import Service
from keras_seq2seq.serving.versions import ServedModel

_START_SECONDS = 30


@dataclass(frozen=True)
class Addresses:
    """Where a server listens.

    Args:
        host: Name or address of the interface; by default this machine only.
        port: Port of REST; 0 for any that is free.
        grpc_port: Port of gRPC, 0 for any that is free; None for no gRPC.
    """

    host: str = "127.0.0.1"
    port: int = 8501
    grpc_port: int | None = None


def check_installed(*, grpc: bool) -> None:
    """Looks for the packages of the extra `serving`, importing none.

    Args:
        grpc: Whether gRPC is asked for.

    Raises:
        ImportError: If one is missing.
    """
    needed = ["starlette", "uvicorn"]
    needed += ["grpc", "tensorflow_serving"] if grpc else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"Serving needs {', '.join(missing)}, not installed here: "
            "pip install 'keras-seq2seq[serving]'."
        )


class Server:
    """A model behind REST, and gRPC if asked for, until `stop`.

    Args:
        path: A version folder, a folder of versions, or a run folder.
        name: The model's name; by default that of the folder.
        addresses: Where to listen.
        batching: How requests are merged; None to run each alone.
        limits: What requests may ask.
        warmup: Whether versions replay their warm-up requests before they serve.
        log: What to tell of versions that come and go.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ImportError: If the extra `serving` is not installed.
        ValueError: If a port is taken, or the model is refused.

    Example:
        with Server("served/dates", addresses=Addresses(port=0)) as server:
            print(server.address)
    """

    def __init__(
        self,
        path: str | Path,
        name: str | None = None,
        *,
        addresses: Addresses | None = None,
        batching: BatchingOptions | None = None,
        limits: Limits | None = None,
        warmup: bool = True,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.addresses = addresses or Addresses()
        check_installed(grpc=self.addresses.grpc_port is not None)
        # Before the seconds that a model takes.
        self._socket = _bound(self.addresses)
        self._bound_address, self.port = self._socket.getsockname()[:2]
        self._grpc: Any = None
        self._rest: Any = None
        try:
            self.model = ServedModel(
                path, name, batching=batching, warmup=warmup, log=log
            )
        except BaseException:
            self._socket.close()
            raise
        self.service = Service(self.model, limits or Limits())
        try:
            self._start_grpc()
            self._start_rest()
        except BaseException:
            self.stop()
            self._socket.close()
            raise

    @property
    def address(self) -> str:
        """What a `Client` for REST takes."""
        return f"http://{_url_host(self.addresses.host)}:{self.port}"

    @property
    def grpc_address(self) -> str | None:
        """What a `Client` for gRPC takes; None without gRPC."""
        if self._grpc is None:
            return None
        return f"grpc://{_url_host(self.addresses.host)}:{self._grpc[1]}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return ipaddress.ip_address(self._bound_address).is_loopback

    def stop(self) -> None:
        """Answers what was asked, refuses what comes, and ends."""
        seconds = self.service.limits.timeout_seconds + 1
        refusing = threading.Thread(target=self.service.stop, args=(seconds,))
        refusing.start()
        grpc_stopped = self._grpc[0].stop(seconds) if self._grpc else None
        if self._rest is not None:
            self._rest.should_exit = True
            self._thread.join()
        if grpc_stopped is not None:
            grpc_stopped.wait()
        refusing.join()
        self.model.close()

    def __enter__(self) -> "Server":
        """Nothing: the server runs already."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Stops it."""
        self.stop()

    def _start_grpc(self) -> None:
        if self.addresses.grpc_port is None:
            return
        from keras_seq2seq.serving.grpc_services import start_grpc

        host = _url_host(self.addresses.host)
        self._grpc = start_grpc(self.service, f"{host}:{self.addresses.grpc_port}")

    def _start_rest(self) -> None:
        import uvicorn

        from keras_seq2seq.serving.rest import make_app

        limits = self.service.limits
        config = uvicorn.Config(
            make_app(self.service),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(limits.timeout_seconds) + 1,
        )
        self._rest = uvicorn.Server(config)
        # Not the main thread: signals stay with the caller.
        self._thread = threading.Thread(
            target=self._rest.run, args=([self._socket],), name="rest"
        )
        self._thread.start()
        waiting = threading.Event()
        for _ in range(100 * _START_SECONDS):
            if self._rest.started or not self._thread.is_alive():
                break
            waiting.wait(0.01)
        if not self._rest.started:
            raise RuntimeError(f"No REST interface at {self.address}; see the log.")


def _bound(addresses: Addresses) -> socket.socket:
    """A socket that listens at the address of REST."""
    found = None
    try:
        infos = socket.getaddrinfo(
            addresses.host, addresses.port, type=socket.SOCK_STREAM
        )
        family, kind, protocol, _, address = infos[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        if found is not None:
            found.close()
        raise ValueError(
            "`host` and `port` must be an address of this machine where nothing "
            f"listens yet. Received: {addresses.host}:{addresses.port} "
            f"({error.strerror})."
        ) from error
    return found


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def run_server(
    path: str | Path,
    name: str | None = None,
    *,
    addresses: Addresses,
    batching: BatchingOptions | None,
    limits: Limits,
    warmup: bool,
) -> None:
    """Serves until SIGTERM or SIGINT, then answers what it was asked and returns.

    Prints the address of REST, and gRPC's, once it listens. A second signal ends the
    program at once.

    Args:
        path: A version folder, a folder of versions, or a run folder.
        name: The model's name; by default that of the folder.
        addresses: Where to listen.
        batching: How requests are merged; None to run each alone.
        limits: What requests may ask.
        warmup: Whether versions replay their warm-up requests before they serve.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ImportError: If the extra `serving` is not installed.
        ValueError: If a port is taken, or the model is refused.
    """
    # TensorFlow calls the server's loader deprecated at each start.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    told = threading.Event()

    def stop(number: int, frame: Any) -> None:
        told.set()
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {
        number: signal.signal(number, stop)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with Server(
            path,
            name,
            addresses=addresses,
            batching=batching,
            limits=limits,
            warmup=warmup,
            log=_say,
        ) as server:
            model = server.model
            _say(f"Serving {model.name}, version {model.version} of {model.folder}")
            if not server.is_loopback:
                _say("Anyone who reaches this address can use it: there is no password")
            print(f"{server.address}/v1/models/{model.name}", flush=True)
            if server.grpc_address is not None:
                print(server.grpc_address, flush=True)
            told.wait()
            _say("Stopping: what was asked is still answered")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
