"""Log Analytics: what was written by replicas that are gone."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backends.aca.failing import strictly
from backends.aca.site import Site
from backends.aca.streams import PLATFORM
from backends.aca.waiting import reading
from core.cloud_errors import CloudError, CloudRefused, NotConfigured
from core.reply import note
from logs.lines import Line, pieces

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp, ManagedEnvironment
    from azure.monitor.query import LogsTable

ROWS: Final = 1000
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
        """Give a table's full name."""
        return f"{name}_CL" if self.custom else name

    def column(self, name: str) -> str:
        """Give a column's full name."""
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
    rows: int = ROWS
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


async def console(site: Site, app: "ContainerApp", wanted: Wanted) -> Sequence[Line]:
    """Give what containers wrote, oldest first; minutes late.

    Raises:
        NoTable: Nothing was ever received.
        CloudError: Log Analytics cannot be asked.
    """
    place = await place_of(site, app)
    return console_lines((await written(site, place, str(app.name), wanted)).rows)


async def system(site: Site, app: "ContainerApp", wanted: Wanted) -> Sequence[Line]:
    """Give the platform's events, oldest first; minutes late.

    Raises:
        NoTable: Nothing was ever received.
        CloudError: Log Analytics cannot be asked.
    """
    place = await place_of(site, app)
    return system_lines((await told(site, place, str(app.name), wanted)).rows)


async def written(site: Site, place: Place, name: str, wanted: Wanted) -> Kept:
    """Give rows of the containers of one app; raises as `console`."""
    table = place.table("ContainerAppConsoleLogs")
    return await _kept(site, place, query(place, table, name, wanted), wanted)


async def told(site: Site, place: Place, name: str, wanted: Wanted) -> Kept:
    """Give rows of the platform about one app, with their reasons; raises as `system`."""
    table, reason = place.table("ContainerAppSystemLogs"), place.column("Reason")
    return await _kept(site, place, query(place, table, name, wanted, reason=reason), wanted)


def console_lines(rows: Iterable[tuple[datetime, str]]) -> Sequence[Line]:
    """Make lines of what containers wrote."""
    return [Line(at, part) for at, text in rows for part in pieces(text)]


def system_lines(rows: Iterable[tuple[datetime, str]]) -> Sequence[Line]:
    """Make lines of what the platform says."""
    return [Line(at, text, PLATFORM) for at, text in rows]


async def place_of(site: Site, app: "ContainerApp") -> Place:
    """Say where the app's environment keeps its lines.

    Raises:
        NotConfigured: It keeps none, or where is not known.
        CloudError: Azure cannot be asked.
    """
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
        terms.append(f"TimeGenerated < datetime({_moment(wanted.before)})")
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


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


async def _kept(site: Site, place: Place, asked: str, wanted: Wanted) -> Kept:
    tables, whole = await _answer(site, place, asked, (wanted.begin, wanted.end))
    rows = [_row(list(row)) for table in tables for row in table.rows]
    return Kept(rows[::-1] if wanted.newest else rows, whole)


async def _answer(
    site: Site, place: Place, asked: str, span: tuple[datetime, datetime]
) -> tuple[Sequence["LogsTable"], bool]:
    """Give the tables, and whether they are all of the answer."""
    client = await site.clients.queries()
    from azure.core.exceptions import HttpResponseError
    from azure.monitor.query import LogsQueryPartialResult

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


def _row(cells: list[Any]) -> tuple[datetime, str]:
    at = cells[0] if isinstance(cells[0], datetime) else datetime.fromisoformat(str(cells[0]))
    reason, text = (str(cells[1] or "") if len(cells) > 2 else ""), str(cells[-1] or "")
    return at.astimezone(UTC), f"{reason}: {text}" if reason else text


def _no_table(words: str) -> CloudError:
    return NoTable(
        "Log Analytics has not received a line yet.",
        cause=words.splitlines()[0],
        fix="Call get_logs again in some minutes.",
    )


async def _environment(site: Site, app: "ContainerApp") -> "ManagedEnvironment":
    client = await site.clients.apps()
    full = str(app.environment_id or app.managed_environment_id or "")
    name = full.rpartition("/")[2] or site.ground.environment
    group = full.split("/")[4] if full.count("/") > 4 else site.clients.group
    with strictly(f"look at the environment {name}"):
        return await client.managed_environments.get(group, name, **reading())
