"""What a deployment does now: its service, revision, conditions and log, read as one record."""

import tomllib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import anyio
from google.cloud.devtools.cloudbuild_v1 import Build
from google.cloud.run_v2 import Condition, Revision, Service, ServiceScaling

from backends.cloud_run import access, instances
from backends.cloud_run.build import BUILDING, builds_under_way
from backends.cloud_run.container import gpu_of
from backends.cloud_run.instances import FRESH_SECONDS, Reading
from backends.cloud_run.logs import boot_lines
from backends.cloud_run.service import (
    find_revision,
    is_stopped,
    label_of,
    list_services,
    newest_revision,
    read_spec,
    service_path,
)
from backends.cloud_run.site import SPEC_ANNOTATION, Site
from backends.common.concurrency import all_or_note, or_note
from backends.common.engine import why_silent
from backends.google.clients import EXPIRES_LABEL, SPEC_LABEL, when
from backends.lifecycle import Pending
from core.records import (
    Deployment,
    DeploymentSpec,
    Failure,
    ModelShape,
    Phase,
    Record,
    State,
)
from core.reply import note
from logs.boot import WARMING, phase_of
from logs.failures import evidence, recognize
from logs.failures import meaning as wording_for
from logs.read import Line

_FILE: Final = Path(__file__).with_name("conditions.toml")

Progress = Literal["working", "failed", "done"]

_STEPS: Final = (
    ("ContainerReady", "importing image"),
    ("ResourcesAvailable", "provisioning"),
    ("ContainerHealthy", "starting"),
)
"""What a revision goes through, by the condition that says it is over."""
_VAGUE: Final = {"ROLLOUT_FAILED", "REVISION_FAILED", "STILL_WAITING"}
"""Of a service; its revision may say more."""
_RESULTS: Final = _VAGUE | {"STARTUP_PROBE_FAILED", "PROGRESS_DEADLINE", "KILLED", "ENGINE_EXITED"}
"""Codes than which the engine's own words say more."""

_UNREADABLE: Final = "SECRET_NOT_READABLE"
_TRY_AGAIN_SECONDS: Final = (10.0, 60.0)
"""From the creation of a revision whose account may not read its key to that of the next one."""
_SPREAD_SECONDS: Final = 180.0
"""Source: "typically within 2 minutes, potentially 7 minutes or longer"
(docs.cloud.google.com/iam/docs/access-change-propagation, 2026-11-23)."""
TRY_LABEL: Final = "vllm-devops-grant-try"
"""Of a revision: how often it was tried again for want of a grant."""


class Meaning(Record):
    """What a reason is called here, and what to do about it."""

    code: str
    fix: str


class Catalogue(Record):
    """`conditions.toml`."""

    common: dict[str, Meaning]
    revision: dict[str, Meaning]


@cache
def catalogue() -> Catalogue:
    """Give what every reason means."""
    return Catalogue.model_validate(tomllib.loads(_FILE.read_text("utf-8")))


def progress(service: "Service") -> Progress:
    """Say whether Google is still at it, gave up, or is done with what was asked for last.

    After a failure the observed generation stays that of the last success.
    """
    state = service.terminal_condition.state
    if service.reconciling:
        return "working"
    if state == Condition.State.CONDITION_FAILED:
        return "failed"
    succeeded = state == Condition.State.CONDITION_SUCCEEDED
    return "done" if succeeded and service.observed_generation >= service.generation else "working"


def tries(revision: "Revision") -> int:
    """Return how often its template was tried again for want of a grant."""
    said = revision.labels.get(TRY_LABEL, "")
    return int(said) if said.isdecimal() else 0


def seconds_to_next_try(
    service: "Service", revision: "Revision | None", now: datetime
) -> float | None:
    """Return when a revision whose grant has not spread is tried again; None: it is not.

    Cloud Run looks at it once, when it makes a revision.
    """
    if revision is None or progress(service) != "failed":
        return None
    rows = (service.terminal_condition, *_failed_conditions(service, revision))
    if not any(meaning_of(row).code == _UNREADABLE for row in rows):
        return None
    age, tried = (now - when(revision.create_time)).total_seconds(), tries(revision)
    if tried >= len(_TRY_AGAIN_SECONDS) or age > _SPREAD_SECONDS:
        return None
    return _TRY_AGAIN_SECONDS[tried] - age


