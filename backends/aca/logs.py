"""A deployment's log: live streams, what Log Analytics keeps, and both as pages."""

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import httpx2
from azure.core.exceptions import HttpResponseError
from azure.mgmt.appcontainers.models import ContainerApp, ManagedEnvironment
from azure.monitor.query import LogsQueryPartialResult, LogsTable
from pydantic import SecretStr

from backends.aca import replicas
from backends.aca.app import created_at, find_app, own_app
from backends.aca.replicas import ReplicaState
from backends.aca.site import CONTAINER, READ_SECONDS, Site, reading, strictly
from backends.base import LogLines, LogQuery
from backends.common.concurrency import or_note, side_by_side
from core.endpoint import trusted
from core.errors import CloudError, CloudRefused, CloudUnavailable, NotConfigured, PermissionDenied
from core.reply import note
from logs.read import Line, pieces

PLATFORM: Final = "Container Apps"
TAIL: Final = 300
"""Lines of one stream, at most; as much as Azure's own command asks for."""
_SILENCE_SECONDS: Final = 6.0
"""A stream that does not end by itself is left after so long."""
_CUT: Final = re.compile(r"(?:std(?:out|err) )?[FP] ")
"""Before each line: whether the container's runtime has it whole."""
_OWN_WORDS: Final = frozenset({"StartingGettingEvents", "ConnectedToEventsServer"})
_CONNECTED: Final = re.compile(r"(?:Connecting to the|Successfully Connected to) container")
"""What the streams say of themselves."""


class Event(NamedTuple):
    """One line of the system's log."""

    at: datetime
    reason: str
    """Such as AssigningReplica."""
    text: str
    revision: str
    replica: str
    warning: bool

    @property
    def line(self) -> Line:
        """As a line of the log."""
        return Line(self.at, f"{self.reason}: {self.text}", PLATFORM, self.replica)


async def stream_events(site: Site, app: ContainerApp, token: SecretStr) -> Sequence[Event]:
    """Return the newest events of an app, oldest first."""
    url = app.event_stream_endpoint or f"{_base(site)}{_path(site, app)}/eventstream"
    rows = await _rows(url, token)
    found = [event for row in rows if (event := event_of(row)) and event.reason not in _OWN_WORDS]
    return sorted(found, key=lambda event: event.at)


async def stream_console(
    site: Site, app: ContainerApp, revision: str, replica: ReplicaState, token: SecretStr
) -> Sequence[Line]:
    """Return the newest lines that a replica's container wrote, oldest first."""
    built = (
        f"{_base(site)}{_path(site, app)}/revisions/{revision}/replicas/{replica.name}"
        f"/containers/{CONTAINER}/logstream"
    )
    rows = await _rows(replica.log_stream or built, token)
    return [line for row in rows for line in lines_of(row, replica.name)]


async def token_of(site: Site, name: str) -> SecretStr:
    """Fetch what opens the streams of an app."""
    client = await site.clients.apps()
    with strictly(f"open the log streams of {name}"):
        answer = await client.container_apps.get_auth_token(site.clients.group, name, **reading())
    return SecretStr((answer.properties.token if answer.properties else None) or "")


def event_of(row: dict[str, Any]) -> Event | None:
    """Read one event; None where the row is none."""
    at = moment(row.get("TimeStamp"))
    if at is None or "Reason" not in row:
        return None
    return Event(
        at=at,
        reason=str(row.get("Reason") or ""),
        text=str(row.get("Msg") or ""),
        revision=str(row.get("RevisionName") or ""),
        replica=str(row.get("ReplicaName") or ""),
        warning=row.get("Type") == "Warning",
    )


def lines_of(row: dict[str, Any], replica: str) -> Sequence[Line]:
    """Read one row of a console's stream, which may hold several lines."""
    at, text = moment(row.get("TimeStamp")), row.get("Log")
    if at is None or not isinstance(text, str) or _CONNECTED.match(text):
        return ()
    return [Line(at, part, "", replica) for part in pieces(_CUT.sub("", text, count=1))]


def moment(said: Any) -> datetime | None:
    """Read a stamp, which comes in two forms; None where it is none.

    >>> moment("2023-10-06 21:41:33 +0000 UTC") == moment("2023-10-06T21:41:33Z")
    True
    """
    text = re.sub(r" UTC$", "", str(said)).replace(" +", "+")
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)


