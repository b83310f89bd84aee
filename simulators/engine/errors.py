"""vLLM's error bodies, what stands around its routes, and ways to fail while serving."""

import hmac
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import anyio
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simulators.engine.boot import log
from simulators.engine.flags import Failure
from simulators.engine.metrics import EngineMetrics

_PYDANTIC_WORDS: Final = frozenset(
    {"function-wrap", "function-after", "function-before", "nullable", "union", "tagged-union"}
    | {"str", "int", "float", "bool", "bytes", "list", "tuple", "dict", "set", "none"}
)
"""Parts of pydantic's `loc` that name a type, not a field; so do those with brackets."""
_SHOWN: Final = 10
_LONGEST_INPUT: Final = 200


class WireError(Exception):
    """A request that is answered with vLLM's error object."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "BadRequestError",
        code: int = 400,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.code)


def invalid(message: str, param: str, value: object = None) -> WireError:
    """Name the parameter in the message, as vLLM does."""
    named = f"parameter={param}" + ("" if value is None else f", value={value}")
    return WireError(f"{message} ({named})", param=param)


def not_simulated(what: str) -> WireError:
    """Say what vLLM takes and the simulated engine does not."""
    return WireError(
        f"vLLM takes {what}; the simulated engine does not.", kind="NotImplementedError", code=501
    )


def no_such_model(name: str, known: Sequence[str]) -> WireError:
    return WireError(
        f"The model `{name}` does not exist. Valid aliases: {', '.join(known)}.",
        kind="NotFoundError",
        code=404,
        param="model",
    )


def engine_died() -> WireError:
    return WireError(
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        kind="InternalServerError",
        code=500,
    )


def unreadable(errors: Sequence[Mapping[str, Any] | str]) -> WireError:
    """What FastAPI's validation found, in vLLM's words."""
    count = len(errors)
    label = "error" if count == 1 else "errors"
    lines = [f"{count} validation {label}:", *(f"  {_shown(e)}" for e in errors[:_SHOWN])]
    if count > _SHOWN:
        lines.append(f"  ...and {count - _SHOWN} more {label}")
    first = errors[0]
    param = None if isinstance(first, str) else _path(first["loc"])
    return WireError("\n".join(lines), kind=HTTPStatus.BAD_REQUEST.phrase, param=param)


def _path(location: Sequence[object]) -> str:
    parts = [str(part) for part in location]
    kept = [p for p in parts if not re.search(r"[\[\](){}]", p) and p not in _PYDANTIC_WORDS]
    return ".".join(kept or parts)


def _shown(error: Mapping[str, Any] | str) -> str:
    if isinstance(error, str):
        return error
    return str({**error, "loc": _path(error["loc"]), "input": _summary(error.get("input"))})


def _summary(value: object) -> str:
    if isinstance(value, (list, tuple, dict)):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _LONGEST_INPUT else f"{text[:_LONGEST_INPUT]}...[truncated]"


_GUARDED: Final = ("/v1", "/v2", "/inference", "/cohere")
"""source: vllm 0.32.0; everything else is open, `/metrics` and `/tokenize` too."""
_NOT_COUNTED: Final = ("/metrics", "/health", "/load", "/ping", "/version")


class RequireKey:
    """401 for guarded paths without one of the keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["path"].startswith(_GUARDED)
        if guarded and scope["method"] != "OPTIONS" and not self._knows(Headers(scope=scope)):
            refusal = JSONResponse({"error": "Unauthorized"}, 401)
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        matches = [hmac.compare_digest(given.encode(), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


class CountRequests:
    """`http_requests_total` and its kin."""

    def __init__(self, app: ASGIApp, metrics: EngineMetrics, routes: Sequence[Route]) -> None:
        self.app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _NOT_COUNTED:
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        seen = {"status": 500, "size": 0}

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])
                seen.update(status=message["status"], size=int(headers.get("content-length", 0)))
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            self._count(scope, seen["status"], seen["size"], time.perf_counter() - started)

    def _count(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        handler, method = self._handler(scope), scope["method"]
        count = self._metrics.http
        count("http_requests", handler=handler, method=method, status=f"{status // 100}xx").inc()
        asked = int(Headers(scope=scope).get("content-length", 0))
        count("http_request_size_bytes", handler=handler).observe(asked)
        count("http_response_size_bytes", handler=handler).observe(size)
        count("http_request_duration_highr_seconds").observe(seconds)
        count("http_request_duration_seconds", handler=handler, method=method).observe(seconds)

    def _handler(self, scope: Scope) -> str:
        full = (route.path for route in self._routes if route.matches(scope)[0] is Match.FULL)
        return next(full, "none")


_HALF_OF_A_STREAM: Final = 3
"""Events that get through before the connection breaks."""


class BrokenStreamError(RuntimeError):
    """Raised on purpose: the web server then closes the connection in the middle of a chunk."""


class Sabotage:
    """Stands around the application and lets requests fail as asked for."""

    def __init__(self, app: ASGIApp, failure: Failure, slow_health_seconds: float) -> None:
        self.app = app
        self._failure = failure
        self._slow = slow_health_seconds
        self._served = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == "/health":
            await self._health(scope, receive, send)
        elif path.startswith("/v1/") and scope["type"] == "http":
            await self._request(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._failure.mode == "slow-health":
            await anyio.sleep(self._slow)
        if self._failure.mode == "unhealthy":
            await Response(status_code=503)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        mode = self._failure.mode
        if mode == "http-500":
            await engine_died().response()(scope, receive, send)
        elif mode == "bad-json":
            reply = Response('{"id": "cmpl-', media_type="application/json")
            await reply(scope, receive, send)
        elif mode == "broken-stream":
            await self.app(scope, receive, _breaking(send))
        else:
            await self.app(scope, receive, send)
            self._served += 1
            if mode in {"crash-after", "kill-after"} and self._served >= self._failure.count:
                _die(mode)


def _breaking(send: Send) -> Send:
    """Passes on some events, then half of one."""
    passed = 0

    async def send_half(message: Message) -> None:
        nonlocal passed
        body = message.get("body", b"")
        passed += bool(body)
        streams = message.get("more_body", False)
        if body and (passed > _HALF_OF_A_STREAM or not streams):
            await send({**message, "body": body[: len(body) // 2], "more_body": True})
            raise BrokenStreamError("The stream was cut on purpose.")
        await send(message)

    return send_half


def _die(mode: str) -> None:
    if mode == "kill-after":
        os.kill(os.getpid(), signal.SIGKILL)
    log("EngineCore", "core.py:1519", "EngineCore encountered a fatal error.", "ERROR")
    log("APIServer", "async_llm.py:701", "AsyncLLM output_handler failed.", "ERROR")
    os._exit(1)
