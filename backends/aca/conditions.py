"""Container Apps' states, events and words, read into how far an app is and why no further."""

import tomllib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from backends.aca.replicas import Held, Seen
from backends.aca.streams import Event
from core.record import Record
from core.records import Failure
from logs.boot import STARTING
from logs.catalogue import meaning as wording_for
from logs.verdict import evidence, recognize

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


class Step(NamedTuple):
    """What a replica waits for."""

    name: str
    since: datetime


class Said(NamedTuple):
    """Something that Azure says of a failure."""

    words: str
    reason: str = ""
    """Of an event."""
    code: str = ""
    """Azure's own."""


@cache
def catalogue() -> Catalogue:
    """Give what every reason and code means."""
    return Catalogue.model_validate(tomllib.loads(_FILE.read_text("utf-8")))


def step_of(replica: Seen | None, events: Sequence[Event], since: datetime) -> Step:
    """Say what a replica that does not run yet waits for, by the newest event that tells it.

    `since` is when it was asked for.
    """
    if replica is None:
        return Step(QUEUED, since)
    told = [
        (event.at, _STEPS[event.reason])
        for event in events
        if event.replica == replica.name and event.reason in _STEPS
    ]
    created = replica.created or since
    if not told:
        return Step(STARTING if replica.started else ASSIGNING, created)
    name = told[-1][1]
    begun = created if name == ASSIGNING else next(at for at, step in told if step == name)
    return Step(name, begun)


def host_missing(step: Step, now: datetime, usd_per_hour: float | None) -> Failure | None:
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
    meaning = meaning_of(Said(newest.text))
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


def cut_off(revision: Held | None, events: Sequence[Event]) -> bool:
    """Whether a revision was scaled to none before it was ever ready."""
    if revision is None or revision.number:
        return False
    return any(event.reason == _CUT_OFF for event in events_of(revision, events))


def events_of(revision: Held, events: Sequence[Event]) -> Sequence[Event]:
    """Give the events of one revision; KEDA names it in its text alone."""
    name = revision.name
    return [event for event in events if event.revision == name or name in event.text]


def failure(said: Sequence[Said], events: Sequence[Event], log_lines: Sequence[str]) -> Failure:
    """Say why a revision failed: the engine's own reason first, then Azure's most telling one.

    `said` is what Azure says beside the events, the most telling first; `events` are its own.
    """
    hostless = _never_had_a_host(events)
    if hostless:
        return hostless
    heard = [*said, *(Said(one.text, reason=one.reason) for one in reversed(events))]
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
    meanings = (meaning_of(Said(each)) for each in words)
    return any(meaning.code not in _VAGUE for meaning in meanings if meaning)


def is_late(words: Iterable[str]) -> bool:
    """Whether all that Azure says is that its own time is over."""
    meanings = [meaning for each in words if (meaning := meaning_of(Said(each)))]
    return bool(meanings) and all(meaning.code == _LATE for meaning in meanings)


def meaning_of(said: Said) -> Meaning | None:
    """Give what Azure's words mean: by their wording, else by reason or code; None is nothing."""
    if wording := wording_for("aca", said.words):
        return Meaning(code=wording.code, fix=wording.fix)
    return catalogue().reason.get(said.reason) or catalogue().code.get(said.code)


def _most_telling(heard: Sequence[Said]) -> tuple[Said, Meaning]:
    read = [(one, meaning) for one in heard if (meaning := meaning_of(one))]
    certain = next((pair for pair in read if pair[1].code not in _VAGUE), None)
    better = next((pair for pair in read if pair[1].code not in _RESULTS), None)
    result = next((pair for pair in read if pair[1].code != DEFAULT), None)
    first = next((one for one in heard if one.words), Said(""))
    vague = Meaning(code=DEFAULT, fix=catalogue().code["ContainerAppOperationError"].fix)
    return certain or better or result or (first, vague)


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
