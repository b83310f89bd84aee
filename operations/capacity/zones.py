"""Which zones may give the chips of a target, as far as that can be seen without asking for one."""

from collections.abc import Iterator, Sequence
from typing import Final

import anyio

from backends.base import Backend
from backends.cloud_abilities import FindsZones, Zone
from core.errors import NextStep, OpsError
from core.records import Answer
from core.reply import note
from operations.abilities import able, chosen
from operations.runtime import Runtime

_MOST: Final = 24
"""Rows of one answer."""
_NAMED: Final = 5
_BY_ASKING: Final = "Whether a chip is free is known only by asking for one."


class ZoneRow(Zone):
    """One zone, for every target of which the same is seen."""

    targets: tuple[str, ...]


class Zones(Answer):
    """The zones of one target, or of all that have several."""

    zones: tuple[ZoneRow, ...]
    """The most promising first."""
    left_out: int = 0
    """Of the least promising."""

    def summary(self) -> str:
        """Name the zones that nothing stands against, target by target."""
        targets = dict.fromkeys(name for row in self.zones for name in row.targets)
        said = " ".join(_sentence(name, self.zones) for name in targets)
        return f"{said} {_BY_ASKING}" if said else "No zone is known."

    def warnings(self) -> tuple[str, ...]:
        """Say where no zone can be used, and why."""
        return tuple(_warnings(self.zones))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Search in the best."""
        best = next((row for row in self.zones if row.usable), None)
        if best is None:
            return (NextStep("check_gpu_quotas"),) if self.zones else ()
        target = best.targets[0]
        return (
            NextStep(
                "deploy_vllm", {"target": target, "zones": _usable(target, self.zones)[:_NAMED]}
            ),
        )


async def look(runtime: Runtime, target: str | None) -> Zones:
    """Look at the zones of one target, or of all that have any.

    Raises:
        Unsupported: The target, or every one, has no zones to choose from.
        CloudError: No target's zones could be looked at.
    """
    stage = runtime.stage
    those = able(stage, _finds)
    if target or not those:
        only, one = chosen(stage, _finds, "look for zones", target)
        return _bounded({only.name: await one.zones()})
    seen: dict[str, Sequence[Zone]] = {}
    failed: dict[str, OpsError] = {}

    async def ask(name: str, backend: FindsZones) -> None:
        try:
            seen[name] = await backend.zones()
        except OpsError as exc:
            failed[name] = exc

    async with anyio.create_task_group() as group:
        for name, backend in those.items():
            group.start_soon(ask, name, backend)
    if not seen:
        raise next(iter(failed.values()))
    for name, why in failed.items():
        note(f"{name} could not be looked at: {why.summary} {why.fix}")
    return _bounded({name: seen[name] for name in those if name in seen})


def _finds(backend: Backend) -> FindsZones | None:
    return backend if isinstance(backend, FindsZones) else None


def _bounded(seen: dict[str, Sequence[Zone]]) -> Zones:
    """Make one row of what is the same for several targets; the least promising are left out."""
    targets: dict[Zone, list[str]] = {}
    for name, zones in seen.items():
        for zone in zones:
            targets.setdefault(zone, []).append(name)
    order = {True: 0, None: 1, False: 2}
    rows = sorted(targets, key=lambda zone: order[zone.usable])
    return Zones(
        zones=tuple(
            ZoneRow(**row.model_dump(), targets=tuple(targets[row])) for row in rows[:_MOST]
        ),
        left_out=max(0, len(rows) - _MOST),
    )


def _sentence(target: str, rows: Sequence[ZoneRow]) -> str:
    usable = _usable(target, rows)
    more = f" and {len(usable) - _NAMED} more" if len(usable) > _NAMED else ""
    return f"{target}: {', '.join(usable[:_NAMED]) or 'no zone'}{more}."


def _usable(target: str, rows: Sequence[ZoneRow]) -> list[str]:
    return [row.zone for row in rows if row.usable and target in row.targets]


def _warnings(rows: Sequence[ZoneRow]) -> Iterator[str]:
    for target in dict.fromkeys(name for row in rows for name in row.targets):
        here = [row for row in rows if target in row.targets]
        if not any(row.usable for row in here):
            yield f"{target}: {here[0].zone}: {here[0].verdict}"
