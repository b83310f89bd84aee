"""`python server.py` as a client starts it: a process, standard input and output."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from core import VERSION
from core.environment import ROOT, inherited_environment
from server import main
from tests.soon import HANGS
from tests.tools.calls import LOOKING, MODEL

pytestmark = pytest.mark.anyio

NAME: Final = "Self-Hosted vLLM DevOps Agent"
LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
_ABOUT: Final = "io.modelcontextprotocol"
META: Final = {
    f"{_ABOUT}/protocolVersion": MODERN,
    f"{_ABOUT}/clientInfo": {"name": "test", "version": "1"},
    f"{_ABOUT}/clientCapabilities": {},
}


class Wire:
    """A server at the other end of two pipes, spoken to line by line."""

    def __init__(self, process: Process, era: str) -> None:
        assert process.stdin
        assert process.stdout
        self._in, self._out = process.stdin, BufferedByteReceiveStream(process.stdout)
        self._era = era
        self._last = 0
        self.heard: list[dict[str, Any]] = []
        """Every message that stood on standard output."""

    async def notify(self, method: str) -> None:
        await self._send({"jsonrpc": "2.0", "method": method})

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request, give its result."""
        self._last += 1
        if self._era == MODERN:
            params["_meta"] = META
        request = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        await self._send(request)
        while True:
            message = await self._hear()
            if message.get("id") == self._last:
                assert "error" not in message, message
                result = message["result"]
                assert isinstance(result, dict)
                return result

    async def hello(self) -> dict[str, Any]:
        """Begin as a client of the era does."""
        if self._era == MODERN:
            return await self.ask("server/discover")
        about = {"name": "test", "version": "1"}
        began = await self.ask(
            "initialize", protocolVersion=LEGACY, capabilities={}, clientInfo=about
        )
        await self.notify("notifications/initialized")
        return began

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        told = await self.ask("tools/call", name=tool, arguments=arguments)
        structured = told["structuredContent"]
        assert isinstance(structured, dict)
        return structured

    async def _send(self, message: dict[str, Any]) -> None:
        await self._in.send(json.dumps(message).encode() + b"\n")

    async def _hear(self) -> dict[str, Any]:
        line = await self._out.receive_until(b"\n", 1_000_000)
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        self.heard.append(message)
        assert isinstance(message, dict)
        return message


@asynccontextmanager
async def started(tmp_path: Path, era: str, **environment: str) -> AsyncIterator[Wire]:
    """Start the server with a home and a PATH that are empty; its errors go to a file."""
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "PATH": "", "ENGINE": "simulated", **environment}
    with (tmp_path / "stderr").open("wb") as stderr, anyio.fail_after(120):
        async with await anyio.open_process(
            [sys.executable, str(ROOT / "server.py")], env=env, stderr=stderr, cwd=home
        ) as process:
            yield Wire(process, era)
            process.terminate()


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_it_lists_its_tools_with_nothing_at_hand(tmp_path: Path, era: str) -> None:
    """No credential, no network, no home: a start of a second, in either protocol."""
    async with started(tmp_path, era) as wire:
        began = await wire.hello()
        about = began.get("serverInfo") or began["_meta"][f"{_ABOUT}/serverInfo"]
        assert (about["name"], about["version"]) == (NAME, VERSION)
        tools = (await wire.ask("tools/list"))["tools"]
    assert len(tools) == 25
    assert (tmp_path / "stderr").read_text() == ""
    assert list((tmp_path / "home").rglob("*")) == []


async def test_standard_output_is_protocol_only(tmp_path: Path, state_dir: Path) -> None:
    """Also when a tool fails and an engine boots, writes and dies. Two seconds: both happen."""
    settings = {
        "VLLM_DEVOPS_STATE_DIR": str(state_dir),
        "TOOLSETS": "all",
        "CONFIRM": "never",
        "SIMULATED_ENGINE_BOOT_SECONDS": "0",
        "SIMULATED_ENGINE_FAIL": "oom",
    }
    async with started(tmp_path, LEGACY, **settings) as wire:
        await wire.hello()
        assert (await wire.call("deploy_vllm", model=MODEL, name="one"))["ok"]
        state = "loading"
        while state == "loading":
            state = (await wire.call("status_vllm", wait_s=5))["data"]["state"]
        assert state == "failed"
        for tool, arguments in LOOKING.items():
            await wire.call(tool, **arguments)
        assert (await wire.call("get_metrics", nonsense=1))["code"] == "INVALID_ARGUMENT"
        assert (await wire.call("destroy_vllm"))["data"]["gone"] is True
    assert len(wire.heard) > 10


