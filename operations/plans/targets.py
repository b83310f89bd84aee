"""The places a model can run, and what each still lacks."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import Field

from backends.base import NamesEngine
from core.records import SIMULATED, Answer, Target
from operations.plans.foreseeing import accelerator_name, dollars, usd
from operations.runtime import Runtime
from planner.places import Place, places
from planner.price import price


class TargetRow(Target):
    """A target and what would serve on it."""

    hardware: str | None = None
    """Of one replica: accelerator, processors, memory, disk and network."""
    engine: str
    look_seconds: float = Field(default=0.0, exclude=True)
    gpu: str | None = Field(default=None, exclude=True)
    """Accelerators and their memory, in a few words."""
    may_cost_more: bool = Field(default=False, exclude=True)
    """The price is that of its smallest host, or the lowest of sources that disagree."""
    regions: tuple[str, ...] = ()
    """As far as they are known."""
    missing: str | None = None
    """What must be done before it can be used."""
    simulated: bool = Field(default=False, exclude=True)
    """Its engine is."""


class Targets(Answer):
    """Every target that is configured."""

    targets: tuple[TargetRow, ...]
    default: str | None
    """The one used where a call names none."""

    def summary(self) -> str:
        """Say which can be used now, and what the others lack."""
        ready = [row.name for row in self.targets if not row.missing]
        words = f"{len(self.targets)} targets, {len(ready)} set up: {', '.join(ready)}."
        lacking = [f"{len(names)} more: {todo}" for todo, names in self._missing().items()]
        return " ".join((words, *lacking))

    def facts(self) -> Mapping[str, Any]:
        """Return one line for each target."""
        return {row.name: _line(row) for row in self.targets} | {"default": self.default}

    def warnings(self) -> tuple[str, ...]:
        """Warn of an engine that is not real."""
        return (SIMULATED,) if any(row.simulated for row in self.targets) else ()

    def _missing(self) -> dict[str, list[str]]:
        """Return what must be done, and for which targets."""
        found: dict[str, list[str]] = {}
        for row in self.targets:
            if row.missing:
                found.setdefault(row.missing, []).append(row.name)
        return found


def _line(row: TargetRow) -> str:
    least = "from " if row.may_cost_more else ""
    costs = None if row.usd_per_hour is None else f"{least}{dollars(row.usd_per_hour)}/h"
    sleeps = "sleeps when idle" if row.min_replicas == 0 else "bills until deleted"
    words = (
        row.gpu,
        "no bill" if row.usd_per_hour == 0 else costs,
        sleeps if row.usd_per_hour else None,
        row.region,
        "not set up" if row.missing else None,
    )
    return ", ".join(word for word in words if word) or row.description


async def list_all(runtime: Runtime) -> Targets:
    """Give every target."""
    stage = runtime.stage
    rows = []
    for target in stage.targets.values():
        backend = stage.backend(target.name)
        named = backend.engine_name() if isinstance(backend, NamesEngine) else ("your own", "")
        simulated = named[1] == SIMULATED
        lacks = None if simulated else named[1] or None
        said = {"engine": named[0], "missing": lacks, "simulated": simulated}
        rows.append(TargetRow(**{**target.model_dump(), **said, **_known(target)}))
    names = stage.usable
    default = stage.settings.vllm_target or (names[0] if len(names) == 1 else None)
    return Targets(targets=tuple(rows), default=default)


def _known(target: Target) -> dict[str, Any]:
    """Give what the planner knows of a target: the price of its smallest host, and its hardware."""
    hourly, there = _of_place(target.name)
    if there is None:
        return {}
    said = hourly if target.usd_per_hour is None else target.usd_per_hour
    where = places()[target.name]
    device = where.device
    count = f"{where.count} x " if where.count > 1 else ""
    gpu = f"{count}{accelerator_name(device)}"
    return {
        "usd_per_hour": usd(said),
        "hardware": there,
        "gpu": gpu,
        "may_cost_more": target.usd_per_hour is None
        and (len(where.sizes) > 1 or price(where).disagree),
        "regions": where.regions,
    }


@cache
def _of_place(name: str) -> tuple[float | None, str | None]:
    """Give what does not change while a server lives: every agent's first call asks for it."""
    where = places().get(name)
    if where is None or not where.sizes:
        return None, None
    return price(where).usd_per_hour, hardware(where)


def hardware(where: Place) -> str:
    """Say what one replica has there."""
    device = where.device
    sizes = " or ".join(f"{size.vcpu} vCPU and {size.ram_gib} GiB" for size in where.sizes)
    known = (
        f"{device.memory_gib} GiB visible of {device.sold_gib:g}" if device.memory_gib else "",
        f"{device.bandwidth_gb_per_s:,.0f} GB/s" if device.bandwidth_gb_per_s else "",
        f"{device.tflops_bf16:g} TFLOPS bf16" if device.bf16 and device.tflops_bf16 else "",
        f"{device.tflops_bf16:g} TFLOPS fp16" if not device.bf16 and device.tflops_bf16 else "",
    )
    each = ", ".join(word for word in known if word)
    return (
        f"{where.count} x {device.title} ({each}); {sizes}; disk: {where.disk}; "
        f"network: {where.network}"
    )
