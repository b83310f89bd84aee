"""`python server.py --http` as it is started: what it refuses, says, and how it ends."""

import re
import signal
from pathlib import Path
from typing import Final

import anyio
import pytest
from fastmcp import Client
from mcp import MCPError

from core.environment import ROOT, inherited_environment
from server import main
from tests.over_http import TOKEN, posted, served, settings_of, started, the_rest

pytestmark = pytest.mark.anyio

REFUSED: Final = {
    "others could reach it": (["--host", "0.0.0.0"], {}, "no token is set"),  # noqa: S104
    "others could, by IPv6": (["--host", "::"], {}, "no token is set"),
    "others could, spelt otherwise": (["--host", "0"], {}, "no token is set"),
    "a weak token": ([], {"MCP_BEARER_TOKEN": "secret" * 3}, "MCP_BEARER_TOKEN must be"),
    "a token of one letter": ([], {"MCP_BEARER_TOKEN": "a" * 40}, "MCP_BEARER_TOKEN must be"),
    "a token of words": ([], {"MCP_BEARER_TOKEN": f"{TOKEN} {TOKEN}"}, "MCP_BEARER_TOKEN must be"),
    "a proxy without a token": ([], {"MCP_ALLOWED_HOSTS": "mcp.example"}, "no token is set"),
    "every name": ([], {"MCP_ALLOWED_HOSTS": "*", "MCP_BEARER_TOKEN": TOKEN}, "which is no name"),
    "no such address": (["--host", ""], {}, "cannot be looked up"),
    "half a certificate": (["--tls-cert", "a"], {}, "Give both"),
    "no certificate": (
        ["--tls-cert", "no-cert", "--tls-key", "no-key"],
        {},
        "no-cert cannot be read",
    ),
    "another file": (
        ["--tls-cert", "LICENSE", "--tls-key", "LICENSE"],
        {},
        "no certificate and key",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_is_not_safe_is_not_started(
    why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is wrong and what to do; the token is never in it."""
    arguments, environment, said = REFUSED[why]
    monkeypatch.chdir(ROOT)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["--http", "--port", "0", *arguments]) == 2
    heard = capsys.readouterr()
    assert heard.out == ""
    assert said in heard.err
    assert len(heard.err.splitlines()) == 1
    token = environment.get("MCP_BEARER_TOKEN")
    assert token is None or token not in heard.err


async def test_a_port_that_is_taken_is_told_in_one_line(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the way to another one."""
    async with served(settings_of(state_dir)) as url:
        assert main(["--http", "--port", url.split(":")[2].removesuffix("/mcp")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--port" in line


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
async def test_a_port_is_a_number_that_can_be_one(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage is shown, as with any command line."""
    with pytest.raises(SystemExit) as ended:
        main(["--http", f"--port={port}"])
    assert ended.value.code == 2
    assert f"'{port}' is no port" in capsys.readouterr().err


async def test_others_reach_it_with_the_token_and_a_warning(tmp_path: Path) -> None:
    """As `server.py` is started, and in an instant as for a client: two seconds."""
    environment = {
        "MCP_BEARER_TOKEN": TOKEN,
        "VLLM_DEVOPS_STATE_DIR": str(tmp_path),
        "ENGINE": "simulated",
    }
    argv = ("server.py", "--http", "--host", "0.0.0.0")  # noqa: S104  it is what is tested
    async with started(argv, **environment) as (process, errors):
        where = (await errors.receive_until(b"\n", 1000)).decode()
        warned = (await errors.receive_until(b"\n", 1000)).decode()
        (port,) = re.findall(r":(\d+)/mcp", where)
        url = f"http://127.0.0.1:{port}/mcp"
        told = [
            (await posted(url)).status_code,
            (await posted(url, Authorization=f"Bearer {TOKEN}")).status_code,
        ]
        process.terminate()
        rest = await the_rest(errors)
    assert told == [401, 200]
    assert "callers with the token" in where
    assert "in clear" in warned
    assert (process.returncode, rest) == (0, "")
    assert TOKEN not in where + warned


ENDS: Final = """
import sys
from contextlib import asynccontextmanager

import anyio
import uvicorn
from fastmcp import FastMCP

from tools.http import serve


def say(word):
    print(word, file=sys.stderr, flush=True)


@asynccontextmanager
async def life(_server):
    try:
        yield {}
    finally:
        await anyio.lowlevel.checkpoint()
        say("ended")


server = FastMCP("one that is slow", lifespan=life)


@server.tool
async def slow():
    say("called")
    await anyio.sleep_forever()


async def late(self):
    # Uvicorn looks ten times a second whether it is to end: the streams may end before.
    while not self.should_exit:
        await anyio.sleep(0.02)
    await anyio.sleep(1)


uvicorn.Server.main_loop = late
sys.exit(serve(lambda _settings: server, sys.argv[1:]))
"""


@pytest.mark.parametrize(("sign", "mode"), [(signal.SIGINT, "auto"), (signal.SIGTERM, "legacy")])
async def test_a_signal_ends_it_and_its_work(sign: signal.Signals, mode: str) -> None:
    """A call that is under way gets two seconds; no word of it. Those make it slow."""
    async with started(["-c", ENDS]) as (process, errors):
        where = (await errors.receive_until(b"\n", 1000)).decode()
        (url,) = re.findall(r"http://\S+/mcp", where)

        async def call() -> None:
            with pytest.raises(MCPError):
                async with Client(url, mode=mode) as client:
                    await client.call_tool("slow", {})

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            assert await errors.receive_until(b"\n", 1000) == b"called"
            process.send_signal(sign)
            rest = await the_rest(errors)
            await process.wait()
    assert (process.returncode, rest) == (0, "ended\n")


async def test_other_programs_do_not_get_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that the server starts has no need to call it."""
    monkeypatch.setenv("MCP_BEARER_TOKEN", TOKEN)
    assert TOKEN not in inherited_environment().values()
