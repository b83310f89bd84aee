"""The next steps of a search or of a removal, by whichever server on this machine looks."""

from datetime import UTC, datetime
from typing import Final

import anyio

from backends.google import secrets
from backends.tpu import firewall, removing, search_words, searching, zones
from backends.tpu import kept as memory
from backends.tpu.kept import Kept
from backends.tpu.site import Site
from core.cloud_errors import NotAuthenticated
from core.errors import Busy, HostError, OpsError
from core.records import Failure
from core.reply import note

_TURN_SECONDS: Final = 1.0
"""For another server that is at it; then it is that one's work."""
_GO_SECONDS: Final = 6.0
"""After these a turn is over, even if more could be done at once."""


async def go_on(site: Site, name: str) -> None:
    """Take every step whose time has come; else, and for one that needs none, do nothing.

    Why it goes on no more is written down, so that a look tells it; what may work later is only
    noted.

    Raises:
        NotAuthenticated: Nobody is logged in.
        HostError: It cannot be written down.
    """
    if site.settings.read_only or memory.of(site, name) is None:
        return
    try:
        async with memory.locked(site, name, seconds=_TURN_SECONDS):
            kept = memory.of(site, name)
            if kept is not None:
                await proceed(site, kept, seconds=_GO_SECONDS)
    except Busy:
        return


async def proceed(site: Site, kept: Kept, *, seconds: float) -> None:
    """Go on for so long, for whoever holds the lock. Raises as `go_on` does."""
    if kept.failure is not None:
        return
    try:
        if kept.removing:
            await removing.finish(site, kept)
        else:
            await _search(site, kept, seconds)
    except (NotAuthenticated, HostError):
        raise
    except OpsError as exc:
        if exc.retryable:
            note(f"{kept.name} goes on later. {exc.summary} {exc.cause}".strip())
            return
        _give_up(site, memory.of(site, kept.name) or kept, exc)


async def _search(site: Site, kept: Kept, seconds: float) -> None:
    deadline = anyio.current_time() + seconds
    while not searching.over(kept):
        after = await searching.step(site, kept, datetime.now(UTC))
        _tell(kept, after)
        if after is kept or anyio.current_time() > deadline:
            return
        kept = after
    if kept.placed is None:
        await _end(site, kept)


def _tell(before: Kept, after: Kept) -> None:
    """Note what became of a place that gave no chip."""
    for line in search_words.history(after)[len(search_words.history(before)) :]:
        note(line)


async def _end(site: Site, kept: Kept) -> None:
    """Say why no place gave a chip, once what was made for it is taken away."""
    await firewall.close(site, kept.name)
    if kept.key_made:
        await secrets.remove(site, site.key_secret(kept.name))
    asked = {place.zone for place in kept.blueprint.places}
    failure = search_words.failure(kept, await zones.not_asked(site, asked))
    memory.keep(site, kept.model_copy(update={"failure": failure}))


def _give_up(site: Site, kept: Kept, exc: OpsError) -> None:
    """Write down what stands against going on, and what may still be there."""
    left = ", ".join(map(str, kept.left))
    there = f" What it has in {left} may be there still, and bill." if left else ""
    failure = Failure(
        code=exc.code,
        cause=f"{exc.summary} {exc.cause}".strip() + there,
        fix=f"{exc.fix} Then call destroy_vllm, or deploy again.",
    )
    memory.keep(site, kept.model_copy(update={"failure": failure}))
