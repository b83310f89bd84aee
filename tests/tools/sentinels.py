"""Secrets planted wherever one may be, and a model that tells them all."""

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.conversation import Reply

KEY: Final = "sk-sentinel0123456789abcdef"
SIGNED: Final = "https://files.example/x?sig=sentinelSIGNATURE0123456789abcdef"
OURS: Final[dict[str, Any]] = {
    "vllm_api_key": "word-of-the-owner",
    "hf_token": "word-of-the-hub",
    "google_api_key": "word-of-the-catalogue",
    "analyst_api_key": "word-of-the-analyst",
    "mcp_bearer_token": "word-of-the-clients-of-this-server",
}
"""In the settings; nothing but the settings says that these are secrets."""
SHAPED: Final = {
    "a signature": SIGNED.partition("sig=")[2],
    "an engine's key": KEY,
    "a token of the Hub": f"hf_{'s' * 34}",
    "a token of Google": f"ya29.{'s' * 40}",
    "a key of Azure's storage": f"{'s' * 86}==",
    "a token that anybody signs": f"eyJ{'h' * 20}.eyJ{'p' * 20}.{'s' * 20}",
}
"""That nobody told us of; they look like what they are."""
LEAKY: Final = (
    f"fetching {SIGNED}",
    f"using {KEY}",
    f"hf_token={SHAPED['a token of the Hub']}",
    f"Authorization: Bearer {SHAPED['a token of Google']}",
    f"DefaultEndpointsProtocol=https;AccountKey={'s' * 86}==",
    f"id token {SHAPED['a token that anybody signs']}",
)
"""Lines such as logs and models say them."""
MODEL: Final = "google/gemma-4-E2B-it"


def leaked(reply: Reply) -> list[str]:
    """Name the secrets that an answer has in either half."""
    said = reply.text + json.dumps(reply.structured, ensure_ascii=False)
    return named_in(said)


def named_in(said: str) -> list[str]:
    """Name the secrets in a text."""
    return [kind for kind, secret in {**OURS, **SHAPED}.items() if secret in said]


def talker(*more: str) -> Starlette:
    """Make an endpoint whose model says every secret, and `more`."""
    words = "\n".join([*LEAKY, *more])

    async def models(_request: Request) -> Response:
        return JSONResponse({"data": [{"id": MODEL, "max_model_len": 4096, "root": SIGNED}]})

    async def chat(request: Request) -> Response:
        asked = await request.json()
        if asked.get("stream"):
            return StreamingResponse(_events(words), media_type="text/event-stream")
        said = {"message": {"content": words}, "text": words, "finish_reason": "stop"}
        return JSONResponse({"choices": [said]})

    async def well(_request: Request) -> Response:
        return JSONResponse({"version": f"0.32.0 {KEY}"})

    async def metrics(_request: Request) -> Response:
        return PlainTextResponse(f'vllm:num_requests_running{{by="{KEY}"}} 1\n')

    paths: Iterable[tuple[str, Any]] = (
        ("/v1/models", models),
        ("/v1/chat/completions", chat),
        ("/v1/completions", chat),
        ("/health", well),
        ("/version", well),
        ("/metrics", metrics),
    )
    return Starlette(routes=[Route(path, do, methods=["GET", "POST"]) for path, do in paths])


async def _events(words: str) -> AsyncIterator[str]:
    delta = {"content": words, "reasoning": words}
    yield f"data: {json.dumps({'choices': [{'delta': delta, 'text': words}]})}\n\n"
    yield "data: [DONE]\n\n"
