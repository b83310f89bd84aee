"""Revisions and their replicas: how many run, how many may, and what they cost."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from math import ceil
from typing import Any, Final, NamedTuple

from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.appcontainers.models import ContainerApp, Replica, Revision, Usage
from azure.monitor.querymetrics import MetricsQueryResult, MetricValue

from backends.aca.container import gpu_of, place_of
from backends.aca.site import CONTAINER, Site, reading, strictly, translated
from backends.base import Quota
from backends.common.concurrency import side_by_side
from core.errors import ApiDisabled, CloudError
from planner.places import Size
from planner.price import price

BROKEN: Final = frozenset({"Failed", "Degraded", "ActivationFailed"})
"""Of a revision's running state, which Azure writes with more words than its SDK knows."""
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


class ReplicaState(NamedTuple):
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


class RevisionReplicas(NamedTuple):
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
    replicas: tuple[ReplicaState, ...]
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
    def newest(self) -> ReplicaState | None:
        """The replica that was made last."""
        return self.replicas[-1] if self.replicas else None


async def read_revisions(site: Site, name: str) -> tuple[RevisionReplicas, ...]:
    """Return every revision of a deployment with its replicas, the newest last.

    One that was replaced may still hold a replica, which is billed: all of them are asked.
    """
    revisions = await revisions_of(site, name)
    replicas = await side_by_side(
        [lambda one=one: replicas_of(site, name, str(one.name)) for one in revisions]  # type: ignore[misc]
    )
    found = [read_revision(one, there) for one, there in zip(revisions, replicas, strict=True)]
    return tuple(sorted(found, key=lambda one: one.created or _EARLIEST))


async def revisions_of(site: Site, name: str) -> Sequence[Revision]:
    """Return every revision of an app, active or not; none where there is no such app."""
    client = await site.clients.apps()

    try:
        with translated(f"list the revisions of {name}"):
            pager = client.container_apps_revisions.list_revisions(
                site.clients.group, name, **reading()
            )
            return [one async for one in pager]
    except ResourceNotFoundError:
        return ()


async def replicas_of(site: Site, name: str, revision: str) -> Sequence[Replica]:
    """Return the replicas of one revision; none where it is gone."""
    client = await site.clients.apps()

    try:
        with translated(f"list the replicas of {revision}"):
            found = await client.container_apps_revision_replicas.list_replicas(
                site.clients.group, name, revision, **reading()
            )
    except ResourceNotFoundError:
        return ()
    return found.value


