"""A deployment's log: what its containers write, and the platform's events."""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from backends.aca import kept, looking, looks, pending, queries, replicas, streams
from backends.aca.queries import NoTable, Wanted
from backends.aca.site import Site
from backends.base import LogLines, LogQuery
from backends.common.concurrency import or_note, side_by_side
from core.cloud_errors import CloudError
from core.reply import note
from logs.lines import Line

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

_KEPT: Final = timedelta(days=30)
"""Log Analytics keeps lines as long where nobody has said otherwise."""
_BEFORE: Final = timedelta(minutes=1)
"""How far the moments of one line may differ between a stream and Log Analytics."""
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
    app, text = await _app(site, name), contains or ""
    if app is None:
        return LogLines(lines=(), total=0)
    live = await _live(site, app)
    stored = Found()
    if not live.console or text or lines > streams.TAIL:
        stored = await _kept_or_note(site, app, text, live)
    shown = {line.text for line in live.console}
    older = [line for line in stored.console if line.text not in shown]
    first = min((line.at for line in live.events), default=None)
    told = [line for line in stored.events if first is None or line.at < first]
    found = sorted([*older, *told, *live.console, *live.events], key=_moment)
    texts = [str(line) for line in found if text.lower() in line.text.lower()]
    return LogLines(lines=tuple(texts[-lines:]), total=len(texts))


async def pages(site: Site, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Give every line that is asked for: what the streams still have, then what was kept.

    Each page is older than those before it, except that a replica which has just ended may have
    written last what is newer than the oldest line of the first.

    Raises:
        DeploymentNotFound: There is no such app.
        CloudError: Neither the streams nor Log Analytics can be read.
    """
    app = await _app(site, name)
    if app is None:
        return
    async with aclosing(_all_pages(site, app, query)) as every:
        async for page in every:
            if lines := _asked_for(query, page):
                yield lines


async def _all_pages(
    site: Site, app: "ContainerApp", query: LogQuery
) -> AsyncGenerator[Sequence[Line], None]:
    """Give pages that may hold more than is asked for: a stream cannot be asked for less."""
    live = await _live(site, app, platform=query.platform)
    now, rest = _parted(live)
    yield now
    if not live.console:
        note(_LATE)
    given = not live.empty
    try:
        async with aclosing(_older(site, app, query, live, rest)) as older:
            async for page in older:
                given = True
                yield page
    except CloudError as exc:
        if not given:
            raise
        _missing(exc)
        yield rest.take()


async def _app(site: Site, name: str) -> "ContainerApp | None":
    """Find the app; None, and a note, where what it needs is still being made."""
    app = await looking.app_there(site, name)
    if app is None and pending.of(site, name):
        note(f"{name} has no container yet.")
        return None
    return looking.ours(site, name, app)


def _parted(live: Found) -> tuple[Sequence[Line], kept.Held]:
    """Part what the streams gave: events of long ago belong between lines of that time."""
    first = min((line.at for line in live.console), default=None)
    lines = sorted([*live.console, *live.events], key=_moment)
    now = [line for line in lines if first is not None and line.at >= first]
    return now, kept.Held(lines[: len(lines) - len(now)])


def _older(
    site: Site, app: "ContainerApp", query: LogQuery, live: Found, rest: kept.Held
) -> AsyncGenerator[Sequence[Line], None]:
    now = datetime.now(UTC)
    begin = query.since or max(looks.created(app, now), now - _KEPT)
    wanted = Wanted(begin, max(begin, query.until or now), contains=query.contains)
    doubles = _Doubles([*live.console, *live.events])
    return kept.older(site, app, wanted, rest, doubles.left_out, platform=query.platform)


def _asked_for(query: LogQuery, lines: Iterable[Line]) -> Sequence[Line]:
    texts = [text.lower() for text in query.contains]
    return [
        line
        for line in lines
        if (query.since is None or query.since <= line.at)
        and (query.until is None or line.at <= query.until)
        and (not texts or any(map(line.text.lower().__contains__, texts)))
    ]


class _Doubles:
    """The lines that a stream gave, to be known again in what was kept."""

    def __init__(self, shown: Sequence[Line]) -> None:
        self._left = Counter((line.platform, line.text) for line in shown)
        self._since = min(map(_moment, shown)) - _BEFORE if shown else None

    def left_out(self, page: Sequence[Line]) -> Sequence[Line]:
        """Give what no stream gave, of the same ones the older; the newest is to come first."""
        return [line for line in reversed(page) if not self._seen(line)][::-1]

    def _seen(self, line: Line) -> bool:
        which = line.platform, line.text
        if self._since is None or line.at < self._since or not self._left[which]:
            return False
        self._left[which] -= 1
        return True


async def _live(site: Site, app: "ContainerApp", *, platform: bool = True) -> Found:
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
    if platform:
        written.append(lambda: _lines(events))
    each = list(await side_by_side(written))
    told = each.pop() if platform else ()
    return Found([line for one in each for line in one], told)


async def _kept_or_note(site: Site, app: "ContainerApp", text: str, live: Found) -> Found:
    """Ask Log Analytics; where it cannot be asked, what the streams gave has to do.

    Raises:
        CloudError: It cannot be asked, and the streams gave nothing.
    """
    now = datetime.now(UTC)
    wanted = Wanted(
        max(looks.created(app, now), now - _KEPT), now, contains=(text,) if text else ()
    )
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
        _missing(exc)
        return Found()
    if not live.console:
        note(_LATE)
    return Found(console, events)


def _missing(exc: CloudError) -> None:
    note(f"Older lines are missing. {exc.summary} {exc.cause}".strip())


async def _table(look: Look) -> Sequence[Line]:
    try:
        return await look()
    except NoTable as exc:
        note(f"{exc.summary} What the live streams still have is all that there is.")
        return ()


async def _lines(look: Look) -> Sequence[Line]:
    nothing: Sequence[Line] = ()
    return await or_note(look, nothing)


def _moment(line: Line) -> datetime:
    return line.at
