"""The places a model can run, and what each still lacks."""

from functools import cache
from typing import Any

from pydantic import Field

from backends.base import NamesEngine
from core.records import Answer, Target
from operations.plans.foreseeing import usd
from operations.runtime import Runtime
from planner.accelerators import accelerator
from planner.places import Place, places
from planner.price import price


class TargetRow(Target):
    """A target and what would serve on it."""

    hardware: str | None = None
    """Of one replica: accelerator, processors, memory, disk and network."""
    engine: str
    look_seconds: float = Field(default=0.0, exclude=True)
    missing: str | None = None
    """What must be done before it can be used."""


class Targets(Answer):
    """Every target that is configured."""

    targets: tuple[TargetRow, ...]
    default: str | None
    """The one used where a call names none."""

    def summary(self) -> str:
        """Name them."""
        names = ", ".join(row.name for row in self.targets)
        return f"{len(self.targets)} target{'s' if len(self.targets) > 1 else ''}: {names}."

    def warnings(self) -> tuple[str, ...]:
        """Say what is missing."""
        return tuple(f"{row.name}: {row.missing}" for row in self.targets if row.missing)


async def list_all(runtime: Runtime) -> Targets:
    """Give every target."""
    stage = runtime.stage
    rows = []
    for target in stage.targets.values():
        backend = stage.backend(target.name)
        named = backend.engine_name() if isinstance(backend, NamesEngine) else ("your own", "")
        said = {"engine": named[0], "missing": named[1] or None}
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
    return {"usd_per_hour": usd(said), "hardware": there}


@cache
def _of_place(name: str) -> tuple[float | None, str | None]:
    """Give what does not change while a server lives: every agent's first call asks for it."""
    where = places().get(name)
    if where is None or not where.sizes:
        return None, None
    return price(where).usd_per_hour, hardware(where)


def hardware(where: Place) -> str:
    """Say what one replica has there."""
    device = accelerator(where.accelerator)
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
