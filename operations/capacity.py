"""Accelerators before they are had: quotas, zones, and requests that wait in a queue."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from backends.base import Backend, FindsZones, HasQueue, HasQuotas, QueuedResource, Quota, Zone
from backends.common.concurrency import in_time
from core.errors import (
    Ambiguous,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    NotFound,
    NotOurs,
    OpsError,
)
from core.records import NAME_PATTERN, Answer, Deleted, Deployment, Plan, State, Target
from core.reply import note
from operations import agreement, deployments
from operations.agreement import Preview, preview
from operations.deployments import usual
from operations.inventory import call_words
from operations.models import require_on_hub
from operations.preflight import offered_for
from operations.resolve import Found, able, ask_each, chosen, find, find_among
from operations.runtime import Runtime

_ASK_FOR_MORE: Final = (
    "In the cloud's console open the project's page of quotas, search for {quota}, choose"
    " {region} and ask for {count:g}; granting it takes from minutes to days. Until then take"
    " another region or target."
)


class QuotaRow(Quota):
    """One quota, and what it is enough for."""

    target: str
    counts: bool
    """It is the one that this target's deployments are held to."""
    replicas: int | None
    """That may run at once; None is not known."""
    more: int | None = None
    """Replicas beyond those that are there now; None is not known."""
    fix: str | None = None
    """How to get more, where it is not enough for one."""


