"""Asks a server for translations: TF Serving, or the one of this package.

    from keras_seq2seq.serving import Client

    client = Client("http://127.0.0.1:8501", model="dates")
    print(client.translate(["3 mars 2024"]))

REST needs the standard library only; gRPC needs `pip install 'keras-seq2seq[serving]'`.
"""

import base64
import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from keras_seq2seq.serving.errors import RequestError, code_of_status

DEFAULT_SIGNATURE = "serving_default"
_SOURCE, _TEXT = "source", "text"
_SCHEMES = ("http", "https", "grpc")


class Connection(Protocol):
    """How a client reaches a server; `RestConnection` is one."""

    def predict(self, inputs: Mapping[str, Any], signature_name: str) -> dict[str, Any]:
        """Asks for the outputs of a signature."""

    def status(self) -> list[dict[str, Any]]:
        """Asks for the state of the versions."""

    def metadata(self) -> dict[str, Any]:
        """Asks for the signatures."""

    def close(self) -> None:
        """Lets go of what the connection holds."""


class Client:
    """Asks one model of a server. Several threads may share a client.

    Args:
        address: `http://host:port`, `https://host:port` or `grpc://host:port`.
        model: Name of the model.
        version: Number of a version; None for the newest.
        timeout: Most seconds that an answer may take.

    Raises:
        ValueError: If the address is none.
        ImportError: If gRPC is asked for and not installed.

    Example:
        client = Client("http://127.0.0.1:8501", model="dates")
        client.translate(["3 mars 2024", "May 1st, 1999"])
    """

    def __init__(
        self,
        address: str,
        model: str,
        *,
        version: int | None = None,
        timeout: float = 30.0,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in _SCHEMES or not parts.hostname or not _port(parts):
            raise ValueError(
                "`address` must be http://HOST:PORT, https://HOST:PORT or "
                f"grpc://HOST:PORT. Received: {address!r}."
            )
        if not timeout > 0:
            raise ValueError(f"`timeout` must be positive. Received: {timeout}.")
        self.address = address
        self.model = model
        self.version = version
        self._connection: Connection
        if parts.scheme == "grpc":
            from keras_seq2seq.serving.grpc_client import GrpcConnection

            self._connection = GrpcConnection(parts.netloc, model, version, timeout)
        else:
            self._connection = RestConnection(address, model, version, timeout)

    def translate(self, texts: Sequence[str], *, batch_size: int = 32) -> list[str]:
        """Translates texts, several in each request.

        Args:
            texts: The texts.
            batch_size: Most texts of a request; servers that merge requests take no
                more than their own `max_batch_size`.

        Returns:
            A translation for each text, in order.

        Raises:
            TypeError: If `texts` is one text.
            RequestError: If the server refuses; its `code` tells why, such as
                `UNAVAILABLE`.
            ConnectionError: If there is no server.
            TimeoutError: If the answer takes too long.
        """
        if isinstance(texts, str | bytes):
            raise TypeError(
                f"`texts` must be a list of texts. Received: {texts!r}. For one text, "
                "translate([text])."
            )
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be positive. Received: {batch_size}.")
        found: list[str] = []
        for start in range(0, len(texts), batch_size):
            batch = list(texts[start : start + batch_size])
            outputs = self.predict({_SOURCE: batch})
            if _TEXT not in outputs:
                raise ValueError(
                    f"The model {self.model} at {self.address} must have the output "
                    f"`{_TEXT}`. Received: {', '.join(sorted(outputs))}."
                )
            found += outputs[_TEXT]
        return found

    def predict(
        self, inputs: Mapping[str, Any], *, signature_name: str = DEFAULT_SIGNATURE
    ) -> dict[str, Any]:
        """Asks for the outputs of a signature.

        Args:
            inputs: Nested lists or arrays by name, the batch on axis 0.
            signature_name: Name of the signature.

        Returns:
            Nested lists by name. Strings are text, but bytes in outputs whose names
            end in `_bytes`.

        Raises:
            RequestError: If the server refuses.
            ConnectionError: If there is no server.
            TimeoutError: If the answer takes too long.
        """
        return self._connection.predict(inputs, signature_name)

    def status(self) -> list[dict[str, Any]]:
        """Asks for the state of the versions.

        Returns:
            For each version `version`, `state`, `error_code` and `error_message`.

        Raises:
            RequestError: If the server knows no such model.
            ConnectionError: If there is no server.
            TimeoutError: If the answer takes too long.
        """
        return self._connection.status()

    def metadata(self) -> dict[str, Any]:
        """Asks for the signatures.

        Returns:
            `version`, and `signatures`: for each name `inputs` and `outputs`, with
            `dtype` and `shape` of each tensor; -1 stands for any size.

        Raises:
            RequestError: If the server knows no such model.
            ConnectionError: If there is no server.
            TimeoutError: If the answer takes too long.
        """
        return self._connection.metadata()

    def close(self) -> None:
        """Lets go of the connection; only gRPC keeps one."""
        self._connection.close()

    def __enter__(self) -> "Client":
        """Nothing: a client connects when it asks."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Closes it."""
        self.close()


def _port(parts: Any) -> int | None:
    try:
        return parts.port
    except ValueError:
        return None


class RestConnection:
    """Speaks REST, over a connection of its own for each request.

    Args:
        address: `http://host:port` or `https://host:port`.
        model: Name of the model.
        version: Number of a version; None for the newest.
        timeout: Most seconds to wait.
    """

    def __init__(
        self, address: str, model: str, version: int | None, timeout: float
    ) -> None:
        parts = urlsplit(address)
        self._address = address
        self._host, self._port = parts.hostname, parts.port
        self._make: Any = http.client.HTTPConnection
        if parts.scheme == "https":
            self._make = http.client.HTTPSConnection
        self._timeout = timeout
        self._path = f"/v1/models/{quote(model, safe='')}"
        if version is not None:
            self._path += f"/versions/{version}"
        self._outputs: dict[str, list[str]] = {}

    def predict(self, inputs: Mapping[str, Any], signature_name: str) -> dict[str, Any]:
        """Asks for the outputs of a signature."""
        # Before the answer, which must not be lost where this fails.
        single = self._single_output(signature_name)
        columns = {name: _to_json(value) for name, value in inputs.items()}
        body = {"signature_name": signature_name, "inputs": columns}
        found = self._ask("POST", f"{self._path}:predict", body)["outputs"]
        if single is not None:
            found = {single: found}
        return {name: _from_json(name, value) for name, value in found.items()}

    def status(self) -> list[dict[str, Any]]:
        """Asks for the state of the versions."""
        found = self._ask("GET", self._path)["model_version_status"]
        return [
            {
                "version": int(entry["version"]),
                "state": entry["state"],
                "error_code": entry["status"]["error_code"],
                "error_message": entry["status"]["error_message"],
            }
            for entry in found
        ]

    def metadata(self) -> dict[str, Any]:
        """Asks for the signatures."""
        found = self._ask("GET", f"{self._path}/metadata")
        definitions = found["metadata"]["signature_def"]["signature_def"]
        return {
            "version": int(found["model_spec"]["version"]),
            "signatures": {
                name: {
                    side: {
                        key: _tensor(value)
                        for key, value in definition.get(side, {}).items()
                    }
                    for side in ("inputs", "outputs")
                }
                for name, definition in definitions.items()
                if not name.startswith("__saved_model")
            },
        }

    def close(self) -> None:
        """Nothing: each request closes its own connection."""

    def _single_output(self, signature_name: str) -> str | None:
        """The output that comes without its name, as the only one; asked for once."""
        if signature_name not in self._outputs:
            found = self.metadata()["signatures"]
            if signature_name not in found:
                return None  # the server shall refuse it itself
            self._outputs[signature_name] = sorted(found[signature_name]["outputs"])
        names = self._outputs[signature_name]
        return names[0] if len(names) == 1 else None

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode("utf-8")
        connection = self._make(self._host, self._port, timeout=self._timeout)
        try:
            connection.request(
                method, path, content, {"Content-Type": "application/json"}
            )
            reply = connection.getresponse()
            status, text = reply.status, reply.read()
        except TimeoutError as error:
            raise TimeoutError(
                f"{self._address} has not answered in {self._timeout} seconds."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(
                f"No answer from {self._address}: {error or type(error).__name__}."
            ) from error
        finally:
            connection.close()
        return self._read(status, text)

    def _read(self, status: int, text: bytes) -> Any:
        try:
            found = json.loads(text.decode("utf-8", errors="replace"))
        except ValueError:
            found = text[:200].decode("utf-8", errors="replace")
        if status == 200 and isinstance(found, dict):
            return found
        message = found.get("error") if isinstance(found, dict) else found
        message = f"{self._address}: {message} (status {status})"
        if status == 504:
            raise TimeoutError(message)
        raise RequestError(code_of_status(status), message, http_status=status)


def _to_json(value: Any) -> Any:
    """Lists, arrays and strings as values of JSON."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_to_json(element) for element in value]
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    return value


def _from_json(name: str, value: Any) -> Any:
    """Values of JSON, binary strings as bytes."""
    if isinstance(value, list):
        return [_from_json(name, element) for element in value]
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value


def _tensor(value: Mapping[str, Any]) -> dict[str, Any]:
    """Type and shape of a tensor as metadata tell them."""
    shape = value.get("tensor_shape", {})
    sizes = [int(dim["size"]) for dim in shape.get("dim", [])]
    return {
        "dtype": value["dtype"].removeprefix("DT_").lower(),
        "shape": None if shape.get("unknown_rank") else sizes,
    }