def step_of(revision: "Revision | None") -> str:
    """Name what a revision that is not ready is waiting for."""
    if revision is None:
        return "queued"
    over = {
        each.type_
        for each in revision.conditions
        if each.state == Condition.State.CONDITION_SUCCEEDED
    }
    return next((step for kind, step in _STEPS if kind not in over), "starting")


def ready_at(service: "Service", revision: "Revision | None") -> datetime:
    """Give when its newest revision became ready, as far as Google says it."""
    done = Condition.State.CONDITION_SUCCEEDED
    rows = [row for row in (revision.conditions if revision else ()) if row.type_ == "Ready"]
    stamps = [row.last_transition_time for row in rows if row.state == done]
    stamps += [service.terminal_condition.last_transition_time, service.update_time]
    return when(next(stamp for stamp in (*stamps, service.create_time) if stamp))


def read_failure(
    service: "Service", revision: "Revision | None", log_lines: Sequence[str]
) -> Failure:
    """Say why it failed: the engine's own reason first, then Google's most telling one."""
    rows = (service.terminal_condition, *_failed_conditions(service, revision))
    read = [(each, meaning_of(each)) for each in rows]
    condition, told = next((pair for pair in read if pair[1].code not in _VAGUE), read[0])
    known = recognize(log_lines, "cloud_run")
    if known and told.code in _RESULTS:
        return known
    return Failure(
        code=told.code,
        cause=condition.message or "Google gives no reason.",
        fix=told.fix,
        evidence=evidence(log_lines),
    )


def meaning_of(condition: "Condition") -> Meaning:
    """Give what a failed condition means: by its words where they say more, else its reason."""
    if wording := wording_for("cloud_run", condition.message):
        return Meaning(code=wording.code, fix=wording.fix)
    raw = type(condition).pb(condition)
    if raw.WhichOneof("reasons") == "revision_reason":
        return _named(catalogue().revision, type(condition).RevisionReason, raw.revision_reason)
    return _named(catalogue().common, type(condition).CommonReason, raw.reason)


def _named(rows: dict[str, Meaning], reasons: Iterable[Any], number: int) -> Meaning:
    """Give a reason's row; one that is newer than the SDK is as good as undefined."""
    names = {reason.value: reason.name for reason in reasons}
    return rows[names.get(number, names[0])]


def _failed_conditions(service: "Service", revision: "Revision | None") -> Iterable["Condition"]:

    rows = [*service.conditions, *(revision.conditions if revision else ())]
    return (each for each in rows if each.state == Condition.State.CONDITION_FAILED)


PREPARING: Final = "preparing"
SPREADING: Final = "waiting for a grant to spread"

INSTANCE_KEPT: Final = timedelta(minutes=10)
"""An instance is kept for up to 15 minutes after its last request; for 10 it is taken to be."""


class Snapshot(NamedTuple):
    """What was read of a service at one moment."""

    site: Site
    service: "Service"
    revision: "Revision | None"
    """The newest."""
    readings: Sequence[Reading] | None
    """The newest of its instances; none of half an hour, or None where nobody can be asked."""
    usd_so_far: float | None
    now: datetime

    @property
    def reading(self) -> Reading | None:
        """The newest, if there is one."""
        return self.readings[0] if self.readings else None

    @property
    def name(self) -> str:
        """Of the deployment."""
        return self.service.name.rpartition("/")[2]


async def read_status(site: Site, service: "Service") -> Deployment:
    """Say what a deployment does now; what Google does not tell is left out with a note."""
    seen = await _take_snapshot(site, service)
    if service.delete_time:
        return _deployment(seen, State.DELETING, when(service.delete_time))
    if is_stopped(service):
        return _stopped(seen)
    match progress(service):
        case "working":
            return await _booting(seen)
        case "failed":
            again = seconds_to_next_try(seen.service, seen.revision, seen.now) is not None
            return _spreading(seen) if again else await _failed_status(seen)
    return await _serving(seen)


