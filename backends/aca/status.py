"""What a deployment does now: its app, revision, replicas and events, read as one record."""

import tomllib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
from azure.mgmt.appcontainers.models import ContainerApp

from backends.aca import access, logs, operations, replicas, resources
from backends.aca.app import (
    blueprint,
    created_at,
    find_app,
    get_app,
    is_this_targets,
    label,
    label_of,
    list_apps,
    own_app,
    spec_as_running,
    version_of,
)
from backends.aca.container import place_of, rules, weights_of
from backends.aca.logs import Event
from backends.aca.replicas import ReplicaState, RevisionReplicas
from backends.aca.resources import PREPARING
from backends.aca.site import Site
from backends.base import BootBudget, EngineFacts, Hardware, Prediction
from backends.common.concurrency import or_note, side_by_side
from backends.common.engine import ask_models, facts_of, hardware_of, predict, why_silent
from backends.lifecycle import Pending
from core.errors import (
    AddressNotAllowed,
    CloudError,
    EndpointError,
    NextStep,
    NotAuthenticated,
    NotReady,
    OpsError,
)
from core.records import Deployment, Failure, ModelShape, Phase, Record, State
from core.reply import note
from logs.boot import STARTING, WARMING, boot_of, phase_of
from logs.failures import evidence, recognize
from logs.failures import meaning as wording_for
from logs.read import Line
from planner.places import Accelerator, Size, accelerator

_FILE: Final = Path(__file__).with_name("conditions.toml")

QUEUED: Final = "queued"
ASSIGNING: Final = "assigning a GPU host"
PULLING: Final = "pulling the image"
PATIENCE: Final = timedelta(minutes=10)
"""A GPU host that is free is assigned within minutes; later somebody has to decide."""
NOT_ASSIGNED: Final = "GPU_HOST_NOT_ASSIGNED"
_STEPS: Final = {
    "AssigningReplica": ASSIGNING,
    "PullingImage": PULLING,
    "PulledImage": STARTING,
    "ImagePulled": STARTING,
    "ContainerCreated": STARTING,
    "ContainerStarted": STARTING,
}
"""What a replica does after an event."""
_NO_HOST: Final = "AssigningReplicaFailed"
_CUT_OFF: Final = "KEDAScaleTargetDeactivated"
DEFAULT: Final = "ROLLOUT_FAILED"
_QUOTA: Final = "QUOTA_EXCEEDED"
_LATE: Final = "PROGRESS_DEADLINE"
_RESULTS: Final = frozenset({DEFAULT, "CRASH_LOOP", _LATE})
"""What comes of another failure, which says more."""
_VAGUE: Final = _RESULTS | {"ENGINE_EXITED", "STARTUP_PROBE_FAILED", "ACTIVATION_FAILED"}
"""Codes than which the engine's own words say more."""


class Meaning(Record):
    """What something is called here, and what to do about it."""

    code: str
    fix: str


class Catalogue(Record):
    """`conditions.toml`."""

    reason: dict[str, Meaning]
    """Of the system's log."""
    code: dict[str, Meaning]
    """Of Azure's own."""


class Reason(NamedTuple):
    """Something that Azure says of a failure."""

    words: str
    reason: str = ""
    """Of an event."""
    code: str = ""
    """Azure's own."""


@cache
def catalogue() -> Catalogue:
    """Return what every reason and code means."""
    return Catalogue.model_validate(tomllib.loads(_FILE.read_text("utf-8")))


def step_of(replica: ReplicaState | None, events: Sequence[Event], since: datetime) -> Phase:
    """Say what a replica that does not run yet waits for, by the newest event that tells it.

    `since` is when it was asked for.
    """
    if replica is None:
        return Phase(name=QUEUED, since=since)
    told = [
        (event.at, _STEPS[event.reason])
        for event in events
        if event.replica == replica.name and event.reason in _STEPS
    ]
    created = replica.created or since
    if not told:
        return Phase(name=STARTING if replica.started else ASSIGNING, since=created)
    name = told[-1][1]
    begun = created if name == ASSIGNING else next(at for at, step in told if step == name)
    return Phase(name=name, since=begun)


