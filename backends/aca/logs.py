"""A deployment's log: live streams, what Log Analytics keeps, and both as pages."""

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import anyio
import httpx2
from azure.core.exceptions import HttpResponseError
from azure.mgmt.appcontainers.models import ContainerApp
from azure.monitor.query import LogsQueryPartialResult
from pydantic import SecretStr

from backends.aca import replicas
from backends.aca.app import created_at, find_app, own_app
from backends.aca.replicas import ReplicaState
from backends.aca.site import READ_SECONDS, READING, Site, strictly
from backends.base import LogQuery
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
_AGAIN: Final = "Call get_logs again in a minute."


class Event(NamedTuple):
    at: datetime
    reason: str
    """Such as AssigningReplica."""
    text: str
    revision: str
    replica: str

    @property
    def line(self) -> Line:
        return Line(self.at, f"{self.reason}: {self.text}", PLATFORM, self.replica)


async def stream_events(app: ContainerApp, token: SecretStr) -> Sequence[Event]:
    """Return the newest events of an app, oldest first."""
    rows = await _rows(app.event_stream_endpoint, token)
    found = [event for row in rows if (event := event_of(row)) and event.reason not in _OWN_WORDS]
    return sorted(found, key=lambda event: event.at)


async def stream_console(replica: ReplicaState, token: SecretStr) -> Sequence[Line]:
    """Return the newest lines that a replica's container wrote, oldest first."""
    rows = await _rows(replica.log_stream, token)
    return [line for row in rows for line in lines_of(row, replica.name)]


async def listen(
    site: Site, app: ContainerApp, running: Sequence[ReplicaState], *, events: bool = True
) -> tuple[Sequence[Line], Sequence[Event]]:
    """Read what the streams of these replicas and of the system have; what cannot be is noted."""
    token = await or_note(lambda: token_of(site, str(app.name)), None)
    if token is None:
        return (), ()

    streams: list[Callable[[], Awaitable[Sequence[Any]]]] = [
        partial(stream_console, replica, token) for replica in running if replica.started
    ]
    streams += [partial(stream_events, app, token)] if events else []
    nothing: Sequence[Any] = ()
    told = await side_by_side([partial(or_note, one, nothing) for one in streams])
    found = told.pop() if events else nothing
    return [line for one in told for line in one], found


async def token_of(site: Site, name: str) -> SecretStr:
    client, group = await site.clients.apps(), site.ground.resource_group
    with strictly(f"open the log streams of {name}"):
        answer = await client.container_apps.get_auth_token(group, name, **READING)
    return SecretStr((answer.properties.token if answer.properties else None) or "")


def event_of(row: dict[str, Any]) -> Event | None:
    at = moment(row.get("TimeStamp"))
    if at is None or "Reason" not in row:
        return None
    keys = ("Reason", "Msg", "RevisionName", "ReplicaName")
    return Event(at, *(str(row.get(key) or "") for key in keys))


def lines_of(row: dict[str, Any], replica: str) -> Sequence[Line]:
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


async def _rows(url: str | None, token: SecretStr) -> Sequence[dict[str, Any]]:
    """Read what a stream has now; one that goes on is left when it says no more."""
    found: list[dict[str, Any]] = []
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    params = {"follow": "false", "tailLines": str(TAIL), "output": "json"}
    try:
        with anyio.move_on_after(_SILENCE_SECONDS):
            async with (
                httpx2.AsyncClient(timeout=READ_SECONDS, verify=trusted()) as client,
                client.stream("GET", url or "", params=params, headers=headers) as reply,
            ):
                if not reply.is_success:
                    await reply.aread()
                    raise _refused(reply)
                async for line in reply.aiter_lines():
                    with suppress(ValueError):
                        row = json.loads(line)
                        found += [row] if isinstance(row, dict) else []
                    if len(found) >= TAIL:
                        break
    except httpx2.HTTPError as exc:
        words = str(exc) or type(exc).__name__
        raise CloudUnavailable("The log stream cannot be read.", cause=words, fix=_AGAIN) from exc
    return found


def _refused(reply: httpx2.Response) -> CloudError:
    words, status = reply.text[:300], reply.status_code
    if status in {401, 403}:
        right = "Ask for Microsoft.App/containerApps/getAuthToken/action on the app."
        return PermissionDenied("The log stream does not let you in.", cause=words, fix=right)
    return CloudUnavailable(f"The log stream gives nothing ({status}).", cause=words, fix=_AGAIN)


PAGE_ROWS: Final = 5000
"""Of one table in one question."""
_NO_TABLE: Final = "SEM0100"
"""A table does not exist before its first line, nor does a column before its first value."""


