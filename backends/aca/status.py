"""What a deployment does now: its app, revision, replicas and events, read as one record."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from azure.mgmt.appcontainers.models import ContainerApp

from backends.aca import app as apps
from backends.aca import lease, logs, replicas
from backends.aca.app import created_at, find_app, get_app, is_this_targets, own_app, spec_in
from backends.aca.container import place_of
from backends.aca.logs import Event
from backends.aca.replicas import ReplicaState, RevisionReplicas, count_replicas, word
from backends.aca.site import LEASING, PREPARING, Site
from backends.common.concurrency import or_note, side_by_side
from backends.common.engine import ask_models, usd_per_hour, why_silent
from backends.lifecycle import Pending, deployment_of, what_is_left
from core import errors
from core.records import Deployment, DeploymentSpec, Failure, Phase, State
from core.reply import note
from logs.boot import STARTING, WARMING, phase_of
from logs.failures import meaning as wording_for
from logs.read import Line
from logs.verdict import evidence, recognize

QUEUED: Final = "queued"
ASSIGNING: Final = "assigning a GPU host"
PULLING: Final = "pulling the image"
PATIENCE: Final = timedelta(minutes=10)
"""A GPU host that is free is assigned within minutes; later somebody has to decide."""
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
_WOKEN: Final = "KEDAScaleTargetActivated"
_TO_NONE: Final = "ScaledToZero"
_NOT_ACTIVATED: Final = "ActivationFailed"
"""Of a revision, also where it was scaled to none as it booted (a public deployment of 2026)."""
DEFAULT: Final = "ROLLOUT_FAILED"
_QUOTA: Final = "QUOTA_EXCEEDED"
_LATE: Final = "PROGRESS_DEADLINE"
_RESULTS: Final = frozenset({DEFAULT, "CRASH_LOOP", _LATE})
"""What comes of another failure, which says more."""
_VAGUE: Final = _RESULTS | {"ENGINE_EXITED", "STARTUP_PROBE_FAILED", "ACTIVATION_FAILED"}
"""Codes than which the engine's own words say more."""
GIVEN_UP: Final = frozenset({"Failed", "Canceled"})


_REASONS: Final = {
    _NO_HOST: (
        "GPU_HOST_NOT_ASSIGNED",
        (
            "Azure has no host with this GPU free there: call stop_vllm so that nothing waits, then"
            " try later, or AZURE_LOCATION with another region."
        ),
    ),
    _CUT_OFF: (
        "BOOT_CUT_OFF",
        (
            "It was scaled to none before it was ready, as its cooldown is shorter than its boot:"
            " call deploy_vllm again with min_replicas=1, which no cooldown ends."
        ),
    ),
}
"""Of the system log, those that are failures by themselves."""
_BOOT_ENDED: Final = frozenset(code for code, _fix in _REASONS.values())
_READ_IT: Final = (
    "Read the cause; it is Azure's own. Correct what it names and call deploy_vllm again."
)


def failure_in(words: str, reason: str = "") -> Failure | None:
    """Return the failure that Azure's words tell, else the `reason` of their event; None if none.

    >>> failure_in("Maximum Allowed Cores exceeded for the Managed Environment").code
    'QUOTA_EXCEEDED'
    """
    if wording := wording_for("aca", words):
        own = wording.next if wording.code == _QUOTA else ()  # the same again fails again
        return Failure(code=wording.code, cause=words, fix=wording.fix, next=own)
    if reason in _REASONS:
        code, fix = _REASONS[reason]
        return Failure(code=code, cause=words, fix=fix)
    return None


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
    failure = failure_in(newest.text)
    return failure if failure and failure.code == _QUOTA else None


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


def _no_host(what: str) -> Failure:
    code, fix = _REASONS[_NO_HOST]
    return Failure(code=code, cause=f"{what}.", fix=fix)


