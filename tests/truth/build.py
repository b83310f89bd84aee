"""The endpoint's C source, compiled once for each state of it."""

import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Final

import platformdirs

from core import PRODUCT
from core.errors import CommandNotFound, HostError
from core.processes import run

SOURCES: Final = tuple(Path(__file__).parent / name for name in ("truth.c", "ledger.h", "wire.h"))
_FLAGS: Final = ("-O2", "-Wall", "-Wextra", "-Werror")


async def built(folder: Path | None = None, *, compiler: str = "cc") -> Path:
    """Give the endpoint's program; compiling takes about a second, the first time.

    Raises:
        CommandNotFound: There is no C compiler.
        HostError: It does not compile here: it needs Linux.
    """
    folder = folder or platformdirs.user_cache_path(PRODUCT)
    source = b"".join(path.read_bytes() for path in SOURCES)
    program = folder / f"truth-{sha256(source).hexdigest()[:16]}"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        await _compile(program, compiler)
    return program


async def _compile(program: Path, compiler: str) -> None:
    if shutil.which(compiler) is None:
        raise CommandNotFound(
            "The endpoint that knows its own truth is C, and there is no compiler.",
            fix="Install one (sudo apt install gcc libc6-dev), then try again.",
            cause=compiler,
        )
    # Several test processes may compile at once; each replaces the program as a whole.
    own = program.with_suffix(f".{os.getpid()}")
    done = await run((compiler, *_FLAGS, "-o", str(own), str(SOURCES[0])))
    if done.returncode:
        raise HostError(
            "The endpoint that knows its own truth does not compile.",
            fix="It needs Linux 5.11 and glibc 2.35 or newer: epoll_pwait2.",
            cause=done.stderr[-2000:],
        )
    own.replace(program)
