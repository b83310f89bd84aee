"""What Azure does with an app: changes under way, revisions, replicas, quotas, and the cost."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import anyio
from azure.core.exceptions import ResourceNotFoundError
from azure.core.polling.base_polling import BadResponse, BadStatus
from azure.mgmt.appcontainers.models import ContainerApp, Replica, Revision
from pydantic import ValidationError

from backends.aca.app import containers_of
from backends.aca.container import gpu_of, place_of
from backends.aca.site import (
    CONTAINER,
    READ_SECONDS,
    READING,
    WRITING,
    Ground,
    Site,
    every,
    or_none,
    strictly,
    translated,
)
from backends.base import Quota
from backends.common import engine
from backends.common.concurrency import on_disk, side_by_side, write_whole
from core.errors import ApiDisabled, CloudError, NextStep, QuotaExceeded
from core.records import NAME_PATTERN, Failure, Record
from core.reply import note
from planner.places import Size

REFUSAL_SECONDS: Final = 10.0
"""Azure refuses soon what it refuses at all; what is still under way then goes on."""
_LOOK_SECONDS: Final = 0.5
_UNREADABLE: Final = frozenset({401, 403, 404, 408, 429})
"""Of a look at a change these say nothing of the change itself; nor does anything from 500 on."""

ChangeKind = Literal["create_or_update", "update", "delete", "start", "stop"]


class Change(Record):
    """The last change of one app that Azure took; holds no secret."""

    kind: ChangeKind
    what: str
    ground: Ground
    token: str
    """With it the SDK goes on where another process left off; empty once it is over."""
    failure: Failure | None = None
    since: datetime | None = None
    """Earlier versions wrote when it was begun."""


async def begin(site: Site, name: str, kind: ChangeKind, what: str, *body: ContainerApp) -> Change:
    """Begin a change of an app, and write it down."""
    apps, group = (await site.clients.apps()).container_apps, site.ground.resource_group
    with strictly(what):
        poller = await getattr(apps, f"begin_{kind}")(group, name, *body, **WRITING)
    change = Change(kind=kind, what=what, ground=site.ground, token=poller.continuation_token())
    _keep(site, name, change)
    return change


async def watch(site: Site, name: str, change: Change) -> bool:
    """Watch a change for `REFUSAL_SECONDS`.

    Returns whether it was seen to be over: it may go on, or nobody may see how it goes.
    """
    deadline = anyio.current_time() + REFUSAL_SECONDS
    while (over := await _over(site, name, change)) is False:
        if anyio.current_time() + _LOOK_SECONDS > deadline:
            return False
        await anyio.sleep(_LOOK_SECONDS)
    return over is True


async def failure_of(site: Site, name: str) -> Failure | None:
    """Say why the last change of an app from this machine failed; None if it did not (yet)."""
    try:
        change = Change.model_validate_json(_path(site, name).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    if change.ground != site.ground:  # that of another subscription, group or region
        return None
    if change.token:
        try:
            await _over(site, name, change)
        except CloudError as exc:
            return _failure(exc)
    return change.failure


def forget_change(site: Site, name: str) -> None:
    if re.fullmatch(NAME_PATTERN, name):
        with on_disk(site.folder):
            _path(site, name).unlink(missing_ok=True)


async def _over(site: Site, name: str, change: Change) -> bool | None:
    """Look once whether a change is over, and remember how it went; None where nobody may see."""
    try:
        over = await _polled(site, name, change)
    except CloudError as exc:
        status = getattr(exc.__cause__, "status_code", None)
        if status is None or status >= 500 or status in _UNREADABLE:  # the look failed, not it
            note(f"Azure took it, and does not say how it goes: {change.what}. {exc.cause}".strip())
            return None
        _keep(site, name, change.model_copy(update={"token": "", "failure": _failure(exc)}))
        raise
    if over:
        _keep(site, name, change.model_copy(update={"token": ""}))
    return over


async def _polled(site: Site, name: str, change: Change) -> bool:
    apps = (await site.clients.apps()).container_apps
    body = (None,) if change.kind in {"create_or_update", "update"} else ()
    # By `timeout` a poller means something else than a call.
    limits = {name: limit for name, limit in READING.items() if name != "timeout"}
    with strictly(change.what):
        poller = await getattr(apps, f"begin_{change.kind}")(
            site.ground.resource_group, name, *body, continuation_token=change.token, **limits
        )
        method: Any = poller.polling_method()
        told = True
        try:
            if not method.finished():
                await method.update_status()
        except (BadStatus, BadResponse):
            told = False
        if not told or (method.finished() and method.status().lower() != "succeeded"):
            with anyio.move_on_after(READ_SECONDS):
                await poller.wait()  # which raises what Azure answered
    return bool(method.finished())


def _failure(exc: CloudError) -> Failure:
    return Failure(code=exc.code, cause=exc.cause or exc.summary, fix=exc.fix)


def _keep(site: Site, name: str, change: Change) -> None:
    if site.settings.read_only:
        return
    path = _path(site, name)
    with on_disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, change.model_dump_json(exclude_defaults=True))


def _path(site: Site, name: str) -> Path:
    return site.folder / "changes" / f"{name}.json"


BROKEN: Final = frozenset({"Failed", "Degraded", "ActivationFailed"})
"""Of a revision's running state, which Azure writes with more words than its SDK knows."""
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


