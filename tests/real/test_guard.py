"""A real vLLM behind a real nginx, with the configuration that deployments have."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import pytest

from tests.guarded import SPELLINGS, guarded, need_nginx, raw
from tests.real.conftest import MODEL, Served, engine_of

pytestmark = [pytest.mark.anyio, pytest.mark.vllm, pytest.mark.xdist_group("life")]
OPEN: Final = {"/health", "/ping"}
CHAT: Final[dict[str, Any]] = {
    "model": MODEL.name,
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 4,
}
ASKED: Final = json.dumps({**CHAT, "prompt": "Hi", "input": "Hi", "text_1": "a", "text_2": "b"})


class Pair(NamedTuple):
    """The engine itself, as nobody else reaches it, and the way in."""

    engine: httpx2.AsyncClient
    url: str
    key: dict[str, str]


@pytest.fixture
async def pair(life: Served, tmp_path: Path) -> AsyncIterator[Pair]:
    """The deployment that is there, behind the proxy."""
    need_nginx()
    port, key = engine_of(life)
    base = f"http://127.0.0.1:{port}"
    bearer = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(base_url=base, headers=bearer, timeout=60) as engine,
        guarded(port, tmp_path) as url,
    ):
        yield Pair(engine, url, bearer)


async def test_no_route_of_its_own_page_computes_without_the_key(pair: Pair) -> None:
    """Every path and method that the engine says it has, and other spellings of one of them."""
    page = (await pair.engine.get("/openapi.json")).json()
    routes = {(method.upper(), path) for path, row in page["paths"].items() for method in row}
    assert ("POST", "/invocations") in routes
    named = {*(path for _, path in routes), "/metrics", "/docs", "/redoc", "/openapi.json"}
    spelt = {(method, path) for method in ("GET", "POST") for path in SPELLINGS}
    every = {(method, path) for method in ("GET", "POST", "PUT", "DELETE") for path in named}
    before = await computed(pair)
    answered = {}
    for method, path in sorted(routes | every | spelt):
        status, answer = await raw(pair.url, path, method=method, body=ASKED)
        if status not in {400, 401, 403, 404, 405} and path not in OPEN:
            answered[f"{method} {path}"] = answer[:120]
    assert answered == {}
    assert await computed(pair) == before


async def test_the_engine_alone_would_compute(pair: Pair) -> None:
    """What stands behind the proxy needs it: else this test would prove nothing."""
    reply = await pair.engine.post("/invocations", json=CHAT)
    assert reply.status_code == 200
    assert reply.json()["choices"]


async def test_with_the_key_nothing_is_missing(pair: Pair) -> None:
    """Answers, streams, tokens, metrics and the version."""
    async with httpx2.AsyncClient(base_url=pair.url, headers=pair.key, timeout=60) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
        assert answer.json()["usage"]["completion_tokens"] == 4
        stream = {**CHAT, "stream": True, "ignore_eos": True}
        async with client.stream("POST", "/v1/chat/completions", json=stream) as reply:
            events = [line async for line in reply.aiter_lines() if line.startswith("data: ")]
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert events[-1] == "data: [DONE]"
        assert len(events) > 4
        tokens = await client.post("/tokenize", json={"model": MODEL.name, "prompt": "Hi"})
        assert tokens.json()["count"] > 0
        assert "vllm:generation_tokens_total" in (await client.get("/metrics")).text
        assert (await client.get("/version")).json()["version"]
        picture = {**CHAT, "metadata": {"picture": "x" * 20_000_000}}
        assert (await client.post("/v1/chat/completions", json=picture)).status_code == 200


async def computed(pair: Pair) -> dict[str, str]:
    """What the engine has counted of requests and tokens."""
    lines = (await pair.engine.get("/metrics")).text.splitlines()
    kept = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success")
    return dict(line.rsplit(" ", 1) for line in lines if line.startswith(kept))
