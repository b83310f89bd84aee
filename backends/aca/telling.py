"""One app, its revisions, their replicas, events and logs, told as one deployment."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from backends.aca import (
    access,
    answering,
    boots,
    conditions,
    late,
    looks,
    operations,
    replicas,
    spending,
)
from backends.aca.looks import Look
from backends.aca.replicas import Held
from backends.aca.site import Site
from backends.aca.stands import PHASES
from backends.common.concurrency import or_note, side_by_side
from core.records import Deployment, Failure, Phase, State
from core.reply import note
from logs.boot import WARMING, phase_of

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

WAITS_IN: Final = PHASES
"""A deployment in one of these has no app yet: what it stands on is still being made."""
_GIVEN_UP: Final = frozenset({"Failed", "Canceled"})
_ENDING: Final = "waiting for its replicas to end"
_DEFAULT_COOLDOWN_SECONDS: Final = 300
"""Azure's own where an app says none."""
_WORTH_SAYING: Final = timedelta(minutes=1)


async def tell(site: Site, app: "ContainerApp") -> Deployment:
    """Say what a deployment does now.

    What only adds to the picture and is not told by Azure is left out with a note.

    Raises:
        CloudError: Its revisions or replicas cannot be read.
    """
    seen = await _see(site, app)
    _name_the_others(seen)
    state = replicas.word(app.provisioning_state)
    if state == "Deleting":
        return looks.deployment(seen, State.DELETING, looks.changed(seen))
    given_up = state in _GIVEN_UP and not await late.only_late(site, app, seen.newest)
    if state in _GIVEN_UP and not given_up:
        note(f"Azure calls the last change of {app.name} {state}; it goes on all the same.")
    if given_up and not app.latest_ready_revision_name:
        return await _failed(seen)
    if app.running_status == "Stopped":
        return _stopped(seen)
    return await (_failed(seen) if given_up else _running(seen))


async def _see(site: Site, app: "ContainerApp") -> Look:
    now = datetime.now(UTC)
    name, made = str(app.name), looks.created(app, now)

    async def spent() -> float | None:
        return await or_note(lambda: spending.usd_so_far(site, app, made, now), None)

    asked: Sequence[Callable[[], Awaitable[Any]]] = (lambda: replicas.held(site, name), spent)
    held, usd = await side_by_side(asked)
    return Look(site, app, held, usd, now)


def _stopped(seen: Look) -> Deployment:
    """Stopped is what no revision holds a replica of."""
    for one in seen.revisions:
        seen.site.answered.discard(one.name)
    since = looks.changed(seen)
    if not replicas.total(seen.revisions):
        return looks.deployment(seen, State.STOPPED, since)
    return looks.deployment(seen, State.STOPPING, since, phase=Phase(name=_ENDING, since=since))


async def _running(seen: Look) -> Deployment:
    newest = seen.newest
    if newest is None:
        return _queued(seen)
    if newest.ready:
        return await _serving(seen, newest)
    return await (_booting if newest.number else _empty)(seen, newest)


async def _empty(seen: Look, newest: Held) -> Deployment:
    """Nothing runs of the newest revision: it sleeps, has failed, or waits for a replica."""
    seen.site.answered.discard(newest.name)
    if newest.broken:
        return await _failed(seen)
    if not newest.active and replicas.word(seen.app.provisioning_state) != "InProgress":
        return _switched_off(seen, newest)
    if seen.was_ready:
        return _queued(seen) if newest.min_replicas else _asleep(seen, newest)
    heard = await boots.hear(seen.site, seen.app, newest)
    return await _failed(seen, heard) if conditions.cut_off(newest, heard.events) else _queued(seen)


def _switched_off(seen: Look, newest: Held) -> Deployment:
    """Say that nothing ever starts: neither a request nor Azure itself activates a revision."""
    failure = Failure(
        code="REVISION_INACTIVE",
        cause=f"The newest revision {newest.name} was deactivated, so that no request starts it.",
        fix="Call start_vllm, which activates it and lets it boot; or destroy_vllm.",
    )
    return looks.deployment(seen, State.FAILED, looks.changed(seen), failure=failure)