class Wanted(NamedTuple):
    begin: datetime
    end: datetime
    contains: tuple[str, ...] = ()
    """Only lines with at least one of these texts, whatever their case; none is every line."""
    platform: bool = False
    """The events of the system, in place of what containers wrote."""
    revision: str = ""
    newest: bool = True
    """Whether the newest are given where there are more than can be; else the oldest."""
    before: datetime | None = None
    """Only what is older than this moment itself."""


class NoTable(CloudRefused):
    """Log Analytics has not received anything of that kind yet."""

    code = "NO_LOG_TABLE"


async def query_console(site: Site, app: ContainerApp, wanted: Wanted) -> Sequence[Line]:
    """Return what containers wrote, oldest first; minutes late.

    Raises:
        NoTable: Nothing was ever received.
    """
    return (await _query_page(site, await workspace_of(site, app), str(app.name), wanted))[0]


async def workspace_of(site: Site, app: ContainerApp) -> str:
    """Return the id of the workspace where the app's environment keeps its lines."""
    client = await site.clients.apps()
    full = str(app.environment_id or app.managed_environment_id or "")
    name = full.rpartition("/")[2] or site.ground.environment
    group = full.split("/")[4] if full.count("/") > 4 else site.ground.resource_group
    with strictly(f"look at the environment {name}"):
        environment = await client.managed_environments.get(group, name, **READING)
    kept = environment.app_logs_configuration
    destination = (kept.destination if kept else None) or "nobody"
    own = kept.log_analytics_configuration if kept else None
    workspace = own.customer_id if own else site.settings.azure_log_analytics_workspace_id
    if destination == "log-analytics" and workspace:
        return workspace
    raise NotConfigured(
        f"The environment {environment.name} sends its log to {destination}.",
        fix="get_logs reads what runs now; an environment that sends its log to Log Analytics"
        " (AZURE_CONTAINERAPPS_ENVIRONMENT) keeps what ran.",
    )


def query(name: str, wanted: Wanted, rows: int = PAGE_ROWS) -> str:
    table, columns = "ContainerAppConsoleLogs_CL", ["Log_s"]
    if wanted.platform:
        table, columns = "ContainerAppSystemLogs_CL", ["Reason_s", "Log_s"]
    terms = [f"ContainerAppName_s == {quoted(name)}"]
    if wanted.revision:
        terms.append(f"RevisionName_s == {quoted(wanted.revision)}")
    if wanted.before:
        before = wanted.before.astimezone(UTC).isoformat().replace("+00:00", "Z")
        terms.append(f"TimeGenerated < datetime({before})")
    if wanted.contains:
        each = [f"{one} contains {quoted(word)}" for one in columns for word in wanted.contains]
        terms.append(f"({' or '.join(each)})")
    return (
        f"{table} | where {' and '.join(terms)} | project {', '.join(['TimeGenerated', *columns])}"
        f" | order by TimeGenerated {'desc' if wanted.newest else 'asc'} | take {rows}"
    )


def quoted(text: str) -> str:
    r"""Make a literal of the query that ends where we end it.

    >>> print(quoted("a' or 'b"))
    'a\' or \'b'
    """
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + inner.replace("\n", "\\n").replace("\r", "\\r") + "'"


async def _query_page(
    site: Site, workspace: str, name: str, wanted: Wanted
) -> tuple[Sequence[Line], bool]:
    """Return what was kept, oldest first, and whether that is all of it."""
    client, span = await site.clients.queries(), (wanted.begin, wanted.end)
    with strictly("query Log Analytics"):
        try:
            asked = query(name, wanted, PAGE_ROWS)
            found = await client.query_workspace(workspace, asked, timespan=span, **READING)
        except HttpResponseError as exc:
            if _NO_TABLE not in exc.message:
                raise
            raise NoTable(
                "Log Analytics has not received a line yet.",
                cause=exc.message.splitlines()[0],
                fix="Call get_logs again in some minutes.",
            ) from exc
    whole = not isinstance(found, LogsQueryPartialResult)
    if isinstance(found, LogsQueryPartialResult):
        why = found.partial_error.message if found.partial_error else "no reason given"
        note(f"Log Analytics gave only a part of the lines: {why}")
        tables = found.partial_data or []
    else:
        tables = found.tables
    rows = [list(row) for table in tables for row in table.rows]
    in_order = rows[::-1] if wanted.newest else rows
    lines = [line for row in in_order for line in _lines(row, platform=wanted.platform)]
    return lines, whole and len(rows) < PAGE_ROWS


def _lines(row: list[Any], *, platform: bool) -> Sequence[Line]:
    at = row[0] if isinstance(row[0], datetime) else datetime.fromisoformat(str(row[0]))
    at, texts = at.astimezone(UTC), [str(one or "") for one in row[1:]]
    if platform:
        return [Line(at, ": ".join(filter(None, texts)), PLATFORM)]
    return [Line(at, part) for part in pieces(texts[-1])]


