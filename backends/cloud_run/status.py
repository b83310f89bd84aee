"""What a deployment does now: its service, revision, instances and log, read as one record."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from google.cloud.monitoring_v3 import Aggregation, ListTimeSeriesRequest, TimeInterval, TimeSeries
from google.cloud.run_v2 import Condition, Revision, Service, ServiceScaling
from google.protobuf.duration_pb2 import Duration

from backends import lease as leases
from backends.base import BootBudget, LogQuery
from backends.cloud_run import access
from backends.cloud_run import service as run
from backends.cloud_run.container import place_of, weights_of
from backends.cloud_run.site import SPEC_ANNOTATION, Site
from backends.common import engine
from backends.common.concurrency import or_note, side_by_side
from backends.common.engine import why_silent
from backends.google import lease, logs, schedule
from backends.google.clients import SPEC_LABEL, when
from backends.google.errors import find, reading, translated
from backends.google.leftovers import size_of
from backends.google.logs import any_of, between, quoted
from backends.lifecycle import Pending, deployment_of
from core.environment import read_toml
from core.records import Deployment, Failure, Phase, Record, State
from core.reply import note
from logs.boot import WARMING, phase_of
from logs.failures import meaning as wording_for
from logs.read import Line
from logs.verdict import evidence, recognize

_FILE: Final = Path(__file__).with_name("conditions.toml")
_FAILED: Final = Condition.State.CONDITION_FAILED
_DONE: Final = Condition.State.CONDITION_SUCCEEDED
PREPARING: Final = "preparing"
SPREADING: Final = "waiting for a grant to spread"
_STEPS: Final = {
    "ContainerReady": "importing image",
    "ResourcesAvailable": "provisioning",
    "ContainerHealthy": "starting",
}
"""What a revision goes through, by the condition that says it is over."""
_VAGUE: Final = {"ROLLOUT_FAILED", "REVISION_FAILED", "STILL_WAITING"}
"""Of a service; its revision may say more."""
_RESULTS: Final = _VAGUE | {"STARTUP_PROBE_FAILED", "PROGRESS_DEADLINE", "KILLED", "ENGINE_EXITED"}
"""Codes than which the engine's own words say more."""
_TRY_AGAIN_SECONDS: Final = (10.0, 60.0)
"""From the creation of a revision whose account may not read its key to that of the next one."""
_SPREAD_SECONDS: Final = 180.0
"""Source: "typically within 2 minutes, potentially 7 minutes or longer"
(docs.cloud.google.com/iam/docs/access-change-propagation, 2026-11-23)."""
TRY_LABEL: Final = "vllm-devops-grant-try"
"""Of a revision: how often it was tried again for want of a grant."""
_FRESH_SECONDS: Final = 300.0
"""A point is taken each 60 s and seen up to 180 s later; source: Google's list of metrics."""
_WINDOW: Final = timedelta(minutes=30)
_SAMPLE_SECONDS: Final = 60.0
_CLOCKS: Final = timedelta(seconds=10)
"""How far Google's clock may be ahead of ours, lest the newest point be missed."""
IDLE: Final = timedelta(minutes=run.IDLE_MINUTES)
_INSTANCE_KEPT: Final = timedelta(minutes=10)
"""For so long after its last request it is taken to be kept."""


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
    return Catalogue.model_validate(read_toml(_FILE))


def progress(service: Service) -> Literal["working", "failed", "done"]:
    """Say whether Google is still at it, gave up, or is done with what was asked for last.

    After a failure the observed generation stays that of the last success.
    """
    state = service.terminal_condition.state
    if service.reconciling:
        return "working"
    if state == _FAILED:
        return "failed"
    seen = service.observed_generation >= service.generation
    return "done" if state == _DONE and seen else "working"


def seconds_to_next_try(service: Service, revision: Revision | None, now: datetime) -> float | None:
    """Return when a revision whose grant has not spread is tried again; None: it is not.

    Cloud Run looks at it once, when it makes a revision.
    """
    if revision is None or progress(service) != "failed":
        return None
    codes = {meaning_of(row).code for row in _failed_conditions(service, revision)}
    age, tried = (now - when(revision.create_time)).total_seconds(), tries(revision)
    if "SECRET_NOT_READABLE" not in codes or age > _SPREAD_SECONDS:
        return None
    return _TRY_AGAIN_SECONDS[tried] - age if tried < len(_TRY_AGAIN_SECONDS) else None


def tries(revision: Revision) -> int:
    """Return how often its template was tried again for want of a grant."""
    said = revision.labels.get(TRY_LABEL, "")
    return int(said) if said.isdecimal() else 0


