"""The routes of vLLM 0.32's web server that somebody here uses, and ways to fail while serving."""

import hmac
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simulators.engine.answers import cards, events, whole
from simulators.engine.boot import VERSION, log
from simulators.engine.engine import Delta, Engine
from simulators.engine.flags import Failure
from simulators.engine.metrics import EngineMetrics
from simulators.engine.requests import (
    ChatRequest,
    CompletionRequest,
    Job,
    Served,
    TokenizeRequest,
    WireError,
    chat_job,
    completion_job,
    read,
)

Work = Callable[[], Coroutine[Any, Any, None]]


class _Answer(Response):
    """Runs a job while the client is there; its leaving aborts the job."""

    def __init__(self, engine: Engine, served: Served, job: Job) -> None:
        self.background = None
        self._engine = engine
        self._served = served
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._engine.generate(self._job.ask) as generation:
            if self._job.request.stream:
                stream = events(self._served, self._job, generation)
                reply: Response = StreamingResponse(stream, media_type="text/event-stream")
            else:
                said = await _unless_gone(receive, generation.collect)
                if said is None:
                    return
                reply = JSONResponse(whole(self._served, self._job, generation, said))
            await reply(scope, receive, send)


async def _unless_gone(receive: Receive, work: Callable[[], Awaitable[Delta]]) -> Delta | None:
    done: Delta | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        done = await work()
        tasks.cancel_scope.cancel()
    return done


def _routes(engine: Engine, served: Served) -> list[Route]:
    async def alive(_: Request) -> Response:
        return Response()

    async def version(_: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": cards(served)})

    async def metrics(_: Request) -> Response:
        page = engine.metrics.page(engine.scheduler)
        return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})

    async def completions(request: Request) -> Response:
        body = read(await request.body(), CompletionRequest)
        return _Answer(engine, served, completion_job(served, body))

    async def chat(request: Request) -> Response:
        body = read(await request.body(), ChatRequest)
        return _Answer(engine, served, chat_job(served, body))

    async def tokenize(request: Request) -> Response:
        asked = read(await request.body(), TokenizeRequest)
        served.check_name(asked.model)
        text = served.render(asked.messages) if asked.prompt is None else asked.prompt
        tokens = served.tokenizer.encode(text)
        count = {"count": len(tokens), "max_model_len": served.max_model_len}
        texts = [served.tokenizer.bytes_of(token).decode(errors="replace") for token in tokens]
        strs = texts if asked.return_token_strs else None
        return JSONResponse({**count, "tokens": tokens, "token_strs": strs})

    return [
        Route("/health", alive, methods=["GET"]),
        Route("/ping", alive, methods=["GET", "POST"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
    ]


_GUARDED: Final = ("/v1", "/v2", "/inference", "/cohere")
"""source: vllm 0.32.0; everything else is open, `/metrics` and `/tokenize` too."""
_NOT_COUNTED: Final = ("/metrics", "/health", "/ping", "/version")


class RequireKey:
    """401 for guarded paths without one of the keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["path"].startswith(_GUARDED)
        if guarded and not self._knows(Headers(scope=scope)):
            refusal = JSONResponse({"error": "Unauthorized"}, 401)
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        matches = [hmac.compare_digest(given.encode(), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


class CountRequests:
    """`http_requests_total`."""

    def __init__(self, app: ASGIApp, metrics: EngineMetrics, routes: Sequence[Route]) -> None:
        self.app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _NOT_COUNTED:
            await self.app(scope, receive, send)
            return
        status = 500

        async def watch(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            full = (one.path for one in self._routes if one.matches(scope)[0] is Match.FULL)
            self._metrics.count_http(next(full, "none"), scope["method"], status)


_HALF_OF_A_STREAM: Final = 3
"""Events that get through before the connection breaks."""


class BrokenStreamError(RuntimeError):
    """Raised on purpose: the web server then closes the connection in the middle of a chunk."""


class Sabotage:
    """Stands around the application and lets requests fail as asked for."""

    def __init__(self, app: ASGIApp, failure: Failure) -> None:
        self.app = app
        self._failure = failure
        self._served = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, mode = scope.get("path", ""), self._failure.mode
        if path == "/health" and mode == "unhealthy":
            await Response(status_code=503)(scope, receive, send)
        elif not path.startswith("/v1/"):
            await self.app(scope, receive, send)
        elif mode == "http-500":
            died = WireError("died")
            await JSONResponse(died.body, died.code)(scope, receive, send)
        elif mode == "bad-json":
            reply = Response('{"id": "cmpl-', media_type="application/json")
            await reply(scope, receive, send)
        elif mode == "broken-stream":
            await self.app(scope, receive, _breaking(send))
        else:
            await self.app(scope, receive, send)
            self._served += 1
            if mode == "crash-after" and self._served >= self._failure.count:
                _die()


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


def _die() -> None:
    log("EngineCore", "core.py:1519", "EngineCore encountered a fatal error.", "ERROR")
    log("APIServer", "async_llm.py:701", "AsyncLLM output_handler failed.", "ERROR")
    os._exit(1)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, WireError)
    return JSONResponse(error.body, error.code)


async def _no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)


def make_app(
    engine: Engine,
    served: Served,
    *,
    keys: Sequence[str] = (),
    around: Sequence[Middleware] = (),
    beside: Sequence[Work] = (),
) -> Starlette:
    """Return the web server; its lifespan runs the engine and what works beside it."""
    routes = _routes(engine, served)

    @asynccontextmanager
    async def run_engine(_: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            for work in (engine.run, *beside):
                tasks.start_soon(work)
            yield
            tasks.cancel_scope.cancel()

    middleware = [
        *around,
        *([Middleware(RequireKey, keys)] if keys else []),
        Middleware(CountRequests, engine.metrics, routes),
    ]
    handlers: dict[Any, Any] = {WireError: _refused, HTTPException: _no_route}
    return Starlette(
        routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=run_engine
    )
