"""The routes of vLLM 0.32's web server that somebody here uses, and ways to fail while serving."""

import hmac
import json
import os
import time
import uuid
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

from simulators.engine.boot import VERSION, log
from simulators.engine.engine import Ask, Delta, Engine, Generation
from simulators.engine.flags import Failure
from simulators.engine.metrics import EngineMetrics
from simulators.engine.requests import (
    ChatRequest,
    CompletionRequest,
    Sampling,
    Served,
    TokenizeRequest,
    WireError,
    chat_ask,
    completion_ask,
    read,
)

NOT_SIMULATED: Final = (
    *("/invocations", "/generative_scoring", "/detokenize", "/load", "/scale_elastic_ep"),
    *("/is_scaling_elastic_ep", "/kv_event_sources", "/docs", "/redoc", "/openapi.json"),
    *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/chat/completions/batch", "/v1/systemone"),
)
"""Routes of vLLM that answer 501 here, so that nobody takes a rehearsal's 404 for vLLM's."""
Work = Callable[[], Coroutine[Any, Any, None]]


def _random_id() -> str:
    return uuid.uuid4().hex[:16]


def _cards(served: Served) -> list[dict[str, Any]]:
    """Return what `/v1/models` lists."""
    return [
        {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": served.root,
            "parent": None,
            "max_model_len": served.max_model_len,
        }
        for name in served.names
    ]


def _head(served: Served, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {
        "id": f"{prefix}-{_random_id()}",
        "object": kind,
        "created": int(time.time()),
        "model": served.names[0],
    }


def _usage(generation: Generation, made: int) -> dict[str, Any]:
    prompt = len(generation.request.prompt)
    return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}


def _thoughts(served: Served, generation: Generation) -> dict[str, Any]:
    """Count the tokens of reasoning, where a parser tells them apart."""
    if not served.reasoning_parser:
        return {}
    spent = min(generation.reasoning_tokens, generation.request.generated)
    return {"completion_tokens_details": {"reasoning_tokens": spent}}


def _whole(
    served: Served, request: Sampling, generation: Generation, said: Delta
) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    usage = _usage(generation, said.tokens)
    end: dict[str, Any] = {
        "index": 0,
        "finish_reason": said.finish_reason,
        "stop_reason": None,
    }
    if not isinstance(request, ChatRequest):
        choice = {**end, "text": said.text, "logprobs": None}
        return {**_head(served, "text_completion"), "choices": [choice], "usage": usage}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": said.text,
        "reasoning": said.reasoning or None,
    }
    if tool := generation.ask.tool:
        call = {"name": tool, "arguments": said.text}
        calls = [{"id": f"chatcmpl-tool-{_random_id()}", "type": "function", "function": call}]
        message |= {"content": None, "tool_calls": calls}
        if said.finish_reason == "stop":
            end["finish_reason"] = "tool_calls"
    return {
        **_head(served, "chat.completion"),
        "choices": [{**end, "message": message}],
        "usage": {**usage, **_thoughts(served, generation)},
    }


async def _events(served: Served, request: Sampling, generation: Generation) -> AsyncIterator[str]:
    """Give a stream: of a chat the role first; the pieces; the usage, if it is wanted; the end."""
    chat, made = isinstance(request, ChatRequest), 0
    head = _head(served, "chat.completion.chunk" if chat else "text_completion")

    def chunk(choice: dict[str, Any], reason: str | None) -> str:
        choices = [{"index": 0, **choice, "logprobs": None, "finish_reason": reason}]
        used = {"usage": _usage(generation, made)} if request.tells_usage(each=True) else {}
        return _event({**head, "choices": choices, **used})

    async for delta in generation.deltas():
        if chat and not made:
            yield chunk({"delta": {"role": "assistant", "content": ""}}, None)
        made += delta.tokens
        if not chat:
            yield chunk({"text": delta.text}, delta.finish_reason)
        elif delta.reasoning:
            content = {"content": delta.text} if delta.text else {}
            yield chunk({"delta": {"reasoning": delta.reasoning, **content}}, delta.finish_reason)
        else:
            yield chunk({"delta": {"content": delta.text}}, delta.finish_reason)
    if request.tells_usage():
        used = {**_usage(generation, made), **(_thoughts(served, generation) if chat else {})}
        yield _event({**head, "choices": [], "usage": used})
    yield "data: [DONE]\n\n"


def _event(body: object) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


class _Answer(Response):
    """Runs a request while the client is there; its leaving aborts it."""

    def __init__(self, engine: Engine, served: Served, request: Sampling, ask: Ask) -> None:
        self.background = None
        self._engine, self._served, self._request, self._ask = engine, served, request, ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._engine.generate(self._ask) as generation:
            if self._request.stream:
                stream = _events(self._served, self._request, generation)
                reply: Response = StreamingResponse(stream, media_type="text/event-stream")
            else:
                said = await _unless_gone(receive, generation.collect)
                if said is None:
                    return
                reply = JSONResponse(_whole(self._served, self._request, generation, said))
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
        return JSONResponse({"object": "list", "data": _cards(served)})

    async def metrics(_: Request) -> Response:
        page = engine.metrics.page(engine.scheduler)
        return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})

    async def completions(request: Request) -> Response:
        body = read(await request.body(), CompletionRequest)
        return _Answer(engine, served, body, completion_ask(served, body))

    async def chat(request: Request) -> Response:
        body = read(await request.body(), ChatRequest)
        return _Answer(engine, served, body, chat_ask(served, body))

    async def tokenize(request: Request) -> Response:
        asked = read(await request.body(), TokenizeRequest)
        served.check_name(asked.model)
        text = served.render(asked.messages) if asked.prompt is None else asked.prompt
        tokens = served.tokenizer.encode(text)
        count = {"count": len(tokens), "max_model_len": served.max_model_len}
        texts = [served.tokenizer.bytes_of(token).decode(errors="replace") for token in tokens]
        strs = texts if asked.return_token_strs else None
        return JSONResponse({**count, "tokens": tokens, "token_strs": strs})

    async def unknown(request: Request) -> Response:
        raise WireError("not-simulated", what=request.scope["path"])

    return [
        Route("/health", alive, methods=["GET"]),
        Route("/ping", alive, methods=["GET", "POST"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        *(Route(path, unknown, methods=["GET", "POST"]) for path in NOT_SIMULATED),
    ]


_GUARDED: Final = ("/v1", "/v2", "/inference", "/cohere")
"""source: vllm 0.32.0; everything else is open, `/metrics` and `/tokenize` too."""
_NOT_COUNTED: Final = ("/metrics", "/health", "/ping", "/version")


class Front:
    """401 for guarded paths without one of the keys; counts `http_requests_total` of the rest."""

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], metrics: EngineMetrics, routes: Sequence[Route]
    ) -> None:
        self.app = app
        self._keys = [key.encode() for key in keys]
        self._metrics, self._routes = metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http, path = scope["type"] == "http", scope.get("path", "")
        if is_http and self._keys and path.startswith(_GUARDED) and not self._knows(scope):
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
            return
        if not is_http or path in _NOT_COUNTED:
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

    def _knows(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        matches = [hmac.compare_digest(given.encode(), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


_HALF_OF_A_STREAM: Final = 3
"""Events that get through before the connection breaks."""


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
            raise ConnectionAbortedError(
                "The stream was cut on purpose."
            )  # in the middle of a chunk
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

    middleware = [*around, Middleware(Front, keys, engine.metrics, routes)]
    handlers: dict[Any, Any] = {WireError: _refused, HTTPException: _no_route}
    return Starlette(
        routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=run_engine
    )