async def _rows(url: str, token: SecretStr) -> Sequence[dict[str, Any]]:
    """Read what a stream has now; one that goes on is left when it says no more."""
    found: list[dict[str, Any]] = []
    with anyio.move_on_after(_SILENCE_SECONDS):
        async for line in _lines_streams(url, token):
            found += _row_streams(line)
            if len(found) >= TAIL:
                break
    return found


async def _lines_streams(url: str, token: SecretStr) -> AsyncIterator[str]:
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    params = {"follow": "false", "tailLines": str(TAIL), "output": "json"}
    try:
        async with (
            httpx2.AsyncClient(timeout=READ_SECONDS, verify=trusted()) as client,
            client.stream("GET", url, params=params, headers=headers) as reply,
        ):
            if not reply.is_success:
                await reply.aread()
                raise _refused(reply)
            async for line in reply.aiter_lines():
                yield line
    except httpx2.HTTPError as exc:
        raise CloudUnavailable(
            "The log stream cannot be read.",
            cause=str(exc) or type(exc).__name__,
            fix="Call get_logs again in a minute.",
        ) from exc


def _row_streams(line: str) -> list[dict[str, Any]]:
    try:
        row = json.loads(line)
    except ValueError:
        return []
    return [row] if isinstance(row, dict) else []


def _refused(reply: httpx2.Response) -> CloudError:
    words = reply.text[:300]
    if reply.status_code in {401, 403}:
        return PermissionDenied(
            "The log stream does not let you in.",
            cause=words,
            fix="Ask for Microsoft.App/containerApps/getAuthToken/action on the app.",
        )
    return CloudUnavailable(
        f"The log stream gives nothing ({reply.status_code}).",
        cause=words,
        fix="Call get_logs again in a minute.",
    )


def _base(site: Site) -> str:
    return f"https://{site.clients.region}.azurecontainerapps.dev"


def _path(site: Site, app: ContainerApp) -> str:
    where = f"/subscriptions/{site.clients.subscription}/resourceGroups/{site.clients.group}"
    return f"{where}/containerApps/{app.name}"


QUERY_ROWS: Final = 1000
"""Of one table, at most."""
_NO_TABLE: Final = "SEM0100"
"""A table does not exist before its first line, nor does a column before its first value."""


class Place(NamedTuple):
    """Where the lines of an environment are kept."""

    workspace: str
    """Its GUID."""
    custom: bool
    """Whether the environment writes there itself: tables and columns have a suffix then."""

    def table(self, name: str) -> str:
        """Return a table's full name."""
        return f"{name}_CL" if self.custom else name

    def column(self, name: str) -> str:
        """Return a column's full name."""
        return f"{name}_s" if self.custom else name


class Wanted(NamedTuple):
    """Which lines of an app."""

    begin: datetime
    end: datetime
    contains: tuple[str, ...] = ()
    """Only lines with at least one of these texts, whatever their case; none is every line."""
    revision: str = ""
    newest: bool = True
    """Whether the newest are given where there are more than can be; else the oldest."""
    rows: int = QUERY_ROWS
    before: datetime | None = None
    """Only what is older than this moment itself."""


class Kept(NamedTuple):
    """What one query gave."""

    rows: Sequence[tuple[datetime, str]]
    """Moment and text, oldest first; a text may be of several lines."""
    whole: bool
    """False where Log Analytics gave a part of its answer."""


class NoTable(CloudRefused):
    """Log Analytics has not received anything of that kind yet."""

    code = "NO_LOG_TABLE"


async def query_console(site: Site, app: ContainerApp, wanted: Wanted) -> Sequence[Line]:
    """Return what containers wrote, oldest first; minutes late.

    Raises:
        NoTable: Nothing was ever received.
    """
    place = await place_of(site, app)
    return console_lines((await console_rows(site, place, str(app.name), wanted)).rows)


async def query_system(site: Site, app: ContainerApp, wanted: Wanted) -> Sequence[Line]:
    """Return the platform's events, oldest first; minutes late.

    Raises:
        NoTable: Nothing was ever received.
    """
    place = await place_of(site, app)
    return system_lines((await system_rows(site, place, str(app.name), wanted)).rows)


async def console_rows(site: Site, place: Place, name: str, wanted: Wanted) -> Kept:
    """Return rows of the containers of one app; raises as `console`."""
    table = place.table("ContainerAppConsoleLogs")
    return await _kept(site, place, query(place, table, name, wanted), wanted)


