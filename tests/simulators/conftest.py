"""A simulated engine in this process, and one as a command."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette

from simulators.engine.__main__ import assemble
from simulators.engine.engine import Engine
from simulators.engine.flags import Knobs, parse, read_failure
from simulators.engine.room import room_of
from tests.simulators.models import write_tiny_model
from tests.webserver import listening


class Simulated:
    """One engine with its web server, and a client in the same process."""

    def __init__(self, engine: Engine, app: Starlette) -> None:
        self.engine = engine
        self.app = app
        transport = httpx2.ASGITransport(app)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://engine")

    async def post(self, path: str, **body: object) -> httpx2.Response:
        return await self.client.post(path, json=body)

    async def events(self, path: str, **body: object) -> list[str]:
        """The data of a stream's events."""
        reply = await self.post(path, stream=True, **body)
        lines = [line for line in reply.text.split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        return [line.removeprefix("data: ") for line in lines]

    async def sample(self, line: str) -> float:
        """One number of `/metrics`."""
        page = (await self.client.get("/metrics")).text
        found = [text for text in page.splitlines() if text.startswith(f"{line} ")]
        assert len(found) == 1, line
        return float(found[0].rpartition(" ")[2])

    def on_a_port(self) -> AbstractAsyncContextManager[str]:
        """The same engine behind a real web server."""
        return listening(self.app)


Simulate = Callable[..., AbstractAsyncContextManager[Simulated]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def simulate(tiny_model: Path) -> Simulate:
    """Build an engine from flags; `running` is for tests that start no server of their own."""

    @asynccontextmanager
    async def build(
        *more: str, fail: str = "", running: bool = True, reply: str = "", step_ms: float = 0
    ) -> AsyncIterator[Simulated]:
        base = ("--served-model-name", "tiny", "--max-model-len", "2048", "--block-size", "16")
        flags = parse([str(tiny_model), *base, *more])
        knobs = Knobs(step_ms=step_ms, fail=fail, reply=reply)
        room = room_of(flags, knobs)
        small = {"block_size": 16, "num_blocks": 256, "kv_tokens": 4096, "max_concurrency": 2.0}
        kv = room.cache().model_copy(update=small)
        app, simulated_engine = assemble(flags, room, kv, read_failure(fail))
        simulated = Simulated(simulated_engine, app)
        async with simulated.client:
            if not running:
                yield simulated
                return
            async with app.router.lifespan_context(app):
                yield simulated

    return build
