"""A deployment's log: what its containers write, and the platform's events."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from backends.aca import looking, looks, pending, queries, replicas, streams
from backends.aca.queries import NoTable, Wanted
from backends.aca.site import Site
from backends.base import LogLines
from backends.common.lines import Line
from backends.common.noting import or_note
from backends.common.side_by_side import side_by_side
from core.cloud_errors import CloudError
from core.reply import note

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

_KEPT: Final = timedelta(days=30)
"""Log Analytics keeps lines as long where nobody has said otherwise."""
_LATE: Final = "Log Analytics receives lines some minutes late: the newest may be missing."

Look = Callable[[], Awaitable[Sequence[Line]]]


class Found(NamedTuple):
    """Lines of one source."""

    console: Sequence[Line] = ()
    events: Sequence[Line] = ()

    @property
    def empty(self) -> bool:
        """Whether there is no line of either."""
        return not self.console and not self.events


async def read(site: Site, name: str, *, lines: int, contains: str | None = None) -> LogLines:
    """Give the newest lines of a deployment, all of its revisions and replicas together.

    Raises:
        DeploymentNotFound: There is no such app.
        CloudError: Neither the streams nor Log Analytics can be read.
    """
    app = await looking.app_there(site, name)
    if app is None and pending.of(site, name):
        note(f"{name} has no container yet.")
        return LogLines(lines=(), total=0)
    app, text = looking.ours(site, name, app), contains or ""
    live = await _live(site, app)
    kept = Found()
    if not live.console or text or lines > streams.TAIL:
        kept = await _kept_or_note(site, app, text, live)
    shown = {line.text for line in live.console}
    older = [line for line in kept.console if line.text not in shown]
    first = min((line.at for line in live.events), default=None)
    told = [line for line in kept.events if first is None or line.at < first]
    found = sorted([*older, *told, *live.console, *live.events], key=lambda line: line.at)
    texts = [str(line) for line in found if text.lower() in line.text.lower()]
    return LogLines(lines=tuple(texts[-lines:]), total=len(texts))


async def _live(site: Site, app: "ContainerApp") -> Found:
    """Read the streams of what runs; what cannot be read is noted."""
    name = str(app.name)
    token = await or_note(lambda: streams.token_of(site, name), None)
    if token is None:
        return Found()
    running = [
        (one.name, replica)
        for one in await replicas.held(site, name)
        for replica in one.replicas
        if replica.started
    ]

    def console(revision: str, replica: replicas.Seen) -> Look:
        return lambda: _lines(lambda: streams.console(site, app, revision, replica, token))

    async def events() -> Sequence[Line]:
        return [event.line for event in await streams.events(site, app, token)]

    written = [console(revision, replica) for revision, replica in running]
    told, *each = await side_by_side([lambda: _lines(events), *written])
    return Found([line for one in each for line in one], told)


async def _kept_or_note(site: Site, app: "ContainerApp", text: str, live: Found) -> Found:
    """Ask Log Analytics; where it cannot be asked, what the streams gave has to do.

    Raises:
        CloudError: It cannot be asked, and the streams gave nothing.
    """
    now = datetime.now(UTC)
    wanted = Wanted(max(looks.created(app, now), now - _KEPT), now, contains=text)
    try:
        console, events = await side_by_side(
            [
                lambda: _table(lambda: queries.console(site, app, wanted)),
                lambda: _table(lambda: queries.system(site, app, wanted)),
            ]
        )
    except CloudError as exc:
        if live.empty:
            raise
        note(f"Older lines are missing. {exc.summary} {exc.cause}".strip())
        return Found()
    if not live.console:
        note(_LATE)
    return Found(console, events)


async def _table(look: Look) -> Sequence[Line]:
    try:
        return await look()
    except NoTable as exc:
        note(f"{exc.summary} What the live streams still have is all that there is.")
        return ()


async def _lines(look: Look) -> Sequence[Line]:
    nothing: Sequence[Line] = ()
    return await or_note(look, nothing)