def before_service(site: Site, pending: Pending, *, phase: str | None = None) -> Deployment:
    """Say of a deployment that is on its way what there is before there is a service."""
    spec, since = pending.spec, pending.since
    service = Service(
        name=service_path(site, spec.name),
        labels={SPEC_LABEL: spec.fingerprint},
        annotations={SPEC_ANNOTATION: spec.model_dump_json(exclude_defaults=True)},
        create_time=since,
        template={"containers": [{"image": spec.image or gpu_of(site.target).image}]},
    )
    seen = Snapshot(site, service, None, (), None, datetime.now(UTC))
    if pending.failure:
        return _deployment(seen, State.FAILED, since, failure=pending.failure)
    if pending.deleting:
        return _deployment(seen, State.DELETING, since)
    waits = Phase(name=phase or pending.phase or PREPARING, since=since)
    return _deployment(seen, State.CREATING, since, phase=waits)


def while_building(site: Site, spec: DeploymentSpec, build: Build) -> Deployment:
    """Say the same of one whose image is being built, by whichever machine asked for it."""
    pending = Pending(
        spec=spec, model=ModelShape(model=spec.model), where="", since=when(build.create_time)
    )
    return before_service(site, pending, phase=BUILDING)


def min_instances(service: "Service") -> int:
    """Give how many instances are kept when nobody asks."""
    if service.scaling.scaling_mode == ServiceScaling.ScalingMode.MANUAL:
        return int(service.scaling.manual_instance_count)
    return max(service.scaling.min_instance_count, service.template.scaling.min_instance_count)


async def _take_snapshot(site: Site, service: "Service") -> Snapshot:
    now = datetime.now(UTC)
    name = service.name.rpartition("/")[2]
    looks: dict[str, Callable[[], Awaitable[Any]]] = {
        "revision": lambda: find_revision(site, newest_revision(service)),
        "readings": lambda: instances.read_instances(site, name, now),
        "usd_so_far": lambda: instances.usd_so_far(site, service, now),
    }
    found = await all_or_note(looks)
    return Snapshot(site=site, service=service, now=now, **found)


def _stopped(seen: Snapshot) -> Deployment:
    """Stopped is what was seen to have no instance since; until then it is stopping."""
    since, reading = when(seen.service.update_time), seen.reading
    seen.site.answered.discard(seen.service.latest_ready_revision)
    silent = (seen.now - since).total_seconds() > FRESH_SECONDS
    if reading and reading.at >= since and not reading.count:
        return _deployment(seen, State.STOPPED, since)
    if seen.readings == () and silent:
        note(
            f"Cloud Monitoring has reported nothing for {seen.name} in half an hour, as it does of"
            " a service without instances; that none runs was not read."
        )
        return _deployment(seen, State.STOPPED, since)
    if reading and silent:
        note(f"The newest reading of {seen.name}'s instances is {_age(seen)} s old.")
    phase = Phase(name="waiting for a reading without instances", since=since)
    return _deployment(seen, State.STOPPING, since, phase=phase)


async def _booting(seen: Snapshot) -> Deployment:
    lines = await _boot_lines(seen)
    newest = seen.revision or seen.service
    begun = when(newest.create_time)
    if lines:
        phase = phase_of(lines)
        return _deployment(seen, State.LOADING, begun, phase=phase)
    phase = Phase(name=step_of(seen.revision), since=begun)
    return _deployment(seen, State.CREATING, begun, phase=phase)


def _spreading(seen: Snapshot) -> Deployment:
    """Say of one that may not read its key yet that it is tried again."""
    note(
        f"{seen.name}'s account may not read its key yet: Google's grants take minutes to spread."
        " It is tried again by itself."
    )
    begun = when(seen.service.create_time)
    return _deployment(seen, State.CREATING, begun, phase=Phase(name=SPREADING, since=begun))


async def _failed_status(seen: Snapshot) -> Deployment:
    lines = await _boot_lines(seen)
    why = read_failure(seen.service, seen.revision, [line.text for line in lines])
    serving = seen.service.latest_ready_revision.rpartition("/")[2]
    if serving and serving != seen.service.latest_created_revision.rpartition("/")[2]:
        note(f"{seen.name} still serves its former revision {serving}, which bills on.")
    since = when(seen.service.terminal_condition.last_transition_time or seen.now)
    return _deployment(seen, State.FAILED, since, failure=why)


