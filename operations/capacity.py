"""What a deployment needs before it is had: set-up, checks, quotas, zones, a place in a queue."""

import hashlib
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import Field

from backends.base import (
    Backend,
    FindsZones,
    HasQueue,
    HasQuotas,
    QueuedResource,
    Quota,
    SetsUp,
    Setup,
    SetupStep,
    Zone,
)
from backends.common.concurrency import ask_each, in_time
from core.errors import (
    Ambiguous,
    ApiDisabled,
    DeploymentNotFound,
    InvalidArgument,
    ModelNotFound,
    NextStep,
    NotFound,
    NotOurs,
    OpsError,
    Unsupported,
)
from core.records import NAME_PATTERN, Answer, Deleted, Plan, State, Target, listed
from core.reply import note
from operations import agreement, deployments
from operations.agreement import Preview, preview
from operations.forecast import grouped
from operations.leftovers import LeftoverRemoved
from operations.models import require_on_hub
from operations.planning import DeploymentPlan
from operations.resolve import Found, calls, choose_target, find, find_among, targets_with
from operations.runtime import Runtime
from planner.flags import added_in, other_words

A = TypeVar("A")
T = TypeVar("T")


async def with_backend_checks(
    runtime: Runtime, foreseen: DeploymentPlan, *, check: bool, source: Mapping[str, object]
) -> DeploymentPlan:
    """Add what the target's backend says of the same plan, and with `check` its platform too.

    `source` is where weights, image and chips come from, as `deploy_vllm` takes them.

    Raises:
        Unsupported: To be checked, but for a place that nothing can be deployed to from here.
    """
    if foreseen.target not in runtime.stage.targets:
        if check:
            raise Unsupported(
                f"{foreseen.target} can be planned for, not deployed to.",
                fix=f"Leave `check` out, or give one of {', '.join(runtime.stage.targets)}.",
            )
        return foreseen
    said = {name: value for name, value in source.items() if value}
    both = {"arguments": foreseen.arguments, "nearer": foreseen.nearer}
    update = {name: {**said, **flags} for name, flags in both.items() if flags is not None}
    foreseen = foreseen.model_copy(update=update)
    if not (foreseen.fits or check):
        return foreseen
    backend = runtime.stage.backend(foreseen.target)
    try:
        spec = deployments.specify(
            backend.target, None, foreseen.model, runtime, **foreseen.arguments
        )
        try:
            await require_on_hub(runtime.settings, backend.target, spec, ask=check)
        except ModelNotFound as exc:
            if spec.weights:  # they name the Hub
                raise
            foreseen = foreseen.model_copy(update={"missing": f"{exc.summary} {exc.fix}"})
        wanted = await deployments.plan(backend, spec, force=True)
    except InvalidArgument as exc:
        why = f"{exc.summary} {exc.fix}"
        return foreseen.model_copy(update={"fits": False, "reasons": (*foreseen.reasons, why)})
    for warning in wanted.warnings:
        note(warning)
    asked = map(shlex.quote, other_words(foreseen.arguments.get("engine_args", ())))
    line = " ".join((foreseen.engine_line, *asked, *added_in(wanted.spec.engine_args)))
    foreseen = foreseen.model_copy(update={"engine_line": line})
    if not check:
        return foreseen
    preflight = await backend.check(wanted)
    return foreseen.model_copy(update={"checks": preflight.checks})


class SetupReport(Answer):
    """What a target needs, and what was made of it just now."""

    target: str
    made: tuple[str, ...]
    """Seen to be there now, and not there before."""
    missing: tuple[str, ...]
    """Still not there."""
    steps: tuple[SetupStep, ...]
    wanted: NextStep | None = Field(default=None, exclude=True)
    """The deployment that was refused for want of it."""

    def summary(self) -> str:
        if self.missing:
            return f"{self.target} still lacks {len(self.missing)}: {'; '.join(self.missing)}."
        made = "nothing was changed"
        if self.made:
            made = f"{_counted(len(self.made), 'thing')} made"
        return f"{self.target} is set up: {made} ({_bill(self.steps)})."

    def facts(self) -> Mapping[str, Any]:
        return {"made": self.made}

    def next_steps(self) -> tuple[NextStep, ...]:
        here = {"target": self.target}
        if self.missing:
            return (NextStep("setup_target", here),)
        choose = NextStep("recommend_deployment", {"targets": [self.target]})
        return (self.wanted or choose, NextStep("check_gpu_quotas", here))