def step_of(revision: Revision | None) -> str:
    """Name what a revision that is not ready is waiting for."""
    if revision is None:
        return "queued"
    over = {each.type_ for each in revision.conditions if each.state == _DONE}
    return next((step for kind, step in _STEPS.items() if kind not in over), "starting")


def ready_at(service: Service, revision: Revision | None) -> datetime:
    """Return when its newest revision became ready, as far as Google says it."""
    rows = [row for row in (revision.conditions if revision else ()) if row.type_ == "Ready"]
    stamps = [row.last_transition_time for row in rows if row.state == _DONE]
    stamps += [service.terminal_condition.last_transition_time, service.update_time]
    return when(next(stamp for stamp in (*stamps, service.create_time) if stamp))


def read_failure(service: Service, revision: Revision | None, log_lines: Sequence[str]) -> Failure:
    """Say why it failed: the engine's own reason first, then Google's most telling one."""
    read = [(each, meaning_of(each)) for each in _failed_conditions(service, revision)]
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


def meaning_of(condition: Condition) -> Meaning:
    """Return what a failed condition means: by its words where they say more, else its reason."""
    if wording := wording_for("cloud_run", condition.message):
        return Meaning(code=wording.code, fix=wording.fix)
    raw, kind = type(condition).pb(condition), type(condition)
    rows, reasons, number = catalogue().common, kind.CommonReason, raw.reason
    if raw.WhichOneof("reasons") == "revision_reason":
        rows, reasons, number = catalogue().revision, kind.RevisionReason, raw.revision_reason
    every: Iterable[Any] = reasons
    names = {reason.value: reason.name for reason in every}
    return rows[names.get(number, names[0])]  # one newer than the SDK is as good as undefined


def _failed_conditions(service: Service, revision: Revision | None) -> list[Condition]:
    rows = [*service.conditions, *(revision.conditions if revision else ())]
    return [service.terminal_condition, *(each for each in rows if each.state == _FAILED)]


class Reading(Record):
    """The newest point of an account that is minutes old."""

    count: int
    """Instances, busy or not."""
    at: datetime


class Snapshot(NamedTuple):
    """What was read of a service at one moment."""

    site: Site
    service: Service
    revision: Revision | None
    """The newest."""
    readings: Sequence[Reading] | None
    """The newest of its instances; none of half an hour, or None where nobody can be asked."""
    usd_so_far: float | None
    now: datetime
    lacks: str | None = ""
    """What is missing of its lease in the cloud; None where nobody may see it."""
    unscheduled: str | None = ""
    """The same of its schedule."""

    @property
    def reading(self) -> Reading | None:
        return self.readings[0] if self.readings else None

    @property
    def age(self) -> int:
        """Seconds since the newest reading."""
        return max(0, int((self.now - self.reading.at).total_seconds())) if self.reading else 0

    @property
    def name(self) -> str:
        return self.service.name.rpartition("/")[2]

    def record(
        self,
        state: State,
        since: datetime,
        *,
        waits_for: str | Phase | None = None,
        failure: Failure | None = None,
        replicas: int | None = None,
        until: datetime | None = None,
    ) -> Deployment:
        service, site, spec = self.service, self.site, run.read_spec(self.service)
        held = leases.read(service.labels)
        whole = held is not None and held.keeper == "cloud" and self.lacks == ""
        unseen = "whether its {} and its grant are there cannot be seen"
        count = self.reading.count if self.reading else 0
        phase = Phase(name=waits_for, since=since) if isinstance(waits_for, str) else waits_for
        return deployment_of(
            site.target,
            spec,
            name=self.name,
            state=state,
            since=since,
            phase=phase,
            engine=label_of(site, service, spec.engine if spec else "vllm"),
            simulated=site.rehearsed,
            url=service.uri or None,
            revision=service.labels.get(SPEC_LABEL, "none"),
            instance=service.latest_ready_revision.rpartition("/")[2] or None,
            replicas=count if replicas is None else replicas,
            min_replicas=spec.min_replicas if spec else None,
            max_replicas=spec.max_replicas if spec else None,
            awake_until=until,
            created_at=when(service.create_time),
            expires_at=datetime.fromtimestamp(held.ends, UTC) if held else None,
            lease=("cloud" if whole else "server") if held else None,
            lease_lacks=unseen.format("job") if self.lacks is None else self.lacks,
            schedule=spec.schedule if spec else None,
            schedule_lacks=unseen.format("jobs") if self.unscheduled is None else self.unscheduled,
            usd_per_hour=usd_per_hour(site, service),
            usd_so_far=self.usd_so_far,
            failure=failure,
        )

    async def newest_boot(self) -> Sequence[Line]:
        """Return what the newest boot has written; why that cannot be read is noted."""
        revision = self.revision
        if revision is None:
            return ()
        look = partial(boot_lines, self.site, self.name, revision, newest=True)
        return await or_note(look, ())


