"""One service, its revision, its instances and its log, told as one deployment."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backends.cloud_run import answering, conditions, engines, instances, looking, spending
from backends.cloud_run.entries import boot_lines
from backends.cloud_run.instances import FRESH_SECONDS, Reading
from backends.cloud_run.site import Site
from backends.common.noting import all_or_note, or_note
from backends.google.moments import when
from backends.google.names import EXPIRES_LABEL, SPEC_LABEL
from core.records import Deployment, Failure, Phase, State
from core.reply import note
from logs.boot import WARMING, phase_of
from logs.lines import Line

if TYPE_CHECKING:
    from google.cloud.run_v2 import Revision, Service

BUILDING: Final = "building image"
SPREADING: Final = "waiting for a grant to spread"

KEPT: Final = timedelta(minutes=10)
"""An instance is kept for up to 15 minutes after its last request; for 10 it is taken to be."""


class Seen(NamedTuple):
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


async def tell(site: Site, service: "Service") -> Deployment:
    """Say what a deployment does now; what Google does not tell is left out with a note."""
    seen = await _see(site, service)
    if service.delete_time:
        return _deployment(seen, State.DELETING, when(service.delete_time))
    if is_stopped(service):
        return _stopped(seen)
    match conditions.progress(service):
        case "working":
            return await _booting(seen)
        case "failed":
            return _spreading(seen) or await _failed(seen)
    return await _serving(seen)


def being_built(site: Site, service: "Service") -> Deployment:
    """Say of a service that there is not yet that its image is being built."""
    seen = Seen(site, service, None, (), None, datetime.now(UTC))
    began = when(service.create_time)
    return _deployment(seen, State.CREATING, began, phase=Phase(name=BUILDING, since=began))


def is_stopped(service: "Service") -> bool:
    """Whether a person set it to no instance."""
    from google.cloud.run_v2 import ServiceScaling

    scaling = service.scaling
    by_hand = scaling.scaling_mode == ServiceScaling.ScalingMode.MANUAL
    return by_hand and scaling.manual_instance_count == 0


def min_instances(service: "Service") -> int:
    """Give how many instances are kept when nobody asks."""
    from google.cloud.run_v2 import ServiceScaling

    if service.scaling.scaling_mode == ServiceScaling.ScalingMode.MANUAL:
        return int(service.scaling.manual_instance_count)
    return max(service.scaling.min_instance_count, service.template.scaling.min_instance_count)


async def _see(site: Site, service: "Service") -> Seen:
    now = datetime.now(UTC)
    name = service.name.rpartition("/")[2]
    looks: dict[str, Callable[[], Awaitable[Any]]] = {
        "revision": lambda: looking.revision_named(site, looking.newest_of(service)),
        "readings": lambda: _readings(site, name, now),
        "usd_so_far": lambda: spending.usd_so_far(site, service, now),
    }
    found = await all_or_note(looks)
    return Seen(site=site, service=service, now=now, **found)


async def _readings(site: Site, name: str, now: datetime) -> Sequence[Reading]:
    newest = await instances.read(site, name, now)
    return (newest,) if newest else ()


def _stopped(seen: Seen) -> Deployment:
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


async def _booting(seen: Seen) -> Deployment:
    lines = await _boot_lines(seen)
    newest = seen.revision or seen.service
    begun = when(newest.create_time)
    if lines:
        phase = phase_of(lines)
        return _deployment(seen, State.LOADING, begun, phase=phase)
    phase = Phase(name=conditions.step_of(seen.revision), since=begun)
    return _deployment(seen, State.CREATING, begun, phase=phase)


def _spreading(seen: Seen) -> Deployment | None:
    """Say of one that may not read its key yet that it is tried again; None of any other."""
    if conditions.seconds_to_next_try(seen.service, seen.revision, seen.now) is None:
        return None
    note(
        f"{seen.name}'s account may not read its key yet: Google's grants take minutes to spread."
        " It is tried again by itself."
    )
    begun = when(seen.service.create_time)
    return _deployment(seen, State.CREATING, begun, phase=Phase(name=SPREADING, since=begun))


async def _failed(seen: Seen) -> Deployment:
    lines = await _boot_lines(seen)
    why = conditions.failure(seen.service, seen.revision, [line.text for line in lines])
    serving = seen.service.latest_ready_revision.rpartition("/")[2]
    if serving and serving != seen.service.latest_created_revision.rpartition("/")[2]:
        note(f"{seen.name} still serves its former revision {serving}, which bills on.")
    since = when(seen.service.terminal_condition.last_transition_time or seen.now)
    return _deployment(seen, State.FAILED, since, failure=why)


async def _serving(seen: Seen) -> Deployment:
    site, sure = seen.site, _surely_awake(seen)
    if _nothing_runs(seen, sure):
        site.answered.discard(seen.service.latest_ready_revision)
        if not min_instances(seen.service):
            return _deployment(seen, State.ASLEEP, sure)
    silence = await answering.unanswered(site, seen.name, seen.service)
    if silence is None:
        running = max(1, _count(seen))
        return _deployment(seen, State.READY, sure, replicas=running, until=_awake_until(seen))
    lines = await _boot_lines(seen)
    phase = phase_of(lines) if lines else Phase(name=WARMING, since=sure)
    return _deployment(seen, State.LOADING, sure, phase=phase, failure=silence)


def _surely_awake(seen: Seen) -> datetime:
    """Give the last moment at which an instance was surely there."""
    moments = [conditions.ready_at(seen.service, seen.revision), seen.site.woken.get(seen.name)]
    if seen.reading and seen.reading.count:
        moments.append(seen.reading.at)
    return max(moment for moment in moments if moment)


def _nothing_runs(seen: Seen, sure: datetime) -> bool:
    """Whether it sleeps; in doubt it is taken to, for asking would wake it."""
    reading = seen.reading
    if reading and not reading.count and reading.at >= sure:
        return True
    if min_instances(seen.service) or seen.now - sure < KEPT:
        return False
    age = f"is {_age(seen)} s old" if reading else "is not to be had"
    note(f"A reading of its instances {age}: {seen.name} is taken to sleep.")
    return True


def _awake_until(seen: Seen) -> datetime | None:
    """Say until when our own question keeps its instance; looking again asks no more."""
    asked = seen.site.woken.get(seen.name)
    if asked and not min_instances(seen.service) and seen.now - asked < KEPT:
        return (asked + answering.IDLE).replace(microsecond=0)
    return None


async def _boot_lines(seen: Seen) -> Sequence[Line]:
    revision = seen.revision
    if revision is None:
        return ()
    return await or_note(lambda: boot_lines(seen.site, seen.name, revision, newest=True), ())


def _count(seen: Seen) -> int:
    return seen.reading.count if seen.reading else 0


def _age(seen: Seen) -> int:
    return int(seen.reading.age_seconds(seen.now)) if seen.reading else 0


def _deployment(
    seen: Seen,
    state: State,
    since: datetime,
    *,
    phase: Phase | None = None,
    failure: Failure | None = None,
    replicas: int | None = None,
    until: datetime | None = None,
) -> Deployment:
    service, site, spec = seen.service, seen.site, looking.spec_in(seen.service)
    expires = service.labels.get(EXPIRES_LABEL, "")
    return Deployment(
        name=seen.name,
        target=site.target.name,
        state=state,
        since=since,
        phase=phase,
        model=spec.model if spec else "not known",
        served_model_name=spec.served_model_name if spec else "not known",
        engine=engines.label_of(site, service, spec.engine if spec else "vllm"),
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
        usd_per_hour=spending.usd_per_hour(site, service),
        usd_so_far=seen.usd_so_far,
        failure=failure,
    )
