"""The suite run against a server that is started for it, and what it found."""

import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import anyio
import yaml
from anyio.streams.buffered import BufferedByteReceiveStream

from core.environment import ROOT, inherited_environment
from tests.conformance.judging import Checks
from tests.conformance.node import run

REVISIONS: Final = ("2025-11-25", "2026-07-28")
COMMANDS: Final = {
    "server": (sys.executable, str(ROOT / "server.py"), "--http"),
    "fixture": (sys.executable, "-m", "tests.conformance.fixture"),
}
"""Our server as it is, and with what the suite looks for added to it."""
_WHERE: Final = re.compile(rb"(http://\S+/mcp)")
_START_SECONDS: Final = 60
_EXPECTED: Final = Path(__file__).with_name("expected.yml")
_NAME: Final = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
"""A folder of results: the leg, the scenario, the time."""


def expected() -> dict[str, Any]:
    """Read which scenarios need no fixture, and which failures have a reason."""
    read: dict[str, Any] = yaml.safe_load(_EXPECTED.read_text())
    return read


@asynccontextmanager
async def serving(command: Sequence[str], home: Path) -> AsyncIterator[str]:
    """Start a server with a home of its own; give its URL, and end it afterwards."""
    env = {**inherited_environment(), **settings(home), "TOOLSETS": "all,compat"}
    argv = [*command, "--port", "0"]
    async with await anyio.open_process(argv, env=env, cwd=ROOT, stdout=None) as process:
        assert process.stderr
        errors = BufferedByteReceiveStream(process.stderr)
        with anyio.fail_after(_START_SECONDS):
            said = await errors.receive_until(b"/mcp, for", 100_000)
        found = _WHERE.search(said + b"/mcp")
        assert found, said
        async with anyio.create_task_group() as drain:
            drain.start_soon(_drained, errors, home / "stderr")
            try:
                yield found[1].decode()
            finally:
                process.terminate()


def settings(home: Path) -> dict[str, str]:
    """Make a home; give the environment in which nothing of the user is seen or touched."""
    home.mkdir(exist_ok=True)
    return {"HOME": str(home), "VLLM_DEVOPS_STATE_DIR": str(home / "state"), "ENGINE": "simulated"}


async def _drained(errors: BufferedByteReceiveStream, file: Path) -> None:
    with file.open("wb") as kept:
        while True:
            try:
                kept.write(await errors.receive())
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                return


class Scenarios(NamedTuple):
    """What a revision has for servers."""

    required: tuple[str, ...]
    beside: tuple[str, ...]
    """Extensions, and what the suite itself is not yet sure of: they are run and do not count."""


def scenarios(conformance: Sequence[str], revision: str) -> Scenarios:
    """Read the suite's own list of what a revision requires."""
    file = Path(conformance[-1]).parent.parent / "requirements" / f"{revision}.yaml"
    read = yaml.safe_load(file.read_text())
    beside = [row["scenario"] for row in read["not_scored"] if row["leg"] == "server"]
    return Scenarios(tuple(read["server"]), tuple(beside))


async def checks(conformance: Sequence[str], url: str, *which: str) -> Checks:
    """Run scenarios against a server; give what was checked in each."""
    with TemporaryDirectory() as results:
        await run(*conformance, "server", "--url", url, *which, "--output-dir", results)
        return _read(Path(results))


def _read(results: Path) -> Checks:
    found: dict[str, Any] = {}
    for file in results.glob("*/checks.json"):
        name = _NAME.fullmatch(file.parent.name)
        assert name, file
        found[name[1]] = json.loads(file.read_text())
    return found
