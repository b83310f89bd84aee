"""Deployments whose time is over: stopped while a server lives, or at its next start."""

import logging
from collections.abc import Callable
from typing import Final

import anyio

from backends.base import Stops
from core.errors import DeploymentNotFound, OpsError
from core.journal import Expiry, utc_now
from core.records import State
from operations.stage import Stage

_LOOK_SECONDS: Final = 15.0
_log: Final = logging.getLogger(__name__)

Tell = Callable[[str], None]


async def watch(stage: Stage, tell: Tell) -> None:
    """Stop what is overdue, now and from then on; `tell` gets a sentence for each."""
    while True:
        if stage.journal.exists:
            for expiry in stage.journal.expiries():
                if expiry.at <= utc_now():
                    await _end(stage, expiry, tell)
        await anyio.sleep(_LOOK_SECONDS)


async def _end(stage: Stage, expiry: Expiry, tell: Tell) -> None:
    where = f"{expiry.name} on {expiry.target}"
    try:
        said = await _stop(stage, expiry)
    except DeploymentNotFound:
        said = ""
    except OpsError as exc:
        _log.warning("%s is overdue and could not be stopped: %s", where, exc.summary)
        tell(f"{where} is overdue since {expiry.at:%F %H:%M} UTC and runs on: {exc.summary}")
        return
    stage.journal.forget_expiry(expiry)
    if said:
        tell(f"{where} was overdue since {expiry.at:%F %H:%M} UTC: {said}")


async def _stop(stage: Stage, expiry: Expiry) -> str:
    """Stop it if it is still meant; say what was seen then."""
    backend = stage.backend(expiry.target)
    now = await backend.describe(expiry.name)
    over = now.expires_at is not None and now.expires_at <= utc_now()
    if not over or now.state is State.STOPPED or not isinstance(backend, Stops):
        return ""
    seen = await backend.stop(expiry.name)
    return f"it was told to stop and is {seen.state} now."