async def python(*words: str, **environment: str) -> tuple[int, str, str]:
    """Run one Python program; status, output and errors."""
    done = await anyio.run_process(
        [sys.executable, *words],
        check=False,
        cwd=ROOT,
        env={**inherited_environment(), **environment},
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_nothing_heavy_is_imported() -> None:
    """Listing the tools loads no cloud library, no torch, no emulator, nothing that measures."""
    clouds = ("google", "azure", "grpc", "torch", "vllm", "simulators", "psutil", "huggingface_hub")
    measures = ("numpy", "uvloop", "httptools", "orjson", "pyarrow", "matplotlib", "jinja2")
    heavy = clouds + measures
    code = (
        "import sys, anyio, fastmcp, server\n"
        "async def listed():\n"
        "    async with fastmcp.Client(server.build(server.Settings())) as client:\n"
        "        assert await client.list_tools()\n"
        "anyio.run(listed)\n"
        "files = {n: m for n, m in sys.modules.items() if getattr(m, '__file__', None)};"
        f"print([n for n in files if n.split('.')[0] in {heavy!r}])"
    )
    assert await python("-c", code) == (0, "[]\n", "")


def _checkout(folder: Path, own: str) -> str:
    """Make a checkout whose own Python is this shell script; give its server file."""
    (folder / "server.py").write_bytes((ROOT / "server.py").read_bytes())
    program = folder / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{own}\n")
    program.chmod(0o755)
    return str(folder / "server.py")


async def test_a_python_without_the_packages_goes_on_in_the_checkouts_own(tmp_path: Path) -> None:
    """`python3 server.py` works whatever Python that is, with the same arguments."""
    server = _checkout(tmp_path, 'echo "went on with" "$@"')
    status, said, errors = await python("-I", "-S", server, "call", "get_help")
    assert (status, said, errors) == (0, f"went on with {server} call get_help\n", "")


async def test_a_python_with_other_packages_goes_on_in_the_checkouts_own(tmp_path: Path) -> None:
    """Somebody else's `fastmcp` may be of any version; who only imports the server stays."""
    server = _checkout(tmp_path, 'echo "went on with" "$@"')
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    assert await python(server, "doctor") == (0, f"went on with {server} doctor\n", "")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import server; print(server.NAME)"
    assert await python("-c", code) == (0, f"{NAME}\n", "")
    (tmp_path / "fastmcp.py").touch()
    assert await python("-S", server) == (0, f"went on with {server}\n", "")


async def test_a_checkouts_own_python_that_is_no_other_ends(tmp_path: Path) -> None:
    """A wrapper around the same Python is gone on with once, not for ever."""
    server = _checkout(tmp_path, f'echo once; exec "{sys.executable}" -S "$@"')
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    with anyio.fail_after(HANGS):
        status, said, errors = await python(server)
    assert (status, said) == (1, "once\n")
    assert "make install" in errors


async def test_without_packages_and_checkouts_own_it_says_what_to_run(tmp_path: Path) -> None:
    """One line on standard error: a client that shows it helps its user."""
    (tmp_path / "server.py").write_bytes((ROOT / "server.py").read_bytes())
    status, said, errors = await python("-I", "-S", str(tmp_path / "server.py"))
    assert (status, said) == (1, "")
    assert "make install" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("TOOLSETS", "everything"), ("READ_ONLY", "perhaps"), ("ENGINE", "v8")]
)
async def test_a_setting_that_cannot_be_is_told_in_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients freeze on a traceback; a person reads which setting it is."""
    monkeypatch.setenv(name, value)
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert name in said.err
    assert len(said.err.splitlines()) == 1


async def test_an_unknown_command_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is that of a command line that was not understood."""
    assert main(["serve"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "call TOOL" in said.err


async def test_a_client_nobody_knows_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`mcp-config` lists the clients that it has words for."""
    assert main(["mcp-config", "nobody"]) == 2
    assert "Codex" in capsys.readouterr().err