def read_failure(said: Sequence[str], events: Sequence[Event], log_lines: Sequence[str]) -> Failure:
    """Say why a revision failed: the engine's own reason first, then Azure's most telling one.

    `said` is what Azure says beside the events, the most telling first; `events` are its own.
    """
    reasons = {event.reason for event in events}
    later = reasons & (set(_STEPS) - {"AssigningReplica"})
    if {_CUT_OFF, "AssigningReplica"} <= reasons and not later:
        return _no_host("Its replica was given up while it waited for a GPU host")
    heard = [(words, "") for words in said]
    heard += [(one.text, one.reason) for one in reversed(events)]
    first = next((words for words, _ in heard if words), "Azure gives no reason.")
    unknown = Failure(code=DEFAULT, cause=first, fix=_READ_IT)
    read = (failure_in(words, reason) for words, reason in heard)

    def vagueness(failure: Failure) -> int:
        return sum(failure.code in codes for codes in (_VAGUE, _RESULTS, {DEFAULT}))

    why = min((*filter(None, read), unknown), key=vagueness)
    known = recognize(log_lines, "aca")
    if known and why.code in _VAGUE:
        return known
    return why.model_copy(update={"evidence": evidence(log_lines)})


def _codes(*words: str) -> list[str]:
    return [failure.code for each in words if (failure := failure_in(each))]


def may_become_ready(newest: RevisionReplicas) -> bool:
    replica = newest.newest
    if replica is None:
        return not newest.broken
    codes = _codes(newest.error, newest.details, replica.details)
    if replica.restarts or any(code not in _VAGUE for code in codes):
        return False
    return replica.started or not newest.broken or (bool(codes) and set(codes) == {_LATE})


async def is_only_late(site: Site, app: ContainerApp, newest: RevisionReplicas | None) -> bool:
    """Whether nothing is known against an app that Azure calls failed but that its boot took long.

    A creation is given up after some twenty minutes ("Operation expired"), and its replica boots
    on, is billed, and answers when it is ready. Source: hashicorp/terraform-provider-azurerm issue
    22432; public records of apps that ran all the same, 2026.
    """
    if newest is None:
        return False
    kept = await replicas.failure_of(site, str(app.name))
    if kept and _codes(kept.cause) != [_LATE]:
        return False
    was_ready = newest.name == app.latest_ready_revision_name
    return was_ready or newest.ready or (bool(newest.number) and may_become_ready(newest))


_LONGEST: Final = timedelta(hours=2)
"""A first boot is over by then: assignment, image and the longest startup that a probe allows."""


class BootWords(NamedTuple):
    """Of one revision, newest last; what could not be read is empty and noted."""

    events: Sequence[Event] = ()
    lines: Sequence[Line] = ()
    """Of its newest replica."""


async def read_boot(site: Site, app: ContainerApp, revision: RevisionReplicas) -> BootWords:
    """Listen to the newest replica of a revision, or to what is left of it."""
    replica = revision.newest
    lines, told = await logs.listen(site, app, [replica] if replica else [])
    name = revision.name  # KEDA names it in its text alone
    own = [event for event in told if event.revision == name or name in event.text]
    if replica and replica.created:
        begun = replica.created - timedelta(seconds=1)  # events have no fractions of it
        own = [event for event in own if event.at >= begun]
    return BootWords(own, lines)


async def kept_words(
    site: Site, app: ContainerApp, revision: RevisionReplicas, now: datetime, *, newest: bool = True
) -> Sequence[Line]:
    """Return what containers of a revision wrote, as far as it was kept; else nothing, noted."""
    begin = revision.created or now - _LONGEST
    end = now if newest else begin + _LONGEST
    wanted = logs.Wanted(begin, end, revision=revision.name, platform=False, newest=newest)
    return await or_note(partial(logs.query_console, site, app, wanted), ())


async def boot_words(
    site: Site, app: ContainerApp, revision: RevisionReplicas, *, newest: bool
) -> Sequence[Line]:
    """Return the lines of a revision's first boot, as kept; else what its newest replica shows."""
    now, first = datetime.now(UTC), revision.created and not newest
    kept = await kept_words(site, app, revision, now, newest=False) if first else ()
    if kept or revision.newest is None:
        return kept
    return await logs.stream_console(revision.newest, await logs.token_of(site, str(app.name)))


