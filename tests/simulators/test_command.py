"""`python -m simulators.engine serve`, as a process, and its command line."""

import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from simulators.engine.flags import human_readable_int, non_default, parse
from tests.soon import HANGS

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
            while True:
                try:
                    await client.get("/health")
                except httpx2.ConnectError:
                    await anyio.sleep(0.01)
                else:
                    return url


@asynccontextmanager
async def command(*argv: str) -> AsyncIterator[Command]:
    full = [sys.executable, "-m", "simulators.engine", "serve", *argv, "--host", "127.0.0.1"]
    with anyio.fail_after(HANGS):
        async with await anyio.open_process(full) as process:
            try:
                yield Command(process)
            finally:
                if process.returncode is None:
                    process.kill()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")


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


def test_the_flags_that_operators_use_are_taken() -> None:
    """With vLLM's spellings: underscores, short names, suffixes, `=`, `--no-` and `auto`."""
    line = (
        "m --max_model_len=8k --kv-cache-memory-bytes 64M -tp 2 --api-key a b --enforce-eager "
        "--no-enable-prefix-caching --served-model-name x y --limit-mm-per-prompt"
    )
    flags = parse([*line.split(), '{"image": 0}'])
    assert (flags.model, flags.max_model_len, flags.kv_cache_memory_bytes) == ("m", 8000, 2**26)
    assert (flags.tensor_parallel_size, flags.api_key) == (2, ["a", "b"])
    assert (flags.enforce_eager, flags.enable_prefix_caching) == (True, False)
    assert (flags.served_model_name, flags.limit_mm_per_prompt) == (["x", "y"], {"image": 0})
    assert parse(["m", "--max-model-len", "auto"]).max_model_len == -1
    numbers = ("1k", "1K", "25.6k", "2048")
    assert [*map(human_readable_int, numbers)] == [1000, 1024, 25_600, 2048]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--bogus-flag 3", "unrecognized arguments: --bogus-flag 3"),
        ("--max-model-len abc", "argument --max-model-len: invalid"),
        ("--limit-mm-per-prompt {image:0}", "Value {image:0} cannot be converted"),
        ("--dtype int3", "argument --dtype: invalid choice"),
    ],
)
def test_what_vllm_refuses_is_refused(
    flags: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage on stderr and status 2."""
    with pytest.raises(SystemExit) as left:
        parse(["m", *flags.split()])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: vllm")
    assert words in said


def test_the_key_is_not_told() -> None:
    """What the log shows of the flags has stars in its place."""
    told = non_default(parse(["m", "--api-key", "secret-key", "--port", "9"]))
    assert told == {"model_tag": "m", "model": "m", "api_key": "***", "port": 9}
