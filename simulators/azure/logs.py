"""Azure Monitor: streams of apps, Log Analytics' one query, and the figure of replicas."""

import ast
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from core.records import Record
from simulators.azure import grants
from simulators.azure.admission import (
    Refused,
    caller_of,
    endpoint,
    faults_of,
    json_of,
    not_found,
    refusal,
)
from simulators.azure.arm import moment
from simulators.azure.ground import APP, ENVIRONMENT, WORKSPACE
from simulators.azure.state import Body, LogRow, Replica, Subscription, World

_MOST_LINES: Final = 300
"""Source: azure-cli, which takes 0 to 300 lines."""
_AT: Final = attrgetter("at")


class Lines(Record):
    """Lines of one app that are put into its log, with their moments."""

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


def plant(world: World, sub: Subscription, given: Lines) -> int:
    """Put lines in, as the app itself would have written them, and return how many.

    Raises:
        LookupError: There is no such app in the subscription.
    """
    app = next((one for one in sub.of_type(APP) if one["name"] == given.app), None)
    if app is None:
        raise LookupError(f"There is no app named {given.app}.")
    more = given.model_dump(include={"table", "app", "replica", "revision", "reason"})
    more |= {"environment": app["properties"]["environmentId"].lower()}
    rows = [LogRow(at=round(at, 6), text=text, **more) for at, text in given.lines]
    there: list[LogRow] = world.planted.get(sub.id, [])
    kept = [row for row in there if not given.without or row.text != given.without]
    world.planted[sub.id] = [*kept, *rows]
    return len(rows)


def http_routes(world: World) -> Sequence[BaseRoute]:
    """Serve both streams of every app."""
    app = "/subscriptions/{subscription}/resourceGroups/{group}/containerApps/{app}"
    replica = "/revisions/{revision}/replicas/{replica}/containers/{container}"
    return (
        Route(f"{app}{replica}/logstream", endpoint(world, partial(_console, world))),
        Route(f"{app}/eventstream", endpoint(world, partial(_events, world))),
    )


async def _console(world: World, request: Request) -> Response:
    """Stream what the newest container of a replica wrote; of those before, nothing is left."""
    sub, app = _streamed(world, request, "GET logstream")
    replica, revision, container = (
        request.path_params[one] for one in ("replica", "revision", "container")
    )
    if not any(one.name == replica for one in sub.living(app["id"], revision)):
        raise refusal("stream-replica", name=replica)
    found = _written(world, sub, lambda one: one.replica == replica)
    begun = [at for at, one in enumerate(found) if one.reason == "ContainerStarted"]
    rows = [one for one in found[begun[-1] if begun else 0 :] if one.table == "console"]
    whose = f"[Revision: '{revision}', Replica: '{replica}']"
    intro = (
        f"Connecting to the container '{container}'...",
        f"Successfully Connected to container: '{container}' {whose}",
    )
    shown = [(time.time(), words) for words in intro]
    shown += [(row.at, row.text) for row in _newest(request, rows)]
    return _stream(
        {"TimeStamp": datetime.fromtimestamp(at, UTC).isoformat(), "Log": text}
        for at, text in shown
    )


async def _events(world: World, request: Request) -> Response:
    sub, app = _streamed(world, request, "GET eventstream")
    rows = _written(world, sub, lambda one: one.table == "system" and one.app == app["name"])
    intro = [
        LogRow(at=time.time(), table="", app="", text=words, reason=reason)
        for words, reason in (
            ("Connecting to the events collector...", "StartingGettingEvents"),
            ("Successfully connected to events server", "ConnectedToEventsServer"),
        )
    ]
    return _stream(
        {
            "TimeStamp": f"{datetime.fromtimestamp(row.at, UTC):%Y-%m-%d %H:%M:%S} +0000 UTC",
            "ContainerAppName": row.app or None,
            "RevisionName": row.revision if row.app else None,
            "ReplicaName": row.replica if row.app else None,
            "Msg": row.text,
            "Reason": row.reason,
        }
        for row in [*intro, *_newest(request, rows)]
    )


def _streamed(world: World, request: Request, label: str) -> tuple[Subscription, Body]:
    named = request.path_params
    sub = world.subscription(named["subscription"])
    sub.called(label)
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or sub.tokens.get(token, 0.0) <= time.time():
        raise refusal("stream-token")
    group = f"/subscriptions/{sub.id}/resourceGroups/{named['group']}"
    app = sub.get(f"{group}/providers/{APP}/{named['app']}")
    if app is None:
        raise refusal("stream-app")
    return sub, app


