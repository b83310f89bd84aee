"""What `make vllm` installs, on which machine: `vllm.toml` and the host it is for."""

import hashlib
import json
import platform
import sys
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

from core.errors import Unsupported
from core.records import Record

RECIPE: Final = Path(__file__).with_name("vllm.toml")
WITHOUT_IT: Final = "ENGINE=simulated needs no vLLM; VLLM_EXECUTABLE=/path/to/vllm takes yours."


class Engine(Record):
    """What is installed and what that takes; `vllm.toml` has the sources."""

    distribution: str
    version: str
    torch: str
    uv: str
    platforms: tuple[str, ...]
    pythons: tuple[str, ...]
    shim_version: str
    dropped: tuple[str, ...]
    download_mb: int
    disk_gib: float
    free_gib: float
    minutes: int


class Recipe(Record):
    """`vllm.toml`: what to install, and what the tiny model looks like."""

    engine: Engine
    tiny_model: dict[str, Any]

    @classmethod
    def read(cls) -> "Recipe":
        """Read the one that is shipped."""
        return cls.model_validate(tomllib.loads(RECIPE.read_text(encoding="utf-8")))


class Host(NamedTuple):
    """The machine, and the Python with its home, that a virtual environment is bound to."""

    platform: str
    minor: str
    python: str
    home: str

    @classmethod
    def here(cls) -> "Host":
        system, python = f"{platform.system()} {platform.machine()}", platform.python_version()
        return cls(system, python.rpartition(".")[0], python, sys.base_prefix)


def fingerprint(recipe: Recipe, host: Host, script: str) -> str:
    """Name an installation: the same name is the same engine and the same model."""
    said = json.dumps([recipe.model_dump(mode="json"), host, script], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def refuse_unsupported(engine: Engine, host: Host) -> None:
    if host.platform not in engine.platforms or host.minor not in engine.pythons:
        raise Unsupported(
            f"vLLM {engine.version} for CPUs is built for {', '.join(engine.platforms)} with Python"
            f" {', '.join(engine.pythons)}; this is {host.platform} with Python {host.python}.",
            fix=WITHOUT_IT,
        )
