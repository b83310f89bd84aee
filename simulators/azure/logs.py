"""Azure Monitor: Log Analytics, streams of apps, and figures."""

import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from core.records import Record
from simulators.azure import kql, tokens
from simulators.azure import replicas as shapes
from simulators.azure.environment import workspace_of
from simulators.azure.errors import Refused, denied, invalid, not_found, take_fault
from simulators.azure.kql import BadQuery, Found, Row, Value
from simulators.azure.serving import json_of, refusal
from simulators.azure.state import LogRow, Replica, Subscription, World

_APP: Final = "/subscriptions/{subscription}/resourceGroups/{group}/containerApps/{app}"
_CONTAINER: Final = "/revisions/{revision}/replicas/{replica}/containers/{container}"
_MOST_LINES: Final = 300
"""source: azure-cli, which takes 0 to 300 lines."""
_USUAL_LINES: Final = 20
_RHYTHM_SECONDS: Final = 0.05
_STARTED: Final = "ContainerStarted"
WARNINGS: Final = frozenset(
    {
        "AssigningReplicaFailed",
        "ProbeFailed",
        "ContainerTerminated",
        "ContainerBackOff",
        "ContainerCreateFailed",
        "RevisionProvisioningFailed",
    }
)
"""Reasons of events whose type is Warning."""

Shown = Callable[[LogRow], str]


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.response = JSONResponse({"error": {"code": code, "message": message}}, status)


def http_routes(world: World) -> Sequence[BaseRoute]:
    """Serve both streams of every app."""
    one = _Streams(world)
    return (
        Route(f"{_APP}{_CONTAINER}/logstream", one.console, methods=["GET"]),
        Route(f"{_APP}/eventstream", one.events, methods=["GET"]),
    )


class _Streams:
    def __init__(self, world: World) -> None:
        self._world = world

    async def console(self, request: Request) -> Response:
        try:
            sub = self._admitted(request)
            named = request.path_params
            _check_replica(sub, self._app_id(request), named["revision"], named["replica"])
            count, shown = _lines_asked(request), _console_form(request)
        except _Refused as refused:
            return refused.response

        def rows() -> list[LogRow]:
            return _of_container(self._world, sub, named["replica"])

        intro = _intro(named["container"], named["revision"], named["replica"], shown)
        return self._stream(request, intro, rows, shown, count)

    async def events(self, request: Request) -> Response:
        try:
            sub = self._admitted(request)
            count, name = _lines_asked(request), _app_name(sub, self._app_id(request))
        except _Refused as refused:
            return refused.response

        def rows() -> list[LogRow]:
            return _all(self._world, sub, lambda one: one.table == "system" and one.app == name)

        return self._stream(request, _connected(), rows, _event, count)

    def _stream(
        self,
        request: Request,
        intro: Sequence[str],
        rows: Callable[[], list[LogRow]],
        shown: Shown,
        count: int,
    ) -> Response:
        follow = request.query_params.get("follow", "false").lower() == "true"
        lines = self._lines(intro, rows, shown, count, follow=follow)
        return StreamingResponse(lines, media_type="text/plain")

    async def _lines(
        self,
        intro: Sequence[str],
        rows: Callable[[], list[LogRow]],
        shown: Shown,
        count: int,
        *,
        follow: bool,
    ) -> AsyncIterator[str]:
        for line in intro:
            yield line
        there = rows()
        for row in there[-count:] if count else ():
            yield shown(row)
        seen = max((row.number for row in there), default=0)
        while follow:
            self._world.touch()
            await anyio.sleep(_RHYTHM_SECONDS)
            for row in rows():
                if row.number > seen:
                    yield shown(row)
                    seen = row.number

    def _admitted(self, request: Request) -> Subscription:
        self._world.touch()
        sub = self._world.subscription(request.path_params["subscription"])
        sub.called("GET logstream" if "replica" in request.path_params else "GET eventstream")
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or sub.tokens.get(token, 0.0) <= time.time():
            raise _Refused(401, "Unauthorized", "The token is missing, unknown, or has run out.")
        _app_name(sub, self._app_id(request))
        return sub

    def _app_id(self, request: Request) -> str:
        named = request.path_params
        group = f"/subscriptions/{named['subscription']}/resourceGroups/{named['group']}"
        return f"{group}/providers/Microsoft.App/containerApps/{named['app']}".lower()


def _check_replica(sub: Subscription, app_id: str, revision: str, replica: str) -> None:
    if not any(one.name == replica for one in sub.living(app_id, revision)):
        raise _Refused(404, "ReplicaNotFound", f"Replica '{replica}' was not found.")


