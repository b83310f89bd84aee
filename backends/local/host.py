"""This machine: what it has and how it is."""

import platform
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import anyio

from backends.base import Hardware, HostState, Usage
from backends.local.identity import Seen
from core.errors import OpsError
from core.plans import Check
from core.processes import run
from logs.files import size_of

_GIB: Final = 1024**3
_LOW_MEMORY_GIB: Final = 1.0
_LOW_DISK_GIB: Final = 1.0


async def hardware() -> Hardware:
    """Give accelerator, processors, memory, disk and network."""
    import psutil

    disk = shutil.disk_usage("/")
    return Hardware(
        accelerator=await _accelerator(),
        vcpu=psutil.cpu_count(),
        ram_gib=round(psutil.virtual_memory().total / _GIB, 1),
        disk=f"{disk.free / _GIB:.0f} GiB free of {disk.total / _GIB:.0f} GiB",
        network=f"loopback of {socket.gethostname()}",
    )


async def state(root: Path) -> HostState:
    """Say how processors, memory and disk are."""
    import psutil

    psutil.cpu_percent(None)
    await anyio.sleep(0.1)
    memory = psutil.virtual_memory()
    available, free = memory.available / _GIB, _disk_free_gib(root)
    return HostState(
        health=_health(available, free),
        cpu_percent=psutil.cpu_percent(None),
        memory_available_gib=round(available, 1),
        memory_total_gib=round(memory.total / _GIB, 1),
        disk_free_gib=round(free, 1),
    )


async def usage(seen: Sequence[Seen], log: Path) -> Usage | None:
    """Say what processes take, None if there are none."""
    import psutil

    if not seen:
        return None
    processes = []
    for one in seen:
        try:
            process = psutil.Process(one.pid)
            process.cpu_percent(None)
            processes.append(process)
        except psutil.NoSuchProcess:
            continue
    await anyio.sleep(0.1)
    cpu, resident = 0.0, 0
    for process in processes:
        try:
            cpu += process.cpu_percent(None)
            resident += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return Usage(
        processes=len(seen),
        cpu_percent=round(cpu, 1),
        resident_memory_bytes=resident,
        log_bytes=size_of(log),
    )


def check_disk(root: Path) -> Check:
    """Whether there is room for a log."""
    free = _disk_free_gib(root)
    return Check(
        what="disk",
        outcome="pass" if free >= _LOW_DISK_GIB else "fail",
        detail=f"{free:.1f} GiB free where logs are kept",
        fix="" if free >= _LOW_DISK_GIB else "Make room, or set VLLM_DEVOPS_STATE_DIR.",
    )


def check_memory(weight_bytes: int) -> Check:
    """Whether the weights alone fit into what is free."""
    import psutil

    available = psutil.virtual_memory().available
    detail = f"weights {weight_bytes / _GIB:.2f} GiB, available {available / _GIB:.1f} GiB"
    if not weight_bytes:
        return Check(what="memory", outcome="unknown", detail="the model's size is not known here")
    fits = weight_bytes < available
    fix = "" if fits else "Take a smaller model, or another target."
    return Check(what="memory", outcome="pass" if fits else "fail", detail=detail, fix=fix)


async def _accelerator() -> str:
    query = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    try:
        output = await run(query, timeout=5)
    except OpsError:
        return f"none; the processor ({_processor()})"
    names = [line.strip() for line in output.stdout.splitlines() if line.strip()]
    return "; ".join(names) if output.returncode == 0 and names else f"none; {_processor()}"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _disk_free_gib(root: Path) -> float:
    existing = next(path for path in (root, *root.parents) if path.exists())
    return shutil.disk_usage(existing).free / _GIB


def _health(
    memory_gib: float, disk_gib: float
) -> Literal["ok", "short of memory", "short of disk"]:
    if memory_gib < _LOW_MEMORY_GIB:
        return "short of memory"
    return "short of disk" if disk_gib < _LOW_DISK_GIB else "ok"