class Quotas(Answer):
    """The quotas of one target, or of all."""

    quotas: tuple[QuotaRow, ...]

    def summary(self) -> str:
        """Say how many replicas more may run, and where."""
        rows = [row for row in self.quotas if row.counts]
        if len(rows) == 1:
            return f"{rows[0].target}: {_room(rows[0])}."
        found: dict[str, list[str]] = {}
        for row in rows:
            found.setdefault(_more(row), []).append(row.target)
        said = (f"{more} on {', '.join(names)}" for more, names in found.items())
        return f"Replicas more that may run: {'; '.join(said)}."

    def facts(self) -> Mapping[str, Any]:
        """Return the quota that each target is held to, as far as it is known."""
        rows = [row for row in self.quotas if row.counts and row.limit is not None]
        more = ("quota", "accelerator") if len(rows) == 1 else ()
        fields = ("target", "region", "limit", "in_use", *more)
        return {"quotas": [row.model_dump(include=set(fields)) for row in rows]}

    def warnings(self) -> tuple[str, ...]:
        """Warn where not even one replica may run, and where nobody knows."""
        return tuple(_warnings_quotas(self.quotas))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Choose what to deploy where there is room, else set up what could not be read."""
        rows = [row for row in self.quotas if row.counts]
        open_to = (
            row.target
            for row in rows
            if row.more or (row.more is None and (row.replicas or row.first_grant))
        )
        room = next(open_to, None)
        if room:
            return (NextStep("recommend_deployment", {"targets": [room]}),)
        unset = next((row.target for row in rows if "setup_target" in row.detail), None)
        return (NextStep("setup_target", {"target": unset}),) if unset else ()


async def check(runtime: Runtime, target: str | None) -> Quotas:
    """Read the quotas of one target, or of all that have any.

    What cannot be read is not known, which is not 0; only where nothing can be read is that an
    error.

    Raises:
        Unsupported: The target, or every one, has no quota that can be read.
        CloudError: Nothing could be read.
    """
    stage = runtime.stage
    those = able(stage, HasQuotas)
    if target or not those:
        only, one = chosen(stage, HasQuotas, "read quotas", target)
        return Quotas(quotas=_rows_quotas(only, await one.quotas()))
    seen, failed = await ask_each({name: backend.quotas for name, backend in those.items()})
    if not seen:
        raise next(iter(failed.values()))
    rows = {name: _rows_quotas(stage.targets[name], found) for name, found in seen.items()}
    rows |= {name: (_not_read(stage.targets[name], exc),) for name, exc in failed.items()}
    return Quotas(quotas=tuple(row for name in those for row in rows[name]))


def _rows_quotas(target: Target, quotas: Sequence[Quota]) -> tuple[QuotaRow, ...]:
    return tuple(row_of(target, one, counts=number == 0) for number, one in enumerate(quotas))


def row_of(target: Target, quota: Quota, *, counts: bool) -> QuotaRow:
    """Say for how many replicas a quota is enough."""
    each = max(1, target.accelerator_count)
    replicas = None if quota.limit is None else int(quota.limit // each)
    free = None if quota.limit is None or quota.in_use is None else quota.limit - quota.in_use
    more = None if free is None else max(0, int(free // each))
    fix = None
    if counts and 0 in {replicas, more}:
        count = (quota.in_use or 0) + each
        fix = _ASK_FOR_MORE.format(quota=quota.quota, region=quota.region, count=count)
    return QuotaRow(
        **quota.model_dump(),
        target=target.name,
        counts=counts,
        replicas=replicas,
        more=more,
        fix=fix,
    )


def _not_read(target: Target, why: OpsError) -> QuotaRow:
    unread = Quota(
        quota="not read",
        region=target.region or "not known",
        accelerator=target.accelerator or "not known",
        limit=None,
        detail=f"{why.summary} {why.fix}",
    )
    return row_of(target, unread, counts=True)


def _room(row: QuotaRow) -> str:
    """Say how many replicas more may run there, and of what that is reckoned."""
    if row.first_grant:
        return f"not used in {row.region} yet; its first deployment is granted {row.first_grant}"
    if row.limit is None:
        return "not known"
    held = f"{row.limit:g} {row.accelerator} allowed in {row.region}"
    if row.in_use is None:
        return f"{_replicas(row.replicas)} at most ({held}; what is in use is not known)"
    return f"{_replicas(row.more)} more may run ({held}, {row.in_use:g} in use)"


def _replicas(number: int | None) -> str:
    return f"{number or 'no'} replica{'s' * (number != 1)}"


def _more(row: QuotaRow) -> str:
    if row.more is None and row.replicas != 0:
        return "with the first deployment" if row.first_grant else "not known"
    return str(row.more or "none")


def _warnings_quotas(rows: Sequence[QuotaRow]) -> Iterator[str]:
    """Say each cause once, with the targets that it keeps from running or from being known."""
    causes: dict[str, list[str]] = {}
    for row in rows:
        if row.counts and row.limit is None:
            causes.setdefault(row.detail, []).append(row.target)
        elif row.fix:
            full = "all of it is in use" if row.replicas else f"the limit is {row.limit:g}"
            causes.setdefault(f"{full}. {row.fix}", []).append(row.target)
    for cause, targets in causes.items():
        yield f"{', '.join(targets)}: {cause}"


_ZONES_MOST: Final = 24
"""Rows of one answer."""
_NAMED: Final = 5
_SHOWN: Final = 12
"""Rows of an answer that was not asked for in full."""
_NOT_SET_UP: Final = "What a zone gives is not known before setup_target has enabled its APIs."
_TO_TRY: Final = "no zone that is known to give it; others have such chips: deploy_vllm with"
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
            here = [row for row in self.zones if target in row.targets]
            zones = [row.zone for row in here if row.usable]
            more = f" and {len(zones) - _NAMED} more" if len(zones) > _NAMED else ""
            untold = [row.zone for row in here if row.hardware and row.usable is None][:_NAMED]
            to_try = f"{_TO_TRY} zones={untold}" if untold else "no zone"
            said = f"{', '.join(zones[:_NAMED])}{more}" if zones else to_try
            found.setdefault(said, []).append(target)
        said = " ".join(f"{', '.join(targets)}: {zones}." for zones, targets in found.items())
        return f"{said} {_BY_ASKING}" if said else "No zone is known."

    def facts(self) -> Mapping[str, Any]:
        """Return the quota and the last outcome of each zone that may give a chip."""
        rows = [row for row in self.zones if row.usable][:_SHOWN]
        return {"zones": [_facts_zones(row) for row in rows]}

    def warnings(self) -> tuple[str, ...]:
        """Say where no zone can be used, and why, each cause once."""
        return tuple(_warnings_zones(self.zones))

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
    those = able(stage, FindsZones)
    if target or not those:
        only, one = chosen(stage, FindsZones, "look for zones", target)
        return _bounded({only.name: await one.zones()})
    seen, failed = await ask_each({name: backend.zones for name, backend in those.items()})
    if not seen:
        raise next(iter(failed.values()))
    for name, why in failed.items():
        note(f"{name} could not be looked at: {why.summary} {why.fix}")
    return _bounded({name: seen[name] for name in those if name in seen})


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
            ZoneRow(**row.model_dump(), targets=tuple(targets[row])) for row in rows[:_ZONES_MOST]
        ),
        left_out=max(0, len(rows) - _ZONES_MOST),
    )


def _facts_zones(row: ZoneRow) -> Mapping[str, Any]:
    limits = [int(quota.limit) for quota in row.quotas if quota.limit is not None]
    last = row.outcomes[0] if row.outcomes else None
    return {
        "zone": row.zone,
        "targets": ", ".join(row.targets),
        "chips_allowed": min(limits, default=None),
        "last": f"{last.outcome} {last.minutes_ago} min ago" if last else None,
    }


def _warnings_zones(rows: Sequence[ZoneRow]) -> Iterator[str]:
    causes: dict[str, list[str]] = {}
    for target in dict.fromkeys(name for row in rows for name in row.targets):
        here = [row for row in rows if target in row.targets]
        if not any(row.usable for row in here):
            unset = "setup_target" in here[0].verdict
            cause = _NOT_SET_UP if unset else f"{here[0].zone}: {here[0].verdict}"
            causes.setdefault(cause, []).append(target)
    for cause, targets in causes.items():
        yield f"{', '.join(targets)}: {cause}"


TOOL: Final = "manage_queued_resource"
PREFIX: Final = "vllm-devops-"
"""Of the id of what a deployment stands on."""
LIST: Final = (NextStep("list_queued_resources"),)
_LISTS: Final = "list queued resources"
_QUEUE_MOST: Final = 60
"""Rows of one answer."""


_MOST_LEFTOVERS: Final = 5
"""That are offered for deletion in one answer."""


class Queue(Answer):
    """What there is of both control planes, ours and others'."""

    resources: tuple[QueuedResource, ...]
    """Leftovers of ours first, then ours, then others'."""
    left_out: int = 0
    usd_per_hour: float | None = None
    """Of those of ours that have their chips."""

    def summary(self) -> str:
        """Count them, and say what ours cost."""
        if not self.resources:
            return "There is no TPU and no request for one."
        ours = sum(row.ours for row in self.resources)
        total = len(self.resources) + self.left_out
        leftovers = sum(row.leftover for row in self.resources)
        price = "" if self.usd_per_hour is None else f" (${self.usd_per_hour:.2f} an hour)"
        counted = f"{total} TPU{'s' * (total != 1)} and requests for one: {ours} ours{price}"
        return f"{counted}, {total - ours} others', {leftovers} leftovers."

    def facts(self) -> Mapping[str, Any]:
        """Return each one's place, state and deployment."""
        fields = {"id", "zone", "state", "accelerator", "deployment", "target", "ours"}
        shown = self.resources[:_SHOWN]
        return {"resources": [row.model_dump(include=fields) for row in shown]}

    def warnings(self) -> tuple[str, ...]:
        """Say of every leftover what it holds, and how it goes."""
        return tuple(_leftover(row) for row in self.resources if row.leftover)[
            : 2 * _MOST_LEFTOVERS
        ]

    def next_steps(self) -> tuple[NextStep, ...]:
        """Delete our leftovers."""
        ours = [row for row in self.resources if row.leftover and row.ours]
        return tuple(_deletion(row) for row in ours[:_MOST_LEFTOVERS])