def label_of(site: Site, service: Service, engine: str) -> str:
    name = {"vllm": "vLLM", "ollama": "Ollama"}[engine]
    version = "" if engine == "ollama" else run.version_of(site, service) or "(version not known)"
    return " ".join(filter(None, ("simulated" if site.rehearsed else "", name, version)))


async def read_status(site: Site, service: Service) -> Deployment:
    """Say what a deployment does now; what Google does not tell is left out with a note."""
    now, name = datetime.now(UTC), service.name.rpartition("/")[2]
    looks: Mapping[str, Callable[[], Awaitable[Any]]] = {
        "revision": partial(run.find_revision, site, run.newest_revision(service)),
        "readings": partial(read_instances, site, name, now),
        "usd_so_far": partial(usd_so_far, site, service, now),
        "lacks": partial(_lease_lacks, site, service),
        "unscheduled": partial(_schedule_lacks, site, service),
    }
    found = await side_by_side([partial(or_note, look, None) for look in looks.values()])
    known: dict[str, Any] = dict(zip(looks, found, strict=True))
    seen = Snapshot(site=site, service=service, now=now, **known)
    if service.delete_time:
        return seen.record(State.DELETING, when(service.delete_time))
    if run.is_stopped(service):
        return _stopped(seen)
    match progress(service):
        case "failed":
            return await _failed_status(seen)
        case "done":
            return await _serving(seen)
    begun, lines = when((seen.revision or service).create_time), await seen.newest_boot()
    if lines:
        return seen.record(State.LOADING, begun, waits_for=phase_of(lines))
    return seen.record(State.CREATING, begun, waits_for=step_of(seen.revision))


async def _lease_lacks(site: Site, service: Service) -> str:
    """Say what is missing of its lease, where the cloud is to keep one and something runs."""
    held = leases.read(service.labels)
    if held is None or held.keeper == "server" or run.is_stopped(service) or service.delete_time:
        return ""
    name = service.name.rpartition("/")[2]
    return await lease.lacks(site, name, service.name, site.clients.run, held.ends)


async def _schedule_lacks(site: Site, service: Service) -> str:
    """Say what is missing of its schedule, where it has one and may run."""
    spec = run.read_spec(service)
    if spec is None or not spec.schedule or run.is_stopped(service) or service.delete_time:
        return ""
    return await schedule.lacks(site, spec, service.name, site.clients.run)


def before_service(site: Site, pending: Pending) -> Deployment:
    """Say of a deployment that is on its way what there is before there is a service."""
    spec, since = pending.spec, pending.since
    service = Service(
        name=run.service_path(site, spec.name),
        labels={SPEC_LABEL: spec.fingerprint},
        annotations={SPEC_ANNOTATION: spec.model_dump_json(exclude_defaults=True)},
        create_time=since,
        template=run.service_of(run.blueprint(site, spec, pending.model)).template,
    )
    seen = Snapshot(site, service, None, (), None, datetime.now(UTC))
    if pending.is_over:
        state = State.FAILED if pending.failure else State.DELETING
        return seen.record(state, since, failure=pending.failure)
    return seen.record(State.CREATING, since, waits_for=pending.phase or PREPARING)


def _stopped(seen: Snapshot) -> Deployment:
    """Stopped is what was seen to have no instance since; until then it is stopping."""
    since, reading = when(seen.service.update_time), seen.reading
    seen.site.answered.discard(seen.service.latest_ready_revision)
    silent = (seen.now - since).total_seconds() > _FRESH_SECONDS
    if reading and reading.at >= since and not reading.count:
        return seen.record(State.STOPPED, since)
    if seen.readings == () and silent:
        note(
            f"Cloud Monitoring has reported nothing for {seen.name} in half an hour, as it does of"
            " a service without instances; that none runs was not read."
        )
        return seen.record(State.STOPPED, since)
    if reading and silent:
        note(f"The newest reading of {seen.name}'s instances is {seen.age} s old.")
    return seen.record(State.STOPPING, since, waits_for="waiting for a reading without instances")


