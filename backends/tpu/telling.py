"""A request, its VM and its log, told as one deployment."""

from datetime import datetime
from typing import Final

from backends.tpu import boots, endings
from backends.tpu.chip import Chip, ChipState
from backends.tpu.kept import Kept
from backends.tpu.looks import Look, deployment
from backends.tpu.phases import GOING, MAKING, STOPPING
from backends.tpu.phases import REMOVING as REMOVING  # noqa: PLC0414  said here too
from backends.tpu.phases import REPLACING as REPLACING  # noqa: PLC0414  said here too
from backends.tpu.phases import RETURNING as RETURNING  # noqa: PLC0414  said here too
from backends.tpu.phases import SEARCHING as SEARCHING  # noqa: PLC0414  said here too
from backends.tpu.phases import WAITS_IN as WAITS_IN  # noqa: PLC0414  said here too
from backends.tpu.search_words import told
from backends.tpu.site import Site
from core.cloud_errors import CloudError
from core.records import Deployment, Failure, Phase, State

_STATES: Final = {
    ChipState.PROVISIONING: (State.CREATING, MAKING),
    ChipState.STOPPING: (State.STOPPING, STOPPING),
    ChipState.STOPPED: (State.STOPPED, ""),
    ChipState.DELETING: (State.DELETING, GOING),
    ChipState.UNKNOWN: (State.UNKNOWN, ""),
}
"""What needs no second look, and what is waited for in it."""
_GIVEN: Final = frozenset({ChipState.PROVISIONING, ChipState.RUNNING})
"""A request with a chip; one that failed has none, and is given back next."""


async def tell(site: Site, kept: Kept | None, chip: Chip | None, *, now: datetime) -> Deployment:
    """Say what a deployment does now, of which at least one of the two is known.

    Raises:
        CloudError: Google cannot be asked what cannot be told without.
    """
    seen = Look(site, kept, chip, now)
    if kept and kept.removing:
        return _waits(seen, State.DELETING, REMOVING)
    if kept and kept.failure:
        return deployment(seen, State.FAILED, _since(seen), failure=kept.failure)
    if kept and kept.placed is None:
        return _searched(seen, kept)
    return await _by_its_chip(seen)


def not_seen(
    site: Site, kept: Kept | None, chip: Chip | None, why: CloudError, *, now: datetime
) -> Deployment:
    """Say of a deployment that there is one, and why nothing is known of it."""
    failure = Failure(code=why.code, cause=f"{why.summary} {why.cause}".strip(), fix=why.fix)
    return deployment(Look(site, kept, chip, now), State.UNKNOWN, now, failure=failure)


def _searched(seen: Look, kept: Kept) -> Deployment:
    """Say of one without a chip what it waits for; nothing of it bills, but what it replaces."""
    last = kept.attempts[-1] if kept.attempts else None
    if kept.replacing:
        return _waits(seen, State.QUEUED, REPLACING)
    if last and last.outcome and not last.returned:
        return _waits(seen, State.QUEUED, RETURNING)
    given = seen.chip is not None and seen.chip.state in _GIVEN
    return _waits(seen, State.CREATING if given else State.QUEUED, SEARCHING)


def _waits(seen: Look, state: State, phase: str) -> Deployment:
    """Say what a deployment waits for that goes on only where a call takes the next step."""
    detail = told(seen.kept, seen.now) if seen.kept else ""
    if seen.chip and seen.chip.said and not (seen.kept and seen.kept.removing):
        detail = f"{detail}; {seen.chip.said}".removeprefix("; ")
    since = _since(seen)
    return deployment(seen, state, since, phase=Phase(name=phase, since=since, detail=detail))


async def _by_its_chip(seen: Look) -> Deployment:
    chip = seen.chip
    if chip is None or chip.state.leftover:
        ended = await endings.over(seen)
        since = ended.at or seen.begun
        state = State.EXPIRED if ended.failure.code == State.EXPIRED.name else State.FAILED
        return deployment(seen, state, since, failure=ended.failure, ended=ended.at)
    if chip.state is ChipState.WAITING:
        return _waits(seen, State.QUEUED, SEARCHING)
    if chip.state is ChipState.RUNNING:
        return await boots.running(seen)
    state, name = _STATES[chip.state]
    phase = Phase(name=name, since=seen.begun, detail=chip.said) if name else None
    return deployment(seen, state, seen.begun, phase=phase)


def _since(seen: Look) -> datetime:
    """Give when the newest place was asked, or else the deployment wanted."""
    attempts = seen.kept.attempts if seen.kept else ()
    return attempts[-1].since if attempts else seen.created_at
