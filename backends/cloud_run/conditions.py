"""Cloud Run's conditions, read into how far a service is and why it went no further."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from backends.google.moments import when
from core.record import Record
from core.records import Failure
from logs.catalogue import meaning as wording_for
from logs.verdict import evidence, recognize

if TYPE_CHECKING:
    from google.cloud.run_v2 import Condition, Revision, Service

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

_UNREADABLE: Final = re.compile(r"Permission denied on secret")
_TRY_AGAIN_SECONDS: Final = (10.0, 60.0)
"""From the creation of a revision whose account may not read a secret to that of the next one."""
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
    from google.cloud.run_v2 import Condition

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

    Cloud Run looks at secrets once, when it makes a revision.
    """
    if revision is None or progress(service) != "failed":
        return None
    rows = (service.terminal_condition, *_failed(service, revision))
    if not any(_UNREADABLE.search(row.message) for row in rows):
        return None
    age, tried = (now - when(revision.create_time)).total_seconds(), tries(revision)
    if tried >= len(_TRY_AGAIN_SECONDS) or age > _SPREAD_SECONDS:
        return None
    return _TRY_AGAIN_SECONDS[tried] - age


def step_of(revision: "Revision | None") -> str:
    """Name what a revision that is not ready is waiting for."""
    from google.cloud.run_v2 import Condition

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
    from google.cloud.run_v2 import Condition

    done = Condition.State.CONDITION_SUCCEEDED
    rows = [row for row in (revision.conditions if revision else ()) if row.type_ == "Ready"]
    stamps = [row.last_transition_time for row in rows if row.state == done]
    stamps += [service.terminal_condition.last_transition_time, service.update_time]
    return when(next(stamp for stamp in (*stamps, service.create_time) if stamp))


def failure(service: "Service", revision: "Revision | None", log_lines: Sequence[str]) -> Failure:
    """Say why it failed: the engine's own reason first, then Google's most telling one."""
    condition, told = _most_telling([service.terminal_condition, *_failed(service, revision)])
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


def _failed(service: "Service", revision: "Revision | None") -> Iterable["Condition"]:
    from google.cloud.run_v2 import Condition

    rows = [*service.conditions, *(revision.conditions if revision else ())]
    return (each for each in rows if each.state == Condition.State.CONDITION_FAILED)


def _most_telling(conditions: Sequence["Condition"]) -> tuple["Condition", Meaning]:
    read = [(each, meaning_of(each)) for each in conditions]
    return next((pair for pair in read if pair[1].code not in _VAGUE), read[0])
