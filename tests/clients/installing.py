"""The clients themselves, in `.clients`: found there, or put there once, each as it is pinned."""

import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, NamedTuple

from core.environment import ROOT
from core.records import Record
from tests.conformance.node import node_and_npm, run

HOME: Final = ROOT / ".clients"
_TABLE: Final = Path(__file__).with_name("clients.toml")
_SHOWN: Final = 1000
"""Characters of what an installer says when it fails: its end says why."""


class NotInstalledError(Exception):
    """A client cannot be installed; the message says why."""


class Package(Record):
    """A row of `clients.toml`, whose head says what each field is."""

    of: Literal["npm", "pypi", "ours"]
    package: str
    version: str = ""
    how: str


class Installed(NamedTuple):
    """What a client is started with."""

    node: str
    folder: Path
    """Where npm's packages of this client are."""
    python: Path
    """Of the environment that PyPI's packages share."""

    def module(self, pattern: str) -> str:
        """Find the one file of its packages that matches.

        Raises:
            NotInstalledError: There is none, on this kind of machine.
        """
        found = sorted((self.folder / "node_modules").glob(pattern))
        if not found:
            raise NotInstalledError(f"{self.folder.name} came without {pattern}.")
        return str(found[0])

    def script(self, pattern: str) -> tuple[str, str]:
        """Give the command line of one of its scripts."""
        return self.node, self.module(pattern)


@cache
def packages() -> dict[str, Package]:
    """Read the table; what is ours has the version that `.venv` has."""
    rows = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    for row in rows.values():
        if row["of"] == "ours":
            row["version"] = version(row["package"])
    return {name: Package.model_validate(row) for name, row in rows.items()}


async def installed(name: str) -> Installed:
    """Give what a client is started with; what is missing is installed first.

    Raises:
        NotInstalledError: Its registry does not have it, or cannot be reached.
    """
    wanted = packages()[name]
    node, npm = await node_and_npm()
    found = Installed(node, HOME / name, HOME / "py" / "bin" / "python")
    # The mark is made last: an install that was broken off has none.
    mark = found.folder / ".installed"
    pin = f"{wanted.package}@{wanted.version}"
    if wanted.of != "ours" and not (mark.exists() and mark.read_text() == pin):
        print(f"Installing {pin} in {HOME.name}.", file=sys.stderr)
        found.folder.mkdir(parents=True, exist_ok=True)
        if wanted.of == "npm":
            await _npm(npm, found.folder, pin)
        else:
            await _pip(found.python, pin)
        mark.write_text(pin)
    return found


async def _npm(npm: Sequence[str], folder: Path, pin: str) -> None:
    # No package may run a script of its own while it is installed.
    await _must(
        *(*npm, "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts"),
        *("--prefix", str(folder), pin),
    )


async def _pip(python: Path, pin: str) -> None:
    # One that is there already is kept as it is.
    await _must(sys.executable, "-m", "venv", str(python.parent.parent))
    await _must(
        *(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        pin.replace("@", "=="),
    )


async def _must(*argv: str) -> None:
    status, said, errors = await run(*argv)
    if status:
        raise NotInstalledError(f"{' '.join(argv)}:\n{f'{said}{errors}'.strip()[-_SHOWN:]}")
