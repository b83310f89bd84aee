"""The engine that serves on this machine: real vLLM, or the simulated one."""

import re
import shutil
from pathlib import Path
from typing import Literal

from core.records import Record
from core.settings import ROOT


class Engine(Record):
    """A program that understands `serve MODEL …` as vLLM does."""

    kind: Literal["vllm", "simulated"]
    command: tuple[str, ...]
    version: str | None = None
    env: dict[str, str] = {}

    @property
    def label(self) -> str:
        """Give its name for people."""
        name = "vLLM" if self.kind == "vllm" else "simulated vLLM"
        return f"{name} {self.version or '(version not known)'}"

    @property
    def number(self) -> str | None:
        """Give its version without what was built into it."""
        return self.version.partition("+")[0] if self.version else None

    @property
    def cpu_only(self) -> bool:
        """Whether it is a build without accelerators."""
        return "+cpu" in (self.version or "")


def find_vllm(executable: str | None, root: Path) -> Engine | None:
    """Give the real engine: the one named, then `.vllm` of the checkout, then the PATH's."""
    own = root / ".vllm" / "bin" / "vllm"
    path = executable or (str(own) if own.exists() else None) or shutil.which("vllm")
    if not path:
        return None
    found = shutil.which(path)
    if not found:
        return None
    version = installed_version(Path(found))
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if version and "+cpu" in version:
        # A second process would import torch again: 3 s and 380 MB for nothing (2026-11-20).
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    command = (str(Path(found).absolute()),)  # it is started from another folder
    return Engine(kind="vllm", command=command, version=version, env=env)


def installed_version(executable: Path) -> str | None:
    """Read vLLM's version off the packages beside its command; asking it takes seconds."""
    home = executable.resolve().parent.parent
    names = (path.name for path in home.glob("lib/python3*/site-packages/vllm-*.dist-info"))
    return next(
        (m.group(1) for name in names if (m := re.match(r"vllm-(.+)\.dist-info$", name))), None
    )


def simulated(command: tuple[str, ...], *, has_memory: bool = False) -> Engine:
    """Give the engine that only pretends, as the stage starts it."""
    env = {"PYTHONPATH": str(ROOT)}
    if has_memory:
        env["SIMULATED_ENGINE_ACCELERATOR"] = "cpu"
    return Engine(kind="simulated", command=command, version="0.32.0", env=env)
