"""Which zones may give the chips of a target, as far as that can be seen without asking for one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import anyio

from backends.base import Backend, FindsZones, Zone
from core.errors import NextStep, OpsError
from core.records import Answer
from core.reply import note
from operations.abilities import able, chosen
from operations.runtime import Runtime

_MOST: Final = 24
"""Rows of one answer."""
_NAMED: Final = 5
_SHOWN: Final = 12
"""Rows of an answer that was not asked for in full."""
_NOT_SET_UP: Final = "What a zone gives is not known before setup_target has enabled its APIs."
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
        """Name the zones that nothing is known against, once for all targets with the same."""
        found: dict[str, list[str]] = {}
        for target in dict.fromkeys(name for row in self.zones for name in row.targets):
            said = _listed(_usable(target, self.zones)) or _to_try(target, self.zones)
            found.setdefault(said or "no zone", []).append(target)
        said = " ".join(f"{', '.join(targets)}: {zones}." for zones, targets in found.items())
        return f"{said} {_BY_ASKING}" if said else "No zone is known."

    def facts(self) -> Mapping[str, Any]:
        """Return the quota and the last outcome of each zone that may give a chip."""
        one = len({row.targets for row in self.zones}) == 1
        rows = [row for row in self.zones if row.usable][:_SHOWN]
        return {"zones": [_facts(row, {} if one else _whose(row)) for row in rows]}

    def warnings(self) -> tuple[str, ...]:
        """Say where no zone can be used, and why, each cause once."""
        return tuple(_warnings(self.zones))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Choose what to deploy to the best, or see to what stands against all."""
        best = next((row for row in self.zones if row.usable), None)
        if best:
            return (NextStep("recommend_deployment", {"targets": [best.targets[0]]}),)
        unset = next((row for row in self.zones if "setup_target" in row.verdict), None)
        if unset:
            return (NextStep("setup_target", {"target": unset.targets[0]}),)
        return (NextStep("check_gpu_quotas"),) if self.zones else ()


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


def _listed(zones: Sequence[str]) -> str:
    more = f" and {len(zones) - _NAMED} more" if len(zones) > _NAMED else ""
    return f"{', '.join(zones[:_NAMED])}{more}"


def _to_try(target: str, rows: Sequence[ZoneRow]) -> str:
    """Name zones that have the hardware and of which nothing else is known."""
    zones = [
        row.zone for row in rows if target in row.targets and row.hardware and row.usable is None
    ]
    why = "no zone that is known to give it; others have such chips: deploy_vllm with"
    return f"{why} zones={zones[:_NAMED]}" if zones else ""


def _whose(row: ZoneRow) -> Mapping[str, str]:
    return {"targets": ", ".join(row.targets)}


def _facts(row: ZoneRow, whose: Mapping[str, str]) -> Mapping[str, Any]:
    limits = [int(quota.limit) for quota in row.quotas if quota.limit is not None]
    last = row.outcomes[0] if row.outcomes else None
    return {
        "zone": row.zone,
        **whose,
        "chips_allowed": min(limits, default=None),
        "last": f"{last.outcome} {last.minutes_ago} min ago" if last else None,
    }


def _usable(target: str, rows: Sequence[ZoneRow]) -> list[str]:
    return [row.zone for row in rows if row.usable and target in row.targets]


def _warnings(rows: Sequence[ZoneRow]) -> Iterator[str]:
    causes: dict[str, list[str]] = {}
    for target in dict.fromkeys(name for row in rows for name in row.targets):
        here = [row for row in rows if target in row.targets]
        if not any(row.usable for row in here):
            unset = "setup_target" in here[0].verdict
            cause = _NOT_SET_UP if unset else f"{here[0].zone}: {here[0].verdict}"
            causes.setdefault(cause, []).append(target)
    for cause, targets in causes.items():
        yield f"{', '.join(targets)}: {cause}"
