"""The REST interface of TF Serving as an application for an ASGI server."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from keras_seq2seq.serving.errors import RequestError, invalid
from keras_seq2seq.serving.json_replies import write_reply
from keras_seq2seq.serving.json_values import (
    JsonRequest,
    read_object,
    read_request,
    signature_name,
)
from keras_seq2seq.serving.loaded import LoadedVersion
from keras_seq2seq.serving.service import (
    Service,
    metadata_of,
    refuse_method,
    too_late,
)
from keras_seq2seq.serving.signatures import DEFAULT_SIGNATURE, Tensor

_LOG = logging.getLogger(__name__)

_WHICH = r"(?:/versions/([0-9]+)|/labels/([^/:]+))?"
_ASK = re.compile(rf"/v1/models/([^/:]+){_WHICH}:(classify|regress|predict)", re.I)
_LOOK = re.compile(rf"/v1/models(?:/([^/:]+))?{_WHICH}(?:/(metadata))?", re.I)
_LARGEST_VERSION = 2**63
# So much more than is allowed is read, so that a client hears why it is refused.
_DRAINED = 16
# Reading and writing JSON; many threads would take the processor from the model.
_JSON_THREADS = 2

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_Result = TypeVar("_Result")


def make_app(service: Service) -> Starlette:
    """The application that answers requests to a model.

    Args:
        service: What answers.
    """
    endpoint = _Endpoint(service)
    return Starlette(routes=[Route("/{path:path}", endpoint.answer, methods=_METHODS)])


class _Endpoint:
    """Everything under `/`; the event loop never waits for the model."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._json_pool = ThreadPoolExecutor(_JSON_THREADS, "json")

    async def answer(self, request: Request) -> Response:
        """Answers a request, or says why not."""
        path = request.scope["path"]
        raw = request.scope.get("raw_path") or path.encode("utf-8")
        path = raw.decode("ascii", errors="replace").split("?")[0]
        try:
            return await self._dispatch(request, path)
        except RequestError as error:
            return _reply({"error": error.message}, error.http_status)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            _LOG.exception("%s %s failed", request.method, path)
            return _reply({"error": "The server failed; its log tells more."}, 500)

    async def _dispatch(self, request: Request, path: str) -> Response:
        if not path.lower().startswith("/v1/"):
            raise RequestError("NOT_FOUND", f"Nothing is served at {path[:200]}")
        if request.method == "POST" and (match := _ASK.fullmatch(path)):
            name, version, label, method = match.groups()
            where = (unquote(name), _number(version), label and unquote(label))
            return await self._ask(request, method.lower(), where)
        if request.method == "GET" and (match := _LOOK.fullmatch(path)):
            name, version, label, part = match.groups()
            if name is None:
                raise invalid("Missing model name in request.")
            where = (unquote(name), _number(version), label and unquote(label))
            return self._look(where, metadata=part is not None)
        raise invalid(f"Malformed request: {request.method} {path[:200]}")

    def _look(self, where: tuple, *, metadata: bool) -> Response:
        """The status of a model's versions, or the signatures of one."""
        model = self._service.model
        if metadata:
            with model.lease(*where) as loaded:
                return _reply(metadata_of(loaded, model.name))
        statuses = []
        for found in model.statuses(*where):
            values = asdict(found)
            error = {key: values.pop(key) for key in ("error_code", "error_message")}
            values["version"] = str(values["version"])
            statuses.append({**values, "status": error})
        return _reply({"model_version_status": statuses})

    async def _ask(self, request: Request, method: str, where: tuple) -> Response:
        """The model's answer."""
        body = None
        try:
            with (
                self._service.admitted() as due,
                self._service.model.lease(*where) as loaded,
            ):
                body = await self._body(request, due)
                if method != "predict":
                    name = signature_name(read_object(body))
                    refuse_method(loaded, method, name)
                return await self._predict(loaded, body, due)
        finally:
            if body is None:
                await self._drain(request)

    async def _predict(
        self, loaded: LoadedVersion, body: bytes, due: float
    ) -> Response:
        def start() -> tuple[JsonRequest, Any]:
            asked = read_request(body, lambda name: _inputs_of(loaded, name))
            return asked, self._service.submit(
                loaded, asked.signature_name, asked.inputs, deadline=due
            )

        asked, future = await self._in_thread(start)
        try:
            async with asyncio.timeout_at(_loop_time(due)):
                outputs = await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise too_late() from error
        content = await self._in_thread(
            lambda: write_reply(outputs, by_row=asked.by_row)
        )
        return Response(content, media_type="application/json")

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._json_pool, work)

    async def _body(self, request: Request, due: float) -> bytes:
        """The body, unless it is too long or comes too slowly."""
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit():
            self._service.limits.check_body(int(declared))
        parts, size = [], 0
        try:
            async with asyncio.timeout_at(_loop_time(due)):
                async for part in request.stream():
                    size += len(part)
                    self._service.limits.check_body(size)
                    parts.append(part)
        except TimeoutError as error:
            raise too_late() from error
        return b"".join(parts)

    async def _drain(self, request: Request) -> None:
        """Reads what a client still sends: it may not listen before."""
        left = _DRAINED * self._service.limits.max_body_bytes
        try:
            async with asyncio.timeout(self._service.limits.timeout_seconds):
                async for part in request.stream():
                    left -= len(part)
                    if left < 0:
                        return
        except (TimeoutError, ClientDisconnect, RuntimeError):
            return


def _inputs_of(loaded: LoadedVersion, name: str) -> Mapping[str, Tensor]:
    key = name or DEFAULT_SIGNATURE
    if key not in loaded.signatures:
        raise invalid(f'Serving signature name: "{key}" not found in signature def')
    return loaded.signatures[key].inputs


def _number(version: str | None) -> int | None:
    if version is None:
        return None
    if int(version[:20]) >= _LARGEST_VERSION or len(version) > 20:
        raise invalid(f"Failed to convert version: {version[:40]} to numeric.")
    return int(version)


def _loop_time(due: float) -> float:
    """A time of `time.monotonic` on the event loop's clock."""
    return asyncio.get_running_loop().time() + due - time.monotonic()


def _reply(value: Any, status: int = 200) -> Response:
    content = json.dumps(value, ensure_ascii=False, indent=1).encode(
        "utf-8", errors="replace"
    )
    return Response(content, status, media_type="application/json")