def host_missing(step: Phase, now: datetime, usd_per_hour: float | None) -> Failure | None:
    """Say that a replica has waited too long for a GPU host, None while that may still come."""
    waited = now - step.since
    if step.name != ASSIGNING or waited < PATIENCE:
        return None
    return _no_host(f"A replica has waited for a GPU host for {age_and_cost(waited, usd_per_hour)}")


def over_quota(events: Sequence[Event]) -> Failure | None:
    """Say that a replica gets no host as the quota is used up, None where the newest step is later.

    `events` are those of its revision, oldest first.
    """
    newest = next((one for one in reversed(events) if one.reason in {*_STEPS, _NO_HOST}), None)
    if newest is None or newest.reason != _NO_HOST:
        return None
    meaning = meaning_of(Reason(newest.text))
    if meaning is None or meaning.code != _QUOTA:
        return None
    return Failure(code=_QUOTA, cause=newest.text, fix=meaning.fix)


def age_and_cost(waited: timedelta, usd_per_hour: float | None) -> str:
    """Say how long a replica waits and what that costs if Azure bills it.

    >>> age_and_cost(timedelta(minutes=90), 2.0)
    '90 min ($3.00 if Azure bills the wait)'
    """
    minutes = f"{waited.total_seconds() / 60:.0f} min"
    if usd_per_hour is None:
        return minutes
    usd = usd_per_hour * waited.total_seconds() / 3600
    return f"{minutes} (${usd:.2f} if Azure bills the wait)"


def cut_off(revision: RevisionReplicas | None, events: Sequence[Event]) -> bool:
    """Whether a revision was scaled to none before it was ever ready."""
    if revision is None or revision.number:
        return False
    return any(event.reason == _CUT_OFF for event in events_of(revision, events))


def events_of(revision: RevisionReplicas, events: Sequence[Event]) -> Sequence[Event]:
    """Return the events of one revision; KEDA names it in its text alone."""
    name = revision.name
    return [event for event in events if event.revision == name or name in event.text]


def read_failure(
    said: Sequence[Reason], events: Sequence[Event], log_lines: Sequence[str]
) -> Failure:
    """Say why a revision failed: the engine's own reason first, then Azure's most telling one.

    `said` is what Azure says beside the events, the most telling first; `events` are its own.
    """
    hostless = _never_had_a_host(events)
    if hostless:
        return hostless
    heard = [*said, *(Reason(one.text, reason=one.reason) for one in reversed(events))]
    told, meaning = _most_telling(heard)
    known = recognize(log_lines, "aca")
    if known and meaning.code in _VAGUE:
        return known
    return Failure(
        code=meaning.code,
        cause=told.words or "Azure gives no reason.",
        fix=meaning.fix,
        evidence=evidence(log_lines),
    )


def is_certain(words: Iterable[str]) -> bool:
    """Whether Azure's words leave nothing to wait for."""
    meanings = (meaning_of(Reason(each)) for each in words)
    return any(meaning.code not in _VAGUE for meaning in meanings if meaning)


def is_late(words: Iterable[str]) -> bool:
    """Whether all that Azure says is that its own time is over."""
    meanings = [meaning for each in words if (meaning := meaning_of(Reason(each)))]
    return bool(meanings) and all(meaning.code == _LATE for meaning in meanings)


def meaning_of(said: Reason) -> Meaning | None:
    """Return what Azure's words mean: by their wording, else by reason or code; None is nothing."""
    if wording := wording_for("aca", said.words):
        return Meaning(code=wording.code, fix=wording.fix)
    return catalogue().reason.get(said.reason) or catalogue().code.get(said.code)