async def _failed_status(seen: Snapshot) -> Deployment:
    service = seen.service
    if seconds_to_next_try(service, seen.revision, seen.now) is not None:
        note(
            f"{seen.name}'s account may not read its key yet: Google's grants take minutes to"
            " spread. It is tried again by itself."
        )
        return seen.record(State.CREATING, when(service.create_time), waits_for=SPREADING)
    lines = [line.text for line in await seen.newest_boot()]
    why = read_failure(service, seen.revision, lines)
    serving = service.latest_ready_revision.rpartition("/")[2]
    if serving and serving != service.latest_created_revision.rpartition("/")[2]:
        note(f"{seen.name} still serves its former revision {serving}, which bills on.")
    since = when(service.terminal_condition.last_transition_time or seen.now)
    return seen.record(State.FAILED, since, failure=why)


async def _serving(seen: Snapshot) -> Deployment:
    """Ask the model, unless it has answered before, or sleeps: asking would wake it."""
    site, revision = seen.site, seen.service.latest_ready_revision
    sure, kept, read = _up_since(seen), _min_instances(seen.service), seen.reading
    if read and read.count:  # the last moment at which an instance was surely there
        sure = max(sure, read.at)
    if _nothing_runs(seen, sure):
        site.answered.discard(revision)
        if not kept:
            return seen.record(State.ASLEEP, sure)
    if revision not in site.answered:
        silence = await why_silent(lambda: access.access(site, seen.name), "Its revision")
        if silence:
            lines = await seen.newest_boot()
            phase = phase_of(lines) if lines else WARMING
            return seen.record(State.LOADING, _up_since(seen), waits_for=phase, failure=silence)
        if revision not in site.answered:  # nor has another look been answered meanwhile
            site.answered.add(revision)
            site.woken[seen.name] = datetime.now(UTC)
    until = None
    asked = site.woken.get(seen.name)
    if asked and not kept and seen.now - asked < _INSTANCE_KEPT:
        until = (asked + IDLE).replace(microsecond=0)  # our own question keeps its instance
    running = max(1, seen.reading.count if seen.reading else 0)
    return seen.record(State.READY, _up_since(seen), replicas=running, until=until)


def _min_instances(service: Service) -> int:
    if service.scaling.scaling_mode == ServiceScaling.ScalingMode.MANUAL:
        return int(service.scaling.manual_instance_count)
    return max(service.scaling.min_instance_count, service.template.scaling.min_instance_count)


def _up_since(seen: Snapshot) -> datetime:
    """Return when its revision became ready, or was woken from here: no reading moves it."""
    moments = (ready_at(seen.service, seen.revision), seen.site.woken.get(seen.name))
    return max(moment for moment in moments if moment)


def _nothing_runs(seen: Snapshot, sure: datetime) -> bool:
    """Whether it sleeps; in doubt it is taken to, for asking would wake it."""
    reading = seen.reading
    if reading and not reading.count and reading.at >= sure:
        return True
    if _min_instances(seen.service) or seen.now - sure < _INSTANCE_KEPT:
        return False
    age = f"is {seen.age} s old" if reading else "is not to be had"
    note(f"A reading of its instances {age}: {seen.name} is taken to sleep.")
    return True


async def list_deployments(site: Site) -> dict[str, Deployment]:
    """Say it of every service with this target's label."""
    services = await run.list_services(site)
    found = await side_by_side([partial(read_status, site, one) for one in services])
    return {one.name: one for one in found}


async def read_instances(site: Site, name: str, now: datetime) -> Sequence[Reading]:
    """Return the newest reading of a service, nothing where there is none of half an hour."""
    span = TimeInterval(start_time=now - _WINDOW, end_time=now + _CLOCKS)
    newest = newest_reading(await _read_series(site, name, "instance_count", span))
    return (newest,) if newest else ()


def newest_reading(found: Sequence[TimeSeries]) -> Reading | None:
    """Add up the newest points of all revisions and states, None where there is no point."""
    points = [row.points[0] for row in found if row.points]
    newest = [(when(one.interval.end_time), int(one.value.int64_value)) for one in points]
    if not newest:
        return None
    at = max(ended for ended, _ in newest)
    # A series that ended, such as an older revision's, counts no more.
    counted = [count for ended, count in newest if (at - ended).total_seconds() < _SAMPLE_SECONDS]
    return Reading(count=sum(counted), at=at)


async def _read_series(
    site: Site, name: str, metric: str, span: TimeInterval, aggregation: Aggregation | None = None
) -> Sequence[TimeSeries]:
    """Read a metric of a service's containers, each series newest first."""
    client = await site.clients.monitoring()
    request = ListTimeSeriesRequest(
        name=f"projects/{site.clients.project}",
        filter=f'metric.type = "run.googleapis.com/container/{metric}"'
        ' AND resource.type = "cloud_run_revision"'
        f' AND resource.labels.service_name = "{name}"'
        f' AND resource.labels.location = "{site.clients.region}"',
        interval=span,
        aggregation=aggregation,
    )
    what = {"instance_count": "read its instances"}.get(metric, "read what was billed")
    # NOT_FOUND is said of a metric that the project never had a point of.
    pager = await find(what, client.list_time_series(request, **reading()))
    with translated(what):
        return [row async for row in pager] if pager else ()


