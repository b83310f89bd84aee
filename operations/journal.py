"""The journal of changes, for whoever asks who did what, and when."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from core.errors import NextStep
from core.journal import STARTED, Operation, Outcome, utc_now
from core.records import Answer, Record
from operations.resolve import require_name
from operations.runtime import Runtime

MOST: Final = 200
"""Calls of one answer."""
_READ: Final = 5_000
"""Calls that are looked through: years of one person's work."""
_MOST_SAID: Final = 300
_OPEN: Final = frozenset({"asked", "CONFIRMATION_REQUIRED", "CONFIRMATION_STALE"})
"""Nothing was done, and nothing failed: a yes was wanted."""
_NOT_ENDED: Final = "not ended: its server died, or it still runs"


class Change(Record):
    """One call that may have changed something."""

    at: datetime
    """UTC."""
    client: str
    """As it names itself."""
    tool: str
    about: str
    """TARGET/NAME, or as much of it as is known."""
    arguments: str
    """As they were sent, without secrets."""
    result: str
    """ok, an error's code, broken off, or that it has not ended."""
    seconds: float | None = None
    said: str = ""
    """What was answered."""


class Changes(Answer):
    """What was done here, newest last."""

    changes: tuple[Change, ...]
    left_out: int = 0
    """Older ones that fit as well."""

    def summary(self) -> str:
        if not self.changes:
            return "Nothing of the kind is in the journal."
        total, last = len(self.changes) + self.left_out, self.changes[-1]
        about = f" of {last.about}" if last.about else ""
        head = f"{last.tool}{about} by {last.client} at {last.at:%F %H:%M:%S} UTC: {last.result}."
        return head if total == 1 else f"{head} It is the last of {total} such calls."

    def facts(self) -> Mapping[str, Any]:
        shown = {"at", "tool", "about", "client", "result"}
        rows = [
            {**one.model_dump(include=shown), "at": f"{one.at:%F %H:%M:%S} UTC"}
            for one in self.changes
        ]
        return {"changes": rows, "left_out": self.left_out}

    def warnings(self) -> tuple[str, ...]:
        if any(one.result == _NOT_ENDED for one in self.changes):
            return ("A call that has not ended may have done all, some or nothing of its work.",)
        return ()

    def next_steps(self) -> tuple[NextStep, ...]:
        return (NextStep("list_deployments"),)


def outcome_of(arguments: Mapping[str, Any], told: Mapping[str, Any]) -> Outcome:
    """Say for the journal how a call ended, by its answer; a question to a human has none."""
    result = "ok" if told.get("ok") else str(told.get("code", "asked"))
    return Outcome(
        result=result,
        about=_about(arguments, told.get("data") or {}),
        said=str(told.get("summary", ""))[:_MOST_SAID],
    )


def list_changes(
    runtime: Runtime,
    *,
    target: str | None = None,
    name: str | None = None,
    tool: str | None = None,
    minutes: int | None = None,
    failures: bool = False,
    limit: int = 10,
) -> Changes:
    """Give the newest calls that fit, newest last; what only asked for a yes changed nothing.

    Raises:
        InvalidArgument: The name cannot be one.
        TargetNotFound: There is no such target, and the journal knows none either.
        HostError: The journal cannot be read.
    """
    require_name(name)
    since = utc_now() - timedelta(minutes=minutes) if minutes else None
    wanted = {word for word in (target, name) if word}
    found = []
    for one in runtime.stage.journal.operations(_READ, since=since):
        said = (one.arguments.get(key) for key in ("target", "name"))  # whatever was sent as such
        about = {*one.about.split("/"), *(word for word in said if isinstance(word, str))}
        unwanted = one.result in _OPEN or (failures and one.result == "ok")
        if wanted <= about and tool in {None, one.tool} and not unwanted:
            found.append(one)
    if target and not found:
        runtime.stage.backend(target)
    shown = found[-limit:]
    return Changes(changes=tuple(map(_change, shown)), left_out=len(found) - len(shown))


def _about(arguments: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    words = (data.get(key) or arguments.get(key) for key in ("target", "name"))
    return "/".join(str(word)[:60] for word in words if word)


def _change(one: Operation) -> Change:
    ended = one.ended_at
    words = (f"{k if k.isidentifier() else repr(k)}={v!r}" for k, v in one.arguments.items())
    sent = ", ".join(words)
    return Change(
        at=one.at,
        client=one.client,
        tool=one.tool,
        about=one.about or _about(one.arguments, {}),
        arguments=sent if len(sent) <= _MOST_SAID else f"{sent[:_MOST_SAID]} […]",
        result=_NOT_ENDED if one.result == STARTED else one.result,
        seconds=round((ended - one.at).total_seconds(), 1) if ended else None,
        said=one.said,
    )
