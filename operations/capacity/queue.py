"""Requests for accelerators and what came of them, ours and others': listed and described."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from backends.base import Backend, HasQueue, QueuedResource
from core.errors import DeploymentNotFound, NextStep, NotFound
from core.records import NAME_PATTERN, Answer, Deployment, Target
from operations.abilities import able, chosen
from operations.lives.deploying import usual
from operations.lives.setting_up import offered_for
from operations.resolve import Found, find, find_among
from operations.runtime import Runtime

TOOL: Final = "manage_queued_resource"
PREFIX: Final = "vllm-devops-"
"""Of the id of what a deployment stands on."""
LIST: Final = (NextStep("list_queued_resources"),)
_MOST: Final = 60
"""Rows of one answer."""
_SHOWN: Final = 12
"""Rows of an answer that was not asked for in full."""
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
        return {"resources": [_facts(row) for row in self.resources[:_SHOWN]]}

    def warnings(self) -> tuple[str, ...]:
        """Say of every leftover what it holds, and how it goes."""
        return tuple(_leftover(row) for row in self.resources if row.leftover)[
            : 2 * _MOST_LEFTOVERS
        ]

    def next_steps(self) -> tuple[NextStep, ...]:
        """Delete our leftovers."""
        ours = [row for row in self.resources if row.leftover and row.ours]
        return tuple(_deletion(row) for row in ours[:_MOST_LEFTOVERS])


class Described(Answer):
    """One request, or the VM that came of it, and the deployment that stands on it."""

    name: str
    resources: tuple[QueuedResource, ...]
    deployment: Deployment | None = None

    def summary(self) -> str:
        """Say the state of the deployment, and of each."""
        rows = (f"{row.id} in {row.zone} is {row.state}{_whose(row)}." for row in self.resources)
        told = [self.deployment.summary()] if self.deployment else []
        return " ".join([*told, *rows])

    def facts(self) -> Mapping[str, Any]:
        """Return each one's place and state, and the facts of the deployment."""
        rows = [_facts(row) for row in self.resources[:_SHOWN]]
        return {"requests": rows, **(self.deployment.facts() if self.deployment else {})}

    def warnings(self) -> tuple[str, ...]:
        """Warn of leftovers, and of what the deployment warns of."""
        leftovers = tuple(_leftover(row) for row in self.resources if row.leftover)
        return (*leftovers, *(self.deployment.warnings() if self.deployment else ()))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Go on with the deployment, or delete a leftover."""
        leftovers = tuple(_deletion(row) for row in self.resources if row.leftover and row.ours)
        return leftovers or (self.deployment.next_steps() if self.deployment else ())


async def everything(runtime: Runtime, target: str | None, zone: str | None) -> Queue:
    """Give every request and VM of the project; of one target those made for it.

    Raises:
        Unsupported: No target has a queue.
        CloudError: It cannot be looked at.
    """
    rows = [
        row
        for row in await _rows(runtime, target)
        if zone in {None, row.zone} and target in {None, row.target}
    ]
    targets = runtime.stage.targets
    billed = [targets[row.target] for row in rows if _has_chips(row) and row.target in targets]
    prices = [each.usd_per_hour for each in billed if each.usd_per_hour is not None]
    return Queue(
        resources=tuple(rows[:_MOST]),
        left_out=max(0, len(rows) - _MOST),
        usd_per_hour=sum(prices) if prices else None,
    )


async def describe(runtime: Runtime, name: str, target: str | None, zone: str | None) -> Described:
    """Give every request of an id, ours or not, with the deployment that stands on it.

    Raises:
        NotFound: There is none, and no deployment of that name either.
    """
    rows = await named(runtime, name, target, zone)
    ours = next((row for row in rows if row.deployment and not row.leftover), None) or next(
        (row for row in rows if row.deployment), None
    )
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
        for row in await _rows(runtime, target)
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
            targets = [target] if target else list(able(stage, queue_of))
            return await find_among(stage, targets, name.removeprefix(PREFIX))
    except DeploymentNotFound:
        return None
    return None


def queue_of(backend: Backend) -> HasQueue | None:
    """Give a backend that has a queue as one."""
    return backend if isinstance(backend, HasQueue) else None


def any_queue(runtime: Runtime, target: str | None) -> tuple[Target, HasQueue]:
    """Give any that sees it: all targets of the cloud see the same.

    Raises:
        Unsupported: There is none.
    """
    what = "list queued resources"
    return chosen(runtime.stage, queue_of, what, target, shared=True)


def nothing(name: str, zone: str | None) -> NotFound:
    """Nothing is called so."""
    where = f" in {zone[:40]}" if zone else ""
    return NotFound(
        f"There is no queued resource, TPU or deployment named {name[:80]!r}{where}.",
        fix="Call list_queued_resources for what there is.",
        next_steps=LIST,
    )


async def _rows(runtime: Runtime, target: str | None) -> Sequence[QueuedResource]:
    only, queue = any_queue(runtime, target)
    with offered_for(only):
        return await queue.queued_resources()


def _has_chips(row: QueuedResource) -> bool:
    """Whether it is one of ours that is paid for."""
    return row.ours and not row.leftover and (bool(row.node) or row.state == "RUNNING")


def _facts(row: QueuedResource) -> Mapping[str, Any]:
    return {
        "id": row.id,
        "zone": row.zone,
        "state": row.state,
        "accelerator": row.accelerator,
        "deployment": f"{row.deployment} on {row.target}" if row.deployment else None,
        "ours": row.ours,
    }


def _whose(row: QueuedResource) -> str:
    if not row.ours:
        return ", not made here"
    return f", of {row.deployment} on {row.target}" if row.deployment else ""


def _leftover(row: QueuedResource) -> str:
    where = f"{row.id} in {row.zone} ({row.control_plane}) is {row.state}"
    held = "a leftover, which holds quota until it is deleted"
    if not row.ours:
        return f"{where}: {held}. It was not made here: whoever made it may delete it."
    step = _deletion(row)
    said = ", ".join(f"{key}={value!r}" for key, value in step.arguments.items())
    return f"{where}: {held}. Call {step.tool}({said})."


def _deletion(row: QueuedResource) -> NextStep:
    return NextStep(TOOL, {"action": "delete", "name": row.id, "zone": row.zone})
