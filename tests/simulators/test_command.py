"""`python -m simulators.engine serve`, as a process."""

import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"


class Command:
    """A running command and what it said on stdout."""

    def __init__(self, process: Process) -> None:
        assert process.stdout
        self.process = process
        self.said = ""
        self._stdout = TextReceiveStream(process.stdout)

    async def hear(self, words: str) -> str:
        """Read until a line matches; the group of the match."""
        while not (match := re.search(words, self.said)):
            self.said += await self._stdout.receive()
        return match.group(match.lastindex or 0)

    async def url(self) -> str:
        """Where it serves, once it does."""
        url = await self.hear(r"Starting vLLM server on (\S+)\n")
        async with httpx2.AsyncClient(base_url=url) as client:
            for _ in range(200):
                try:
                    await client.get("/health")
                except httpx2.ConnectError:
                    await anyio.sleep(0.01)
                else:
                    return url
        raise TimeoutError(self.said)


@asynccontextmanager
async def command(*argv: str) -> AsyncIterator[Command]:
    full = [sys.executable, "-m", "simulators.engine", "serve", *argv, "--host", "127.0.0.1"]
    with anyio.fail_after(20):
        async with await anyio.open_process(full) as process:
            try:
                yield Command(process)
            finally:
                if process.returncode is None:
                    process.kill()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")


# These start a process each, which takes a third of a second.


async def test_it_boots_serves_and_stops_in_the_middle_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key comes from the environment; SIGTERM ends the stream politely and then the process."""
    monkeypatch.setenv("VLLM_API_KEY", "from-the-environment")
    monkeypatch.setenv("SIMULATED_ENGINE_STEP_MS", "20")
    body = {"prompt": "hello", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with command("tiny/model", "--port", "0", "--max-model-len", "8192") as engine:
        headers = {"authorization": "Bearer from-the-environment"}
        async with httpx2.AsyncClient(base_url=await engine.url(), headers=headers) as client:
            assert (
                await client.get("/v1/models", headers={"authorization": ""})
            ).status_code == 401
            async with client.stream("POST", PATH, json=body) as reply:
                lines = reply.aiter_lines()
                await anext(lines)
                engine.process.send_signal(signal.SIGTERM)
                rest = [line async for line in lines if line]
        assert '"finish_reason":"abort"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert await engine.process.wait() == 0


async def test_a_rehearsed_accelerator_serves_with_its_own_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log and the metrics say the same of it."""
    monkeypatch.setenv("SIMULATED_ENGINE_ACCELERATOR", "rtx-3090")
    argv = ("google/gemma-4-12B-it-qat-w4a16-ct", "--port", "0", "--max-model-len", "8192")
    async with command(*argv) as engine:
        async with httpx2.AsyncClient(base_url=await engine.url()) as client:
            metrics = (await client.get("/metrics")).text
            reply = await client.post(PATH, json={"prompt": "hi", "max_tokens": 2})
        assert reply.status_code == 200
        tokens = (await engine.hear(r"GPU KV cache size: ([\d,]+) tokens")).replace(",", "")
        assert f'kv_cache_size_tokens="{tokens}"' in metrics


async def test_nobody_listens_before_the_engine_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is taken, and connections are refused."""
    monkeypatch.setenv("SIMULATED_ENGINE_FAIL", "never-ready")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with command("tiny/model", "--port", str(port)) as engine:
        await engine.hear("Starting to load model")
        async with httpx2.AsyncClient() as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get(f"http://127.0.0.1:{port}/health")
        engine.process.terminate()
        assert await engine.process.wait() == -signal.SIGTERM


async def test_a_taken_port_is_an_os_error() -> None:
    """Before anything is loaded, with status 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with command("tiny/model", "--port", str(taken.getsockname()[1])) as engine:
            assert engine.process.stderr
            said = "".join([text async for text in TextReceiveStream(engine.process.stderr)])
            assert await engine.process.wait() == 1
    assert said.endswith("OSError: [Errno 98] Address already in use\n")


@pytest.mark.parametrize(
    ("fail", "status"), [("kill-in:loading", -signal.SIGKILL), ("exit-in:graphs", 1)]
)
async def test_it_can_die_without_a_word(
    monkeypatch: pytest.MonkeyPatch, fail: str, status: int
) -> None:
    """As the out-of-memory killer would have it."""
    monkeypatch.setenv("SIMULATED_ENGINE_FAIL", fail)
    async with command("tiny/model", "--port", "0") as engine:
        assert await engine.process.wait() == status


@pytest.mark.parametrize(("fail", "status"), [("crash-after:2", 1), ("kill-after:2", -9)])
async def test_it_can_die_after_some_requests(
    monkeypatch: pytest.MonkeyPatch, fail: str, status: int
) -> None:
    """The last one is still answered."""
    monkeypatch.setenv("SIMULATED_ENGINE_FAIL", fail)
    argv = ("tiny/model", "--port", "0", "--disable-access-log-for-endpoints", "/health")
    async with command(*argv) as engine:
        async with httpx2.AsyncClient(base_url=await engine.url()) as client:
            for _ in range(2):
                reply = await client.post(PATH, json={"prompt": "hi", "max_tokens": 1})
                assert reply.status_code == 200
        assert await engine.process.wait() == status
    assert "GET /health" not in engine.said