class ReplicaState(NamedTuple):
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
        return any(replica.ready for replica in self.replicas)

    @property
    def broken(self) -> bool:
        return bool(self.error) or self.state in BROKEN

    @property
    def newest(self) -> ReplicaState | None:
        return self.replicas[-1] if self.replicas else None


async def read_revisions(site: Site, name: str) -> tuple[RevisionReplicas, ...]:
    """Return every revision of a deployment with its replicas, the newest last.

    One that was replaced may still hold a replica, which is billed: all of them are asked. There
    are none where there is no such app.
    """
    client, group = await site.clients.apps(), site.ground.resource_group

    async def replicas(one: Revision) -> RevisionReplicas:
        list_replicas = client.container_apps_revision_replicas.list_replicas
        asked = list_replicas(group, name, str(one.name), **READING)
        found = await or_none(f"list the replicas of {one.name}", asked)
        return _read_revision(one, found.value if found else ())

    pages = client.container_apps_revisions.list_revisions(group, name, **READING)
    revisions = await every(f"list the revisions of {name}", pages)
    found = await side_by_side([partial(replicas, one) for one in revisions])
    return tuple(sorted(found, key=lambda one: one.created or _EARLIEST))


def _read_revision(revision: Revision, replicas: Sequence[Replica]) -> RevisionReplicas:
    scale = revision.template.scale if revision.template else None
    said: Mapping[str, Any] = revision.properties or {}
    seen = sorted(map(_read_replica, replicas), key=lambda one: one.created or _EARLIEST)
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
    return sum(one.number for one in revisions)


def _read_replica(replica: Replica) -> ReplicaState:
    containers = sorted(replica.containers or [], key=lambda one: one.name != CONTAINER)
    first = containers[0] if containers else None
    said = (replica.running_state_details, first.running_state_details if first else "")
    return ReplicaState(
        name=replica.name or "",
        created=_moment(replica.created_time),
        ready=bool(first and first.ready),
        started=bool(first and (first.started or first.running_state == "Running")),
        restarts=(first.restart_count or 0) if first else 0,
        details=" ".join(filter(None, said)),
        log_stream=(first.log_stream_endpoint or "") if first else "",
    )


def _moment(said: datetime | None) -> datetime | None:
    return said.astimezone(UTC) if said else None


async def read_quotas(site: Site) -> Sequence[Quota]:
    """Return the region's quota and the environment's, the one with the least room first.

    What cannot be read has no limit and says why, and stands last.
    """
    client, ground = await site.clients.apps(), site.ground
    region, environment = ground.region, ground.environment
    inside = partial(client.managed_environment_usages.list, ground.resource_group, environment)
    unmade = "is not there yet: its own limit is not known."
    found = await side_by_side([
        partial(_read_quota, site, partial(client.usages.list, region), region, "is not known."),
        partial(_read_quota, site, inside, f"the environment {environment}", unmade),
    ])  # fmt: skip

    def room(quota: Quota) -> float:
        return float("inf") if quota.limit is None else quota.limit - (quota.in_use or 0)

    return sorted(found, key=room)