class Look(NamedTuple):
    """What was read of an app at one moment."""

    site: Site
    app: ContainerApp
    revisions: Sequence[RevisionReplicas]
    usd_so_far: float | None
    now: datetime
    keeper: lease.Keeper = lease.Keeper(None)

    @property
    def name(self) -> str:
        return str(self.app.name)

    @property
    def newest(self) -> RevisionReplicas | None:
        """The revision that was made last, as the app says; before that, as they are listed."""
        named = self.app.latest_revision_name
        found = next((one for one in self.revisions if one.name == named), None)
        return found or (self.revisions[-1] if self.revisions else None)

    @property
    def changed_at(self) -> datetime:
        data = self.app.system_data
        last = data.last_modified_at if data else None
        return last.astimezone(UTC) if last else created_at(self.app, self.now)

    @property
    def usd_per_hour(self) -> float | None:
        return replicas.usd_per_hour(self.site, self.app)

    def record(
        self,
        state: State,
        since: datetime | None = None,
        *,
        phase: str | Phase | None = None,
        failure: Failure | None = None,
        until: datetime | None = None,
    ) -> Deployment:
        app, newest, spec = self.app, self.newest, spec_in(self.app.tags)
        since = since or self.changed_at
        kept = spec is None or not spec.schedule or apps.scales(app, spec)
        return _record(
            self.site,
            spec,
            name=self.name,
            image=next(iter(apps.images_of(app)), None),
            state=state,
            since=since,
            phase=Phase(name=phase, since=since) if isinstance(phase, str) else phase,
            url=apps.url_of(self.site, app),
            revision=apps.fingerprint_in(app) or "none",
            instance=newest.newest.name if newest and newest.newest else None,
            replicas=count_replicas(self.revisions),
            min_replicas=spec.min_replicas if spec else None,
            max_replicas=spec.max_replicas if spec else None,
            awake_until=until,
            created_at=created_at(app, self.now),
            expires_at=apps.expires_in(app),
            lease=self.keeper.lease,
            lease_lacks=self.keeper.lacks,
            schedule=spec.schedule if spec else None,
            schedule_lacks="" if kept else "the scale rules of its app are others",
            usd_per_hour=self.usd_per_hour,
            usd_so_far=self.usd_so_far,
            failure=failure,
        )


def _record(
    site: Site, spec: DeploymentSpec | None, *, image: str | None, **said: Any
) -> Deployment:
    label = apps.label(site, image)
    return deployment_of(site.target, spec, engine=label, simulated=site.rehearsed, **said)


def status_while_waiting(site: Site, waiting: Pending, app: ContainerApp | None) -> Deployment:
    """Say of a deployment what it waits for before its app can be made, or made anew."""
    spec = waiting.spec
    made = apps.blueprint(site, spec, waiting.model)
    if app is not None:
        note(f"{spec.name} serves as it did before, until what the new one needs is there.")
    state = State.FAILED if waiting.failure else State.CREATING
    phase = Phase(name=waiting.phase or PREPARING, since=waiting.since)
    return _record(
        site,
        spec,
        name=spec.name,
        image=made.container.image,
        state=State.DELETING if waiting.deleting else state,
        since=waiting.since,
        phase=None if waiting.is_over else phase,
        revision=spec.fingerprint,
        created_at=waiting.since,
        usd_per_hour=usd_per_hour(site.target, place_of(site.target), made.size),
        failure=waiting.failure,
    )


async def read_status(site: Site, app: ContainerApp) -> Deployment:
    """Say what a deployment does now.

    What only adds to the picture and is not told by Azure is left out with a note.
    """
    now, name = datetime.now(UTC), str(app.name)
    spent = partial(replicas.usd_so_far, site, app, created_at(app, now), now)
    looks: list[Any] = [
        partial(replicas.read_revisions, site, name),
        partial(or_note, spent, None),
        partial(lease.keeper_of, site, app, spec_in(app.tags)),
    ]
    revisions, usd, keeper = await side_by_side(looks)
    seen, state = Look(site, app, revisions, usd, now, keeper), word(app.provisioning_state)
    _name_the_others(seen)
    newest = seen.newest
    stopped = app.running_status == "Stopped"
    if newest and (stopped or not newest.number):  # asked again once it has a replica
        site.answered.discard(newest.name)
    given_up = state in GIVEN_UP and not await is_only_late(site, app, newest)
    if state in GIVEN_UP and not given_up:
        note(f"Azure calls the last change of {name} {state}; it goes on all the same.")
    if state == "Deleting":
        return seen.record(State.DELETING)
    if given_up and not (stopped and app.latest_ready_revision_name):
        return await _failed(seen)
    if stopped and count_replicas(revisions):  # stopped is what no revision holds a replica of
        return seen.record(State.STOPPING, phase="waiting for its replicas to end")
    if stopped:
        return seen.record(State.STOPPED)
    if newest is None:
        return seen.record(State.CREATING, phase=QUEUED)
    if newest.ready:
        return await _serving(seen, newest)
    return await (_booting if newest.number else _empty)(seen, newest)