def _most_telling(heard: Sequence[Reason]) -> tuple[Reason, Meaning]:
    """Return the first of those that say most."""

    def vagueness(pair: tuple[Reason, Meaning]) -> int:
        return sum(pair[1].code in codes for codes in (_VAGUE, _RESULTS, {DEFAULT}))

    read = [(one, meaning) for one in heard if (meaning := meaning_of(one))]
    first = next((one for one in heard if one.words), Reason(""))
    vague = Meaning(code=DEFAULT, fix=catalogue().code["ContainerAppOperationError"].fix)
    return min((*read, (first, vague)), key=vagueness)


def _never_had_a_host(events: Sequence[Event]) -> Failure | None:
    """Find a replica that was ended while it still waited for its host."""
    reasons = {event.reason for event in events}
    if _CUT_OFF not in reasons or "AssigningReplica" not in reasons:
        return None
    later = reasons & (set(_STEPS) - {"AssigningReplica"})
    return None if later else _no_host("Its replica was given up while it waited for a GPU host")


def _no_host(what: str) -> Failure:
    meaning = catalogue().reason[_NO_HOST]
    return Failure(code=NOT_ASSIGNED, cause=f"{what}.", fix=meaning.fix)


_LONGEST = timedelta(hours=2)
"""A first boot is over by then: assignment, image and the longest startup that a probe allows."""


class BootWords(NamedTuple):
    """Of one revision, newest last; what could not be read is empty and noted."""

    events: Sequence[Event] = ()
    lines: Sequence[Line] = ()
    """Of its newest replica."""


async def read_boot(site: Site, app: ContainerApp, revision: RevisionReplicas) -> BootWords:
    """Listen to the newest replica of a revision, or to what is left of it."""
    token = await or_note(lambda: logs.token_of(site, str(app.name)), None)
    if token is None:
        return BootWords()
    replica = revision.newest

    async def events() -> Any:
        return await or_note(lambda: logs.stream_events(app, token), ())

    async def lines() -> Any:
        if replica is None or not replica.started:
            return ()
        return await or_note(lambda: logs.stream_console(replica, token), ())

    told, written = await side_by_side([events, lines])
    return BootWords(_recent(revision, events_of(revision, told)), written)


async def last_words(
    site: Site, app: ContainerApp, revision: RevisionReplicas, heard: BootWords, now: datetime
) -> Sequence[Line]:
    """Return what a container wrote that runs no more, as far as it was kept."""
    if heard.lines:
        return heard.lines
    begin = revision.created or now - _LONGEST
    wanted = logs.Wanted(begin, now, revision=revision.name)

    async def kept() -> Sequence[Line]:
        try:
            return await logs.query_console(site, app, wanted)
        except logs.NoTable:
            return ()

    return await or_note(kept, ())


async def first_words(site: Site, app: ContainerApp, revision: RevisionReplicas) -> Sequence[Line]:
    """Return the lines of a revision's first boot: as kept, else what its replica still shows."""
    if revision.created:
        end = revision.created + _LONGEST
        wanted = logs.Wanted(revision.created, end, revision=revision.name, newest=False)
        nothing: Sequence[Line] = ()
        kept = await or_note(lambda: logs.query_console(site, app, wanted), nothing)
        if kept:
            return kept
    replica = revision.newest
    if replica is None:
        return ()
    token = await logs.token_of(site, str(app.name))
    return await logs.stream_console(replica, token)


def _recent(revision: RevisionReplicas, events: Sequence[Event]) -> Sequence[Event]:
    """Leave out what former replicas of the revision went through."""
    replica = revision.newest
    if replica is None or replica.created is None:
        return events
    second = timedelta(seconds=1)  # events have no fractions of it
    return [event for event in events if event.at >= replica.created - second]


def may_become_ready(newest: RevisionReplicas) -> bool:
    """Whether a replica may still become ready."""
    replica = newest.newest
    if replica is None:
        return not newest.broken
    words = (newest.error, newest.details, replica.details)
    if replica.restarts or is_certain(words):
        return False
    return replica.started or not newest.broken or is_late(words)