def _queued(seen: Look) -> Deployment:
    since = (seen.newest.created if seen.newest else None) or looks.changed(seen)
    phase = Phase(name=conditions.QUEUED, since=since)
    return looks.deployment(seen, State.CREATING, since, phase=phase)


def _asleep(seen: Look, newest: Held) -> Deployment:
    others = replicas.total(seen.revisions)
    if not others:
        return looks.deployment(seen, State.ASLEEP, looks.changed(seen))
    failure = Failure(
        code="FORMER_REVISION_RUNS",
        cause=f"Nothing runs of {newest.name}, but {others} replica(s) of former revisions do.",
        fix="Call stop_vllm and then start_vllm, which ends them.",
    )
    return looks.deployment(seen, State.UNKNOWN, looks.changed(seen), failure=failure)


async def _serving(seen: Look, newest: Held) -> Deployment:
    since = (
        newest.newest.created if newest.newest and newest.newest.created else looks.changed(seen)
    )
    if newest.broken:
        what = f"{newest.state} {newest.details} {newest.error}".strip()
        note(f"Azure calls {newest.name} {what}, though a replica of it is ready.")
    silence = await answering.unanswered(seen.site, seen.app, newest.name)
    if silence is None:
        return looks.deployment(seen, State.READY, since, until=_awake_until(seen))
    if not access.is_external(seen.app):
        note(
            f"{seen.name} answers only inside its environment's network: Azure's own probe of the"
            " engine passes, and nobody here can ask the model."
        )
        return looks.deployment(seen, State.READY, since)
    phase = Phase(name=WARMING, since=since)
    return looks.deployment(seen, State.LOADING, since, phase=phase, failure=silence)


async def _booting(seen: Look, newest: Held) -> Deployment:
    replica, heard = newest.newest, await boots.hear(seen.site, seen.app, newest)
    begun = (replica.created if replica else None) or newest.created or looks.changed(seen)
    if not late.goes_on(newest):
        return await _failed(seen, heard)
    if newest.broken:
        note(f"Azure calls {newest.name} {newest.state}, though its replica still boots.")
    if heard.lines:
        return looks.deployment(seen, State.LOADING, begun, phase=phase_of(heard.lines))
    step = conditions.step_of(replica, heard.events, begun)
    hourly = spending.usd_per_hour(seen.site, seen.app)
    missing = conditions.over_quota(heard.events)
    if missing := missing or conditions.host_missing(step, seen.now, hourly):
        return looks.deployment(seen, State.FAILED, step.since, failure=missing)
    waited = seen.now - step.since
    if step.name == conditions.ASSIGNING and waited > _WORTH_SAYING:
        note(f"It has waited for a GPU host for {conditions.age_and_cost(waited, hourly)}.")
    return looks.deployment(
        seen, State.CREATING, begun, phase=Phase(name=step.name, since=step.since)
    )


async def _failed(seen: Look, heard: boots.Heard | None = None) -> Deployment:
    newest, said = seen.newest, []
    lines: Sequence[str] = ()
    if newest is not None:
        heard = heard or await boots.hear(seen.site, seen.app, newest)
        written = await boots.last_words(seen.site, seen.app, newest, heard, seen.now)
        lines = [line.text for line in written]
        words = (newest.error, *(one.details for one in newest.replicas), newest.details)
        said = [conditions.Said(each) for each in words if each]
    kept = await operations.failure_of(seen.site, seen.name)
    if kept:
        said.append(conditions.Said(kept.cause))
    why = conditions.failure(said, heard.events if heard else (), lines)
    if kept and why.code == conditions.DEFAULT and kept.code != "CLOUD_REFUSED":
        why = kept
    if newest is not None and newest.number:
        note(f"Azure starts a replica of {newest.name} again and again, each of which bills.")
    return looks.deployment(seen, State.FAILED, looks.changed(seen), failure=why)


def _name_the_others(seen: Look) -> None:
    """Every revision that holds replicas bills, whichever of them serves."""
    hourly = spending.usd_per_hour(seen.site, seen.app)
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
    cooldown = (scale.cooldown_period if scale else None) or _DEFAULT_COOLDOWN_SECONDS
    end = asked + timedelta(seconds=cooldown)
    return end.replace(microsecond=0) if seen.now < end else None
