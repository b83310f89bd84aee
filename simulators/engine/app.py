"""The routes of vLLM 0.32's web server that an operator uses."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import anyio
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from simulators.engine.answers import (
    VERSION,
    Job,
    Served,
    chat_events,
    chat_job,
    completion_events,
    completion_job,
    whole,
)
from simulators.engine.engine import Delta, Engine
from simulators.engine.errors import (
    CountRequests,
    RequireKey,
    WireError,
    not_simulated,
    unreadable,
)
from simulators.engine.model import decode
from simulators.engine.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

NOT_SIMULATED: Final[tuple[tuple[str, list[str]], ...]] = (
    ("/v1/chat/completions/batch", ["POST"]),
    ("/v1/responses", ["POST"]),
    ("/v1/responses/{response_id}", ["GET"]),
    ("/v1/responses/{response_id}/cancel", ["POST"]),
    ("/v1/messages", ["POST"]),
    ("/v1/messages/count_tokens", ["POST"]),
    ("/v1/systemone", ["POST"]),
    ("/generative_scoring", ["POST"]),
    ("/scale_elastic_ep", ["POST"]),
)
"""Routes of vLLM that answer 501 here, so that nobody takes a rehearsal's 404 for vLLM's."""
Work = Callable[[], Coroutine[Any, Any, None]]
_Body = TypeVar("_Body", bound=BaseModel)


def _require_json(request: Request) -> None:
    media_type = request.headers.get("content-type", "").lower().partition(";")[0]
    if media_type != "application/json":
        raise unreadable(["Unsupported Media Type: Only 'application/json' is allowed"])


async def _read(request: Request, kind: type[_Body]) -> _Body:
    """Read a body as FastAPI does, and refuse it in its words."""
    _require_json(request)
    try:
        data = json.loads(await request.body() or b"null")
    except json.JSONDecodeError as error:
        found = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error"}
        raise unreadable([{**found, "input": {}, "ctx": {"error": error.msg}}]) from error
    if data is None:
        missing = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
        raise unreadable([missing])
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        if isinstance(data, dict):
            every = error.errors(include_url=False)
            raise unreadable([{**one, "loc": ("body", *one["loc"])} for one in every]) from error
        message = "Input should be a valid dictionary or object to extract fields from"
        kind_of = "model_attributes_type"
        raise unreadable(
            [{"type": kind_of, "loc": ("body",), "msg": message, "input": data}]
        ) from (error)


class _Answer(Response):
    """Runs a job while the client is there; its leaving aborts the job."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self.background = None
        self._engine = engine
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        job = self._job
        with self._engine.generate(job.asks) as chorus:
            if job.request.stream:
                chat = isinstance(job.request, ChatRequest)
                events = (chat_events if chat else completion_events)(job, chorus)
                reply: Response = StreamingResponse(events, media_type="text/event-stream")
            else:
                deltas = await _unless_gone(receive, chorus.collect)
                if deltas is None:
                    return
                reply = JSONResponse(whole(job, chorus, deltas))
            await reply(scope, receive, send)


async def _unless_gone(
    receive: Receive, work: Callable[[], Awaitable[list[Delta]]]
) -> list[Delta] | None:
    done: list[Delta] | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        done = await work()
        tasks.cancel_scope.cancel()
    return done


