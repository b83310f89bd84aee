"""The routes of vLLM 0.32's web server that an operator uses."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import anyio
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from simulators.engine import answers
from simulators.engine.answers import VERSION, Job, Served, chat_job, completion_job, render
from simulators.engine.engine import Chorus, Delta, Engine
from simulators.engine.model import decode
from simulators.engine.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Sampling,
    TokenizeChat,
    TokenizeCompletion,
)
from simulators.engine.wire_errors import (
    CountRequests,
    EngineError,
    RequireKey,
    WireError,
    unreadable,
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
_Body = TypeVar("_Body")
_Asked = TypeVar("_Asked", CompletionRequest, ChatRequest)
_TOKENIZE: TypeAdapter[TokenizeCompletion | TokenizeChat] = TypeAdapter(
    TokenizeCompletion | TokenizeChat
)
_DETOKENIZE = TypeAdapter(DetokenizeRequest)
_SESSION: Final = "X-Amzn-SageMaker-Session-Id"
_COMPLETION = TypeAdapter(CompletionRequest)
_CHAT = TypeAdapter(ChatRequest)


def _require_json(request: Request) -> None:
    media_type = request.headers.get("content-type", "").lower().partition(";")[0]
    if media_type != "application/json":
        raise unreadable(["Unsupported Media Type: Only 'application/json' is allowed"])


async def _read(request: Request, kind: TypeAdapter[_Body]) -> _Body:
    _require_json(request)
    raw = await request.body()
    try:
        data = json.loads(raw or b"null")
    except json.JSONDecodeError as error:
        raise unreadable([_not_json(error)]) from error
    if data is None:
        missing = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
        raise unreadable([missing])
    try:
        return kind.validate_python(data)
    except ValidationError as error:
        raise unreadable(_found(error, data)) from error


def _not_json(error: json.JSONDecodeError) -> dict[str, Any]:
    return {
        "type": "json_invalid",
        "loc": ("body", error.pos),
        "msg": "JSON decode error",
        "input": {},
        "ctx": {"error": error.msg},
    }


def _found(error: ValidationError, data: object) -> list[dict[str, Any]]:
    if not isinstance(data, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        kind = "model_attributes_type"
        return [{"type": kind, "loc": ("body",), "msg": message, "input": data}]
    found = error.errors(include_url=False)
    return [{**one, "loc": ("body", *_fields(one["loc"]))} for one in found]


def _fields(location: Sequence[int | str]) -> tuple[int | str, ...]:
    """Without the names of the models that a union tried."""
    return tuple(part for part in location if part not in {"TokenizeCompletion", "TokenizeChat"})


async def _invoked(request: Request) -> dict[str, Any]:
    """Read a body as SageMaker's hosting library does, in its words.

    source: model-hosting-container-standards as vllm 0.32.0 uses it, asked 2026-11-23.
    """
    if _SESSION in request.headers:
        raise WireError(
            f"Invalid payload. stateful sessions not enabled, {_SESSION} header not supported",
            kind="Bad Request",
        )
    try:
        body = json.loads(await request.body())
    except json.JSONDecodeError as error:
        raise WireError(f"JSON decode error: {error}", kind="Bad Request") from error
    if isinstance(body, list):
        raise WireError("list indices must be integers or slices, not str")
    if not isinstance(body, dict):
        raise WireError(f"argument of type '{type(body).__name__}' is not iterable")
    return {**body, "model": None}


class _Answer(Response):
    """Runs a job while the client is there; its leaving aborts the job."""

    def __init__(
        self,
        engine: Engine,
        job: Job[_Asked],
        whole: Callable[[Job[_Asked], Chorus, list[Delta]], dict[str, Any]],
        events: Callable[[Job[_Asked], Chorus], AsyncIterator[str]],
    ) -> None:
        self.background = None
        self._engine = engine
        self._asks = job.asks
        self._streams = bool(job.request.stream)
        self._whole: Callable[[Chorus, list[Delta]], dict[str, Any]] = lambda chorus, deltas: whole(
            job, chorus, deltas
        )
        self._events: Callable[[Chorus], AsyncIterator[str]] = lambda chorus: events(job, chorus)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._engine.generate(self._asks) as chorus:
            if self._streams:
                body = self._events(chorus)
                reply: Response = StreamingResponse(body, media_type="text/event-stream")
            else:
                deltas = await _unless_gone(receive, chorus.collect)
                if deltas is None:
                    return
                reply = JSONResponse(self._whole(chorus, deltas))
            await reply(scope, receive, send)


def _late(error: EngineError, body: Sampling) -> Response:
    """Answer what the engine refuses: a stream has begun by then."""
    if not body.stream:
        raise error
    events = [answers.event(error.body()), answers.DONE]
    return StreamingResponse(iter(events), media_type="text/event-stream")


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
        return JSONResponse({"object": "list", "data": self._served.cards(int(time.time()))})

    async def metrics(self, _: Request) -> Response:
        self._served.metrics.look(self._served.engine.scheduler)
        page = generate_latest(self._served.metrics.registry)
        return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})

    async def completions(self, request: Request) -> Response:
        return self._completed(request, await _read(request, _COMPLETION))

    async def chat(self, request: Request) -> Response:
        return self._chatted(request, await _read(request, _CHAT))

    async def invocations(self, request: Request) -> Response:
        """SageMaker's door: a chat or a completion of the base model, whatever `model` says."""
        _require_json(request)
        body = await _invoked(request)
        with suppress(ValidationError):
            return self._chatted(request, _CHAT.validate_python(body))
        with suppress(ValidationError):
            return self._completed(request, _COMPLETION.validate_python(body))
        raise WireError(
            "Cannot find suitable handler for request. Expected one of: "
            "['ChatCompletionRequest', 'CompletionRequest']"
        )

    def _completed(self, request: Request, body: CompletionRequest) -> Response:
        try:
            job = completion_job(self._served, body, request.headers.get("x-request-id"))
        except EngineError as error:
            return _late(error, body)
        answer, events = answers.completion_answer, answers.completion_events
        return _Answer(self._served.engine, job, answer, events)

    def _chatted(self, request: Request, body: ChatRequest) -> Response:
        try:
            job = chat_job(self._served, body, request.headers.get("x-request-id"))
        except EngineError as error:
            return _late(error, body)
        return _Answer(self._served.engine, job, answers.chat_answer, answers.chat_events)

    async def tokenize(self, request: Request) -> Response:
        asked = await _read(request, _TOKENIZE)
        self._served.check_name(asked.model)
        tokenizer = self._served.engine.tokenizer
        tokens = tokenizer.encode(self._text(asked))
        texts = [decode(tokenizer, [token]) for token in tokens]
        return JSONResponse(
            {
                "count": len(tokens),
                "max_model_len": self._served.max_model_len,
                "tokens": tokens,
                "token_strs": texts if asked.return_token_strs else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        asked = await _read(request, _DETOKENIZE)
        self._served.check_name(asked.model)
        return JSONResponse({"prompt": decode(self._served.engine.tokenizer, asked.tokens)})

    def _text(self, asked: TokenizeCompletion | TokenizeChat) -> str:
        if isinstance(asked, TokenizeCompletion):
            return asked.prompt
        return render(
            asked.messages,
            self._served.engine.tokenizer.special,
            model_name=self._served.name,
            multimodal=self._served.multimodal,
            open_turn=asked.add_generation_prompt,
        )

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
            *(Route(path, _not_simulated, methods=methods) for path, methods in NOT_SIMULATED),
        ]
        for route in routes:
            # FastAPI, unlike Starlette, does not answer HEAD for every GET.
            (route.methods or set()).discard("HEAD")
        return [*routes, *_pages(routes)]


async def _not_simulated(request: Request) -> Response:
    path = request.scope["path"]
    raise WireError(
        f"vLLM {VERSION} answers {path}; the simulated engine does not.",
        kind="NotImplementedError",
        code=501,
    )


def _pages(routes: Sequence[Route]) -> list[Route]:
    """Give the pages that FastAPI makes of the routes; as in vLLM no key guards them."""
    document = {
        "openapi": "3.1.0",
        "info": {"title": "FastAPI", "version": "0.1.0"},
        "paths": {
            path: {
                method.lower(): {"responses": {"200": {"description": "Successful Response"}}}
                for route in routes
                for method in route.methods or ()
                if route.path == path
            }
            for path in dict.fromkeys(route.path for route in routes)
        },
    }

    async def listed(_: Request) -> Response:
        return JSONResponse(document)

    async def shown(_: Request) -> Response:
        return HTMLResponse("<title>FastAPI</title><p>The routes are in /openapi.json.")

    pages = {"/openapi.json": listed, "/docs": shown, "/redoc": shown}
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
    """The web server; its lifespan runs the engine and what works beside it."""
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