async def _serving(seen: Snapshot) -> Deployment:
    site, sure = seen.site, _surely_awake(seen)
    if _nothing_runs(seen, sure):
        site.answered.discard(seen.service.latest_ready_revision)
        if not min_instances(seen.service):
            return _deployment(seen, State.ASLEEP, sure)
    silence = await probe_model(site, seen.name, seen.service)
    if silence is None:
        running = max(1, _count(seen))
        return _deployment(seen, State.READY, sure, replicas=running, until=_awake_until(seen))
    lines = await _boot_lines(seen)
    phase = phase_of(lines) if lines else Phase(name=WARMING, since=sure)
    return _deployment(seen, State.LOADING, sure, phase=phase, failure=silence)


def _surely_awake(seen: Snapshot) -> datetime:
    """Give the last moment at which an instance was surely there."""
    moments = [ready_at(seen.service, seen.revision), seen.site.woken.get(seen.name)]
    if seen.reading and seen.reading.count:
        moments.append(seen.reading.at)
    return max(moment for moment in moments if moment)


def _nothing_runs(seen: Snapshot, sure: datetime) -> bool:
    """Whether it sleeps; in doubt it is taken to, for asking would wake it."""
    reading = seen.reading
    if reading and not reading.count and reading.at >= sure:
        return True
    if min_instances(seen.service) or seen.now - sure < INSTANCE_KEPT:
        return False
    age = f"is {_age(seen)} s old" if reading else "is not to be had"
    note(f"A reading of its instances {age}: {seen.name} is taken to sleep.")
    return True


def _awake_until(seen: Snapshot) -> datetime | None:
    """Say until when our own question keeps its instance; looking again asks no more."""
    asked = seen.site.woken.get(seen.name)
    if asked and not min_instances(seen.service) and seen.now - asked < INSTANCE_KEPT:
        return (asked + instances.IDLE).replace(microsecond=0)
    return None


async def _boot_lines(seen: Snapshot) -> Sequence[Line]:
    revision = seen.revision
    if revision is None:
        return ()
    return await or_note(lambda: boot_lines(seen.site, seen.name, revision, newest=True), ())


def _count(seen: Snapshot) -> int:
    return seen.reading.count if seen.reading else 0


def _age(seen: Snapshot) -> int:
    return int(seen.reading.age_seconds(seen.now)) if seen.reading else 0


def _deployment(
    seen: Snapshot,
    state: State,
    since: datetime,
    *,
    phase: Phase | None = None,
    failure: Failure | None = None,
    replicas: int | None = None,
    until: datetime | None = None,
) -> Deployment:
    service, site, spec = seen.service, seen.site, read_spec(seen.service)
    expires = service.labels.get(EXPIRES_LABEL, "")
    return Deployment(
        name=seen.name,
        target=site.target.name,
        state=state,
        since=since,
        phase=phase,
        model=spec.model if spec else "not known",
        served_model_name=spec.served_model_name if spec else "not known",
        engine=label_of(site, service, spec.engine if spec else "vllm"),
        simulated=site.rehearsed,
        url=service.uri or None,
        revision=service.labels.get(SPEC_LABEL, "none"),
        instance=service.latest_ready_revision.rpartition("/")[2] or None,
        replicas=_count(seen) if replicas is None else replicas,
        min_replicas=spec.min_replicas if spec else None,
        max_replicas=spec.max_replicas if spec else None,
        awake_until=until,
        created_at=when(service.create_time),
        expires_at=datetime.fromtimestamp(int(expires), UTC) if expires.isdigit() else None,
        usd_per_hour=instances.usd_per_hour(site, service),
        usd_so_far=seen.usd_so_far,
        failure=failure,
    )


async def probe_model(site: Site, name: str, service: "Service") -> Failure | None:
    """Ask the model, unless it has answered before; None once it has, else why it has not."""
    revision = service.latest_ready_revision
    if revision in site.answered:
        return None
    failure = await why_silent(lambda: access.access(site, name), "Its revision")
    if failure is None:
        site.answered.add(revision)
        site.woken[name] = datetime.now(UTC)
    return failure


async def list_deployments(site: Site) -> dict[str, Deployment]:
    """Say it of every service with this target's label, and of every image that is being built."""
    found: dict[str, Deployment] = {}
    limiter = anyio.CapacityLimiter(8)

    async def look(service: "Service") -> None:
        async with limiter:
            deployment = await read_status(site, service)
        found[deployment.name] = deployment

    services = await list_services(site)
    async with anyio.create_task_group() as group:
        for service in services:
            group.start_soon(look, service)
    for spec, build in await builds_under_way(site):
        found.setdefault(spec.name, while_building(site, spec, build))
    return found