async def is_only_late(site: Site, app: ContainerApp, newest: RevisionReplicas | None) -> bool:
    """Whether nothing is known against an app that Azure calls failed but that its boot took long.

    A creation is given up after some twenty minutes ("Operation expired"), and its replica boots
    on, is billed, and answers when it is ready. Source: hashicorp/terraform-provider-azurerm issue
    22432; public records of apps that ran all the same, 2026.
    """
    if newest is None:
        return False
    kept = await operations.failure_of(site, str(app.name))
    if kept and not is_late((kept.cause,)):
        return False
    was_ready = newest.name == app.latest_ready_revision_name
    return was_ready or newest.ready or (bool(newest.number) and may_become_ready(newest))


async def probe_model(site: Site, app: ContainerApp, revision: str) -> Failure | None:
    """Ask the model, unless it has answered before; None once it has, else why it has not."""
    if revision in site.answered:
        return None
    failure = await why_silent(lambda: access.access_of(site, app), "Its replica")
    if failure is None:
        site.answered.add(revision)
        site.woken[str(app.name)] = datetime.now(UTC)
        return None
    return await _with_addresses(site, app, failure)


async def _with_addresses(site: Site, app: ContainerApp, failure: Failure) -> Failure:
    """Say of a refused address whom Azure lets in, and whom it would after another deploy_vllm."""
    if failure.code != AddressNotAllowed.code:
        return failure
    now = ", ".join(access.allowed(app))
    try:
        then = ", ".join(await access.callers(site))
    except OpsError:
        return failure
    fix = f"Call deploy_vllm again, which lets in {then}."
    if then == now:
        fix = "Add this machine's address to AZURE_ALLOWED_ADDRESSES and call deploy_vllm again."
    return failure.model_copy(update={"cause": f"{failure.cause} Let in: {now}.", "fix": fix})


class Look(NamedTuple):
    """What was read of an app at one moment."""

    site: Site
    app: ContainerApp
    revisions: Sequence[RevisionReplicas]
    usd_so_far: float | None
    now: datetime

    @property
    def name(self) -> str:
        """Of the deployment."""
        return str(self.app.name)

    @property
    def newest(self) -> RevisionReplicas | None:
        """The revision that was made last, as the app says; before that, as they are listed."""
        named = self.app.latest_revision_name
        found = next((one for one in self.revisions if one.name == named), None)
        return found or (self.revisions[-1] if self.revisions else None)

    @property
    def was_ready(self) -> bool:
        """Whether the newest revision has been ready before."""
        newest = self.newest
        return newest is not None and self.app.latest_ready_revision_name == newest.name


def status_while_waiting(site: Site, waiting: Pending, app: ContainerApp | None) -> Deployment:
    """Say of a deployment what it waits for before its app can be made, or made anew."""
    spec = waiting.spec
    drawn = blueprint(site, spec, waiting.model)
    if app is not None:
        note(f"{spec.name} serves as it did before, until what the new one needs is there.")
    state = State.FAILED if waiting.failure else State.CREATING
    phase = Phase(name=waiting.phase or PREPARING, since=waiting.since)
    return Deployment(
        name=spec.name,
        target=site.target.name,
        state=State.DELETING if waiting.deleting else state,
        since=waiting.since,
        phase=None if waiting.is_over else phase,
        model=spec.model,
        served_model_name=spec.served_model_name,
        engine=label(site, drawn.container.image),
        simulated=site.rehearsed,
        revision=spec.fingerprint,
        created_at=waiting.since,
        usd_per_hour=replicas.usd_per_hour_of(site, Size(vcpu=drawn.cpu, ram_gib=drawn.memory_gib)),
        failure=waiting.failure,
    )


def status_unknown(site: Site, app: ContainerApp, why: CloudError) -> Deployment:
    """Say of an app that there is one, and why nothing is known of it."""
    seen = Look(site, app, (), None, datetime.now(UTC))
    failure = Failure(code=why.code, cause=f"{why.summary} {why.cause}".strip(), fix=why.fix)
    return deployment_record(seen, State.UNKNOWN, seen.now, failure=failure)