@contextmanager
def offered_for(target: Target) -> Iterator[None]:
    """Let a refusal of a cloud that is not set up offer its setup."""
    try:
        yield
    except ApiDisabled as exc:
        exc.next_steps = (NextStep("setup_target", {"target": target.name}),)
        raise


def to_set_up(target: Target, seen: Setup) -> Preview | None:
    """Ask where anything would be made."""
    if not seen.missing:
        return None
    asked = hashlib.sha256(repr([step.command for step in seen.missing]).encode()).hexdigest()
    things = _counted(len(seen.missing), "thing")
    what = f"Set up {target.name}, once: make {things} ({_bill(seen.missing)})"
    makes = tuple(step.what for step in seen.missing)
    return preview("setup_target", target.name, "", what, asked=asked, makes=makes)


async def set_up(runtime: Runtime, target: Target, backend: SetsUp, seen: Setup) -> SetupReport:
    """Make what was seen to be missing, and say what is there then.

    Raises:
        CloudError: A step failed; those before it are made, and a second call goes on.
    """
    now = await backend.set_up() if seen.missing else seen
    there = {step.what for step in now.steps if step.done}
    tried = [
        one
        for one in calls(runtime.stage.journal)
        if one.tool == "deploy_vllm" and one.arguments.get("target") == target.name
    ]
    wanted = None  # the newest deployment, if it was refused for want of this
    if tried and tried[-1].result == ApiDisabled.code:
        given = {name: said for name, said in tried[-1].arguments.items() if name != "confirm"}
        wanted = NextStep("deploy_vllm", given)
    return SetupReport(
        target=target.name,
        made=tuple(step.what for step in seen.missing if step.what in there),
        missing=tuple(step.what for step in now.missing),
        steps=now.steps,
        wanted=wanted,
    )


def _bill(steps: Sequence[SetupStep]) -> str:
    """Say what they cost while nothing is deployed."""
    paid = [step for step in steps if step.usd_per_month]
    if not paid:
        return "$0 a month until something is deployed"
    total = sum(step.usd_per_month for step in paid)
    what = "; ".join(step.what[0].lower() + step.what[1:] for step in paid)
    return f"${total:.2f} a month, used or not: {what}"


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"


