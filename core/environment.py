"""Where this checkout is, on what machine, and what of our environment other programs get."""

import functools
import os
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
"""The checkout; `init.sh` writes `.env` there."""

_OUR_SECRETS: Final = (
    "VLLM_API_KEY", "HF_TOKEN", "GOOGLE_API_KEY", "ANALYST_API_KEY", "MCP_BEARER_TOKEN",
)  # fmt: skip


def inherited_environment() -> dict[str, str]:
    """What a child process gets: our environment without our secrets."""
    return {name: value for name, value in os.environ.items() if name not in _OUR_SECRETS}


@functools.cache
def read_toml(file: Path) -> dict[str, Any]:
    """Return what a file of this checkout says: read once, and not to be changed."""
    return tomllib.loads(file.read_text("utf-8"))


def processor() -> str:
    """Return what this machine's processor is called."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, os.uname().machine)