def _name_the_others(seen: Look) -> None:
    """Every revision that holds replicas bills, whichever of them serves."""
    for one in seen.revisions:
        if one is seen.newest or not one.number:
            continue
        hourly = seen.usd_per_hour
        cost = "" if hourly is None else f", at ${one.number * hourly:.2f} an hour"
        serves = one.name == seen.app.latest_ready_revision_name
        what = "still serves and holds" if serves else "holds"
        note(f"The former revision {one.name} {what} {one.number} replica(s){cost}.")


async def _empty(seen: Look, newest: RevisionReplicas) -> Deployment:
    """Nothing runs of the newest revision: it sleeps, has failed, or waits for a replica."""
    if newest.broken:
        return await _failed(seen)
    if not newest.active and word(seen.app.provisioning_state) != "InProgress":
        # Neither a request nor Azure itself activates a revision.
        failure = Failure(
            code="REVISION_INACTIVE",
            cause=f"The newest revision {newest.name} was deactivated: no request starts it.",
            fix="Call start_vllm, which activates it and lets it boot; or destroy_vllm.",
        )
        return seen.record(State.FAILED, failure=failure)
    was_ready = seen.app.latest_ready_revision_name == newest.name
    others = count_replicas(seen.revisions)
    if was_ready and not newest.min_replicas and not others:
        return seen.record(State.ASLEEP)
    if was_ready and not newest.min_replicas:
        failure = Failure(
            code="FORMER_REVISION_RUNS",
            cause=f"Nothing runs of {newest.name}, but {others} replica(s) of former revisions do.",
            fix="Call stop_vllm and then start_vllm, which ends them.",
        )
        return seen.record(State.UNKNOWN, failure=failure)
    if not was_ready:
        heard, scaling = await read_boot(seen.site, seen.app, newest), {_CUT_OFF, _WOKEN, *_STEPS}
        steps = [event.reason for event in heard.events if event.reason in scaling]
        if steps[-1:] == [_CUT_OFF]:
            return await _failed(seen, heard)
        if newest.state == _TO_NONE and _sleeps(seen):
            note(f"{seen.name} has never been ready: a question boots it, which may take long.")
            return seen.record(State.ASLEEP)
    return seen.record(State.CREATING, newest.created, phase=QUEUED)


def _sleeps(seen: Look) -> bool:
    """Whether nothing runs of an app, which a question starts, as Azure only scaled it to none."""
    newest, app = seen.newest, seen.app
    return (
        newest is not None
        and newest.active
        and not newest.min_replicas
        and not count_replicas(seen.revisions)
        and not newest.error
        and (newest.state == _NOT_ACTIVATED or not newest.broken)
        and word(app.provisioning_state) not in GIVEN_UP
        and app.latest_ready_revision_name in {None, "", newest.name}
    )


async def _serving(seen: Look, newest: RevisionReplicas) -> Deployment:
    since = newest.newest.created if newest.newest else None
    if newest.broken:
        what = f"{newest.state} {newest.details} {newest.error}".strip()
        note(f"Azure calls {newest.name} {what}, though a replica of it is ready.")
    silence = await probe_model(seen.site, seen.app, newest.name)
    if silence is None:
        return seen.record(State.READY, since, until=_awake_until(seen))
    if not apps.is_external(seen.app):
        note(
            f"{seen.name} answers only inside its environment's network: Azure's own probe of the"
            " engine passes, and nobody here can ask the model."
        )
        return seen.record(State.READY, since)
    return seen.record(State.LOADING, since, phase=WARMING, failure=silence)