def usd_per_hour(site: Site, service: Service) -> float | None:
    return engine.usd_per_hour(site.target, place_of(site.target), size_of(service))


async def usd_so_far(site: Site, service: Service, now: datetime) -> float | None:
    """Return what its instances were billed since it was made, some minutes late."""
    hourly, made = usd_per_hour(site, service), when(service.create_time)
    if hourly is None:
        return None
    lived = max(1, ceil((now - made).total_seconds() / 60)) * 60
    summed = Aggregation(
        alignment_period=Duration(seconds=lived),
        per_series_aligner=Aggregation.Aligner.ALIGN_SUM,
        cross_series_reducer=Aggregation.Reducer.REDUCE_SUM,
    )
    name = service.name.rpartition("/")[2]
    span = TimeInterval(start_time=made, end_time=now + _CLOCKS)
    found = await _read_series(site, name, "billable_instance_time", span, summed)
    seconds = sum(point.value.double_value for row in found for point in row.points)
    return round(seconds / 3600 * hourly, 4)


def boot_budget(site: Site, service: Service) -> BootBudget:
    spec = run.read_spec(service)
    engine = run.engine_in(service)
    held = service.template.timeout.seconds
    seconds, probe = 240, "Cloud Run's own: a TCP probe"
    if engine and engine.startup_probe.failure_threshold:
        own = engine.startup_probe
        seconds = own.initial_delay_seconds + own.period_seconds * own.failure_threshold
        path = own.http_get.path or "TCP"
        probe = f"{own.failure_threshold} failures of {path}, {own.period_seconds} s apart"
    return BootBudget(
        seconds=seconds,
        probe=probe,
        longest_seconds=place_of(site.target).startup_seconds_max,
        weights_from=weights_of(spec).boot_source if spec and spec.engine == "vllm" else "hub",
        stays_seconds=int(IDLE.total_seconds()),
        notes=(
            "Cloud Run counts from the container's start: host and image come before it.",
            f"A request that wakes it is held meanwhile, for at most {held:,} s.",
        ),
    )


_OUTPUT: Final = ("run.googleapis.com/stdout", "run.googleapis.com/stderr")
_SYSTEM: Final = "run.googleapis.com/varlog/system"
_BOOT: Final = timedelta(hours=1)
"""A boot ends within 30 minutes: Cloud Run's own limit with a GPU."""
_START: Final = "Starting new instance"
"""So Cloud Run says of each that it starts."""


async def boot_lines(site: Site, name: str, revision: Revision, *, newest: bool) -> Sequence[Line]:
    """Return a revision's output, oldest first: of its newest boot, or of its first."""
    begin, which = when(revision.create_time), revision.name.rpartition("/")[2]
    asked = LogQuery(since=begin, until=None if newest else begin + _BOOT)
    entries, _ = await logs.read_entries(site, _filter(site, name, asked, which), newest=newest)
    found = logs.lines_of(entries)
    starts = [place for place, line in enumerate(found) if line.platform and _START in line.text]
    output = [line for line in found[starts[-1] if newest and starts else 0 :] if not line.platform]
    one = output[-1 if newest else 0].instance if output else ""
    return [line for line in output if line.instance == one]


def _filter(site: Site, name: str, query: LogQuery, revision: str = "") -> str:
    """Return Cloud Logging's filter; without a begin it would read a day of everything."""
    assert query.since
    files = (*_OUTPUT, *([_SYSTEM] if query.platform else []))
    terms = [
        'resource.type="cloud_run_revision"',
        f"resource.labels.service_name={quoted(name)}",
        f"resource.labels.location={quoted(site.clients.region)}",
        between(query.since, query.until),
        f"({' OR '.join(f'log_id({quoted(log)})' for log in files)})",
    ]
    terms += [f"resource.labels.revision_name={quoted(revision)}"] if revision else []
    words = any_of("", query.contains, besides=" AND ".join(terms))
    return " AND ".join([*terms, words] if words else terms)


def log_pages(site: Site, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Return every line since the service was made, of all revisions, the newest page first."""

    async def asked() -> str:
        made = when((await run.get_service(site, name)).create_time)
        since = max(made, query.since or made)
        return _filter(site, name, query.model_copy(update={"since": since}))

    return logs.all_lines(site, asked, query, logs.lines_of)