def _causes(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Say each cause once, with its targets."""
    return tuple(f"{', '.join(targets)}: {said}" for said, targets in grouped(pairs).items())


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

    def room(self) -> str:
        """Say how many replicas more may run there, and of what that is reckoned."""
        if self.first_grant:
            return f"not used yet, its first deployment is granted {self.first_grant}"
        if self.limit is None:
            return "not known"
        held = f"{self.limit:g} {self.accelerator} allowed in {self.region}"
        if self.in_use is None:
            return f"{_counted(self.replicas or 0, 'replica')} at most ({held})"
        more = _counted(self.more or 0, "replica")
        return f"{more} more may run ({held}, {self.in_use:g} in use)"

    def trouble(self) -> str | None:
        """Say why not even one may run, or why nobody knows."""
        if self.limit is None:
            return self.detail
        full = "all of it is in use" if self.replicas else f"the limit is {self.limit:g}"
        return f"{full}. {self.fix}" if self.fix else None


class Quotas(Answer):
    """The quotas of one target, or of all."""

    quotas: tuple[QuotaRow, ...]

    @property
    def _counting(self) -> list[QuotaRow]:
        return [row for row in self.quotas if row.counts]

    def summary(self) -> str:
        return f"{'; '.join(_causes((row.room(), row.target) for row in self._counting))}."

    def facts(self) -> Mapping[str, Any]:
        rows = [row for row in self._counting if row.limit is not None]
        more = {"quota", "accelerator"} if len(rows) == 1 else set[str]()
        fields = {"target", "region", "limit", "in_use", *more}
        return {"quotas": [row.model_dump(include=fields) for row in rows]}

    def warnings(self) -> tuple[str, ...]:
        return _causes((said, row.target) for row in self._counting if (said := row.trouble()))

    def next_steps(self) -> tuple[NextStep, ...]:
        for row in self._counting:
            if row.more or (row.more is None and (row.replicas or row.first_grant)):
                return (NextStep("recommend_deployment", {"targets": [row.target]}),)
        unset = [row.target for row in self._counting if "setup_target" in row.detail]
        return tuple(NextStep("setup_target", {"target": one}) for one in unset[:1])


async def read_quotas(runtime: Runtime, target: str | None) -> Quotas:
    """Read the quotas of one target, or of all that have any.

    What cannot be read is not known, which is not 0; only where nothing can be read is that an
    error.

    Raises:
        Unsupported: The target, or every one, has no quota that can be read.
        CloudError: Nothing could be read.
    """
    seen, failed = await _ask_targets(
        runtime, HasQuotas, "read quotas", target, lambda backend: backend.quotas()
    )
    rows = []
    for name, where in runtime.stage.targets.items():
        found = seen.get(name) or ([_not_read(where, failed[name])] if name in failed else [])
        rows += [row_of(where, quota, counts=n == 0) for n, quota in enumerate(found)]
    return Quotas(quotas=tuple(rows))


async def _ask_targets(
    runtime: Runtime,
    ability: type[A],
    what: str,
    target: str | None,
    ask: Callable[[A], Awaitable[Sequence[T]]],
) -> tuple[dict[str, Sequence[T]], dict[str, OpsError]]:
    """Ask one target, or all that can; an error where none answers."""
    those = targets_with(runtime.stage, ability)
    if target or not those:
        only, one = choose_target(runtime.stage, ability, what, target)
        return {only.name: await ask(one)}, {}
    seen, failed = await ask_each({name: partial(ask, one) for name, one in those.items()})
    if not seen:
        raise next(iter(failed.values()))
    return seen, failed


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


def _not_read(target: Target, why: OpsError) -> Quota:
    return Quota(
        quota="not read",
        region=target.region or "not known",
        accelerator=target.accelerator or "not known",
        limit=None,
        detail=f"{why.summary} {why.fix}",
    )


_ZONES_MOST: Final = 24
"""Rows of one answer."""
_NAMED: Final = 5
_SHOWN: Final = 12
"""Rows of an answer that was not asked for in full."""
_NOT_SET_UP: Final = "What a zone gives is known once setup_target has enabled its APIs."
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

    def _by_target(self) -> dict[str, list[ZoneRow]]:
        names = dict.fromkeys(name for row in self.zones for name in row.targets)
        return {name: [row for row in self.zones if name in row.targets] for name in names}

    def summary(self) -> str:
        pairs = ((_zones_said(rows), target) for target, rows in self._by_target().items())
        said = " ".join(f"{one}." for one in _causes(pairs))
        return f"{said} {_BY_ASKING}" if said else "No zone is known."

    def facts(self) -> Mapping[str, Any]:
        rows = []
        for row in [row for row in self.zones if row.usable][:_SHOWN]:
            limits = [int(quota.limit) for quota in row.quotas if quota.limit is not None]
            last = row.outcomes[0] if row.outcomes else None
            rows.append(
                {
                    "zone": row.zone,
                    "targets": ", ".join(row.targets),
                    "chips_allowed": min(limits, default=None),
                    "last": f"{last.outcome} {last.minutes_ago} min ago" if last else None,
                }
            )
        return {"zones": rows}

    def warnings(self) -> tuple[str, ...]:
        """Say why a target has no zone; that only asking shows it, the summary says."""
        why = []
        for target, (first, *rest) in self._by_target().items():
            unset = "setup_target" in first.verdict
            only_by_asking = first.hardware and first.usable is None and not unset
            if not (only_by_asking or any(row.usable for row in (first, *rest))):
                why.append((_NOT_SET_UP if unset else f"{first.zone}: {first.verdict}", target))
        return _causes(why)

    def next_steps(self) -> tuple[NextStep, ...]:
        for row in self.zones:
            if row.usable:
                return (NextStep("recommend_deployment", {"targets": [row.targets[0]]}),)
        for row in self.zones:
            if "setup_target" in row.verdict:
                return (NextStep("setup_target", {"target": row.targets[0]}),)
        return (NextStep("check_gpu_quotas"),) if self.zones else ()


def _zones_said(rows: Sequence[ZoneRow]) -> str:
    zones = [row.zone for row in rows if row.usable]
    untold = [row.zone for row in rows if row.hardware and row.usable is None][:_NAMED]
    to_try = f"{_TO_TRY} zones={untold}" if untold else "no zone"
    return listed(zones, most=_NAMED) or to_try


async def list_zones(runtime: Runtime, target: str | None) -> Zones:
    """Look at the zones of one target, or of all that have any.

    Raises:
        Unsupported: The target, or every one, has no zones to choose from.
        CloudError: No target's zones could be looked at.
    """
    seen, failed = await _ask_targets(
        runtime, FindsZones, "look for zones", target, lambda backend: backend.zones()
    )
    for name, why in failed.items():
        note(f"{name} could not be looked at: {why.summary} {why.fix}")
    targets = grouped((zone, name) for name in runtime.stage.targets for zone in seen.get(name, ()))
    order = {True: 0, None: 1, False: 2}
    rows = sorted(targets, key=lambda zone: order[zone.usable])
    shown = rows[:_ZONES_MOST]
    return Zones(
        zones=tuple(ZoneRow(**row.model_dump(), targets=tuple(targets[row])) for row in shown),
        left_out=len(rows) - len(shown),
    )


TOOL: Final = "manage_queued_resource"
PREFIX: Final = "vllm-devops-"
"""Of the id of what a deployment stands on."""
LIST: Final = (NextStep("list_queued_resources"),)
_LISTS: Final = "list queued resources"
_QUEUE_MOST: Final = 60
"""Rows of one answer."""
_SECONDS: Final = 40.0
_SEARCHES: Final = frozenset({State.QUEUED, State.CREATING})
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
        if not self.resources:
            return "There is no TPU and no request for one."
        ours = sum(row.ours for row in self.resources)
        total = len(self.resources) + self.left_out
        leftovers = sum(row.leftover for row in self.resources)
        price = "" if self.usd_per_hour is None else f" (${self.usd_per_hour:.2f} an hour)"
        counted = f"{_counted(total, 'TPU')} and requests for one: {ours} ours{price}"
        return f"{counted}, {total - ours} others', {leftovers} leftovers."

    def facts(self) -> Mapping[str, Any]:
        fields = {"id", "zone", "state", "accelerator", "deployment", "target", "ours"}
        shown = self.resources[:_SHOWN]
        return {"resources": [row.model_dump(include=fields) for row in shown]}

    def warnings(self) -> tuple[str, ...]:
        return tuple(_leftover(row) for row in self.resources if row.leftover)[
            : 2 * _MOST_LEFTOVERS
        ]

    def next_steps(self) -> tuple[NextStep, ...]:
        ours = [row for row in self.resources if row.leftover and row.ours]
        return tuple(_deletion(row) for row in ours[:_MOST_LEFTOVERS])


class Described(Queue):
    """One request, or the VM that came of it; `status_vllm` tells of what stands on it."""

    name: str

    def summary(self) -> str:
        said = []
        for row in self.resources:
            whose = f", of {row.deployment} on {row.target}" if row.deployment else ""
            whose = whose if row.ours else ", not made here"
            said.append(f"{row.id} in {row.zone} is {row.state}{whose}.")
        return " ".join(said)

    def next_steps(self) -> tuple[NextStep, ...]:
        there = {row.deployment: row.target for row in self.resources if row.deployment}
        looks = (NextStep("status_vllm", {"target": there[one], "name": one}) for one in there)
        return super().next_steps() or tuple(looks)


async def list_queue(runtime: Runtime, target: str | None, zone: str | None) -> Queue:
    """Give every request and VM of the project; of one target those made for it.

    Raises:
        Unsupported: No target has a queue.
        CloudError: It cannot be looked at.
    """
    every = await _queued_resources(runtime, target)
    rows = [row for row in every if zone in {None, row.zone} and target in {None, row.target}]
    prices = []
    for row in rows:
        where = runtime.stage.targets.get(row.target)
        has_chips = row.ours and not row.leftover and (bool(row.node) or row.state == "RUNNING")
        if has_chips and where and where.usd_per_hour is not None:
            prices.append(where.usd_per_hour)
    return Queue(
        resources=tuple(rows[:_QUEUE_MOST]),
        left_out=max(0, len(rows) - _QUEUE_MOST),
        usd_per_hour=sum(prices) if prices else None,
    )


async def describe_request(
    runtime: Runtime, name: str, target: str | None, zone: str | None
) -> Described:
    """Give every request of an id, or of a deployment, ours or not.

    Raises:
        NotFound: There is none.
    """
    rows = await _find_requests(runtime, name, target, zone)
    if not rows:
        raise _nothing(name, zone)
    return Described(name=name, resources=tuple(rows))


async def _find_requests(
    runtime: Runtime, name: str, target: str | None, zone: str | None
) -> list[QueuedResource]:
    """Give those of an id, or of a deployment, whoever made them."""
    return [
        row
        for row in await _queued_resources(runtime, target)
        if name in {row.id, row.deployment} and zone in {None, row.zone}
    ]


async def _deployment_on(
    runtime: Runtime, row: QueuedResource | None, name: str, target: str | None
) -> Found | None:
    """Give the deployment that stands on a request, or else the one of that name."""
    stage = runtime.stage
    try:
        if row and row.deployment and row.target in stage.targets:
            return await find(stage, row.target, row.deployment, to_change=True)
        if row is None and re.fullmatch(NAME_PATTERN, name.removeprefix(PREFIX)):
            targets = [target] if target else list(targets_with(stage, HasQueue))
            return await find_among(stage, targets, name.removeprefix(PREFIX))
    except DeploymentNotFound:
        return None
    return None


def _nothing(name: str, zone: str | None) -> NotFound:
    """Nothing is called so."""
    where = f" in {zone[:40]}" if zone else ""
    return NotFound(
        f"There is no queued resource or TPU named {name[:80]!r}{where}.",
        fix="Call list_queued_resources for what there is; list_deployments has deployments.",
        next_steps=LIST,
    )


async def _queued_resources(runtime: Runtime, target: str | None) -> Sequence[QueuedResource]:
    only, queue = choose_target(runtime.stage, HasQueue, _LISTS, target, shared=True)
    with offered_for(only):
        return await queue.queued_resources()


def _leftover(row: QueuedResource) -> str:
    where = f"{row.id} in {row.zone} ({row.control_plane}) is {row.state}"
    theirs = "It was not made here: whoever made it may delete it"
    how = f"Call {_deletion(row)}" if row.ours else theirs
    return f"{where}: a leftover, which holds quota until it is deleted. {how}."


def _deletion(row: QueuedResource) -> NextStep:
    return NextStep(TOOL, {"action": "delete", "name": row.id, "zone": row.zone})


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
    only, _queue = choose_target(runtime.stage, HasQueue, "queue requests", target)
    backend = runtime.stage.backend(only.name)
    flags: dict[str, Any] = {"control_plane": "queued"} | ({"zones": (zone,)} if zone else {})
    wish = await agreement.wish(runtime, backend, name.removeprefix(PREFIX), model, given=flags)
    wanted, asked = await agreement.to_deploy(runtime, wish)
    return backend, wanted, asked and _by_this_tool(asked, "create")


async def to_delete(runtime: Runtime, name: str, target: str | None, zone: str | None) -> Removal:
    """Find what is to be deleted: a deployment with all of its own, or a leftover.

    Raises:
        NotFound: There is nothing of that name.
        NotOurs: It was not made here.
        Ambiguous: Several are called so.
        InvalidArgument: It is no leftover, and its deployment is not to be seen from here.
    """
    rows = await _find_requests(runtime, name, target, zone)
    row = _own_request(rows)
    found = await _deployment_on(runtime, row, name, target)
    if row and row.leftover and (found is None or await _stands_elsewhere(runtime, row, found)):
        what = (
            f"Delete the leftover {row.id} in {row.zone} ({row.control_plane}, {row.state}),"
            " which has no chip and holds quota"
        )
        bound = f"{row.zone}\n{row.state}"
        shown = preview(TOOL, row.target, row.id, what, asked=bound)
        return Removal(_by_this_tool(shown, "delete", zone=row.zone), leftover=row)
    if found:
        shown = agreement.to_destroy(found, purge=False)
        return Removal(_by_this_tool(shown, "delete"), deployment=found)
    if row is None:
        raise _nothing(name, zone)
    raise InvalidArgument(
        f"{row.id} in {row.zone} is {row.state}: no leftover, and no target of this server has the"
        f" deployment {row.deployment!r} on it.",
        fix=f"Delete it from a server with the target {row.target or 'that it was made for'}.",
        next_steps=LIST,
    )


async def delete_request(runtime: Runtime, removal: Removal) -> Deleted | LeftoverRemoved:
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
        _any, queue = choose_target(runtime.stage, HasQueue, _LISTS, None, shared=True)
        gone = await queue.remove_leftover(removal.leftover.path, ())
    return LeftoverRemoved(id=resource, zone=zone, gone=gone, look=LIST)


def _own_request(rows: Sequence[QueuedResource]) -> QueuedResource | None:
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
    others = await _find_requests(runtime, leftover.deployment, leftover.target, None)
    key = (leftover.zone, leftover.control_plane)
    return any(row.ours and (row.zone, row.control_plane) != key for row in others)


def _by_this_tool(shown: Preview, action: str, **also: str) -> Preview:
    """Let the same yes come back through this tool, also where it was called by an old name."""
    return shown.model_copy(update={"tool": TOOL, "again": {"action": action, **also}})