def changed_at(seen: Look) -> datetime:
    """Return when an app was changed last."""
    data = seen.app.system_data
    last = data.last_modified_at if data else None
    return last.astimezone(UTC) if last else created_at(seen.app, seen.now)


def deployment_record(
    seen: Look,
    state: State,
    since: datetime,
    *,
    phase: Phase | None = None,
    failure: Failure | None = None,
    until: datetime | None = None,
) -> Deployment:
    """Make the record of an app in some state."""
    app, site, spec = seen.app, seen.site, resources.spec_from_tags(seen.app.tags)
    expires = resources.expires_in(app.tags)
    newest = seen.newest
    return Deployment(
        name=seen.name,
        target=site.target.name,
        state=state,
        since=since,
        phase=phase,
        model=spec.model if spec else "not known",
        served_model_name=spec.served_model_name if spec else "not known",
        engine=label_of(site, app),
        simulated=site.rehearsed,
        url=access.url_of(site, app),
        revision=resources.fingerprint_in(app.tags) or "none",
        instance=newest.newest.name if newest and newest.newest else None,
        replicas=replicas.count_replicas(seen.revisions),
        min_replicas=spec.min_replicas if spec else None,
        max_replicas=spec.max_replicas if spec else None,
        awake_until=until,
        created_at=created_at(app, seen.now),
        expires_at=datetime.fromtimestamp(expires, UTC) if expires else None,
        usd_per_hour=replicas.usd_per_hour(site, app),
        usd_so_far=seen.usd_so_far,
        failure=failure,
    )


_GIVEN_UP: Final = frozenset({"Failed", "Canceled"})
_ENDING: Final = "waiting for its replicas to end"
_WORTH_SAYING: Final = timedelta(minutes=1)


async def read_status(site: Site, app: ContainerApp) -> Deployment:
    """Say what a deployment does now.

    What only adds to the picture and is not told by Azure is left out with a note.
    """
    seen = await _see(site, app)
    _name_the_others(seen)
    state = replicas.word(app.provisioning_state)
    if state == "Deleting":
        return deployment_record(seen, State.DELETING, changed_at(seen))
    given_up = state in _GIVEN_UP and not await is_only_late(site, app, seen.newest)
    if state in _GIVEN_UP and not given_up:
        note(f"Azure calls the last change of {app.name} {state}; it goes on all the same.")
    if given_up and not app.latest_ready_revision_name:
        return await _failed(seen)
    if app.running_status == "Stopped":
        return _stopped(seen)
    return await (_failed(seen) if given_up else _running(seen))


async def _see(site: Site, app: ContainerApp) -> Look:
    now = datetime.now(UTC)
    name, made = str(app.name), created_at(app, now)

    async def spent() -> float | None:
        return await or_note(lambda: replicas.usd_so_far(site, app, made, now), None)

    asked: Sequence[Callable[[], Awaitable[Any]]] = (
        lambda: replicas.read_revisions(site, name),
        spent,
    )
    held, usd = await side_by_side(asked)
    return Look(site, app, held, usd, now)


def _stopped(seen: Look) -> Deployment:
    """Stopped is what no revision holds a replica of."""
    for one in seen.revisions:
        seen.site.answered.discard(one.name)
    since = changed_at(seen)
    if not replicas.count_replicas(seen.revisions):
        return deployment_record(seen, State.STOPPED, since)
    return deployment_record(seen, State.STOPPING, since, phase=Phase(name=_ENDING, since=since))


async def _running(seen: Look) -> Deployment:
    newest = seen.newest
    if newest is None:
        return _queued(seen)
    if newest.ready:
        return await _serving(seen, newest)
    return await (_booting if newest.number else _empty)(seen, newest)


async def _empty(seen: Look, newest: RevisionReplicas) -> Deployment:
    """Nothing runs of the newest revision: it sleeps, has failed, or waits for a replica."""
    seen.site.answered.discard(newest.name)
    if newest.broken:
        return await _failed(seen)
    if not newest.active and replicas.word(seen.app.provisioning_state) != "InProgress":
        return _switched_off(seen, newest)
    if seen.was_ready:
        return _queued(seen) if newest.min_replicas else _asleep(seen, newest)
    heard = await read_boot(seen.site, seen.app, newest)
    return await _failed(seen, heard) if cut_off(newest, heard.events) else _queued(seen)


