"""The proxy, as a real nginx runs it, before an engine that computes for everybody."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import httpx2
import pytest
import trustme
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from backends import container
from simulators.common.doors import loopback, start_web
from tests.guarded import SPELLINGS, guarded, need_nginx, raw

pytestmark = pytest.mark.anyio
KEY: Final = {"Authorization": "Bearer k"}


class Careless:
    """Asks for its key below /v1 alone, and computes at every other path and for every method."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.first_read = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = scope["raw_path"].decode("latin-1")
        self.asked.append(path)
        response: Response = PlainTextResponse(f"computed {path}")
        if path.startswith("/v1") and request.headers.get("authorization") != "Bearer k":
            response = PlainTextResponse("Unauthorized", 401)
        elif path == "/v1/stream":
            response = StreamingResponse(self._pieces())
        elif path == "/v1/size":
            response = PlainTextResponse(str(len(await request.body())))
        await response(scope, receive, send)

    async def _pieces(self) -> AsyncIterator[str]:
        yield "first"
        await self.first_read.wait()
        yield "second"


@pytest.fixture
async def engine() -> Careless:
    return Careless()


@pytest.fixture
async def way_in(engine: Careless, tmp_path: Path) -> AsyncIterator[str]:
    """The guard's address."""
    async with before(engine, tmp_path) as url:
        yield url


@asynccontextmanager
async def before(
    engine: Careless, folder: Path, tls: container.Certificate | None = None
) -> AsyncIterator[str]:
    need_nginx()
    listener = loopback()
    listener.listen()
    async with anyio.create_task_group() as tasks:
        await start_web(tasks, listener, engine)
        async with guarded(listener.getsockname()[1], folder, tls) as url:
            yield url
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
async def test_what_is_not_let_through_is_not_found(
    way_in: str, engine: Careless, method: str
) -> None:
    """However the path is written, the engine never sees it."""
    for path in ("/", "/invocations", "/docs", "/v2/embed", "/sleep", "/V1/models", *SPELLINGS):
        status, _ = await raw(way_in, path, method=method, body="{}")
        assert status in {400, 401, 404, 405}, path
    assert [path for path in engine.asked if not path.startswith("/v1/")] == []
    assert [path for path in engine.asked if ".." in path or "%2" in path] == []


async def test_only_the_paths_for_probes_answer_without_a_key(way_in: str) -> None:
    """The engine says whether a key is right, also where it would not ask for one."""
    expected = {
        **dict.fromkeys(("/health", "/ping"), (200, 200, 200)),
        **dict.fromkeys(("/metrics", "/version", "/load", "/v1/models"), (401, 401, 200)),
        **dict.fromkeys(("/tokenize", "/detokenize"), (401, 401, 200)),
    }
    wrong = {"Authorization": "Bearer no"}
    async with httpx2.AsyncClient(base_url=way_in) as client:
        seen = {
            path: tuple(
                [
                    (await client.get(path, headers=headers)).status_code
                    for headers in ({}, wrong, KEY)
                ]
            )
            for path in expected
        }
    assert seen == expected


@pytest.mark.parametrize("asked", ["/health/../metrics", "/metrics/..%2fhealth", "/v1/../health"])
async def test_the_engine_gets_the_path_that_was_compared(
    way_in: str, engine: Careless, asked: str
) -> None:
    """An engine that reads paths otherwise could take one for another."""
    await raw(way_in, asked)
    assert set(engine.asked) <= {"/health", "/v1/models"}


async def test_an_answer_is_passed_on_as_it_comes(way_in: str, engine: Careless) -> None:
    """The second piece is not made before the first was read."""
    async with (
        httpx2.AsyncClient(base_url=way_in, headers=KEY) as client,
        client.stream("GET", "/v1/stream") as reply,
    ):
        pieces = reply.aiter_text()
        first = await anext(pieces)
        engine.first_read.set()
        assert first + "".join([piece async for piece in pieces]) == "firstsecond"


async def test_a_body_with_pictures_fits(way_in: str) -> None:
    """40 MB; without a key it is refused, whatever its size."""
    async with httpx2.AsyncClient(base_url=way_in, timeout=60) as client:
        reply = await client.post("/v1/size", content=b"x" * 40_000_000, headers=KEY)
        refused = await client.post("/v1/size", content=b"x" * 40_000_000)
    assert reply.text == "40000000"
    assert refused.status_code == 401


async def test_with_a_certificate_it_answers_by_tls_alone(engine: Careless, tmp_path: Path) -> None:
    """The same paths, and nobody hears the key on its way."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = container.Certificate(
        certificate=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem")
    )
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trust)
    async with (
        before(engine, tmp_path, files) as url,
        httpx2.AsyncClient(base_url=url, verify=trust) as client,
    ):
        seen = [(await client.get(path)).status_code for path in ("/health", "/invocations")]
        plain, _ = await raw(url.replace("https", "http"), "/health")
    assert [*seen, plain] == [200, 404, 400]