class Described(Queue):
    """One request, or the VM that came of it, and the deployment that stands on it."""

    name: str
    deployment: Deployment | None = None

    def summary(self) -> str:
        """Say the state of the deployment, and of each."""
        said = [self.deployment.summary()] if self.deployment else []
        for row in self.resources:
            whose = f", of {row.deployment} on {row.target}" if row.deployment else ""
            whose = whose if row.ours else ", not made here"
            said.append(f"{row.id} in {row.zone} is {row.state}{whose}.")
        return " ".join(said)

    def facts(self) -> Mapping[str, Any]:
        """Return each one's place and state, and the facts of the deployment."""
        return {**super().facts(), **(self.deployment.facts() if self.deployment else {})}

    def warnings(self) -> tuple[str, ...]:
        """Warn of leftovers, and of what the deployment warns of."""
        return (*super().warnings(), *(self.deployment.warnings() if self.deployment else ()))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Go on with the deployment, or delete a leftover."""
        more = self.deployment.next_steps() if self.deployment else ()
        return super().next_steps() or more


async def everything(runtime: Runtime, target: str | None, zone: str | None) -> Queue:
    """Give every request and VM of the project; of one target those made for it.

    Raises:
        Unsupported: No target has a queue.
        CloudError: It cannot be looked at.
    """
    rows = [
        row
        for row in await _rows_queue(runtime, target)
        if zone in {None, row.zone} and target in {None, row.target}
    ]
    targets = runtime.stage.targets
    billed = [
        targets[row.target]
        for row in rows
        if row.ours and not row.leftover and (bool(row.node) or row.state == "RUNNING")
        if row.target in targets
    ]
    prices = [each.usd_per_hour for each in billed if each.usd_per_hour is not None]
    return Queue(
        resources=tuple(rows[:_QUEUE_MOST]),
        left_out=max(0, len(rows) - _QUEUE_MOST),
        usd_per_hour=sum(prices) if prices else None,
    )


async def describe(runtime: Runtime, name: str, target: str | None, zone: str | None) -> Described:
    """Give every request of an id, ours or not, with the deployment that stands on it.

    Raises:
        NotFound: There is none, and no deployment of that name either.
    """
    rows = await named(runtime, name, target, zone)
    leftovers_last = sorted(rows, key=lambda row: row.leftover)
    ours = next((row for row in leftovers_last if row.deployment), None)
    found = await deployment_on(runtime, ours, name, target)
    if not rows and found is None:
        raise nothing(name, zone)
    told = usual(runtime, found.deployment) if found else None
    return Described(name=name, resources=tuple(rows), deployment=told)


async def named(
    runtime: Runtime, name: str, target: str | None, zone: str | None
) -> list[QueuedResource]:
    """Give those of an id, or of a deployment, whoever made them."""
    return [
        row
        for row in await _rows_queue(runtime, target)
        if name in {row.id, row.deployment} and zone in {None, row.zone}
    ]


async def deployment_on(
    runtime: Runtime, row: QueuedResource | None, name: str, target: str | None
) -> Found | None:
    """Give the deployment that stands on a request, or else the one of that name."""
    stage = runtime.stage
    try:
        if row and row.deployment and row.target in stage.targets:
            return await find(stage, row.target, row.deployment, to_change=True)
        if row is None and re.fullmatch(NAME_PATTERN, name.removeprefix(PREFIX)):
            targets = [target] if target else list(able(stage, HasQueue))
            return await find_among(stage, targets, name.removeprefix(PREFIX))
    except DeploymentNotFound:
        return None
    return None


def nothing(name: str, zone: str | None) -> NotFound:
    """Nothing is called so."""
    where = f" in {zone[:40]}" if zone else ""
    return NotFound(
        f"There is no queued resource, TPU or deployment named {name[:80]!r}{where}.",
        fix="Call list_queued_resources for what there is.",
        next_steps=LIST,
    )


async def _rows_queue(runtime: Runtime, target: str | None) -> Sequence[QueuedResource]:
    only, queue = chosen(runtime.stage, HasQueue, _LISTS, target, shared=True)
    with offered_for(only):
        return await queue.queued_resources()


def _leftover(row: QueuedResource) -> str:
    where = f"{row.id} in {row.zone} ({row.control_plane}) is {row.state}"
    held = "a leftover, which holds quota until it is deleted"
    if not row.ours:
        return f"{where}: {held}. It was not made here: whoever made it may delete it."
    return f"{where}: {held}. Call {call_words(_deletion(row))}."


def _deletion(row: QueuedResource) -> NextStep:
    return NextStep(TOOL, {"action": "delete", "name": row.id, "zone": row.zone})


_SECONDS: Final = 40.0
_SEARCHES: Final = frozenset({State.QUEUED, State.CREATING})


class LeftoverDeleted(Answer):
    """What became of a leftover."""

    id: str
    zone: str
    gone: bool
    """Seen to be gone, not merely asked to go."""

    def summary(self) -> str:
        """Say whether it is gone."""
        return f"{self.id} in {self.zone} is {'gone' if self.gone else 'being deleted'}."

    def next_steps(self) -> tuple[NextStep, ...]:
        """Offer the proof."""
        return LIST


class Removal(NamedTuple):
    """What is to be deleted, and what a person is shown before."""

    preview: Preview
    deployment: Found | None = None
    """With everything of it; else the leftover alone."""
    leftover: QueuedResource | None = None


async def to_create(
    runtime: Runtime, name: str, model: str | None, target: str | None, zone: str | None
) -> tuple[Backend, Plan, Preview | None]:
    """Plan a deployment whose chip is asked for in the queue alone, and what is to be agreed to.

    Raises:
        Ambiguous, Unsupported, TargetNotFound: No target is meant, or one without a queue.
        InvalidArgument: It cannot be so.
        DoesNotFit: The memory does not suffice.
    """
    only, _queue = chosen(runtime.stage, HasQueue, "queue requests", target)
    backend = runtime.stage.backend(only.name)
    flags: dict[str, Any] = {"control_plane": "queued"} | ({"zones": (zone,)} if zone else {})
    wish = await agreement.wish(runtime, backend, name.removeprefix(PREFIX), model, given=flags)
    wanted = await deployments.plan(backend, wish.spec)
    await require_on_hub(runtime.settings, backend.target, wish.spec)
    await agreement.refuse_deploy(backend, wanted)
    asked = agreement.to_deploy(wish, wanted)
    return backend, wanted, asked and _by_this_tool(asked, "create")


async def to_delete(runtime: Runtime, name: str, target: str | None, zone: str | None) -> Removal:
    """Find what is to be deleted: a deployment with all of its own, or a leftover.

    Raises:
        NotFound: There is nothing of that name.
        NotOurs: It was not made here.
        Ambiguous: Several are called so.
        InvalidArgument: It is no leftover, and its deployment is not to be seen from here.
    """
    rows = await named(runtime, name, target, zone)
    row = _the_one(rows)
    found = await deployment_on(runtime, row, name, target)
    if row and row.leftover and (found is None or await _stands_elsewhere(runtime, row, found)):
        what = (
            f"Delete the leftover {row.id} in {row.zone} ({row.control_plane}, {row.state}),"
            " which has no chip and holds quota"
        )
        bound = f"{row.zone}\n{row.state}"
        shown = preview(TOOL, row.target, row.id, what, None, None, bound)
        return Removal(_by_this_tool(shown, "delete", zone=row.zone), leftover=row)
    if found:
        shown = agreement.to_destroy(found, purge=False)
        return Removal(_by_this_tool(shown, "delete"), deployment=found)
    if row is None:
        raise nothing(name, zone)
    raise InvalidArgument(
        f"{row.id} in {row.zone} is {row.state}: no leftover, and no target of this server has the"
        f" deployment {row.deployment!r} on it.",
        fix=f"Delete it from a server with the target {row.target or 'that it was made for'}.",
        next_steps=LIST,
    )


async def delete(runtime: Runtime, removal: Removal) -> Deleted | LeftoverDeleted:
    """Delete it, and say what was seen.

    Raises:
        CloudError: Google refused, or did not answer.
    """
    if removal.deployment:
        return await deployments.destroy(runtime, removal.deployment, purge=False)
    assert removal.leftover
    zone, resource = removal.leftover.zone, removal.leftover.id
    fix = "Look with list_queued_resources; the same call again is harmless."
    with in_time("Google", f"delete {resource}", _SECONDS, fix=fix):
        _any, queue = chosen(runtime.stage, HasQueue, _LISTS, None, shared=True)
        gone = await queue.delete_leftover(zone, resource)
    return LeftoverDeleted(id=resource, zone=zone, gone=gone)


def _the_one(rows: Sequence[QueuedResource]) -> QueuedResource | None:
    """Give the one of ours, None where nothing is called so."""
    ours = [row for row in rows if row.ours]
    if rows and not ours:
        raise NotOurs(
            f"{rows[0].id} in {rows[0].zone} was not made here: it is left alone.",
            fix="Delete it where it was made.",
            next_steps=LIST,
        )
    if len(ours) > 1:
        zones = ", ".join(row.zone for row in ours)
        raise Ambiguous(
            f"{ours[0].id} is there {len(ours)} times: {zones}.",
            fix="Give `zone`.",
            next_steps=LIST,
        )
    return ours[0] if ours else None


async def _stands_elsewhere(runtime: Runtime, leftover: QueuedResource, found: Found) -> bool:
    """Whether the leftover's deployment has, or is about to have, another chip."""
    if found.deployment.state in _SEARCHES:
        return True
    others = await named(runtime, leftover.deployment, leftover.target, None)
    key = (leftover.zone, leftover.control_plane)
    return any(row.ours and (row.zone, row.control_plane) != key for row in others)


def _by_this_tool(shown: Preview, action: str, **also: str) -> Preview:
    """Let the same yes come back through this tool, also where it was called by an old name."""
    return shown.model_copy(update={"tool": TOOL, "again": {"action": action, **also}})