def _switched_off(seen: Look, newest: RevisionReplicas) -> Deployment:
    """Say that nothing ever starts: neither a request nor Azure itself activates a revision."""
    failure = Failure(
        code="REVISION_INACTIVE",
        cause=f"The newest revision {newest.name} was deactivated, so that no request starts it.",
        fix="Call start_vllm, which activates it and lets it boot; or destroy_vllm.",
    )
    return deployment_record(seen, State.FAILED, changed_at(seen), failure=failure)


def _queued(seen: Look) -> Deployment:
    since = (seen.newest.created if seen.newest else None) or changed_at(seen)
    phase = Phase(name=QUEUED, since=since)
    return deployment_record(seen, State.CREATING, since, phase=phase)


def _asleep(seen: Look, newest: RevisionReplicas) -> Deployment:
    others = replicas.count_replicas(seen.revisions)
    if not others:
        return deployment_record(seen, State.ASLEEP, changed_at(seen))
    failure = Failure(
        code="FORMER_REVISION_RUNS",
        cause=f"Nothing runs of {newest.name}, but {others} replica(s) of former revisions do.",
        fix="Call stop_vllm and then start_vllm, which ends them.",
    )
    return deployment_record(seen, State.UNKNOWN, changed_at(seen), failure=failure)


async def _serving(seen: Look, newest: RevisionReplicas) -> Deployment:
    since = newest.newest.created if newest.newest and newest.newest.created else changed_at(seen)
    if newest.broken:
        what = f"{newest.state} {newest.details} {newest.error}".strip()
        note(f"Azure calls {newest.name} {what}, though a replica of it is ready.")
    silence = await probe_model(seen.site, seen.app, newest.name)
    if silence is None:
        return deployment_record(seen, State.READY, since, until=_awake_until(seen))
    if not access.is_external(seen.app):
        note(
            f"{seen.name} answers only inside its environment's network: Azure's own probe of the"
            " engine passes, and nobody here can ask the model."
        )
        return deployment_record(seen, State.READY, since)
    phase = Phase(name=WARMING, since=since)
    return deployment_record(seen, State.LOADING, since, phase=phase, failure=silence)


async def _booting(seen: Look, newest: RevisionReplicas) -> Deployment:
    replica, heard = newest.newest, await read_boot(seen.site, seen.app, newest)
    begun = (replica.created if replica else None) or newest.created or changed_at(seen)
    if not may_become_ready(newest):
        return await _failed(seen, heard)
    if newest.broken:
        note(f"Azure calls {newest.name} {newest.state}, though its replica still boots.")
    if heard.lines:
        return deployment_record(seen, State.LOADING, begun, phase=phase_of(heard.lines))
    step = step_of(replica, heard.events, begun)
    hourly = replicas.usd_per_hour(seen.site, seen.app)
    if missing := over_quota(heard.events) or host_missing(step, seen.now, hourly):
        return deployment_record(seen, State.FAILED, step.since, failure=missing)
    waited = seen.now - step.since
    if step.name == ASSIGNING and waited > _WORTH_SAYING:
        note(f"It has waited for a GPU host for {age_and_cost(waited, hourly)}.")
    return deployment_record(seen, State.CREATING, begun, phase=step)


async def _failed(seen: Look, heard: BootWords | None = None) -> Deployment:
    newest, said = seen.newest, []
    lines: Sequence[str] = ()
    if newest is not None:
        heard = heard or await read_boot(seen.site, seen.app, newest)
        written = await last_words(seen.site, seen.app, newest, heard, seen.now)
        lines = [line.text for line in written]
        words = (newest.error, *(one.details for one in newest.replicas), newest.details)
        said = [Reason(each) for each in words if each]
    kept = await operations.failure_of(seen.site, seen.name)
    if kept:
        said.append(Reason(kept.cause))
    why = read_failure(said, heard.events if heard else (), lines)
    if kept and why.code == DEFAULT and kept.code != "CLOUD_REFUSED":
        why = kept
    if newest is not None and newest.number:
        note(f"Azure starts a replica of {newest.name} again and again, each of which bills.")
    return deployment_record(seen, State.FAILED, changed_at(seen), failure=why)


