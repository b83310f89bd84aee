"""A copy of the checkout's scripts, among programs that can refuse."""

import shutil
import sys
from pathlib import Path
from typing import Final

from core.environment import ROOT
from core.processes import Output, run
from tests.soon import HANGS

SCRIPTS: Final = ("init.sh", "set_env.sh")
_PROGRAMS: Final = (
    *("awk", "bash", "cat", "chmod", "dirname", "echo", "env", "grep", "head", "make"),
    *("mkdir", "mktemp", "rm", "sh", "sleep", "tail", "touch", "tr", "zsh"),
)


class Checkout:
    """A copy with a space in its path, and only the programs that are put on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.root / ".venv/bin").mkdir(parents=True)
        for name in ("Makefile", *SCRIPTS):
            shutil.copy(ROOT / name, self.root)
        for name in ("requirements.txt", "requirements-dev.txt"):
            (self.root / name).touch()
        self.program(".venv/bin/python", f'exec "{sys.executable}" "$@"')
        (self.root / ".venv/.installed").touch()
        for name in _PROGRAMS:
            (self.bin / name).symlink_to(shutil.which(name) or f"/missing/{name}")

    def program(self, path: str, text: str) -> None:
        """Put a program on the PATH, or somewhere in the checkout."""
        file = self.root / path if "/" in path else self.bin / path
        file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        file.chmod(0o755)

    async def run(self, *argv: str, **env: str) -> Output:
        """Run a program with nothing else in the environment."""
        given = {"PATH": str(self.bin), "HOME": str(self.root), **env}
        pairs = (f"{name}={value}" for name, value in given.items())
        return await run(("/usr/bin/env", "-i", *pairs, *argv), cwd=self.root, timeout=HANGS)

    async def tell(self, shell: str, text: str, **env: str) -> Output:
        """Give a fresh shell something to do, as a person types it."""
        return await self.run(*fresh(shell), "-c", text, **env)

    @property
    def dotenv(self) -> Path:
        return self.root / ".env"

    def kept(self) -> dict[str, str]:
        """Read .env line by line."""
        lines = self.dotenv.read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def fresh(shell: str) -> tuple[str, str]:
    """Name a shell without the files that a person or a distribution gave it."""
    return (shell, "-f") if shell == "zsh" else (shell, "--norc")
