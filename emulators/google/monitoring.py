"""Monitoring v3: how many instances there were, and for how long they were billed."""

import re
import time
from collections.abc import Sequence
from typing import Final

import grpc.aio
from google.api.metric_pb2 import Metric, MetricDescriptor
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.monitoring_v3.types import (
    Aggregation,
    ListTimeSeriesRequest,
    ListTimeSeriesResponse,
    Point,
    TimeInterval,
    TimeSeries,
    TypedValue,
)
from google.protobuf.timestamp_pb2 import Timestamp

from emulators.google import filters
from emulators.google.aligning import BadAggregation, aligned, reduced
from emulators.google.filters import BadFilter, Comparison, Node
from emulators.google.measuring import KINDS, RESOURCE, Kind, Row, Sample, rows_of
from emulators.google.paging import page_of
from emulators.google.refusing import Refused, invalid
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

_MOST_SERIES: Final = 100_000
_SHORTEST_PERIOD_SECONDS: Final = 60
_LABEL: Final = re.compile(r"^(?P<of>metric|resource)\.labels?\.(?P<name>[a-z_]+)$")
_KNOWN_FIELDS: Final = {"metric.type", "resource.type", "project"}
_KNOWN_LABELS: Final = {
    "metric": {"state"},
    "resource": {
        *("project_id", "service_name", "revision_name", "location", "configuration_name"),
    },
}


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "ListTimeSeries": unary(
            ListTimeSeriesRequest, ListTimeSeriesResponse, _list, "monitoring.timeSeries.list"
        )
    }
    api = "monitoring.googleapis.com"
    add(server, world, "google.monitoring.v3.MetricService", methods, api=api)


async def _list(
    _world: World, project: Project, request: ListTimeSeriesRequest
) -> ListTimeSeriesResponse:
    if request.order_by:
        raise invalid("Field orderBy is not supported and must be left blank.")
    begin, end = _interval(request)
    node = _filter(request.filter)
    metric = _metric(node)
    try:
        rows = rows_of(project, metric, begin, end, time.time())
        chosen = [row for row in rows if _chosen(node, metric, row)]
        told = _aggregated(chosen, KINDS[metric], request.aggregation, end)
    except BadAggregation as exc:
        raise invalid(str(exc)) from exc
    page, token = page_of(told, request.page_size, request.page_token, most=_MOST_SERIES)
    headers = request.view == ListTimeSeriesRequest.TimeSeriesView.HEADERS
    series = [_told(metric, row, request.aggregation, headers=headers) for row in page]
    return ListTimeSeriesResponse(
        time_series=series, next_page_token=token, unit=KINDS[metric].unit
    )


def _interval(request: ListTimeSeriesRequest) -> tuple[float, float]:
    given = ListTimeSeriesRequest.pb(request).interval
    end = _seconds(given.end_time)
    begin = _seconds(given.start_time) if given.HasField("start_time") else end
    if end <= 0:
        raise invalid("Field interval.endTime had an invalid value: it must be given.")
    if begin > end:
        raise invalid("Field interval.startTime had an invalid value: it is after the end time.")
    return begin, end


def _filter(words: str) -> Node:
    """Read a filter, each comparison of which is understood."""
    try:
        node = filters.parse(words)
    except BadFilter as exc:
        raise invalid(str(exc)) from exc
    for one in filters.comparisons(node):
        label = _LABEL.match(one.field)
        known = label and label["name"] in _KNOWN_LABELS[label["of"]]
        if one.operator not in {"=", "!="} or not (known or one.field in _KNOWN_FIELDS):
            raise invalid(f"Field filter had an invalid value: {one.field} {one.operator}")
    return node


def _metric(node: Node) -> str:
    named = [one for one in filters.comparisons(node) if one.field == "metric.type"]
    if len(named) != 1 or named[0].operator != "=":
        raise invalid("Field filter had an invalid value: exactly one metric.type must be given.")
    if named[0].value not in KINDS:
        raise Refused(
            "NOT_FOUND",
            f'Cannot find metric(s) that match type = "{named[0].value}". If a metric was created'
            " recently, it could take up to 10 minutes to become available.",
        )
    return named[0].value


def _chosen(node: Node, metric: str, row: Row) -> bool:
    def judge(one: Comparison) -> bool:
        return filters.ordered(one.operator, _actual(one.field, metric, row), one.value)

    return filters.holds(node, judge)


def _actual(field: str, metric: str, row: Row) -> str:
    label = _LABEL.match(field)
    if label is None:
        known = {"metric.type": metric, "resource.type": RESOURCE}
        return known.get(field) or row.resource_labels["project_id"]
    labels = row.metric_labels if label["of"] == "metric" else row.resource_labels
    return labels.get(label["name"], "")


def _aggregated(rows: Sequence[Row], kind: Kind, how: Aggregation, end: float) -> list[Row]:
    aligner = how.per_series_aligner.name.removeprefix("ALIGN_")
    reducer = how.cross_series_reducer.name.removeprefix("REDUCE_")
    asked = Aggregation.pb(how).alignment_period
    period = asked.seconds + asked.nanos / 1e9
    if reducer != "NONE" and aligner == "NONE":
        raise BadAggregation("A reducer needs an aligner.")
    if aligner != "NONE" and period < _SHORTEST_PERIOD_SECONDS:
        raise BadAggregation("Field aggregation.alignmentPeriod must be at least 60 s.")
    each = [aligned(row, kind, aligner, period, end) for row in rows]
    return reduced(each, reducer, list(how.group_by_fields))


def _told(metric: str, row: Row, how: Aggregation, *, headers: bool) -> TimeSeries:
    kind = KINDS[metric]
    rate = how.per_series_aligner.name == "ALIGN_RATE"
    means = "MEAN" in how.per_series_aligner.name + how.cross_series_reducer.name
    whole = kind.whole and not means
    return TimeSeries(
        metric=Metric(type=metric, labels=row.metric_labels),
        resource=MonitoredResource(type=RESOURCE, labels=row.resource_labels),
        metric_kind=MetricDescriptor.DELTA if kind.delta and not rate else MetricDescriptor.GAUGE,
        value_type=MetricDescriptor.INT64 if whole else MetricDescriptor.DOUBLE,
        points=[] if headers else [_point(one, whole=whole) for one in row.samples],
    )


def _point(sample: Sample, *, whole: bool) -> Point:
    value = (
        TypedValue(int64_value=int(sample.value))
        if whole
        else TypedValue(double_value=sample.value)
    )
    interval = TimeInterval(start_time=_moment(sample.begin), end_time=_moment(sample.end))
    return Point(interval=interval, value=value)


def _seconds(moment: Timestamp) -> float:
    return float(moment.seconds + moment.nanos / 1e9)


def _moment(seconds: float) -> Timestamp:
    whole = int(seconds)
    return Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9))