def _name_the_others(seen: Look) -> None:
    """Every revision that holds replicas bills, whichever of them serves."""
    hourly = replicas.usd_per_hour(seen.site, seen.app)
    for one in seen.revisions:
        if one is seen.newest or not one.number:
            continue
        cost = "" if hourly is None else f", at ${one.number * hourly:.2f} an hour"
        serves = one.name == seen.app.latest_ready_revision_name
        what = "still serves and holds" if serves else "holds"
        note(f"The former revision {one.name} {what} {one.number} replica(s){cost}.")


def _awake_until(seen: Look) -> datetime | None:
    """Say until when our own question keeps its replica; looking again asks no more."""
    scale = seen.app.template.scale if seen.app.template else None
    asked = seen.site.woken.get(seen.name)
    if not asked or (scale and scale.min_replicas):
        return None
    end = asked + timedelta(seconds=_cooldown(seen.app))
    return end.replace(microsecond=0) if seen.now < end else None


async def engine_facts(site: Site, name: str) -> EngineFacts:
    """Return what the log of the serving revision's first boot tells.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    app = await get_app(site, name)
    ready = app.latest_ready_revision_name
    serving = [one for one in await replicas.read_revisions(site, name) if one.name == ready]
    if not serving:
        return EngineFacts()
    return facts_of(boot_of(await first_words(site, app, serving[0])))


async def hardware(site: Site, name: str) -> Hardware:
    """Return what a replica of an app has.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    app = await get_app(site, name)
    return hardware_of(place_of(site.target), replicas.size_of(app))


def hardware_known(site: Site) -> tuple[Accelerator, int]:
    """Return the accelerator of one replica."""
    place = place_of(site.target)
    return accelerator(place.accelerator), place.count


async def predicted(site: Site, name: str) -> Prediction | None:
    """Return what was to be expected of a deployment's memory, None where too little is known.

    Raises:
        DeploymentNotFound: There is no such app.
        InvalidArgument: The model cannot be read.
    """
    app = await get_app(site, name)
    version = version_of(site, app)
    return await predict(resources.spec_from_tags(app.tags), hardware_known(site)[0], version)


async def boot_budget(site: Site, name: str, model: ModelShape) -> BootBudget:
    """Read the startup probe and the cooldown of the app.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    app = await get_app(site, name)
    spec = spec_as_running(app)
    weights = weights_of(spec, model, place_of(site.target)) if spec else None
    seconds, probe = _probe(app)
    return BootBudget(
        seconds=seconds,
        probe=probe,
        longest_seconds=rules().startup_probe.most_seconds,
        weights_from=weights.boot_source if weights else "hub",
        fetches_first=weights.kept if weights else False,
        idle_seconds=_cooldown(app),
        stays_seconds=_cooldown(app),
        notes=("The ingress ends every request after 240 s: what wakes it must ask again.",),
    )


_DEFAULT_BOOT_SECONDS: Final = 240
_DEFAULT_COOLDOWN_SECONDS: Final = 300
"""Azure's own, where an app says none."""


def _probe(app: ContainerApp) -> tuple[int, str]:
    """Return how long its startup probe lets a boot take, and what it is."""
    containers = (app.template.containers if app.template else None) or []
    for probe in [probe for one in containers for probe in one.probes or []]:
        if probe.type == "Startup":
            period, failures = probe.period_seconds or 10, probe.failure_threshold or 1
            path = probe.http_get.path if probe.http_get else "TCP"
            seconds = (probe.initial_delay_seconds or 0) + period * failures
            return seconds, f"{failures} failures of {path}, {period} s apart"
    return _DEFAULT_BOOT_SECONDS, "Azure's own: a TCP probe"


