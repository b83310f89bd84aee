"""The accelerators of this machine, by the names that the planner knows."""

from pathlib import Path
from typing import Final, NamedTuple

from backends.local.host import Memory
from planner.accelerators import Accelerator, accelerators
from planner.overheads import GIB

_DRIVER: Final = Path("/proc/driver/nvidia/gpus")


class Devices(NamedTuple):
    """Alike accelerators."""

    accelerator: Accelerator
    number: int


def devices(
    wanted: str | None, *, cpu_only: bool, memory: Memory | None = None, driver: Path = _DRIVER
) -> Devices | None:
    """Give what the engine would run on; None where it is not known.

    `wanted` names one that is not seen, such as that of a rehearsal; `memory` is a processor's.
    """
    known = accelerators()
    if wanted and wanted.lower() in known and known[wanted.lower()].kind != "tpu":
        return Devices(known[wanted.lower()], 1)
    if cpu_only:
        return Devices(_processor(known["cpu"], memory), 1)
    titles = _titles(driver)
    found = next((one for one in known.values() if one.title in titles[:1]), None)
    return Devices(found, len(titles)) if found else None


def _processor(cpu: Accelerator, memory: Memory | None) -> Accelerator:
    if memory is None:
        return cpu
    found = {
        "memory_gib": round(memory.total / GIB, 2),
        "free_at_start": memory.available / memory.total,
        "cache_gib_most": memory.largest_cache / GIB,
    }
    return cpu.model_copy(update=found)


def _titles(driver: Path) -> list[str]:
    """Read what NVIDIA's driver says of each GPU."""
    titles = []
    for file in sorted(driver.glob("*/information")):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        titles += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return titles
