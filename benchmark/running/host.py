"""The machine and the programs that a benchmark's client runs on."""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psutil

from benchmark.runs import Host
from core import PRODUCT, VERSION

_MEASURE: Final = ("uvloop", "httptools", "orjson", "numpy", "pyarrow")
_GIB: Final = 2**30


def describe() -> Host:
    """Say what this process runs on."""
    return Host(
        system=platform.platform(terse=True),
        cpu=_cpu(),
        cores=cores(),
        memory_gib=round(psutil.virtual_memory().total / _GIB, 1),
        python=platform.python_version(),
        versions={PRODUCT: VERSION} | {name: version(name) for name in _MEASURE},
    )


def cores() -> int:
    """Give how many cores this process may use."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return len(process.cpu_affinity())
    return psutil.cpu_count() or 1


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
