"""Azure Monitor's figures of apps: how many replicas of each revision there were."""

import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import BaseRoute

from emulators.azure import fleet_shapes as shapes
from emulators.azure.loganalytics_serving import posted
from emulators.azure.refusing import Refused, invalid, not_found
from emulators.azure.state import Replica, Subscription, World

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


def routes(world: World) -> Sequence[BaseRoute]:
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
    return {"values": [_values(sub, one, query) for one in ids]}


def _values(sub: Subscription, resource_id: str, query: Any) -> dict[str, Any]:
    app = sub.get(resource_id)
    if app is None:
        raise not_found(resource_id)
    grain = query.get("interval", "PT1M")
    if grain not in _GRAINS:
        raise invalid(
            f"Invalid time grain '{grain}'. Supported: {', '.join(_GRAINS)}", "BadRequest"
        )
    begin, end = _moment(query, "starttime", time.time() - 3600), _moment(query, "endtime", None)
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


def _moment(query: Any, name: str, usual: float | None) -> float:
    told = query.get(name)
    if not told:
        return time.time() if usual is None else usual
    try:
        return datetime.fromisoformat(told).timestamp()
    except ValueError as exc:
        raise Refused(400, "BadRequest", f"'{told}' is no moment.") from exc


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
