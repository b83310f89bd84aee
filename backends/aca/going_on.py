"""The next step of a deployment that had to wait for what it stands on."""

from typing import Final

from backends.aca import applying, pending
from backends.aca.pending import Pending
from backends.aca.site import Site
from core.cloud_errors import NotAuthenticated
from core.errors import Busy, OpsError
from core.records import Failure
from core.reply import note

_TURN_SECONDS: Final = 1.0
"""For another server that is at it; then it is that one's work."""


async def go_on(site: Site, name: str) -> None:
    """Take every step whose time has come; else, and for one that is not pending, do nothing.

    Why it goes on no more is written down, so that a look tells it; what may work later is only
    noted.

    Raises:
        NotAuthenticated: Nobody is logged in.
    """
    if site.settings.read_only or pending.of(site, name) is None:
        return
    try:
        async with pending.locked(site, name, seconds=_TURN_SECONDS):
            kept = pending.of(site, name)
            if kept is not None and kept.failure is None:
                await _next(site, kept)
    except Busy:
        return


async def _next(site: Site, kept: Pending) -> None:
    try:
        await applying.make(site, kept)
    except NotAuthenticated:
        raise
    except OpsError as exc:
        if exc.retryable:
            note(f"{kept.name} goes on later. {exc.summary} {exc.cause}".strip())
            return
        failure = Failure(code=exc.code, cause=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
        pending.keep(site, kept.model_copy(update={"failure": failure}))