async def system_rows(site: Site, place: Place, name: str, wanted: Wanted) -> Kept:
    """Return rows of the platform about one app, with their reasons; raises as `system`."""
    table, reason = place.table("ContainerAppSystemLogs"), place.column("Reason")
    return await _kept(site, place, query(place, table, name, wanted, reason=reason), wanted)


def console_lines(rows: Iterable[tuple[datetime, str]]) -> Sequence[Line]:
    """Make lines of what containers wrote."""
    return [Line(at, part) for at, text in rows for part in pieces(text)]


def system_lines(rows: Iterable[tuple[datetime, str]]) -> Sequence[Line]:
    """Make lines of what the platform says."""
    return [Line(at, text, PLATFORM) for at, text in rows]


async def place_of(site: Site, app: ContainerApp) -> Place:
    """Say where the app's environment keeps its lines."""
    environment = await _environment(site, app)
    kept = environment.app_logs_configuration
    destination = kept.destination if kept else None
    own = kept.log_analytics_configuration if kept else None
    workspace = own.customer_id if own else site.settings.azure_log_analytics_workspace_id
    if destination == "log-analytics" and workspace:
        return Place(workspace, custom=True)
    if destination == "azure-monitor" and site.settings.azure_log_analytics_workspace_id:
        return Place(site.settings.azure_log_analytics_workspace_id, custom=False)
    raise NotConfigured(
        f"The environment {environment.name} sends its log to {destination or 'nobody'}.",
        fix="Set AZURE_LOG_ANALYTICS_WORKSPACE_ID to the workspace that receives it, or read"
        " what runs now with get_logs.",
    )


def query(place: Place, table: str, name: str, wanted: Wanted, *, reason: str = "") -> str:
    """Write the query of one table."""
    text, which = place.column("Log"), place.column("ContainerAppName")
    terms = [f"{which} == {quoted(name)}"]
    if wanted.revision:
        terms.append(f"{place.column('RevisionName')} == {quoted(wanted.revision)}")
    if wanted.before:
        before = wanted.before.astimezone(UTC).isoformat().replace("+00:00", "Z")
        terms.append(f"TimeGenerated < datetime({before})")
    if wanted.contains:
        columns = [column for column in (reason, text) if column]
        each = [f"{one} contains {quoted(word)}" for one in columns for word in wanted.contains]
        terms.append(f"({' or '.join(each)})")
    chosen = ", ".join(column for column in ("TimeGenerated", reason, text) if column)
    return (
        f"{table} | where {' and '.join(terms)} | project {chosen}"
        f" | order by TimeGenerated {'desc' if wanted.newest else 'asc'} | take {wanted.rows}"
    )


def quoted(text: str) -> str:
    r"""Make a literal of the query that ends where we end it.

    >>> print(quoted("a' or 'b"))
    'a\' or \'b'
    """
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + inner.replace("\n", "\\n").replace("\r", "\\r") + "'"


async def _kept(site: Site, place: Place, asked: str, wanted: Wanted) -> Kept:
    tables, whole = await _answer(site, place, asked, (wanted.begin, wanted.end))
    rows = [_row_queries(list(row)) for table in tables for row in table.rows]
    return Kept(rows[::-1] if wanted.newest else rows, whole)


async def _answer(
    site: Site, place: Place, asked: str, span: tuple[datetime, datetime]
) -> tuple[Sequence[LogsTable], bool]:
    """Return the tables, and whether they are all of the answer."""
    client = await site.clients.queries()

    with strictly("query Log Analytics"):
        try:
            found = await client.query_workspace(place.workspace, asked, timespan=span, **reading())
        except HttpResponseError as exc:
            if _NO_TABLE in exc.message:
                raise _no_table(exc.message) from exc
            raise
    if isinstance(found, LogsQueryPartialResult):
        why = found.partial_error.message if found.partial_error else "no reason given"
        note(f"Log Analytics gave only a part of the lines: {why}")
        return found.partial_data or (), False
    return found.tables, True


def _row_queries(cells: list[Any]) -> tuple[datetime, str]:
    at = cells[0] if isinstance(cells[0], datetime) else datetime.fromisoformat(str(cells[0]))
    reason, text = (str(cells[1] or "") if len(cells) > 2 else ""), str(cells[-1] or "")
    return at.astimezone(UTC), f"{reason}: {text}" if reason else text