def _app_name(sub: Subscription, app_id: str) -> str:
    app = sub.get(app_id)
    if app is None:
        raise _Refused(404, "ContainerAppNotFound", "The container app was not found.")
    return shapes.short(app)


def _lines_asked(request: Request) -> int:
    told = request.query_params.get("tailLines") or str(_USUAL_LINES)
    if not told.isdecimal() or int(told) > _MOST_LINES:
        raise _Refused(400, "InvalidTailLines", f"tailLines must be from 0 to {_MOST_LINES}.")
    return int(told)


def _console_form(request: Request) -> Shown:
    form = request.query_params.get("output", "json")
    if form not in {"json", "text"}:
        raise _Refused(400, "InvalidOutput", "output must be json or text.")
    return _line if form == "json" else _plain_line


def _of_container(world: World, sub: Subscription, replica: str) -> list[LogRow]:
    """Give what the newest container of a replica wrote; of those before, nothing is left."""
    rows = _all(world, sub, lambda one: one.replica == replica)
    begun = [place for place, one in enumerate(rows) if one.reason == _STARTED]
    return [one for one in rows[begun[-1] if begun else 0 :] if one.table == "console"]


def _all(world: World, sub: Subscription, judge: Callable[[LogRow], bool]) -> list[LogRow]:
    """Give some lines of the log, also of those that were put in."""
    rows = [*world.said_in(sub).chosen(judge), *filter(judge, sub.log)]
    return sorted(rows, key=lambda row: row.at)


def _line(row: LogRow) -> str:
    return _json({"TimeStamp": datetime.fromtimestamp(row.at, UTC).isoformat(), "Log": row.text})


def _plain_line(row: LogRow) -> str:
    return f"{datetime.fromtimestamp(row.at, UTC).isoformat()} {row.text}\n"


def _event(row: LogRow) -> str:
    at = datetime.fromtimestamp(row.at, UTC)
    return _json(_event_shape(f"{at:%Y-%m-%d %H:%M:%S} +0000 UTC", row))


def _event_shape(at: str, row: LogRow) -> dict[str, str | int | None]:
    return {
        "TimeStamp": at,
        "Type": "Warning" if row.reason in WARNINGS else "Normal",
        "ContainerAppName": row.app or None,
        "RevisionName": row.revision if row.app else None,
        "ReplicaName": row.replica if row.app else None,
        "Msg": row.text,
        "Reason": row.reason,
        "EventSource": "KEDA" if row.reason.startswith("KEDA") else "ContainerAppController",
        "Count": 1,
    }


def _intro(container: str, revision: str, replica: str, shown: Shown) -> list[str]:
    """Give what the stream says of itself before it begins."""
    whose = f"[Revision: '{revision}', Replica: '{replica}']"
    return [
        shown(_own(words))
        for words in (
            f"Connecting to the container '{container}'...",
            f"Successfully Connected to container: '{container}' {whose}",
        )
    ]


def _connected() -> list[str]:
    now = datetime.now(UTC)
    return [
        _json(_event_shape(f"{now:%Y-%m-%dT%H:%M:%SZ}", _own(words, reason)))
        for words, reason in (
            ("Connecting to the events collector...", "StartingGettingEvents"),
            ("Successfully connected to events server", "ConnectedToEventsServer"),
        )
    ]


def _own(words: str, reason: str = "") -> LogRow:
    return LogRow(
        number=0,
        at=time.time(),
        table="",
        app="",
        revision="",
        replica="",
        text=words,
        reason=reason,
    )


def _json(told: dict[str, str | int | None] | dict[str, str]) -> str:
    return json.dumps(told, separators=(",", ":")) + "\n"


