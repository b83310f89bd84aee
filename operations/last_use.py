"""When a deployment was last used, from what this server asked and from counters it looked at.

An engine counts requests and keeps no times, and a look at it would wake a platform that sleeps:
so each look that is made anyway is remembered, and two of them tell whether it was used between.
"""

from datetime import datetime
from typing import Any, Final

from pydantic import AwareDatetime

from core.journal import readable, utc_now
from core.metrics import EngineMetrics
from core.records import Deployment, Record, State, moment
from operations.runtime import Runtime

_KIND: Final = "use"


class Look(Record):
    """What is known of a deployment's use."""

    target: str
    name: str
    at: AwareDatetime
    """Of the newest look at its counters."""
    started_at: AwareDatetime | None = None
    """Of the engine that counted."""
    requests: int | None = None
    ours: int = 0
    """Requests that this server has sent since that look."""
    used_after: AwareDatetime | None = None
    used_by: AwareDatetime | None = None
    """It was last used between the two; equal where it was asked through this server."""

    def words(self) -> str:
        """Say when it was last used."""
        if self.used_by is None or self.used_after is None:
            since = self.started_at or self.at
            return f"not used since {moment(since)}"
        if self.used_after == self.used_by:
            return f"last used {moment(self.used_by)}"
        return f"last used between {moment(self.used_after)} and {moment(self.used_by)}"


def last_use(runtime: Runtime, deployment: Deployment) -> str | None:
    """Say when a deployment was last used; None where nothing of it can run."""
    if deployment.state not in {State.READY, State.ASLEEP}:
        return None
    known = _known(runtime, deployment)
    return known.words() if known else "last use not known"


def asked(runtime: Runtime, deployment: Deployment, *, by_user: bool = True) -> None:
    """Remember that it answered a question, of this server's user or of a check."""
    now = utc_now()
    before = _known(runtime, deployment) or _first(deployment, now)
    used = {"used_after": now, "used_by": now} if by_user else {}
    _keep(runtime, before.model_copy(update={"ours": before.ours + 1, **used}))


def counted(runtime: Runtime, deployment: Deployment, seen: EngineMetrics) -> str:
    """Remember what its engine has counted; say when it was last used."""
    if seen.requests_finished is None:
        return last_use(runtime, deployment) or "last use not known"
    now, requests = utc_now(), sum(seen.requests_finished.values())
    before = _known(runtime, deployment) or _first(deployment, now)
    former, since = before.requests, before.at
    if former is None or before.started_at != seen.started_at:  # one question made it `ready`
        former, since = 1, seen.started_at or deployment.created_at
    used: dict[str, Any] = {}
    if requests - former > before.ours:
        used = {"used_after": max(since, before.used_by or since), "used_by": now}
    new = {"at": now, "started_at": seen.started_at, "requests": requests, "ours": 0, **used}
    look = before.model_copy(update=new)
    _keep(runtime, look)
    return look.words()


def _first(deployment: Deployment, now: datetime) -> Look:
    return Look(target=deployment.target, name=deployment.name, at=now)


def _known(runtime: Runtime, deployment: Deployment) -> Look | None:
    """Return the last look, None before the first; that of a former deployment is none."""
    kept = readable(runtime.stage.journal.pairs(_KIND), Look)
    here = (deployment.target, deployment.name)
    found = next((one for one in kept if (one.target, one.name) == here), None)
    return found if found and found.at >= deployment.created_at else None


def _keep(runtime: Runtime, look: Look) -> None:
    key = f"{look.target}/{look.name}"
    runtime.stage.journal.keep_pair(_KIND, key, look.model_dump_json())