def _no_table(words: str) -> CloudError:
    return NoTable(
        "Log Analytics has not received a line yet.",
        cause=words.splitlines()[0],
        fix="Call get_logs again in some minutes.",
    )


async def _environment(site: Site, app: ContainerApp) -> ManagedEnvironment:
    client = await site.clients.apps()
    full = str(app.environment_id or app.managed_environment_id or "")
    name = full.rpartition("/")[2] or site.ground.environment
    group = full.split("/")[4] if full.count("/") > 4 else site.clients.group
    with strictly(f"look at the environment {name}"):
        return await client.managed_environments.get(group, name, **reading())


PAGE_ROWS: Final = 5000
"""Of one table in one question."""
_MOST_ROWS: Final = 500_000
"""Log Analytics gives no more, whatever is asked for.

source: https://learn.microsoft.com/azure/azure-monitor/service-limits, read 2026-11-22
"""
_TICK: Final = timedelta(microseconds=1)
"""What the SDK reads of a moment; Log Analytics itself knows tenths of it."""
_START: Final = datetime.min.replace(tzinfo=UTC)

Ask = Callable[[Wanted], Awaitable[Kept]]
Read = Callable[[Sequence[tuple[datetime, str]]], Sequence[Line]]
Fresh = Callable[[Sequence[Line]], Sequence[Line]]


class Buffer:
    """Lines that were read and not yet given, oldest first."""

    over = True
    """Whether nothing older will come to them."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.ahead = lines

    @property
    def known(self) -> datetime:
        """Back to when nothing is missing any more."""
        return _START if self.over else self.ahead[0].at

    def take(self, since: datetime = _START) -> Sequence[Line]:
        """Return what is as new as that, and forget it."""
        taken = [line for line in self.ahead if line.at >= since]
        self.ahead = self.ahead[: len(self.ahead) - len(taken)]
        return taken


async def read_older(
    site: Site, app: ContainerApp, wanted: Wanted, held: Buffer, fresh: Fresh, *, platform: bool
) -> AsyncGenerator[Sequence[Line], None]:
    """Return every line that is wanted, minutes late; each page oldest line first.

    The lines `held` belong between them, and are still there after an error; `fresh` leaves out
    what was given before, and `platform` adds what the platform says.
    """
    place = await place_of(site, app)
    name, first = str(app.name), wanted._replace(rows=PAGE_ROWS)

    def table(ask: Any, read: Read) -> _Table:
        return _Table(partial(ask, site, place, name), lambda rows: fresh(read(rows)), first)

    tables = [table(console_rows, console_lines)]
    if platform:
        tables.append(table(system_rows, system_lines))
    while True:
        await side_by_side([one.fill for one in tables])
        sources = [held, *tables]
        if not any(one.ahead for one in sources):
            return
        known = max(one.known for one in sources)
        page = sorted((line for one in sources for line in one.take(known)), key=_moment)
        for end in range(len(page), 0, -PAGE_ROWS):
            yield page[max(0, end - PAGE_ROWS) : end]


class _Table(Buffer):
    """One table on the way back through time."""

    over = False

    def __init__(self, ask: Ask, read: Read, wanted: Wanted) -> None:
        super().__init__()
        self._ask = ask
        self._read = read
        self._wanted = wanted

    async def fill(self) -> None:
        """Ask until there is something to take, or nothing older."""
        while not self.ahead and not self.over:
            try:
                kept = await self._ask(self._wanted)
            except NoTable as exc:
                note(f"{exc.summary} What the live streams still have is all that there is.")
                kept = Kept((), whole=True)
            self.ahead = self._read(self._chosen(kept))

    def _chosen(self, kept: Kept) -> Sequence[tuple[datetime, str]]:
        """Leave rows of the oldest moment for the next question: there may be more of them."""
        rows, asked = kept.rows, self._wanted
        self.over = not rows or (kept.whole and len(rows) < asked.rows)
        if self.over:
            return rows
        oldest = rows[0][0]
        newer = [row for row in rows if row[0] > oldest]
        if newer:
            self._wanted = asked._replace(before=oldest + _TICK, rows=PAGE_ROWS)
            return newer
        if kept.whole and asked.rows < _MOST_ROWS:
            self._wanted = asked._replace(rows=asked.rows * 10)
            return ()
        note(f"Log Analytics has more lines of {oldest:%F %T} than it gives at once.")
        self._wanted = asked._replace(before=oldest, rows=PAGE_ROWS)
        return rows


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


async def read_logs(site: Site, name: str, *, lines: int, contains: str | None = None) -> LogLines:
    """Return the newest lines of a deployment, all of its revisions and replicas together.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    app, text = await _app(site, name), contains or ""
    if app is None:
        return LogLines(lines=(), total=0)
    live = await _live(site, app)
    stored = Found()
    if not live.console or text or lines > TAIL:
        stored = await _kept_or_note(site, app, text, live)
    shown = {line.text for line in live.console}
    older = [line for line in stored.console if line.text not in shown]
    first = min((line.at for line in live.events), default=None)
    told = [line for line in stored.events if first is None or line.at < first]
    found = sorted([*older, *told, *live.console, *live.events], key=_moment)
    texts = [str(line) for line in found if text.lower() in line.text.lower()]
    return LogLines(lines=tuple(texts[-lines:]), total=len(texts))