async def probe_model(site: Site, app: ContainerApp, revision: str) -> Failure | None:
    """Ask the model, unless it has answered before; None once it has, else why it has not."""
    if revision in site.answered:
        return None
    failure = await why_silent(lambda: apps.access_of(site, app), "Its replica")
    if failure is None:
        site.answered.add(revision)
        site.woken[str(app.name)] = datetime.now(UTC)
        return None
    if failure.code != errors.AddressNotAllowed.code:
        return failure
    now = ", ".join(apps.allowed(app))
    try:
        then = ", ".join(await apps.callers(site))
    except errors.OpsError:
        return failure
    fix = f"Call deploy_vllm again, which lets in {then}."
    if then == now:
        fix = "Add this machine's address to AZURE_ALLOWED_ADDRESSES and call deploy_vllm again."
    return failure.model_copy(update={"cause": f"{failure.cause} Let in: {now}.", "fix": fix})


def _awake_until(seen: Look) -> datetime | None:
    """Say until when our own question keeps its replica; looking again asks no more."""
    asked = seen.site.woken.get(seen.name)
    if not asked or apps.scale_of(seen.app).min_replicas:
        return None
    end = asked + timedelta(seconds=cooldown_seconds(seen.app))
    return end.replace(microsecond=0) if seen.now < end else None


_WORTH_SAYING: Final = timedelta(minutes=1)


async def _booting(seen: Look, newest: RevisionReplicas) -> Deployment:
    replica, heard = newest.newest, await read_boot(seen.site, seen.app, newest)
    begun = (replica.created if replica else None) or newest.created or seen.changed_at
    if not may_become_ready(newest):
        return await _failed(seen, heard)
    if newest.broken:
        note(f"Azure calls {newest.name} {newest.state}, though its replica still boots.")
    if heard.lines:
        return seen.record(State.LOADING, begun, phase=phase_of(heard.lines))
    step = step_of(replica, heard.events, begun)
    if missing := over_quota(heard.events) or host_missing(step, seen.now, seen.usd_per_hour):
        return seen.record(State.FAILED, step.since, failure=missing)
    waited = seen.now - step.since
    if step.name == ASSIGNING and waited > _WORTH_SAYING:
        note(f"It has waited for a GPU host for {age_and_cost(waited, seen.usd_per_hour)}.")
    return seen.record(State.CREATING, begun, phase=step)


async def _failed(seen: Look, heard: BootWords | None = None) -> Deployment:
    newest, said = seen.newest, list[str]()
    lines: Sequence[Line] = ()
    if newest is not None:
        heard = heard or await read_boot(seen.site, seen.app, newest)
        lines = heard.lines or await kept_words(seen.site, seen.app, newest, seen.now)
        said = [newest.error, *(one.details for one in newest.replicas), newest.details]
    kept = await replicas.failure_of(seen.site, seen.name)
    said = [*filter(None, said), *((kept.cause,) if kept else ())]
    why = read_failure(said, heard.events if heard else (), [line.text for line in lines])
    if kept and why.code == DEFAULT and kept.code != "CLOUD_REFUSED":
        why = kept
    if newest is not None and newest.number and why.code != _QUOTA:  # which has no host, nor a bill
        note(f"Azure starts a replica of {newest.name} again and again, each of which bills.")
    if why.code in _BOOT_ENDED and _sleeps(seen):
        note(f"Nothing runs of {seen.name}; a question boots it anew, and may be in vain again.")
        return seen.record(State.ASLEEP, failure=why)
    return seen.record(State.FAILED, failure=why)


async def describe(site: Site, name: str) -> Deployment:
    """Say what a deployment does now; never wakes it.

    Raises:
        DeploymentNotFound: There is no such app, or it is another target's.
        NotOurs: An app of that name was not made here.
    """
    app = await find_app(site, name)
    try:
        return await _status_of(site, name, app, site.pending.get(name))
    except errors.DeploymentNotFound as exc:
        exc.fix += await what_is_left(lease.owned(site, name)[0]) if app is None else ""
        raise


async def _status_of(
    site: Site, name: str, app: ContainerApp | None, waiting: Pending | None
) -> Deployment:
    """Say it of an app, unless it is waited for, and not only for what ends it at its time."""
    ours = app is None or is_this_targets(site, app)
    if waiting and ours and (app is None or waiting.deleting or waiting.phase != LEASING):
        return status_while_waiting(site, waiting, app)
    app = own_app(site, name, app)
    try:
        return await read_status(site, app)
    except errors.PermissionDenied as exc:  # it bills all the same, and can be removed
        return _unseen(site, app, exc)


