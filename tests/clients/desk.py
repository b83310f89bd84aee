"""A client's own desk: a home, a checkout that records, and nothing of the user's."""

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from core.environment import ROOT, inherited_environment
from operations.clients import SERVER_KEY, alike
from tests.clients.wire import Wire, read_wire
from tests.tools.world import plant

PATIENCE_SECONDS: Final = 60
"""For one command of a client, on a machine that does other things as well."""
PLANTED: Final = "one"
"""The deployment that waits, stopped, for somebody to delete it."""
_INHERITED: Final[tuple[str, ...]] = ("PATH", "LANG", "TMPDIR", "TERM")
"""All that a client gets of our environment: no key, no proxy, no folder of the user's."""
_NOTHING: Final = -3
"""`subprocess.DEVNULL`, from a module that is not imported here."""
_NOT_LINKED: Final = {"server.py", ".venv", ".env", ".git"}
_RECORDING: Final = """#!/bin/sh
# Started by a client in place of Python: writes down what passes, and starts the server.
{settings}
trap : HUP INT TERM  # the server ends when its input does
: >{wire}/$$.live
tee {wire}/$$.in | {python} "$@" 2>{wire}/$$.err | tee {wire}/$$.out
rm {wire}/$$.live
"""
_WRITTEN_SECONDS: Final = 5
"""A client has the last answer a moment before the recording has; one that is killed leaves it."""


class ClientFailedError(Exception):
    """A client ended with an error, or did not end; the message holds what it printed."""


class Said(NamedTuple):
    """What a command printed."""

    status: int
    output: str
    errors: str


class Desk:
    """One client's home and checkout, below a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commands = 0
        self.key = SERVER_KEY
        self.home = folder / "h"
        """Short: a socket's path below it may have about 100 characters."""
        self.checkout = folder / "check out"
        self._state, self._wire = folder / "state", folder / "wire"
        for made in (self.home / "project", self._wire, self.checkout / ".venv" / "bin"):
            made.mkdir(parents=True)
        _link(self.checkout)
        self._recording()
        self._plant()

    @property
    def servers(self) -> Path:
        """The configuration that most clients read, as Cursor has it."""
        return self.home / ".cursor" / "mcp.json"

    @property
    def entry(self) -> Mapping[str, Any]:
        """Our entry in it."""
        found: Mapping[str, Any] = json.loads(self.servers.read_text())["mcpServers"][SERVER_KEY]
        return found

    @property
    def started(self) -> str:
        """The command that starts the server, as clients show it."""
        return f"{self.checkout}/.venv/bin/python {self.checkout}/server.py"

    @property
    def is_kept(self) -> bool:
        """Whether the planted deployment is still there."""
        return (self._state / "rehearsal" / "local" / PLANTED).exists()

    async def wire(self) -> Wire:
        """Read what has passed between the client and its servers, once all of it is written."""
        with anyio.move_on_after(_WRITTEN_SECONDS):
            while any(self._wire.glob("*.live")):  # noqa: ASYNC110  of other processes
                await anyio.sleep(0.05)
        return read_wire(self._wire)

    async def configure(self, client: str, *, before: str = "", after: str = "") -> None:
        """Put what `server.py mcp-config` prints into a client's own file, as its owner would.

        `before` and `after` are what else stands there; of JSON `before` is a table.
        """
        row = alike(client)[0]
        file = self.home / row.place({}).relative_to(Path.home())
        file.parent.mkdir(parents=True, exist_ok=True)
        server = (sys.executable, str(self.checkout / "server.py"))
        said = (await self.run(*server, "mcp-config", client)).output
        text = said.partition("\n\n#")[0]
        if row.form == "json":
            text = json.dumps({**json.loads(before or "{}"), **json.loads(text[text.index("{") :])})
        file.write_text(f"{before if row.form == 'toml' else ''}{text}{after}", encoding="utf-8")

    async def run(
        self, *argv: str, good: Sequence[int] = (0,), env: Mapping[str, str] | None = None
    ) -> Said:
        """Run a client's command in its project, to its end; `env` is added to what it gets.

        Raises:
            ClientFailedError: It ended with another status than a good one, or not in time.
        """
        said = await self._ended(argv, {**self._environment(), **(env or {})})
        if said.status not in good:
            raise ClientFailedError(
                f"{shlex.join(argv)}\nexit status {said.status}\n{said.output}\n{said.errors}"
            )
        return said

    async def _ended(self, argv: Sequence[str], env: Mapping[str, str]) -> Said:
        self._commands += 1
        out, err = (self._folder / f"{self._commands}.{end}" for end in ("out", "err"))
        # Files rather than pipes: a daemon that a client leaves behind keeps a pipe open.
        with out.open("wb") as output, err.open("wb") as errors:
            process = await anyio.open_process(
                argv,
                stdin=_NOTHING,
                stdout=output,
                stderr=errors,
                env=env,
                cwd=self.home / "project",
                start_new_session=True,
            )
            with anyio.move_on_after(PATIENCE_SECONDS):
                await process.wait()
            status = process.returncode
            if status is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                status = -signal.SIGKILL
        return Said(status, out.read_text(errors="replace"), err.read_text(errors="replace"))

    def _environment(self) -> dict[str, str]:
        ours = inherited_environment()
        kept = {name: ours[name] for name in _INHERITED if name in ours}
        return {**kept, "HOME": str(self.home), "CI": "1"}

    def _recording(self) -> None:
        """Put a script where the checkout's Python is; the settings are its, whoever starts it."""
        settings = {
            "HOME": str(self.home),
            "VLLM_DEVOPS_STATE_DIR": str(self._state),
            "REHEARSAL": "1",
            "ENGINE": "simulated",
            "READ_ONLY": "0",
            "CONFIRM": "ask",
            "TOOLSETS": "help",  # listed by default: a checkout's `.env` may add others
        }
        script = self.checkout / ".venv" / "bin" / "python"
        lines = (f"export {name}={shlex.quote(value)}" for name, value in settings.items())
        script.write_text(
            _RECORDING.format(
                settings="\n".join(lines),
                wire=shlex.quote(str(self._wire)),
                python=shlex.quote(sys.executable),
            )
        )
        script.chmod(0o700)

    def _plant(self) -> None:
        plant(self._folder / "planted", PLANTED)
        shutil.copytree(self._folder / "planted" / "real", self._state / "rehearsal")


def _link(checkout: Path) -> None:
    """Make it look like ours; its server file is a copy, so that it knows itself by this path."""
    shutil.copy(ROOT / "server.py", checkout)
    for one in ROOT.iterdir():
        if one.name not in _NOT_LINKED:
            (checkout / one.name).symlink_to(one)
