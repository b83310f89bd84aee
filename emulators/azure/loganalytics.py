"""Log Analytics: what apps wrote, queried in Kusto's language."""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import BaseRoute

from emulators.azure import kql
from emulators.azure.kql import BadQuery, Found, Row
from emulators.azure.kql_words import Value
from emulators.azure.loganalytics_serving import posted
from emulators.azure.refusing import Refused
from emulators.azure.state import LogRow, Subscription, World
from emulators.azure.streams import WARNINGS
from emulators.azure.workspaces import workspace_of

_COLUMNS: Final = {
    "console": {
        "TimeGenerated": "datetime",
        "ContainerAppName": "string",
        "RevisionName": "string",
        "ContainerGroupName": "string",
        "ContainerName": "string",
        "EnvironmentName": "string",
        "Stream": "string",
        "Log": "string",
    },
    "system": {
        "TimeGenerated": "datetime",
        "ContainerAppName": "string",
        "RevisionName": "string",
        "ReplicaName": "string",
        "EnvironmentName": "string",
        "Type": "string",
        "Reason": "string",
        "EventSource": "string",
        "Log": "string",
    },
}
"""Of each table. A replica's name is the container group's in the console's."""
_TABLES: Final = {"console": "ContainerAppConsoleLogs", "system": "ContainerAppSystemLogs"}
_SPAN: Final = re.compile(
    r"^P(?:(?P<days>[\d.]+)D)?(?:T(?:(?P<hours>[\d.]+)H)?(?:(?P<minutes>[\d.]+)M)?"
    r"(?:(?P<seconds>[\d.]+)S)?)?$"
)
_UNITS: Final = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_PARTIAL: Final = {
    "code": "PartialError",
    "message": "There were some errors when processing your query.",
    "details": [
        {
            "code": "EngineError",
            "message": "Something went wrong processing your query on the server.",
            "innererror": {
                "code": "-2133196797",
                "message": "The results of this query exceed the set limit of 64000000 bytes, so"
                " not all records were returned (E_QUERY_RESULT_SET_TOO_LARGE, 0x80DA0003)",
                "severity": 2,
                "severityName": "Error",
            },
        }
    ],
}


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve POST /v1/workspaces/{workspace}/query."""

    async def query(_sub: Subscription, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        guid = request.path_params["workspace"]
        owner = _owner(world, guid)
        tables = _tables(world, owner, guid, _interval(str(asked.get("timespan") or "")))
        try:
            found = kql.answered(str(asked.get("query") or ""), tables, time.time())
        except BadQuery as exc:
            raise _BadRequest(exc) from exc
        return _told(found, halved=owner.knobs.partial_queries)

    return (
        posted(
            world,
            "/v1/workspaces/{workspace}/query",
            query,
            name="query",
            permission="Microsoft.OperationalInsights/workspaces/query/read",
            audience="https://api.loganalytics.io",
        ),
    )


def _owner(world: World, guid: str) -> Subscription:
    for sub in world:
        if workspace_of(sub, guid):
            return sub
    raise Refused(404, "WorkspaceNotFoundError", f"The workspace '{guid}' could not be found.")


def _interval(timespan: str) -> tuple[float, float]:
    """Read `begin/end`, `begin/duration` or `duration`; everything where there is none."""
    if not timespan:
        return 0.0, float("inf")
    first, _, second = timespan.partition("/")
    now = time.time()
    if not second:
        return now - _seconds(first), float("inf")
    begin = _moment(first)
    return begin, (begin + _seconds(second) if second.startswith("P") else _moment(second))


def _seconds(duration: str) -> float:
    match = _SPAN.match(duration)
    if match is None:
        raise Refused(400, "BadArgumentError", f"The timespan '{duration}' is invalid.")
    return sum(float(value) * _UNITS[unit] for unit, value in match.groupdict().items() if value)


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as exc:
        raise Refused(400, "BadArgumentError", f"The timespan '{text}' is invalid.") from exc


def _tables(world: World, sub: Subscription, guid: str, span: tuple[float, float]) -> kql.Tables:
    """Give the workspace's tables: one is there from its first line on, whenever that was.

    An environment that writes there itself has `_CL` tables; by Azure Monitor they have none.
    """
    found: dict[str, tuple[Mapping[str, str], list[Row]]] = {}
    custom = {
        str(one["id"]).lower(): _writes(one, guid)
        for one in sub.of_type("Microsoft.App/managedEnvironments")
    }
    known = time.time() - sub.knobs.log_delay_seconds
    for line in sub.log if sub.knobs.log_tables else ():
        direct = custom.get(line.environment)
        if direct is None or line.at > known:
            continue
        rows = _rows_of(found, line.table, direct=direct)
        if span[0] <= line.at <= span[1]:
            rows.append(_row(line, _suffix(direct=direct)))
    said, until = world.said_in(sub), min(span[1], known)
    for table, environment in said.places() if sub.knobs.log_tables else ():
        direct = custom.get(environment)
        if direct is None:
            continue
        suffix = _suffix(direct=direct)
        show = partial(_row, suffix=suffix)
        _rows_of(found, table, direct=direct).extend(
            said.between((table, environment), suffix, show, (span[0], until))
        )
    return found


def _rows_of(
    found: dict[str, tuple[Mapping[str, str], list[Row]]], table: str, *, direct: bool
) -> list[Row]:
    suffix = _suffix(direct=direct)
    name = f"{_TABLES[table]}{'_CL' if direct else ''}"
    columns = {_column(one, suffix): kind for one, kind in _COLUMNS[table].items()}
    return found.setdefault(name, (columns, []))[1]


def _suffix(*, direct: bool) -> str:
    return "_s" if direct else ""


def _writes(environment: dict[str, Any], guid: str) -> bool | None:
    """Whether an environment writes to a workspace itself, by Azure Monitor, or not there."""
    told = environment["properties"].get("appLogsConfiguration") or {}
    if told.get("destination") == "azure-monitor":
        return False
    own = told.get("logAnalyticsConfiguration") or {}
    return True if str(own.get("customerId", "")).lower() == guid.lower() else None


def _column(name: str, suffix: str) -> str:
    return name if name == "TimeGenerated" else f"{name}{suffix}"


def _row(line: LogRow, suffix: str) -> Row:
    return {_column(name, suffix): value for name, value in _values(line).items()}


def _values(line: LogRow) -> dict[str, Value]:
    values: dict[str, Value] = {
        "TimeGenerated": round(line.at, 6),
        "ContainerAppName": line.app,
        "RevisionName": line.revision,
        "EnvironmentName": line.environment.rpartition("/")[2],
        "Log": line.text,
    }
    if line.table == "console":
        return values | {
            "ContainerGroupName": line.replica,
            "ContainerName": "",
            "Stream": line.stream,
        }
    return values | {
        "ReplicaName": line.replica,
        "Type": "Warning" if line.reason in WARNINGS else "Normal",
        "Reason": line.reason,
        "EventSource": "KEDA" if line.reason.startswith("KEDA") else "ContainerAppController",
    }


def _told(found: Found, *, halved: bool) -> dict[str, Any]:
    rows = found.rows[: len(found.rows) // 2] if halved else found.rows
    table = {
        "name": "PrimaryResult",
        "columns": [{"name": name, "type": kind} for name, kind in found.columns.items()],
        "rows": [[_cell(row[name], kind) for name, kind in found.columns.items()] for row in rows],
    }
    return {"tables": [table], **({"error": _PARTIAL} if halved else {})}


def _cell(value: Value, kind: str) -> Value:
    if kind != "datetime":
        return value
    return datetime.fromtimestamp(float(value), UTC).isoformat().replace("+00:00", "Z")


class _BadRequest(Refused):
    """A query that is not understood; why is told two errors further in."""

    def __init__(self, exc: BadQuery) -> None:
        super().__init__(400, "BadArgumentError", "The request had some invalid properties")
        self._why = {"code": exc.code, "message": str(exc)}

    @property
    def error(self) -> dict[str, object]:
        semantic = self._why["code"].startswith("SEM")
        code, words = (
            ("SemanticError", "A semantic error occurred.")
            if semantic
            else ("SyntaxError", "A recognition error occurred in the query.")
        )
        return super().error | {
            "innererror": {"code": code, "message": words, "innererror": self._why}
        }
