"""This machine: its accelerators, processors, memory and disk."""

import contextlib
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import anyio
import psutil

from backends.base import Hardware, HostState, Usage
from backends.local.identity import Seen
from core.environment import processor
from core.records import Check
from logs.read import size_of
from planner.memory import GIB
from planner.places import Accelerator, accelerators

_LOW_MEMORY_GIB: Final = 1.0
_LOW_DISK_GIB: Final = 1.0
_ROOT: Final = Path("/")
_DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_UNLIMITED: Final = 1 << 62
"""What cgroup v1 says where there is no limit is nearly 2**63."""
_AVAILABLE: Final = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
"""Of a NUMA node, as vLLM counts them.
source: vllm/utils/cpu_resource_utils.py of 0.32.0, read 2026-11-23"""
_LIMITS: Final = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Limit and usage of cgroup v2, then of v1."""


class Memory(NamedTuple):
    """Bytes."""

    total: int
    available: int
    """Free now, or freed when something else needs it."""
    largest_cache: int
    """What vLLM would take for a KV cache at most: it asks the NUMA node alone, and the only node
    of a virtual machine may show less than the machine has."""


def machine_memory(root: Path = _ROOT) -> Memory:
    """Return the machine's memory, of several NUMA nodes that of ours, within the container's."""
    whole = psutil.virtual_memory()
    total, available = whole.total, whole.available
    node = _node(root)
    if node and len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) > 1:
        total, available = node[0], min(available, node[1])
    for limit_file, usage_file in _LIMITS:
        limit, usage = _number(root / limit_file), _number(root / usage_file)
        if limit is not None and limit < min(total, _UNLIMITED):
            total, available = limit, max(0, min(available, limit - (usage or 0)))
    return Memory(total, available, min(available, node[1]) if node else available)


def hardware(driver: Path = _DRIVER) -> Hardware:
    """Give accelerator, processors, memory, disk and network."""
    disk = shutil.disk_usage("/")
    return Hardware(
        accelerator="; ".join(_titles(driver)) or f"none; {processor()}",
        vcpu=psutil.cpu_count(),
        ram_gib=round(machine_memory().total / GIB, 1),
        disk=f"{disk.free / GIB:.0f} GiB free of {disk.total / GIB:.0f} GiB",
        network=f"loopback of {socket.gethostname()}",
    )


async def state(root: Path) -> HostState:
    """Say how processors, memory and disk are."""
    psutil.cpu_percent(None)
    await anyio.sleep(0.1)
    memory = machine_memory()
    available, free = memory.available / GIB, _disk_free_gib(root)
    health: Literal["ok", "short of memory", "short of disk"] = "ok"
    if available < _LOW_MEMORY_GIB:
        health = "short of memory"
    elif free < _LOW_DISK_GIB:
        health = "short of disk"
    return HostState(
        health=health,
        cpu_percent=psutil.cpu_percent(None),
        memory_available_gib=round(available, 1),
        memory_total_gib=round(memory.total / GIB, 1),
        disk_free_gib=round(free, 1),
    )


async def usage(seen: Sequence[Seen], log: Path) -> Usage | None:
    """Say what processes take, None if there are none."""
    if not seen:
        return None
    processes, cpu = list[psutil.Process](), 0.0
    for one in seen:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(one.pid))
            processes[-1].cpu_percent(None)
    await anyio.sleep(0.1)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            cpu += process.cpu_percent(None)
    return Usage(
        processes=len(seen),
        cpu_percent=round(cpu, 1),
        resident_memory_bytes=resident_bytes(seen),
        log_bytes=size_of(log),
    )


def resident_bytes(seen: Sequence[Seen]) -> int:
    """Return the memory that processes hold now."""
    held = 0
    for one in seen:
        with contextlib.suppress(psutil.NoSuchProcess):
            held += psutil.Process(one.pid).memory_info().rss
    return held


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
    available = machine_memory().available
    detail = f"weights {weight_bytes / GIB:.2f} GiB, available {available / GIB:.1f} GiB"
    if not weight_bytes:
        return Check(what="memory", outcome="unknown", detail="the model's size is not known here")
    fits = weight_bytes < available
    fix = "" if fits else "Take a smaller model, or another target."
    return Check(what="memory", outcome="pass" if fits else "fail", detail=detail, fix=fix)


def _disk_free_gib(root: Path) -> float:
    existing = next(path for path in (root, *root.parents) if path.exists())
    return shutil.disk_usage(existing).free / GIB


def _node(root: Path) -> tuple[int, int] | None:
    """Return total and available bytes of the node that vLLM binds itself to."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    folder = root / f"sys/devices/system/cpu/cpu{min(allowed, default=0)}"
    node = next(folder.glob("node[0-9]*"), None)
    if node is None:
        return None
    path = root / "sys/devices/system/node" / node.name / "meminfo"
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    kib = {row[2].rstrip(":"): int(row[3]) for row in rows if len(row) > 3}
    if not {"MemTotal", *_AVAILABLE} <= kib.keys():
        return None
    return kib["MemTotal"] * 1024, sum(kib[name] for name in _AVAILABLE) * 1024


def _number(path: Path) -> int | None:
    """Return a file's number, None where there is none or it is `max`."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


class Devices(NamedTuple):
    """Alike accelerators."""

    accelerator: Accelerator
    number: int


def read_devices(
    wanted: str | None, *, cpu_only: bool, memory: Memory | None = None
) -> Devices | None:
    """Give what the engine would run on; None where it is not known.

    `wanted` names one that is not seen, such as that of a rehearsal; `memory` is a processor's.
    """
    known = accelerators()
    if wanted and wanted.lower() in known and known[wanted.lower()].kind != "tpu":
        return Devices(known[wanted.lower()], 1)
    if cpu_only:
        return Devices(_processor(known["cpu"], memory), 1)
    titles = _titles(_DRIVER)
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
