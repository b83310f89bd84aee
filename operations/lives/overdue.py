"""Deployments whose time is over: stopped while a server lives, or at its next start."""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio

from backends.base import Backend, Ends, Stops
from core.errors import DeploymentNotFound, OpsError
from core.journal import Expiry, Outcome, UnreadableExpiry, utc_now
from core.records import NAME_PATTERN, State
from core.reply import note
from operations.background import outcomes
from operations.stage import Stage

_LOOK_SECONDS: Final = 15.0
_ITSELF: Final = "this server, when its time was over"
_log: Final = logging.getLogger(__name__)

_NAMED: Final = 5
"""Deployments that one warning names."""

R = TypeVar("R", Expiry, UnreadableExpiry)
Tell = Callable[[str], None]
Heard = dict[Expiry | UnreadableExpiry, str]
"""What came of each row."""


async def watch(stage: Stage, tell: Tell) -> None:
    """Stop what is overdue, now and from then on; `tell` gets a sentence for each change.

    A journal that cannot be read is told once, and looked at again: it may be mended meanwhile.
    """
    heard: Heard = {}
    trouble = ""
    while True:
        try:
            await _look(stage, heard, tell)
            trouble = ""
        except OpsError as exc:
            if exc.summary != trouble:
                tell(_nothing_is_stopped(exc))
            trouble = exc.summary
        await anyio.sleep(_LOOK_SECONDS)


def note_what_is_not_known(stage: Stage) -> None:
    """Warn of what nobody here can stop in time, for the journal does not say when that is."""
    if not stage.journal.exists:
        return
    try:
        lost = stage.journal.unreadable_expiries()
    except OpsError as exc:
        note(_nothing_is_stopped(exc))
        return
    if lost:
        named = ", ".join(f"{one.name} on {one.target} ({one.at})" for one in lost[:_NAMED])
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        note(
            f"Unreadable in the journal when it ends, so overdue unknown: {named}{more}."
            " status_vllm reads it from the deployment itself."
        )


def _nothing_is_stopped(exc: OpsError) -> str:
    return f"Nothing is stopped when its time is over: {exc.summary} {exc.fix}"


async def _look(stage: Stage, heard: Heard, tell: Tell) -> None:
    if not stage.journal.exists:
        return
    journal = stage.journal
    lost = [one for one in journal.unreadable_expiries() if one not in heard]
    await _each(lost, lambda one: _read_anew(stage, one, heard, tell), tell)
    due = [one for one in journal.expiries() if one.at <= utc_now()]
    await _each(due, lambda one: _end(stage, one, heard, tell), tell)


async def _each(rows: Sequence[R], do: Callable[[R], Awaitable[None]], tell: Tell) -> None:
    """Do it for every row; what fails with one of them keeps none of the others."""
    for row, exc in zip(rows, await outcomes([do(row) for row in rows]), strict=True):
        if isinstance(exc, OpsError):
            raise exc
        if exc:
            _log.error("%s on %s failed", row.name, row.target, exc_info=exc)
            tell(
                f"{row.name} on {row.target} may be overdue and could not be stopped:"
                f" {type(exc).__name__}, a bug of this server."
            )


async def _read_anew(stage: Stage, lost: UnreadableExpiry, heard: Heard, tell: Tell) -> None:
    """Let the deployment itself say when it ends, where the journal's row cannot be read."""
    where = f"{lost.name} on {lost.target}"
    if lost.target not in stage.targets or not re.fullmatch(NAME_PATTERN, lost.name):
        heard[lost] = "it is nothing that could be here."
        return
    try:
        now = await stage.backend(lost.target).describe(lost.name)
    except DeploymentNotFound:
        heard[lost] = "it is gone."
        return
    except OpsError as exc:
        _log.warning("Whether %s is overdue is not known: %s", where, exc.summary)
        return
    heard[lost] = f"it is {now.state}."
    if now.expires_at:
        stage.journal.keep_expiry(Expiry(target=now.target, name=now.name, at=now.expires_at))
        tell(
            f"When {where} ends was unreadable in the journal ({lost.at}), so overdue unknown: it"
            f" itself says {now.expires_at:%F %H:%M} UTC."
        )


async def _end(stage: Stage, expiry: Expiry, heard: Heard, tell: Tell) -> None:
    """End one; what is `heard` of it already is not told again while it goes on being deleted."""
    where = f"{expiry.name} on {expiry.target}"
    try:
        said, over = await _stop(stage, expiry)
    except DeploymentNotFound:
        said, over = "it is gone." if expiry in heard else "", True
    except OpsError as exc:
        _log.warning("%s is overdue and could not be stopped: %s", where, exc.summary)
        tell(f"{where} is overdue since {expiry.at:%F %H:%M} UTC and runs on: {exc.summary}")
        return
    if over:
        stage.journal.forget_expiry(expiry)
    if said and said != heard.get(expiry):
        _write_down(stage, expiry, said)
        tell(f"{where} expired at {expiry.at:%F %H:%M} UTC: {said}")
    heard[expiry] = said


def _write_down(stage: Stage, expiry: Expiry, said: str) -> None:
    """Let the journal say who did it, though nobody called."""
    tool = "destroy_vllm" if isinstance(stage.backend(expiry.target), Ends) else "stop_vllm"
    about = {"target": expiry.target, "name": expiry.name}
    try:
        number = stage.journal.begin(_ITSELF, tool, about)
        stage.journal.end(number, Outcome(result="ok", about="/".join(about.values()), said=said))
    except OpsError as exc:
        _log.warning("The end of %s is not in the journal: %s", expiry.name, exc.summary)


async def _stop(stage: Stage, expiry: Expiry) -> tuple[str, bool]:
    """Stop it if it is still meant; say what was seen then, and whether that is all."""
    backend = stage.backend(expiry.target)
    now = await backend.describe(expiry.name)
    over = now.expires_at is not None and now.expires_at <= utc_now()
    if isinstance(backend, Ends) and (over or now.state is State.DELETING):  # its rest as well
        return await backend.end(expiry.name), await _is_gone(backend, expiry.name)
    if not over or now.state.ended or not isinstance(backend, Stops):
        return "", True
    seen = await backend.stop(expiry.name)
    return f"it was stopped for that and is {seen.state} now.", True


async def _is_gone(backend: Backend, name: str) -> bool:
    try:
        await backend.describe(name)
    except DeploymentNotFound:
        return True
    return False