_TICK: Final = timedelta(microseconds=1)
"""What the SDK reads of a moment; Log Analytics itself knows tenths of it."""
_START: Final = datetime.min.replace(tzinfo=UTC)
_AT: Final = attrgetter("at")
_KEPT: Final = timedelta(days=30)
"""Log Analytics keeps lines as long where nobody has said otherwise."""
_BEFORE: Final = timedelta(minutes=1)
"""How far the moments of one line may differ between a stream and Log Analytics."""


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
    held = await replicas.read_revisions(site, str(app.name))
    running = [replica for one in held for replica in one.replicas]
    console, told = await listen(site, app, running, events=query.platform)
    events = [event.line for event in told]
    async with aclosing(_pages(site, app, query, console, events)) as every:
        async for page in every:
            if lines := _asked_for(query, page):
                yield lines


async def _app(site: Site, name: str) -> ContainerApp | None:
    """Find the app; None, and a note, where what it needs is still being made."""
    app = await find_app(site, name)
    if app is None and site.pending.get(name):
        note(f"{name} has no container yet.")
        return None
    return own_app(site, name, app)


def _asked_for(query: LogQuery, lines: Iterable[Line]) -> Sequence[Line]:
    texts = [text.lower() for text in query.contains]
    return [
        line
        for line in lines
        if (query.since is None or query.since <= line.at)
        and (query.until is None or line.at <= query.until)
        and (not texts or any(map(line.text.lower().__contains__, texts)))
    ]


async def _pages(
    site: Site,
    app: ContainerApp,
    query: LogQuery,
    console: Sequence[Line],
    events: Sequence[Line],
) -> AsyncGenerator[Sequence[Line], None]:
    """Return pages that may hold more than is asked for: a stream cannot be asked for less.

    Events of long ago belong between kept lines of that time.
    """
    first = min(map(_AT, console), default=None)
    shown = sorted([*console, *events], key=_AT)
    now = [line for line in shown if first is not None and line.at >= first]
    held = shown[: len(shown) - len(now)]
    yield now
    if not console:
        note("Log Analytics receives lines some minutes late: the newest may be missing.")
    given = bool(shown)
    try:
        async with aclosing(_older(site, app, query, shown, held)) as older:
            async for page in older:
                given = True
                yield page
    except CloudError as exc:
        if not given:
            raise
        note(f"Older lines are missing. {exc.summary} {exc.cause}".strip())
        yield held


async def _older(
    site: Site, app: ContainerApp, query: LogQuery, shown: Sequence[Line], held: list[Line]
) -> AsyncGenerator[Sequence[Line], None]:
    """Return every line that was kept, minutes late; each page oldest line first.

    The lines `held` belong between them, and are still there after an error.
    """
    now = datetime.now(UTC)
    begin = query.since or max(created_at(app, now), now - _KEPT)
    wanted = Wanted(begin, max(begin, query.until or now), contains=query.contains)
    workspace, name = await workspace_of(site, app), str(app.name)
    tables = [False, True] if query.platform else [False]
    doubles = Counter((line.platform, line.text) for line in shown)
    alike = shown[0].at - _BEFORE if shown else now

    async def ask(*, platform: bool) -> tuple[Sequence[Line], bool]:
        try:
            return await _query_page(site, workspace, name, wanted._replace(platform=platform))
        except NoTable as exc:
            tables.remove(platform)
            note(f"{exc.summary} What the live streams still have is all that there is.")
            return (), True

    while True:
        kept = await side_by_side([partial(ask, platform=one) for one in tables])
        # Of a table that has more, lines of its oldest moment may be missing.
        edge = max((lines[0].at for lines, whole in kept if lines and not whole), default=_START)
        found = sorted((line for lines, _ in kept for line in lines), key=_AT)
        page = [line for line in found if line.at > edge]
        if page or edge is _START:
            begin, wanted = edge + _TICK, wanted._replace(before=edge + _TICK)
        else:
            note(f"Log Analytics has more lines of {edge:%F %T} than it gives at once.")
            page = [line for line in found if line.at == edge]
            begin, wanted = edge, wanted._replace(before=edge)
        fresh: list[Line] = []
        for line in reversed(page):  # of the same ones the newest were in the streams
            if line.at >= alike and doubles[line.platform, line.text]:
                doubles[line.platform, line.text] -= 1
            else:
                fresh.append(line)
        page = sorted([*reversed(fresh), *(line for line in held if line.at >= begin)], key=_AT)
        held[:] = [line for line in held if line.at < begin]
        for end in range(len(page), 0, -PAGE_ROWS):
            yield page[max(0, end - PAGE_ROWS) : end]
        if edge is _START:
            return
