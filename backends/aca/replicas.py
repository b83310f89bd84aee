"""Revisions and the replicas that each of them holds, read into what is told of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backends.aca.failing import translated
from backends.aca.names import CONTAINER
from backends.aca.site import Site
from backends.aca.waiting import reading
from backends.common.concurrency import side_by_side

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import Replica, Revision

BROKEN: Final = frozenset({"Failed", "Degraded", "ActivationFailed"})
"""Of a revision's running state, which Azure writes with more words than its SDK knows."""
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


class Seen(NamedTuple):
    """One replica, as Azure tells it."""

    name: str
    created: datetime | None
    ready: bool
    """Its readiness probe passes: the engine answers Azure."""
    started: bool
    """Its container runs, or ran."""
    restarts: int
    details: str
    """What Azure says of its state."""
    log_stream: str


class Held(NamedTuple):
    """One revision and its replicas."""

    name: str
    created: datetime | None
    active: bool
    state: str
    """Such as Running, Processing, Degraded or ActivationFailed."""
    error: str
    """Azure's words, where it could not be made."""
    details: str
    """What Azure says of its state; its SDK does not know the field."""
    number: int
    """Replicas: those that are listed, or as many as the revision says, whichever are more."""
    replicas: tuple[Seen, ...]
    """Newest last."""
    min_replicas: int

    @property
    def ready(self) -> bool:
        """Whether one of its replicas is."""
        return any(replica.ready for replica in self.replicas)

    @property
    def broken(self) -> bool:
        """Whether Azure has given it up, or sees it failing."""
        return bool(self.error) or self.state in BROKEN

    @property
    def newest(self) -> Seen | None:
        """The replica that was made last."""
        return self.replicas[-1] if self.replicas else None


async def held(site: Site, name: str) -> tuple[Held, ...]:
    """Give every revision of a deployment with its replicas, the newest last.

    One that was replaced may still hold a replica, which is billed: all of them are asked.

    Raises:
        CloudError: Container Apps cannot be asked.
    """
    revisions = await revisions_of(site, name)
    replicas = await side_by_side(
        [lambda one=one: replicas_of(site, name, str(one.name)) for one in revisions]  # type: ignore[misc]
    )
    found = [read(one, there) for one, there in zip(revisions, replicas, strict=True)]
    return tuple(sorted(found, key=lambda one: one.created or _EARLIEST))


async def revisions_of(site: Site, name: str) -> Sequence["Revision"]:
    """Give every revision of an app, active or not; none where there is no such app.

    Raises:
        CloudError: Container Apps cannot be asked.
    """
    client = await site.clients.apps()
    from azure.core.exceptions import ResourceNotFoundError

    try:
        with translated(f"list the revisions of {name}"):
            pager = client.container_apps_revisions.list_revisions(
                site.clients.group, name, **reading()
            )
            return [one async for one in pager]
    except ResourceNotFoundError:
        return ()


async def replicas_of(site: Site, name: str, revision: str) -> Sequence["Replica"]:
    """Give the replicas of one revision; none where it is gone.

    Raises:
        CloudError: Container Apps cannot be asked.
    """
    client = await site.clients.apps()
    from azure.core.exceptions import ResourceNotFoundError

    try:
        with translated(f"list the replicas of {revision}"):
            found = await client.container_apps_revision_replicas.list_replicas(
                site.clients.group, name, revision, **reading()
            )
    except ResourceNotFoundError:
        return ()
    return found.value


def read(revision: "Revision", replicas: Sequence["Replica"]) -> Held:
    """Read what the SDK gives."""
    scale = revision.template.scale if revision.template else None
    said: Mapping[str, Any] = revision.properties or {}
    seen = sorted(map(_seen, replicas), key=lambda one: one.created or _EARLIEST)
    return Held(
        name=revision.name or "",
        created=_moment(revision.created_time),
        active=bool(revision.active),
        state=word(revision.running_state),
        error=revision.provisioning_error or "",
        details=str(said.get("runningStateDetails") or ""),
        number=max(revision.replicas or 0, len(seen)),
        replicas=tuple(seen),
        min_replicas=(scale.min_replicas or 0) if scale else 0,
    )


def word(said: str | None) -> str:
    """Give what Azure says, which the SDK makes an enumeration of where it knows the word.

    >>> from azure.mgmt.appcontainers.models import RevisionRunningState
    >>> word(RevisionRunningState.FAILED), word("ActivationFailed"), word(None)
    ('Failed', 'ActivationFailed', '')
    """
    return said.value if isinstance(said, Enum) else said or ""


def total(revisions: Sequence[Held]) -> int:
    """Count the replicas of all revisions."""
    return sum(one.number for one in revisions)


def _seen(replica: "Replica") -> Seen:
    containers = sorted(replica.containers or [], key=lambda one: one.name != CONTAINER)
    first = containers[0] if containers else None
    said = (replica.running_state_details, first.running_state_details if first else "")
    return Seen(
        name=replica.name or "",
        created=_moment(replica.created_time),
        ready=bool(first and first.ready),
        started=bool(first and (first.started or first.running_state == "Running")),
        restarts=(first.restart_count or 0) if first else 0,
        details=" ".join(word for word in said if word),
        log_stream=(first.log_stream_endpoint or "") if first else "",
    )


def _moment(said: datetime | None) -> datetime | None:
    return said.astimezone(UTC) if said else None
