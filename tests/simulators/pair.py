"""A real vLLM and the simulated engine, started with the same flags."""

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import pytest

from core.address import free_port

REAL_ENGINE = Path(__file__).parents[2] / ".vllm"
MODEL = REAL_ENGINE / "tiny-gemma-4"
REAL: Final = (str(REAL_ENGINE / "bin" / "vllm"), "serve")
SIMULATED: Final = (sys.executable, "-m", "simulators.engine", "serve")
FLAGS: Final = (
    *("--served-model-name", "tiny", "--host", "127.0.0.1", "--api-key", "k"),
    *("--max-model-len", "2048", "--enforce-eager", "--kv-cache-memory-bytes", "64M"),
    *("--max-num-seqs", "64", "--block-size", "128"),
)


@dataclass
class Running:
    """One of the two, its client, and what it wrote."""

    client: httpx2.AsyncClient
    log: list[str]


@dataclass
class Pair:
    real: Running
    simulated: Running

    async def both(self, method: str, path: str, **more: Any) -> list[httpx2.Response]:
        clients = (self.real.client, self.simulated.client)
        return [await client.request(method, path, **more) for client in clients]


ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "SIMULATED_ENGINE_BOOT_SECONDS": "0",
    "SIMULATED_ENGINE_STEP_MS": "5",
}


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """What both need to know; skips where there is no real vLLM."""
    if not (REAL_ENGINE / "complete").exists():
        pytest.fail("There is no real vLLM in .vllm: run `make vllm`.")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@contextlib.asynccontextmanager
async def running(*command: str, flags: Sequence[str] = ()) -> AsyncIterator[Running]:
    port = free_port()
    argv = [*command, str(MODEL), "--port", str(port), *FLAGS, *flags]
    log: list[str] = []

    async def read(stream: anyio.abc.ByteReceiveStream) -> None:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.EndOfStream):
            while True:
                log.append((await stream.receive()).decode(errors="replace"))

    base_url = f"http://127.0.0.1:{port}"
    async with (
        httpx2.AsyncClient(base_url=base_url, timeout=60) as client,
        anyio.create_task_group() as tasks,
        await anyio.open_process(argv) as process,
    ):
        assert process.stdout
        assert process.stderr
        tasks.start_soon(read, process.stdout)
        tasks.start_soon(read, process.stderr)
        try:
            await _wait_until_healthy(client, process, log)
            yield Running(client, log)
        finally:
            # A killed API server would leave its engine core behind: let it end by itself.
            if process.returncode is None:
                process.terminate()
            with anyio.CancelScope(shield=True):
                await process.wait()


async def _wait_until_healthy(
    client: httpx2.AsyncClient, process: anyio.abc.Process, log: Sequence[str]
) -> None:
    for _ in range(600):
        if process.returncode is not None:
            break
        try:
            await client.get("/health")
        except httpx2.TransportError:
            await anyio.sleep(0.2)
        else:
            return
    pytest.fail(f"It did not start ({process.returncode}): {''.join(log)[-4000:]}")


@contextlib.asynccontextmanager
async def both_running() -> AsyncIterator[Pair]:
    """The pair, booted and healthy."""
    async with running(*REAL) as real, running(*SIMULATED) as simulated:
        yield Pair(real, simulated)
