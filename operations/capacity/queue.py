"""Requests for accelerators and what came of them, ours and others': listed and described."""

import re
from collections.abc import Sequence
from typing import Final

from backends.base import Backend
from backends.cloud_abilities import HasQueue, QueuedResource
from core.errors import DeploymentNotFound, NextStep, NotFound
from core.records import NAME_PATTERN, Answer, Deployment
from operations.abilities import able, chosen
from operations.lives.deploying import usual
from operations.resolve import Found, find, find_among
from operations.runtime import Runtime

TOOL: Final = "manage_queued_resource"
PREFIX: Final = "vllm-devops-"
"""Of the id of what a deployment stands on."""
LIST: Final = (NextStep("list_queued_resources"),)
_MOST: Final = 60
"""Rows of one answer."""
_MOST_HUSKS: Final = 5
"""That are offered for deletion in one answer."""


class Queue(Answer):
    """What there is of both control planes, ours and others'."""

    resources: tuple[QueuedResource, ...]
    """Husks of ours first, then ours, then others'."""
    left_out: int = 0

    def summary(self) -> str:
        """Count them."""
        if not self.resources:
            return "There is no queued resource and no TPU."
        ours = sum(row.ours for row in self.resources)
        total = len(self.resources) + self.left_out
        husks = sum(row.husk for row in self.resources)
        return f"{total} of them: {ours} ours, {total - ours} others', {husks} husks."

    def warnings(self) -> tuple[str, ...]:
        """Say of every husk what it holds, and how it goes."""
        return tuple(_husk(row) for row in self.resources if row.husk)[: 2 * _MOST_HUSKS]

    def next_steps(self) -> tuple[NextStep, ...]:
        """Delete our husks."""
        ours = [row for row in self.resources if row.husk and row.ours]
        return tuple(_deletion(row) for row in ours[:_MOST_HUSKS])


class Described(Answer):
    """One request, or the VM that came of it, and the deployment that stands on it."""

    name: str
    resources: tuple[QueuedResource, ...]
    deployment: Deployment | None = None

    def summary(self) -> str:
        """Say the state of each, and of the deployment."""
        rows = (f"{row.id} in {row.zone} is {row.state}{_whose(row)}." for row in self.resources)
        told = [self.deployment.summary()] if self.deployment else []
        return " ".join([*rows, *told])

    def warnings(self) -> tuple[str, ...]:
        """Warn of husks, and of what the deployment warns of."""
        husks = tuple(_husk(row) for row in self.resources if row.husk)
        return (*husks, *(self.deployment.warnings() if self.deployment else ()))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Go on with the deployment, or delete a husk."""
        husks = tuple(_deletion(row) for row in self.resources if row.husk and row.ours)
        return husks or (self.deployment.next_steps() if self.deployment else ())


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
    return Queue(resources=tuple(rows[:_MOST]), left_out=max(0, len(rows) - _MOST))


async def describe(runtime: Runtime, name: str, target: str | None, zone: str | None) -> Described:
    """Give every request of an id, ours or not, with the deployment that stands on it.

    Raises:
        NotFound: There is none, and no deployment of that name either.
    """
    rows = await named(runtime, name, target, zone)
    ours = next((row for row in rows if row.deployment and not row.husk), None) or next(
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


def any_queue(runtime: Runtime, target: str | None) -> HasQueue:
    """Give any that sees it: all targets of the cloud see the same.

    Raises:
        Unsupported: There is none.
    """
    what = "list queued resources"
    return chosen(runtime.stage, queue_of, what, target, shared=True)[1]


def nothing(name: str, zone: str | None) -> NotFound:
    """Nothing is called so."""
    where = f" in {zone[:40]}" if zone else ""
    return NotFound(
        f"There is no queued resource, TPU or deployment named {name[:80]!r}{where}.",
        fix="Call list_queued_resources for what there is.",
        next_steps=LIST,
    )


async def _rows(runtime: Runtime, target: str | None) -> Sequence[QueuedResource]:
    return await any_queue(runtime, target).queued_resources()


def _whose(row: QueuedResource) -> str:
    if not row.ours:
        return ", not made here"
    return f", of {row.deployment} on {row.target}" if row.deployment else ""


def _husk(row: QueuedResource) -> str:
    where = f"{row.id} in {row.zone} ({row.control_plane}) is {row.state}"
    held = "a husk, which holds quota until it is deleted"
    if not row.ours:
        return f"{where}: {held}. It was not made here: whoever made it may delete it."
    step = _deletion(row)
    said = ", ".join(f"{key}={value!r}" for key, value in step.arguments.items())
    return f"{where}: {held}. Call {step.tool}({said})."


def _deletion(row: QueuedResource) -> NextStep:
    return NextStep(TOOL, {"action": "delete", "name": row.id, "zone": row.zone})
