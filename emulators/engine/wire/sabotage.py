"""Ways to fail while serving."""

import os
import signal
from typing import Final

import anyio
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulators.engine.failures import Failure
from emulators.engine.logs import log
from emulators.engine.wire.errors import engine_died

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