def read_revision(revision: Revision, replicas: Sequence[Replica]) -> RevisionReplicas:
    """Read what the SDK gives."""
    scale = revision.template.scale if revision.template else None
    said: Mapping[str, Any] = revision.properties or {}
    seen = sorted(map(_seen, replicas), key=lambda one: one.created or _EARLIEST)
    return RevisionReplicas(
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
    """Return what Azure says, which the SDK makes an enumeration of where it knows the word.

    >>> from azure.mgmt.appcontainers.models import RevisionRunningState
    >>> word(RevisionRunningState.FAILED), word("ActivationFailed"), word(None)
    ('Failed', 'ActivationFailed', '')
    """
    return said.value if isinstance(said, Enum) else said or ""


def count_replicas(revisions: Sequence[RevisionReplicas]) -> int:
    """Count the replicas of all revisions."""
    return sum(one.number for one in revisions)


def _seen(replica: Replica) -> ReplicaState:
    containers = sorted(replica.containers or [], key=lambda one: one.name != CONTAINER)
    first = containers[0] if containers else None
    said = (replica.running_state_details, first.running_state_details if first else "")
    return ReplicaState(
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


_SERVERLESS: Final = "consumption"
"""In the names of quotas that count here; the others are of GPUs hired by the month.
Source: answers in public projects' notes, read 2026-11."""
ENVIRONMENTS: Final = "managedenvironmentcount"
"""How the name of the quota of environments in a region ends, in lower case."""
_NO_ENVIRONMENT: Final = "There is no environment yet, so its own limit is not known."


class QuotaUse(NamedTuple):
    """One reading."""

    name: str
    limit: float
    in_use: float


async def read_quotas(site: Site) -> Sequence[Quota]:
    """Return the region's quota and the environment's, the one with the least room first.

    What cannot be read has no limit and says why, and stands last.
    """
    _named = site.clients.subscription
    region = f"Azure names no quota of these GPUs in {site.clients.region}, which is not 0."
    own = f"The environment {site.ground.environment} names no quota of these GPUs."
    found = await side_by_side(
        [
            partial(_quota, site, partial(read_region, site), region),
            partial(_quota, site, partial(read_environment, site), own),
        ]
    )
    return sorted(found, key=_room)


async def read_region(site: Site) -> list[QuotaUse]:
    """Read everything that is counted in the region."""
    client, found = await site.clients.apps(), list[QuotaUse]()
    try:
        with translated(f"read the quotas of {site.clients.region}"):
            async for usage in client.usages.list(site.clients.region, **reading()):
                found.append(_used(usage))
    except ResourceNotFoundError:
        return []
    return found


async def read_environment(site: Site) -> list[QuotaUse] | None:
    """Read everything that is counted in the environment; None where there is none."""
    client, ground = await site.clients.apps(), site.ground
    usages, found = client.managed_environment_usages, list[QuotaUse]()
    try:
        with translated(f"read the quotas of the environment {ground.environment}"):
            pages = usages.list(ground.resource_group, ground.environment, **reading())
            async for usage in pages:
                found.append(_used(usage))
    except ResourceNotFoundError:
        return None
    return found


def _used(usage: Usage) -> QuotaUse:
    name = usage.name.value if usage.name else ""
    return QuotaUse(name or "", usage.limit, usage.current_value)


async def _quota(
    site: Site, look: Callable[[], Awaitable[list[QuotaUse] | None]], missing: str
) -> Quota:
    try:
        usages = await look()
    except ApiDisabled:
        return _row(site, None, "Microsoft.App is not registered yet: setup_target does it.")
    except CloudError as exc:
        return _row(site, None, f"{exc.summary} {exc.cause}".strip())
    if usages is None:
        return _row(site, None, _NO_ENVIRONMENT)
    ours = next((one for one in usages if _counts(site, one.name)), None)
    return _row(site, ours, "" if ours else missing)


def _counts(site: Site, name: str) -> bool:
    """Whether a quota is that of the target's GPU, hired by the second."""
    lower, gpu = name.lower(), gpu_of(site.target).quota.lower()
    return _SERVERLESS in lower and lower.endswith(f"{gpu}gpus")


def _row(site: Site, used: QuotaUse | None, detail: str) -> Quota:
    return Quota(
        quota=used.name if used else "",
        region=site.clients.region,
        accelerator=site.target.accelerator or "",
        limit=used.limit if used else None,
        in_use=used.in_use if used else None,
        detail=detail,
    )


def _room(quota: Quota) -> float:
    """Return how many are left; without end where it is not known."""
    return float("inf") if quota.limit is None else quota.limit - (quota.in_use or 0)


_NAMESPACE: Final = "Microsoft.App/containerApps"
_METRIC: Final = "Replicas"
_EACH: Final = "revisionName eq '*'"
"""Without it, Azure gives the mean of all revisions in place of their sum."""
_MOST_REVISIONS: Final = 100
_KEPT: Final = timedelta(days=92)
"""Azure Monitor keeps its figures for 93 days."""
_GRAINS: Final = (
    (timedelta(days=1), timedelta(minutes=1)),
    (timedelta(days=7), timedelta(minutes=15)),
    (_KEPT, timedelta(hours=1)),
)
"""How finely a span is read, so that no answer has more than some thousand points."""


def usd_per_hour(site: Site, app: ContainerApp) -> float | None:
    """Return the price of one running replica, None where nobody has said."""
    return usd_per_hour_of(site, size_of(app))


def usd_per_hour_of(site: Site, size: Size | None) -> float | None:
    """Return the price of a replica of some size, None where nobody has said."""
    if site.target.usd_per_hour is not None:
        return site.target.usd_per_hour
    hourly = price(place_of(site.target), size).usd_per_hour
    return None if hourly is None else round(hourly, 4)


def size_of(app: ContainerApp) -> Size | None:
    """Return the processors and memory of a replica, all of its containers together.

    >>> from azure.mgmt.appcontainers import models as M
    >>> sized = M.ContainerResources(cpu=24.0, memory="220Gi")
    >>> size_of(M.ContainerApp(location="", template=M.Template(
    ...     containers=[M.Container(name="vllm", resources=sized)])))
    Size(vcpu=24, ram_gib=220)
    """
    vcpu = ram_gib = 0.0
    for container in (app.template.containers if app.template else None) or ():
        resources = container.resources
        if not resources or not resources.cpu or not (resources.memory or "").endswith("Gi"):
            return None
        vcpu += resources.cpu
        ram_gib += float(resources.memory[:-2])
    return Size(vcpu=ceil(vcpu), ram_gib=ceil(ram_gib)) if vcpu else None


async def usd_so_far(
    site: Site, app: ContainerApp, created: datetime, now: datetime
) -> float | None:
    """Return what its replicas cost since it was made, some minutes late."""
    hourly = usd_per_hour(site, app)
    if hourly is None:
        return None
    hours = await replica_hours(site, str(app.name), max(created, now - _KEPT), now)
    return round(hours * hourly, 4)


async def replica_hours(site: Site, name: str, begin: datetime, end: datetime) -> float:
    """Return how long replicas ran, those of every revision together."""
    grain = next((grain for span, grain in _GRAINS if end - begin <= span), _GRAINS[-1][1])
    client = await site.clients.metrics()
    with strictly("read how many replicas ran"):
        found = await client.query_resources(
            resource_ids=[site.ground.app_id(name)],
            metric_namespace=_NAMESPACE,
            metric_names=[_METRIC],
            timespan=(begin, end),
            granularity=grain,
            aggregations=["average", "maximum"],
            filter=_EACH,
            max_results=_MOST_REVISIONS,
            **reading(),
        )
    hours = grain.total_seconds() / 3600
    return sum(map(_replicas, _points(found))) * hours


def _points(found: Sequence[MetricsQueryResult]) -> Iterable[MetricValue]:
    return (
        point
        for result in found
        for metric in result.metrics
        for series in metric.timeseries
        for point in series.data
    )


def _replicas(point: MetricValue) -> float:
    return point.average if point.average is not None else point.maximum or 0.0