async def refuse_without_quota(site: Site) -> Sequence[str]:
    """Return what quotas leave too little for a replica, where one of them may allow it.

    Microsoft names that of the subscription in a region for GPUs hired by the second (learn
    .microsoft.com/azure/container-apps/workload-profiles-overview, 2024-11-05); in 2026-08 somebody
    was served by that of the environment. Which of two decides is written nowhere: both refuse.

    Raises:
        QuotaExceeded: Neither allows any such GPU, and both are known.
    """
    rows = await read_quotas(site)
    scarce = [row for row in rows if row.limit is not None and row.limit <= (row.in_use or 0)]
    if rows and all(row.limit == 0 for row in rows):
        raise QuotaExceeded(
            f"No GPU of {site.target.name} may run in {site.ground.region}: its quotas are 0.",
            cause=", ".join(f"{row.quota} is 0" for row in rows) + ".",
            fix="Ask for more: Azure portal, Quotas, Azure Container Apps, in this region. Or set"
            " AZURE_LOCATION to a region that has some, or take another target.",
            next_steps=(NextStep("check_gpu_quotas", {"target": site.target.name}),),
        )
    return tuple(
        f"The quota {row.quota} is {row.limit:g} in {row.region}, of which {row.in_use or 0:g} are"
        " in use: it may be that no replica starts"
        for row in scarce
    )


async def _read_quota(site: Site, pages: Callable[..., Any], where: str, absent: str) -> Quota:
    """Read the quota of the target's GPU, hired by the second; others are hired by the month.

    Source of the names: answers in public projects' notes, read 2026-11.
    """
    ending, found = f"{gpu_of(site.target).quota}gpus".lower(), None
    detail = f"Azure names no quota of these GPUs in {where}, which is not 0."
    try:
        with translated(f"read the quotas of {where}"):
            async for one in pages(**READING):
                name = (one.name.value if one.name else "") or ""
                if "consumption" in name.lower() and name.lower().endswith(ending):
                    found, detail = (name, one.limit, one.current_value), ""
                    break
    except ResourceNotFoundError:
        detail = f"{where[:1].upper()}{where[1:]} {absent}"
    except ApiDisabled:
        detail = "Microsoft.App is not registered yet: setup_target does it."
    except CloudError as exc:
        detail = f"{exc.summary} {exc.cause}".strip()
    name, limit, in_use = found or ("", None, None)
    return Quota(
        quota=name,
        region=site.ground.region,
        accelerator=site.target.accelerator or "",
        limit=limit,
        in_use=in_use,
        detail=detail,
    )


_KEPT: Final = timedelta(days=92)
"""Azure Monitor keeps its figures for 93 days."""
_GRAINS: Final = (
    (timedelta(days=1), timedelta(minutes=1)),
    (timedelta(days=7), timedelta(minutes=15)),
    (_KEPT, timedelta(hours=1)),
)
"""How finely a span is read, so that no answer has more than some thousand points."""


def usd_per_hour(site: Site, app: ContainerApp) -> float | None:
    return engine.usd_per_hour(site.target, place_of(site.target), size_of(app))


def size_of(app: ContainerApp) -> Size | None:
    """Return the processors and memory of a replica, all of its containers together.

    >>> from azure.mgmt.appcontainers import models as M
    >>> sized = M.ContainerResources(cpu=24.0, memory="220Gi")
    >>> size_of(M.ContainerApp(location="", template=M.Template(
    ...     containers=[M.Container(name="vllm", resources=sized)])))
    Size(vcpu=24, ram_gib=220)
    """
    vcpu = ram_gib = 0.0
    for container in containers_of(app):
        resources = container.resources
        memory = (resources.memory if resources else None) or ""
        if not resources or not resources.cpu or not memory.endswith("Gi"):
            return None
        vcpu += resources.cpu
        ram_gib += float(memory[:-2])
    return Size(vcpu=ceil(vcpu), ram_gib=ceil(ram_gib)) if vcpu else None


async def usd_so_far(
    site: Site, app: ContainerApp, created: datetime, now: datetime
) -> float | None:
    """Return what its replicas, of every revision, cost since it was made; some minutes late."""
    hourly, begin = usd_per_hour(site, app), max(created, now - _KEPT)
    if hourly is None:
        return None
    grain = next((grain for span, grain in _GRAINS if now - begin <= span), _GRAINS[-1][1])
    client = await site.clients.metrics()
    with strictly("read how many replicas ran"):
        found = await client.query_resources(
            resource_ids=[site.ground.app_id(str(app.name))],
            metric_namespace="Microsoft.App/containerApps",
            metric_names=["Replicas"],
            timespan=(begin, now),
            granularity=grain,
            aggregations=["average", "maximum"],
            # Without it, Azure gives the mean of all revisions in place of their sum.
            filter="revisionName eq '*'",
            max_results=100,
            **READING,
        )
    points = (
        point
        for result in found
        for metric in result.metrics
        for series in metric.timeseries
        for point in series.data
    )
    ran = sum(
        point.average if point.average is not None else point.maximum or 0.0 for point in points
    )
    return round(ran * grain.total_seconds() / 3600 * hourly, 4)