Answer = Callable[[Subscription, Request, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers the caller's subscription and the body's JSON; raises Refused."""


def posted(
    world: World, path: str, answer: Answer, *, name: str, permission: str, audience: str
) -> Route:
    """Serve one method; faults and the list of calls know it as `POST name`."""

    async def admitted(request: Request) -> dict[str, Any]:
        claims = tokens.caller_of(world, request.headers, audience, world.urls.arm)
        sub = world.subscription(claims.subscription)
        sub.called(f"POST {name}")
        fault = take_fault(sub, f"POST {name}")
        if fault:
            await fault.happen()
        if denied(sub, permission):
            raise Refused(
                403,
                "InsufficientAccessError",
                "The provided credentials have insufficient access to perform the requested"
                " operation",
            )
        return await answer(sub, request, await json_of(request))

    async def endpoint(request: Request) -> Response:
        world.touch()
        try:
            return JSONResponse(await admitted(request))
        except Refused as refused:
            return refusal(refused)

    return Route(path, endpoint, methods=["POST"])


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


def loganalytics_routes(world: World) -> Sequence[BaseRoute]:
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
    begin = _moment_loganalytics(first)
    return begin, (
        begin + _seconds(second) if second.startswith("P") else _moment_loganalytics(second)
    )


def _seconds(duration: str) -> float:
    match = _SPAN.match(duration)
    if match is None:
        raise Refused(400, "BadArgumentError", f"The timespan '{duration}' is invalid.")
    return sum(float(value) * _UNITS[unit] for unit, value in match.groupdict().items() if value)


def _moment_loganalytics(text: str) -> float:
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
    return {_column(name, suffix): value for name, value in _values_loganalytics(line).items()}


def _values_loganalytics(line: LogRow) -> dict[str, Value]:
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


class Saying(Record):
    """Lines of one app, with their moments."""

    app: str
    """Its name."""
    lines: tuple[tuple[float, str], ...]
    """Epoch seconds and text, in any order."""
    table: Literal["console", "system"] = "console"
    replica: str = ""
    """Who wrote them; a living one shows them in its stream, if they are newer than it."""
    revision: str = ""
    reason: str = ""
    """Of events, such as ProbeFailed."""
    without: str = ""
    """Lines of this text that were put in before are taken out."""

    def rows(self, sub: Subscription) -> Sequence[LogRow]:
        """Make rows of the log, as the app itself would have written them.

        Raises:
            LookupError: There is no such app in the subscription.
        """
        environment = self._environment(sub)
        return [
            LogRow(
                number=0,
                at=at,
                table=self.table,
                app=self.app,
                revision=self.revision,
                replica=self.replica,
                text=text,
                reason=self.reason,
                stream="stderr" if self.table == "console" else "",
                environment=environment,
            )
            for at, text in self.lines
        ]

    def _environment(self, sub: Subscription) -> str:
        for app in sub.of_type("Microsoft.App/containerApps"):
            if app["name"] == self.app:
                return str(app["properties"].get("environmentId", "")).lower()
        raise LookupError(f"There is no app named {self.app}.")


_NAMESPACE: Final = "microsoft.app/containerapps"
_METRIC: Final = "Replicas"
_GRAINS: Final = {
    "PT1M": 60, "PT5M": 300, "PT15M": 900, "PT30M": 1800, "PT1H": 3600, "PT6H": 21600,
    "PT12H": 43200, "P1D": 86400,
}  # fmt: skip
"""Seconds of the intervals that Azure Monitor knows."""
_AGGREGATIONS: Final = ("average", "maximum", "minimum", "total", "count")
_EACH: Final = re.compile(r"revisionName eq '\*'", re.IGNORECASE)
_SAMPLE_SECONDS: Final = 60
_MOST_RESOURCES: Final = 50
_USUAL_SERIES: Final = 10
"""Without `top`."""


def metrics_routes(world: World) -> Sequence[BaseRoute]:
    """Serve POST /subscriptions/{subscription}/metrics:getBatch."""
    return (
        posted(
            world,
            "/subscriptions/{subscription}/metrics:getBatch",
            _batch,
            name="metrics:getBatch",
            permission="Microsoft.Insights/Metrics/Read",
            audience="https://metrics.monitor.azure.com",
        ),
    )


async def _batch(sub: Subscription, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
    query = request.query_params
    ids = asked.get("resourceids") or []
    if not 0 < len(ids) <= _MOST_RESOURCES:
        raise invalid(f"From 1 to {_MOST_RESOURCES} resource ids must be given.", "BadRequest")
    if query.get("metricnamespace", "").lower() != _NAMESPACE:
        raise invalid(f"Metric namespace '{query.get('metricnamespace')}' is not known.")
    names = [one for one in query.get("metricnames", "").split(",") if one]
    if names != [_METRIC]:
        raise invalid(
            f"Failed to find metric configuration for provider: Microsoft.App, resource Type:"
            f" containerApps, metric: {','.join(names)}, Valid metrics: {_METRIC}",
            "BadRequest",
        )
    return {"values": [_values_metrics(sub, one, query) for one in ids]}


def _values_metrics(sub: Subscription, resource_id: str, query: Any) -> dict[str, Any]:
    app = sub.get(resource_id)
    if app is None:
        raise not_found(resource_id)
    grain = query.get("interval", "PT1M")
    if grain not in _GRAINS:
        raise invalid(
            f"Invalid time grain '{grain}'. Supported: {', '.join(_GRAINS)}", "BadRequest"
        )
    begin, end = (
        _moment_metrics(query, "starttime", time.time() - 3600),
        _moment_metrics(query, "endtime", None),
    )
    rows = [one for one in sub.replicas if one.app == resource_id.lower()]
    metric = {
        "id": f"{app['id']}/providers/Microsoft.Insights/metrics/{_METRIC}",
        "type": "Microsoft.Insights/metrics",
        "name": {"value": _METRIC, "localizedValue": "Replica Count"},
        "displayDescription": "Number of replicas count of container app",
        "unit": "Count",
        "timeseries": list(_series(rows, query, (begin, end), _GRAINS[grain])),
        "errorCode": "Success",
    }
    return {
        "starttime": _text(begin),
        "endtime": _text(end),
        "interval": grain,
        "namespace": _NAMESPACE,
        "resourceregion": str(app.get("location", "")).lower().replace(" ", ""),
        "resourceid": shapes.short(app) and app["id"],
        "value": [metric],
    }


def _series(
    rows: Sequence[Replica], query: Any, span: tuple[float, float], grain: int
) -> Iterator[dict[str, Any]]:
    """Give a series of each revision if that is asked for; else one, over all of them."""
    wanted = [one for one in query.get("aggregation", "Average").lower().split(",") if one]
    if not set(wanted) <= set(_AGGREGATIONS):
        raise invalid(f"Invalid aggregation '{query.get('aggregation')}'.", "BadRequest")
    moments = _moments(*span, grain)
    revisions = sorted({one.revision for one in rows})
    each = [[_sampled(rows, name, at, grain) for at in moments] for name in revisions]
    if query.get("filter"):
        if not _EACH.fullmatch(query["filter"].strip()):
            raise invalid(f"The filter '{query['filter']}' is not supported here.", "BadRequest")
        for name, points in list(zip(revisions, each, strict=True))[: _most(query)]:
            label = {"name": {"value": "revisionName"}, "value": name}
            yield {"metadatavalues": [label], "data": _data(moments, points, wanted)}
    elif each:
        merged = [[value for one in points for value in one] for points in zip(*each, strict=True)]
        yield {"metadatavalues": [], "data": _data(moments, merged, wanted)}


def _most(query: Any) -> int:
    return int(query.get("top") or _USUAL_SERIES)


def _moments(begin: float, end: float, grain: int) -> list[float]:
    """Give where intervals begin: on whole grains."""
    first = begin - begin % grain
    count = max(0, int((end - first) // grain) + 1)
    return [first + place * grain for place in range(count)]


def _sampled(rows: Sequence[Replica], revision: str, begin: float, grain: int) -> list[float]:
    """Give the samples of a revision in an interval, none without any: whole replicas."""
    mine = [one for one in rows if one.revision == revision]
    found = []
    for offset in range(0, grain, _SAMPLE_SECONDS):
        start = begin + offset
        found.append(float(sum(_there(one, start, start + _SAMPLE_SECONDS) for one in mine)))
    return found if any(found) else []


def _there(row: Replica, begin: float, end: float) -> bool:
    last = time.time() if row.ended is None else row.ended
    return min(end, last) > max(begin, row.created)


def _data(
    moments: Sequence[float], samples: Sequence[Sequence[float]], wanted: Sequence[str]
) -> list[dict[str, Any]]:
    return [_point(at, values, wanted) for at, values in zip(moments, samples, strict=True)]


def _point(at: float, values: Sequence[float], wanted: Sequence[str]) -> dict[str, Any]:
    """Give one point; without a sample it has no value."""
    point: dict[str, Any] = {"timeStamp": _text(at)}
    if values:
        every = {
            "average": sum(values) / len(values),
            "maximum": max(values),
            "minimum": min(values),
            "total": sum(values),
            "count": float(len(values)),
        }
        point |= {name: every[name] for name in wanted}
    return point


def _moment_metrics(query: Any, name: str, usual: float | None) -> float:
    told = query.get(name)
    if not told:
        return time.time() if usual is None else usual
    try:
        return datetime.fromisoformat(told).timestamp()
    except ValueError as exc:
        raise Refused(400, "BadRequest", f"'{told}' is no moment.") from exc


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