def _cooldown(app: ContainerApp) -> int:
    scale = app.template.scale if app.template else None
    return (scale.cooldown_period if scale else None) or _DEFAULT_COOLDOWN_SECONDS


LONGEST_REQUEST_SECONDS: Final = 225.0
"""The ingress ends every request at 240 s; source: Container Apps, about ingress (2026-11-20)."""
_PAUSE_SECONDS: Final = 2.0
_HOST_SECONDS: Final = 900.0
"""For a GPU host and the image, before the startup probe begins to count."""


async def wake(site: Site, name: str) -> None:
    """Ask for the list of models, again and again until it comes.

    Raises:
        EndpointError: It did not come, and will not; what was waited for is named.
        DeploymentNotFound: There is no such app.
    """
    app = await get_app(site, name)
    opened, budget = await access.access_of(site, app), budget_seconds(app)
    deadline = anyio.current_time() + budget
    while True:
        left = deadline - anyio.current_time()
        try:
            await ask_models(
                opened, timeout=max(_PAUSE_SECONDS, min(left, LONGEST_REQUEST_SECONDS))
            )
            break
        except EndpointError as exc:
            if not exc.retryable:
                raise
            await _still_booting(site, name, exc, over=left <= 0)
        await anyio.sleep(_PAUSE_SECONDS)
    if app.latest_ready_revision_name:
        site.answered.add(app.latest_ready_revision_name)
    site.woken[name] = datetime.now(UTC)


def budget_seconds(app: ContainerApp) -> float:
    """Return how long a replica may take to answer, as its own startup probe says."""
    return _HOST_SECONDS + _probe(app)[0]


async def _still_booting(site: Site, name: str, why: EndpointError, *, over: bool) -> None:
    """Go on only while it boots.

    Raises:
        NotReady: It has failed, was stopped, or its time is over.
    """
    now = await describe(site, name)
    if over or now.state in {State.FAILED, State.STOPPED, State.STOPPING, State.DELETING}:
        raise _not_awake(now) from why


def _not_awake(now: Deployment) -> NotReady:
    here = {"target": now.target, "name": now.name}
    return NotReady(
        f"{now.name} was asked and did not wake: {now.summary()}",
        fix=now.failure.fix if now.failure else "Call get_logs for what it does meanwhile.",
        next_steps=(NextStep("get_logs", here), NextStep("status_vllm", {**here, "wait_s": 30})),
    )


_AT_ONCE: Final = 8


async def describe(site: Site, name: str) -> Deployment:
    """Say what a deployment does now; never wakes it.

    Raises:
        DeploymentNotFound: There is no such app, or it is another target's.
        NotOurs: An app of that name was not made here.
    """
    app = await find_app(site, name)
    waiting = site.pending.get(name)
    if waiting and (app is None or is_this_targets(site, app)):
        return status_while_waiting(site, waiting, app)
    return await read_status(site, own_app(site, name, app))


async def list_deployments(site: Site) -> Sequence[Deployment]:
    """Say it of every app with this target's tag, and of what waits for one, by name.

    Raises:
        NotAuthenticated: Nobody is logged in.
    """
    waiting = {one.spec.name: one for one in site.pending.all()}
    apps = {str(app.name): app for app in await list_apps(site)}
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def look(name: str) -> Deployment:
        if name in waiting:
            return status_while_waiting(site, waiting[name], apps.get(name))
        async with limiter:
            return await _read_status_or_note(site, apps[name])

    names = sorted({*waiting, *apps})
    return await side_by_side([lambda name=name: look(name) for name in names])  # type: ignore[misc]


async def _read_status_or_note(site: Site, app: ContainerApp) -> Deployment:
    """One that cannot be looked at must not hide the others."""
    try:
        return await read_status(site, app)
    except NotAuthenticated:
        raise
    except CloudError as exc:
        note(f"{app.name}: {exc.summary} {exc.cause}".strip())
        return status_unknown(site, app, exc)