def _written(world: World, sub: Subscription, judge: Callable[[LogRow], bool]) -> list[LogRow]:
    """Return some lines of the log in their order, also of those that were put in."""
    return sorted(filter(judge, [*world.planted.get(sub.id, ()), *sub.log]), key=_AT)


def _newest(request: Request, rows: list[LogRow]) -> list[LogRow]:
    return rows[-min(int(request.query_params["tailLines"]), _MOST_LINES) :]


def _stream(told: Iterator[Mapping[str, Any]]) -> Response:
    lines = [json.dumps(one, separators=(",", ":")) + "\n" for one in told]
    return PlainTextResponse("".join(lines))


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve queries of workspaces, and figures of apps."""
    return (
        _posted(
            world,
            "/v1/workspaces/{workspace}/query",
            _query,
            permission="Microsoft.OperationalInsights/workspaces/query/read",
            audience="https://api.loganalytics.io",
        ),
        _posted(
            world,
            "/subscriptions/{subscription}/metrics:getBatch",
            _batch,
            permission="Microsoft.Insights/Metrics/Read",
            audience="https://metrics.monitor.azure.com",
        ),
    )


def _posted(
    world: World,
    path: str,
    answer: Callable[[World, Subscription, Request, Body], Awaitable[Body]],
    *,
    permission: str,
    audience: str,
) -> Route:
    async def admitted(request: Request) -> Body:
        claims = caller_of(world, request.headers, audience, world.urls.arm)
        sub = world.subscription(claims.rehearsed_subscription)
        async with faults_of(sub, f"POST {path.rpartition('/')[2]}"):
            if grants.refuses(sub, claims, permission, f"/subscriptions/{sub.id}"):
                raise refusal("query-access")
            return await answer(world, sub, request, await json_of(request))

    return Route(path, endpoint(world, admitted), methods=["POST"])


_COLUMNS: Final = {
    "TimeGenerated": "at",
    "ContainerAppName_s": "app",
    "RevisionName_s": "revision",
    "Reason_s": "reason",
    "Log_s": "text",
}
"""What each is of a line."""
_TABLES: Final = {
    "ContainerAppConsoleLogs_CL": "console", "ContainerAppSystemLogs_CL": "system"
}  # fmt: skip
_TEXT: Final = r"'(?:[^'\\]|\\.)*'"
_TERM: Final = rf"\w+ (?:==|contains|<) (?:{_TEXT}|datetime\([^)]*\))"
_PARTS: Final = rf"(\w+) (==|contains|<) (?:({_TEXT})|datetime\(([^)]*)\))"
_GROUP: Final = rf"(?:{_TERM}|\({_TERM}(?: or {_TERM})*\))"
_QUERY: Final = re.compile(
    rf"(\w+) \| where ({_GROUP}(?: and {_GROUP})*) \| project ([\w, ]+)"
    r" \| order by TimeGenerated (asc|desc) \| take (\d+)"
)
"""The one form of query that is sent to it: it is recognized, not understood."""
_PARTIAL: Final = {
    "code": "PartialError",
    "message": "There were some errors when processing your query.",
    "details": [
        {
            "code": "EngineError",
            "message": "The results of this query exceed the set limit of 64000000 bytes, so not"
            " all records were returned (E_QUERY_RESULT_SET_TOO_LARGE, 0x80DA0003)",
        }
    ],
}


async def _query(world: World, _sub: Subscription, request: Request, asked: Body) -> Body:
    guid = request.path_params["workspace"].lower()
    owners = [
        sub
        for sub in world
        for one in sub.of_type(WORKSPACE)
        if one["properties"]["customerId"] == guid
    ]
    if not owners:
        raise refusal("no-workspace", name=guid)
    begin, end = (datetime.fromisoformat(one).timestamp() for one in asked["timespan"].split("/"))
    match = _QUERY.fullmatch(query := str(asked.get("query") or ""))
    if match is None:
        raise refusal("not-served", path=query)
    name, terms, chosen, order, most = match.groups()
    table, columns = _table(world, owners[0], guid, name), chosen.split(", ")
    rows = [row for row in table if begin <= row.at <= end]
    for group in re.findall(_GROUP, terms):
        rows = list(filter(_judge(re.findall(_PARTS, group)), rows))
    rows.sort(key=_AT, reverse=order == "desc")
    found, halved = rows[: int(most)], owners[0].knobs.partial_queries
    told = {
        "name": "PrimaryResult",
        "columns": [
            {"name": one, "type": "datetime" if one == "TimeGenerated" else "string"}
            for one in columns
        ],
        "rows": [
            [moment(row.at) if one == "TimeGenerated" else getattr(row, _COLUMNS[one])
             for one in columns]
            for row in found[: len(found) // 2 if halved else None]
        ],
    }  # fmt: skip
    return {"tables": [told], **({"error": _PARTIAL} if halved else {})}


def _table(world: World, sub: Subscription, guid: str, name: str) -> list[LogRow]:
    """Return a workspace's table, which is there from its first line on, whenever that was."""
    environments = {
        str(one["id"]).lower() for one in sub.of_type(ENVIRONMENT) if _writes(one, guid)
    }
    table = _TABLES.get(name)
    rows = _written(world, sub, lambda one: one.table == table and one.environment in environments)
    if not rows:
        raise _no_table(name)
    return rows


