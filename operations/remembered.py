"""What was deployed from here, as the journal has it: no cloud is asked."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from core.errors import NextStep, OpsError
from core.journal import Journal, Operation
from core.reply import note

NOT_LOOKED: Final = "as the journal has it, not looked at now"
_READ: Final = 200
"""Mutating calls, the newest."""
_STOPPED: Final = {
    "stop_vllm": True, "stop_azure_vm": True, "start_vllm": False, "start_azure_vm": False,
}  # fmt: skip
"""By what was done: whether it stands stopped from then on."""

_Key = tuple[str, str]


class Remembered(NamedTuple):
    """One deployment; the cloud may have ended it since."""

    target: str
    name: str
    model: str
    """Empty where the call did not name it."""
    stopped: bool = False

    @property
    def look(self) -> NextStep:
        """Say how to know."""
        named = {"name": self.name} if self.name else {}
        return NextStep("status_vllm", {"target": self.target, **named})

    def __str__(self) -> str:
        """Say no more than is known."""
        stopped = " and stopped since" if self.stopped else ""
        return f"{self.model} was deployed on {self.target}{stopped}"


def calls(journal: Journal) -> tuple[Operation, ...]:
    """Return the newest mutating calls; of a journal that cannot be read none, which is noted."""
    try:
        return journal.operations(_READ) if journal.exists else ()
    except OpsError as exc:
        note(exc.summary)
        return ()


def deployed(journal: Journal) -> tuple[Remembered, ...]:
    """Return what was deployed and not destroyed since, oldest first."""
    there: dict[_Key, Remembered] = {}
    for done in calls(journal):
        if done.result == "ok":
            there = _after(there, done)
    return tuple(there.values())


def remembered(journal: Journal) -> tuple[Remembered, ...]:
    """Return the same once for each target and model: the stopped last, the newest first."""
    newest_first = [one for one in reversed(deployed(journal)) if one.model]
    found: dict[_Key, Remembered] = {}
    for one in sorted(newest_first, key=lambda one: one.stopped):
        found.setdefault((one.target, one.model), one)
    return tuple(found.values())


def ended(journal: Journal, name: str) -> str:
    """Say who destroyed the last deployment of a name, and when; empty where nobody did."""
    done = [one for one in calls(journal) if one.result == "ok" and subject_of(one)[1] == name]
    if not done or done[-1].tool != "destroy_vllm":
        return ""
    last, target = done[-1], subject_of(done[-1])[0]
    return f"{last.client} destroyed it on {target} at {last.at:%F %H:%M} UTC."


def subject_of(done: Operation) -> tuple[str, str]:
    """Give target and name of what was changed, as they were said or else turned out to be."""
    target, slash, name = done.about.rpartition("/")
    meant = done.arguments.get("target") or target, done.arguments.get("name") or (slash and name)
    return str(meant[0]), str(meant[1])


def _after(there: Mapping[_Key, Remembered], done: Operation) -> dict[_Key, Remembered]:
    """Give what is there after a call."""
    key = subject_of(done)
    if done.tool == "deploy_vllm" and key[0]:
        others = {known: one for known, one in there.items() if known != key}
        return {**others, key: Remembered(*key, str(done.arguments.get("model") or ""))}
    if done.tool == "destroy_vllm":
        return {known: one for known, one in there.items() if not _is_meant(known, key)}
    if (stopped := _STOPPED.get(done.tool)) is None:
        return dict(there)
    return {
        known: one._replace(stopped=stopped) if _is_meant(known, key) else one
        for known, one in there.items()
    }


def _is_meant(known: _Key, said: _Key) -> bool:
    """Whether a call that may have left target or name out was about this."""
    return all(word in {"", was} for word, was in zip(said, known, strict=True))
