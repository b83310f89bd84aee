"""Deployments whose time is over: stopped while a server lives, or at its next start."""

import logging
from collections.abc import Callable
from typing import Final

import anyio

from backends.base import Backend, Stops
from backends.cloud_abilities import Ends
from core.errors import DeploymentNotFound, OpsError
from core.journal import Expiry, Outcome, utc_now
from core.records import State
from operations.stage import Stage

_LOOK_SECONDS: Final = 15.0
_ITSELF: Final = "this server, when its time was over"
_log: Final = logging.getLogger(__name__)

Tell = Callable[[str], None]


async def watch(stage: Stage, tell: Tell) -> None:
    """Stop what is overdue, now and from then on; `tell` gets a sentence for each change.

    A journal that cannot be read is told once, and looked at again: it may be mended meanwhile.
    """
    heard: dict[Expiry, str] = {}
    trouble = ""
    while True:
        try:
            await _look(stage, heard, tell)
            trouble = ""
        except OpsError as exc:
            if exc.summary != trouble:
                tell(f"Nothing is stopped when its time is over: {exc.summary} {exc.fix}")
            trouble = exc.summary
        await anyio.sleep(_LOOK_SECONDS)


async def _look(stage: Stage, heard: dict[Expiry, str], tell: Tell) -> None:
    if not stage.journal.exists:
        return
    for expiry in stage.journal.expiries():
        if expiry.at <= utc_now():
            await _end(stage, expiry, heard, tell)


async def _end(stage: Stage, expiry: Expiry, heard: dict[Expiry, str], tell: Tell) -> None:
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