def _judge(terms: Sequence[tuple[str, str, str, str]]) -> Callable[[LogRow], bool]:
    """Return what says whether a line fits one of some terms."""
    column, operator, text, at = terms[0]
    if operator == "<":
        before = datetime.fromisoformat(at).timestamp()
        return lambda row: row.at < before
    if operator == "==":
        value, told = ast.literal_eval(text), attrgetter(_COLUMNS[column])
        return lambda row: bool(told(row) == value)
    wanted: dict[str, list[str]] = {}
    for one, _, word, _ in terms:
        wanted.setdefault(_COLUMNS[one], []).append(ast.literal_eval(word).lower())
    return lambda row: any(  # each text is put in lower case once, however many words there are
        any(map(getattr(row, one).lower().__contains__, words)) for one, words in wanted.items()
    )


def _no_table(name: str) -> Refused:
    """Return that a table is not there; why is told two errors further in."""
    refused = refusal("query")
    why = f"'where' operator: Failed to resolve table or column expression named '{name}'"
    refused.inner = {
        "code": "SemanticError",
        "message": "A semantic error occurred.",
        "innererror": {"code": "SEM0100", "message": why},
    }
    return refused


def _writes(environment: Body, guid: str) -> bool:
    """Return whether an environment writes to a workspace."""
    told = environment["properties"].get("appLogsConfiguration") or {}
    own = told.get("logAnalyticsConfiguration") or {}
    return bool(str(own.get("customerId", "")).lower() == guid)


_GRAINS: Final = {"PT1M": 60, "PT15M": 900, "PT1H": 3600}
"""Seconds of the intervals that are asked for."""
_FIGURE: Final = {
    "metricnamespace": APP.lower(),
    "metricnames": "replicas",
    "aggregation": "average,maximum",
    "filter": "revisionname eq '*'",
}
"""The one figure that is asked for, and how."""


async def _batch(_world: World, sub: Subscription, request: Request, asked: Body) -> Body:
    query, grain = request.query_params, _GRAINS.get(request.query_params.get("interval", ""))
    if grain is None or {key: query.get(key, "").lower() for key in _FIGURE} != _FIGURE:
        raise refusal("metrics", why=f"No such figure is known here: {query}")
    begin, end = (
        datetime.fromisoformat(query[one]).timestamp() for one in ("starttime", "endtime")
    )
    values: list[Body] = []
    for resource_id in asked.get("resourceids") or []:
        app = sub.get(resource_id)
        if app is None:
            raise not_found(resource_id)
        rows = [one for one in sub.replicas if one.app == resource_id.lower()]
        metric = {
            "id": f"{app['id']}/providers/Microsoft.Insights/metrics/Replicas",
            "type": "Microsoft.Insights/metrics",
            "name": {"value": "Replicas", "localizedValue": "Replica Count"},
            "unit": "Count",
            "timeseries": list(_series(rows, begin - begin % grain, end, grain)),
        }
        said = {"starttime": moment(begin), "endtime": moment(end), "interval": query["interval"]}
        values.append({**said, "resourceid": app["id"], "value": [metric]})
    return {"values": values}


def _series(rows: Sequence[Replica], begin: float, end: float, grain: int) -> Iterator[Body]:
    """Return a series of each revision, of points without a value where there was no replica."""
    moments = [begin + at * grain for at in range(max(0, int((end - begin) // grain) + 1))]
    for name in sorted({one.revision for one in rows}):
        points: list[Body] = []
        for at in moments:
            values = [_count(rows, name, at + start) for start in range(0, grain, 60)]
            figures = {"average": sum(values) / len(values), "maximum": float(max(values))}
            points.append({"timeStamp": moment(at), **(figures if any(values) else {})})
        label = {"name": {"value": "revisionName"}, "value": name}
        yield {"metadatavalues": [label], "data": points}


def _count(rows: Sequence[Replica], revision: str, since: float) -> int:
    """Return how many replicas of a revision there were in a minute."""
    until = min(since + 60, time.time())
    return sum(
        one.revision == revision and min(until, one.ended or until) > max(since, one.created)
        for one in rows
    )
