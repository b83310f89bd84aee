"""The MCP server: stdio by default, HTTP with `--http`.

`call TOOL key=value …` runs one tool in process, `mcp-config` prints clients' configurations, and
`doctor` says what is missing on this machine.
"""

import gc
import importlib.util
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_OWN = Path(__file__).resolve().parent / ".venv"
_OWN_PYTHON = _OWN / "bin" / "python"
_WENT_ON = "VLLM_DEVOPS_WENT_ON"


def _ensure_packages() -> None:
    """Go on in `.venv`, whose versions are known; without one, say in one line what is lacking.

    Who only imports this module stays where it is, as long as it has the packages. Clients freeze
    on a server that dies without a word.
    """
    environment = os.environ  # noqa: TID251  nothing of ours can be imported yet
    went_on = environment.pop(_WENT_ON, None)  # a wrapper around another Python: once is enough
    chosen = __name__ == "__main__" and (_OWN / "pyvenv.cfg").exists()
    if not went_on and _is_another() and (chosen or not _has_packages()):
        with suppress(OSError):  # of another machine
            os.execve(_OWN_PYTHON, [str(_OWN_PYTHON), *sys.argv], {**environment, _WENT_ON: "1"})
    if not _has_packages():
        sys.exit(f"{sys.executable} lacks the packages: run `make install` in {_OWN.parent}")


def _is_another() -> bool:
    return _OWN_PYTHON.exists() and Path(sys.prefix).resolve() != _OWN.resolve()


def _has_packages() -> bool:
    return sys.version_info >= (3, 11) and importlib.util.find_spec("fastmcp") is not None


_ensure_packages()
gc.disable()  # what is imported stays: looking through it for garbage took a tenth of the start

import fastmcp
from fastmcp import FastMCP
from pydantic import ValidationError

from core import VERSION
from core.errors import OpsError
from core.settings import Settings
from operations.inventory import running
from operations.runtime import Runtime
from tools.gate import Gate
from tools.profile import INSTRUCTIONS, listed
from tools.resources import furnish
from tools.surface import TOOLS

gc.freeze()
gc.enable()

NAME = "Self-Hosted vLLM DevOps Agent"


def build(settings: Settings) -> FastMCP[dict[str, Runtime]]:
    """Make a server that shows the tools of its profile; nothing is opened before it runs."""
    shown = listed(settings)
    fastmcp.settings.telemetry_mode = "off"  # its spans would hold arguments

    @asynccontextmanager
    async def lifespan(_server: FastMCP[dict[str, Runtime]]) -> AsyncIterator[dict[str, Runtime]]:
        async with running(settings, shown) as runtime:
            yield {"runtime": runtime}

    server: FastMCP[dict[str, Runtime]] = FastMCP(
        NAME,
        instructions=INSTRUCTIONS,
        version=VERSION,
        lifespan=lifespan,
        middleware=[Gate()],
        tools=[one.tool for one in TOOLS.values()],
        mask_error_details=True,
        dereference_schemas=False,  # no schema of ours refers to another place
        cache_ttl=300,
        cache_scope="private",
    )
    furnish(server, settings)
    return server


def main(arguments: list[str]) -> int:
    """Do what the command line says, or say in one line what is wrong; give the exit status."""
    try:
        return _do(arguments)
    except ValidationError as exc:
        rows = exc.errors(include_url=False, include_input=False)
        said = "; ".join(f"{str(row['loc'][0]).upper()}: {row['msg']}" for row in rows)
        print(f"These settings cannot be: {said}", file=sys.stderr)
    except OpsError as exc:
        print(f"{exc.summary} {exc.fix}", file=sys.stderr)
    return 2


def _do(arguments: list[str]) -> int:
    logging.getLogger("fastmcp").setLevel(logging.ERROR)  # what a caller got wrong is answered
    if not arguments:
        build(Settings()).run(show_banner=False, log_level="ERROR")
        return 0
    command, *rest = arguments  # no `match`: an older Python must be able to read this far
    if command == "call":
        from tools.commandline import call

        return call(build, rest)
    if command == "--http":
        from tools.http import serve

        return serve(build, rest)
    if command == "mcp-config":
        from tools.commandline import configure

        return configure(Path(__file__).resolve().parent, rest)
    if command == "doctor":
        from tools.commandline import examine

        return examine(rest)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
