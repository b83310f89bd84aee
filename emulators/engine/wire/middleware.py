"""What stands around the routes: the key, and the web server's own metrics."""

import hmac
import time
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulators.engine.metrics import EngineMetrics

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