def _unseen(site: Site, app: ContainerApp, exc: errors.CloudError) -> Deployment:
    """Say of an app that is there why nobody can see what it does."""
    why = f"{exc.summary} {exc.cause}".strip()
    note(f"{app.name}: {why}")
    seen = Look(site, app, (), None, datetime.now(UTC))
    failure = Failure(code=exc.code, cause=why, fix=exc.fix)
    return seen.record(State.UNKNOWN, seen.now, failure=failure)


async def list_deployments(site: Site) -> Sequence[Deployment]:
    """Say it of every app with this target's tag, and of what waits for one, by name.

    Raises:
        NotAuthenticated: Nobody is logged in.
    """
    waiting = {one.spec.name: one for one in site.pending.all()}
    there = {str(app.name): app for app in await apps.list_apps(site)}
    limiter = anyio.CapacityLimiter(8)

    async def look(name: str) -> Deployment:
        try:
            async with limiter:
                return await _status_of(site, name, there.get(name), waiting.get(name))
        except errors.NotAuthenticated:
            raise
        except errors.CloudError as exc:  # one that cannot be looked at must not hide the others
            return _unseen(site, there[name], exc)

    return await side_by_side([partial(look, name) for name in sorted({*waiting, *there})])


def startup_probe_of(app: ContainerApp) -> tuple[int, str]:
    for probe in [probe for one in apps.containers_of(app) for probe in one.probes or []]:
        if probe.type == "Startup":
            period, failures = probe.period_seconds or 10, probe.failure_threshold or 1
            path = probe.http_get.path if probe.http_get else "TCP"
            seconds = (probe.initial_delay_seconds or 0) + period * failures
            return seconds, f"{failures} failures of {path}, {period} s apart"
    return 240, "Azure's own: a TCP probe"


def cooldown_seconds(app: ContainerApp) -> int:
    """Return how long a replica stays after its last request; 300 s where an app says nothing."""
    return apps.scale_of(app).cooldown_period or 300


LONGEST_REQUEST_SECONDS: Final = 225.0
"""The ingress ends every request at 240 s; source: Container Apps, about ingress (2026-11-20)."""
_PAUSE_SECONDS: Final = 2.0
_HOST_SECONDS: Final = 900.0
"""For a GPU host and the image, before the startup probe begins to count."""


def budget_seconds(app: ContainerApp) -> float:
    return _HOST_SECONDS + startup_probe_of(app)[0]


async def wake(site: Site, name: str) -> None:
    """Ask for the list of models, again and again until it comes.

    Raises:
        EndpointError: It did not come, and will not.
        NotReady: It has failed, was stopped, or scaled to none again, or its time is over.
        DeploymentNotFound: There is no such app.
    """
    app = await get_app(site, name)
    opened, deadline = await apps.access_of(site, app), anyio.current_time() + budget_seconds(app)
    booted = False
    while True:
        left = deadline - anyio.current_time()
        timeout = max(_PAUSE_SECONDS, min(left, LONGEST_REQUEST_SECONDS))
        try:
            await ask_models(opened, timeout=timeout)
            break
        except errors.EndpointError as exc:
            if not exc.retryable:
                raise
            now = await describe(site, name)
            over = {State.FAILED, State.STOPPED, State.STOPPING, State.DELETING}
            booted = booted or now.replicas > 0
            if left <= 0 or now.state in over or (booted and now.state is State.ASLEEP):
                raise _not_awake(now) from exc
        await anyio.sleep(_PAUSE_SECONDS)
    if app.latest_ready_revision_name:
        site.answered.add(app.latest_ready_revision_name)
    site.woken[name] = datetime.now(UTC)


def _not_awake(now: Deployment) -> errors.NotReady:
    here = {"target": now.target, "name": now.name}
    return errors.NotReady(
        f"{now.name} was asked and did not wake: {now.summary()}",
        fix=now.failure.fix if now.failure else "Call get_logs for what it does meanwhile.",
        next_steps=(
            errors.NextStep("get_logs", here),
            errors.NextStep("status_vllm", {**here, "wait_s": 30}),
        ),
    )
