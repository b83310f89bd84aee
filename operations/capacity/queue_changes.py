"""A deployment asked for in the queue alone, and what is deleted of ours, leftovers included."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from backends.base import Backend, QueuedResource
from backends.common.concurrency import in_time
from core.errors import Ambiguous, InvalidArgument, NextStep, NotOurs
from core.records import Answer, Deleted, Plan, State
from operations.abilities import chosen
from operations.capacity.queue import (
    LIST,
    PREFIX,
    TOOL,
    any_queue,
    deployment_on,
    named,
    nothing,
    queue_of,
)
from operations.lives import agreement, changes, deploying, refusals
from operations.lives.agreement import Preview, preview
from operations.models.hub_models import require_on_hub
from operations.resolve import Found
from operations.runtime import Runtime

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
    only, _queue = chosen(runtime.stage, queue_of, "queue requests", target)
    backend = runtime.stage.backend(only.name)
    flags: dict[str, Any] = {"control_plane": "queued"} | ({"zones": (zone,)} if zone else {})
    wish = await changes.wish(runtime, backend, name.removeprefix(PREFIX), model, given=flags)
    wanted = await deploying.plan(backend, wish.spec)
    await require_on_hub(runtime.settings, backend.target, wish.spec)
    await refusals.refuse_deploy(backend, wanted)
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
        return _removal_of_leftover(row)
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
        return await deploying.destroy(runtime, removal.deployment, purge=False)
    assert removal.leftover
    zone, resource = removal.leftover.zone, removal.leftover.id
    fix = "Look with list_queued_resources; the same call again is harmless."
    with in_time("Google", f"delete {resource}", _SECONDS, fix=fix):
        gone = await any_queue(runtime, None)[1].delete_leftover(zone, resource)
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


def _removal_of_leftover(row: QueuedResource) -> Removal:
    what = (
        f"Delete the leftover {row.id} in {row.zone} ({row.control_plane}, {row.state}),"
        " which has no chip and holds quota"
    )
    shown = preview(TOOL, row.target, row.id, what, None, None, f"{row.zone}\n{row.state}")
    return Removal(_by_this_tool(shown, "delete", zone=row.zone), leftover=row)


def _by_this_tool(shown: Preview, action: str, **also: str) -> Preview:
    """Let the same yes come back through this tool, also where it was called by an old name."""
    return shown.model_copy(update={"tool": TOOL, "again": {"action": action, **also}})