class _Routes:
    """One method per route."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def alive(self, _: Request) -> Response:
        return Response()

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def nothing(self, _: Request) -> Response:
        return JSONResponse({})

    async def not_scaling(self, _: Request) -> Response:
        return JSONResponse({"is_scaling_elastic_ep": False})

    async def load(self, _: Request) -> Response:
        return JSONResponse({"server_load": 0})

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": self._served.cards()})

    async def metrics(self, _: Request) -> Response:
        self._served.metrics.look(self._served.engine.scheduler)
        page = generate_latest(self._served.metrics.registry)
        return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})

    async def completions(self, request: Request) -> Response:
        body = await _read(request, CompletionRequest)
        job = completion_job(self._served, body, request.headers.get("x-request-id"))
        return _Answer(self._served.engine, job)

    async def chat(self, request: Request) -> Response:
        body = await _read(request, ChatRequest)
        job = chat_job(self._served, body, request.headers.get("x-request-id"))
        return _Answer(self._served.engine, job)

    async def invocations(self, request: Request) -> Response:
        """Answer a chat or a completion of the base model, whatever `model` says; asks for no key.

        source: model-hosting-container-standards as vllm 0.32.0 uses it, asked 2026-11-23.
        """
        _require_json(request)
        try:
            body = json.loads(await request.body())
        except json.JSONDecodeError as error:
            raise WireError(f"JSON decode error: {error}", kind="Bad Request") from error
        body = {**body, "model": None} if isinstance(body, dict) else body
        with suppress(ValidationError):
            chat = chat_job(self._served, ChatRequest.model_validate(body), None)
            return _Answer(self._served.engine, chat)
        with suppress(ValidationError):
            job = completion_job(self._served, CompletionRequest.model_validate(body), None)
            return _Answer(self._served.engine, job)
        raise WireError(
            "Cannot find suitable handler for request. Expected one of: "
            "['ChatCompletionRequest', 'CompletionRequest']"
        )

    async def tokenize(self, request: Request) -> Response:
        asked = await _read(request, TokenizeRequest)
        served, tokenizer = self._served, self._served.engine.tokenizer
        served.check_name(asked.model)
        text = asked.prompt
        if text is None:
            text = served.render(asked.messages or [], open_turn=asked.add_generation_prompt)
        tokens = tokenizer.encode(text)
        texts = [decode(tokenizer, [token]) for token in tokens]
        return JSONResponse(
            {
                "count": len(tokens),
                "max_model_len": served.max_model_len,
                "tokens": tokens,
                "token_strs": texts if asked.return_token_strs else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        asked = await _read(request, DetokenizeRequest)
        self._served.check_name(asked.model)
        return JSONResponse({"prompt": decode(self._served.engine.tokenizer, asked.tokens)})

    def table(self) -> list[Route]:
        routes = [
            Route("/health", self.alive, methods=["GET"]),
            Route("/ping", self.alive, methods=["GET", "POST"]),
            Route("/version", self.version, methods=["GET"]),
            Route("/load", self.load, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/invocations", self.invocations, methods=["POST"]),
            Route("/kv_event_sources", self.nothing, methods=["GET"]),
            Route("/is_scaling_elastic_ep", self.not_scaling, methods=["POST"]),
            *(Route(path, _no_such_route, methods=methods) for path, methods in NOT_SIMULATED),
        ]
        for route in routes:
            # FastAPI, unlike Starlette, does not answer HEAD for every GET.
            (route.methods or set()).discard("HEAD")
        return [*routes, *_pages(routes)]


async def _no_such_route(request: Request) -> Response:
    raise not_simulated(request.scope["path"])


def _pages(routes: Sequence[Route]) -> list[Route]:
    """Return the pages that FastAPI makes of the routes; as in vLLM no key guards them."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method in route.methods or ():
            answer = {"responses": {"200": {"description": "Successful Response"}}}
            paths.setdefault(route.path, {})[method.lower()] = answer
    info = {"title": "FastAPI", "version": "0.1.0"}

    async def document(_: Request) -> Response:
        return JSONResponse({"openapi": "3.1.0", "info": info, "paths": paths})

    async def page(_: Request) -> Response:
        return HTMLResponse("<title>FastAPI</title><p>The routes are in /openapi.json.")

    pages = {"/openapi.json": document, "/docs": page, "/redoc": page}
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in pages.items()]


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, WireError)
    return error.response()


async def _no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)


def make_app(
    served: Served,
    *,
    keys: Sequence[str] = (),
    origins: Sequence[str] = (),
    around: Sequence[Middleware] = (),
    beside: Sequence[Work] = (),
) -> Starlette:
    """Return the web server; its lifespan runs the engine and what works beside it."""
    routes = _Routes(served).table()

    @asynccontextmanager
    async def run_engine(_: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.engine.run)
            for work in beside:
                tasks.start_soon(work)
            yield
            tasks.cancel_scope.cancel()

    middleware = [
        *around,
        *([Middleware(RequireKey, keys)] if keys else []),
        Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]),
        Middleware(CountRequests, served.metrics, routes),
    ]
    handlers: dict[Any, Any] = {WireError: _refused, HTTPException: _no_route}
    return Starlette(
        routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=run_engine
    )