async def log_pages(site: Site, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Return every line that is asked for: what the streams still have, then what was kept.

    Each page is older than those before it, except that a replica which has just ended may have
    written last what is newer than the oldest line of the first.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    app = await _app(site, name)
    if app is None:
        return
    async with aclosing(_all_pages(site, app, query)) as every:
        async for page in every:
            if lines := _asked_for(query, page):
                yield lines


async def _all_pages(
    site: Site, app: ContainerApp, query: LogQuery
) -> AsyncGenerator[Sequence[Line], None]:
    """Return pages that may hold more than is asked for: a stream cannot be asked for less."""
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


async def _app(site: Site, name: str) -> ContainerApp | None:
    """Find the app; None, and a note, where what it needs is still being made."""
    app = await find_app(site, name)
    if app is None and site.pending.get(name):
        note(f"{name} has no container yet.")
        return None
    return own_app(site, name, app)


def _parted(live: Found) -> tuple[Sequence[Line], Buffer]:
    """Part what the streams gave: events of long ago belong between lines of that time."""
    first = min((line.at for line in live.console), default=None)
    lines = sorted([*live.console, *live.events], key=_moment)
    now = [line for line in lines if first is not None and line.at >= first]
    return now, Buffer(lines[: len(lines) - len(now)])


def _older(
    site: Site, app: ContainerApp, query: LogQuery, live: Found, rest: Buffer
) -> AsyncGenerator[Sequence[Line], None]:
    now = datetime.now(UTC)
    begin = query.since or max(created_at(app, now), now - _KEPT)
    wanted = Wanted(begin, max(begin, query.until or now), contains=query.contains)
    doubles = _Doubles([*live.console, *live.events])
    return read_older(site, app, wanted, rest, doubles.left_out, platform=query.platform)


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
        """Return what no stream gave, of the same ones the older; the newest is to come first."""
        return [line for line in reversed(page) if not self._seen(line)][::-1]

    def _seen(self, line: Line) -> bool:
        which = line.platform, line.text
        if self._since is None or line.at < self._since or not self._left[which]:
            return False
        self._left[which] -= 1
        return True


async def _live(site: Site, app: ContainerApp, *, platform: bool = True) -> Found:
    """Read the streams of what runs; what cannot be read is noted."""
    name = str(app.name)
    token = await or_note(lambda: token_of(site, name), None)
    if token is None:
        return Found()
    running = [
        (one.name, replica)
        for one in await replicas.read_revisions(site, name)
        for replica in one.replicas
        if replica.started
    ]

    def console(revision: str, replica: replicas.ReplicaState) -> Look:
        return lambda: _lines(lambda: stream_console(site, app, revision, replica, token))

    async def events() -> Sequence[Line]:
        return [event.line for event in await stream_events(site, app, token)]

    written = [console(revision, replica) for revision, replica in running]
    if platform:
        written.append(lambda: _lines(events))
    each = list(await side_by_side(written))
    told = each.pop() if platform else ()
    return Found([line for one in each for line in one], told)


async def _kept_or_note(site: Site, app: ContainerApp, text: str, live: Found) -> Found:
    """Ask Log Analytics; where it cannot be asked, what the streams gave has to do."""
    now = datetime.now(UTC)
    wanted = Wanted(max(created_at(app, now), now - _KEPT), now, contains=(text,) if text else ())
    try:
        console, events = await side_by_side(
            [
                lambda: _table(lambda: query_console(site, app, wanted)),
                lambda: _table(lambda: query_system(site, app, wanted)),
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
