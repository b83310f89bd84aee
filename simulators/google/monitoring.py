"""Monitoring v3: what is measured of instances, aligned and reduced."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

from simulators.google import logging
from simulators.google.logging import BadFilter, Comparison, Node
from simulators.google.serving import Refused, add, invalid, page_of, unary
from simulators.google.state import Instance, Project, World

SAMPLE_SECONDS: Final = 60
"""How often Cloud Run's metrics are sampled.

Source: docs.cloud.google.com/monitoring/api/metrics_gcp, read 2026-11.
"""
INSTANCES: Final = "run.googleapis.com/container/instance_count"
BILLED: Final = "run.googleapis.com/container/billable_instance_time"
RESOURCE: Final = "cloud_run_revision"


@dataclass(frozen=True, slots=True)
class Kind:
    """What sort of numbers a metric has."""

    delta: bool
    """Each point is what was added since the one before; else how it was at a moment."""
    whole: bool
    unit: str


KINDS: Final[Mapping[str, Kind]] = {
    INSTANCES: Kind(delta=False, whole=True, unit="1"),
    BILLED: Kind(delta=True, whole=False, unit="s"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One point; a moment begins where it ends."""

    begin: float
    end: float
    value: float


@dataclass(frozen=True, slots=True)
class Row:
    """One time series, newest point first."""

    metric_labels: Mapping[str, str]
    resource_labels: Mapping[str, str]
    samples: tuple[Sample, ...]

    def with_samples(self, samples: Sequence[Sample]) -> "Row":
        """Give the same series with other points."""
        return replace(self, samples=tuple(samples))


def rows_of(project: Project, metric: str, begin: float, end: float, now: float) -> list[Row]:
    """Give the series of a metric, with the points that end in an interval and are known by now."""
    known = now - project.knobs.metric_delay_seconds
    oldest = max(begin, min((one.started for one in project.instances), default=now))
    moments = _moments(oldest, min(end, known), known)
    rows = [row for place in _places(project) for row in _rows(project, metric, place, moments)]
    return [row for row in rows if row.samples]


def _places(project: Project) -> list[tuple[str, str, str]]:
    """Give service, revision and location of all that ever ran."""
    return sorted({(one.service, one.revision, one.location) for one in project.instances})


def _moments(begin: float, end: float, known: float) -> list[float]:
    """Give the sampled moments of an interval, newest first: the last is as new as is known."""
    skipped = max(0, -int((end - known) // SAMPLE_SECONDS))
    newest = known - skipped * SAMPLE_SECONDS
    count = int((newest - begin) // SAMPLE_SECONDS) + 1 if newest >= begin else 0
    return [newest - place * SAMPLE_SECONDS for place in range(count)]


def _rows(
    project: Project, metric: str, place: tuple[str, str, str], moments: Sequence[float]
) -> Iterator[Row]:
    service, revision, location = place
    instances = [one for one in project.instances if one.revision == revision]
    first = min(one.started for one in instances)
    seen = [at for at in moments if at >= first]
    labels = {
        "project_id": project.id,
        "service_name": service,
        "revision_name": revision,
        "location": location,
        "configuration_name": service,
    }
    if metric == BILLED:
        yield Row({}, labels, tuple(_billed(instances, at) for at in seen))
        return
    for state in ("active", "idle"):
        counts = tuple(_count(instances, at, active=state == "active") for at in seen)
        yield Row({"state": state}, labels, counts)


def _count(instances: Sequence[Instance], at: float, *, active: bool) -> Sample:
    there = [one for one in instances if one.exists(at)]
    return Sample(at, at, sum(one.active(at) == active for one in there))


def _billed(instances: Sequence[Instance], end: float) -> Sample:
    begin = end - SAMPLE_SECONDS
    return Sample(begin, end, sum(one.billed(begin, end) for one in instances))


Fold = Callable[[Sequence[float]], float]

_FOLDS: Final[Mapping[str, Fold]] = {
    "SUM": sum,
    "MAX": max,
    "MIN": min,
    "MEAN": lambda values: sum(values) / len(values),
    "COUNT": len,
}
_NOT_OF_DELTAS: Final = {"NEXT_OLDER"}
_OF_DELTAS: Final = {"DELTA", "RATE"}


class BadAggregation(ValueError):
    """This aggregation is not one, not of this metric, or not known here."""


def aligned(row: Row, kind: Kind, aligner: str, period: float, end: float) -> Row:
    """Give one point for each period that has data; the periods are counted back from `end`.

    `aligner` is its name without ALIGN_; `period` is in seconds.

    Raises:
        BadAggregation: The metric cannot be aligned like that.
    """
    if aligner == "NONE":
        return row
    if aligner in (_NOT_OF_DELTAS if kind.delta else _OF_DELTAS):
        raise BadAggregation(f"ALIGN_{aligner} does not go with the metric's kind.")
    periods: dict[int, list[float]] = defaultdict(list)
    for sample in row.samples:  # newest first
        periods[int((end - sample.end) // period)].append(sample.value)
    fold = _fold_of(aligner, period)
    return row.with_samples(
        [
            Sample(_begin(place, period, end, kind), end - place * period, fold(values))
            for place, values in sorted(periods.items())
        ]
    )


def reduced(rows: Sequence[Row], reducer: str, group_by: Sequence[str]) -> list[Row]:
    """Give one series for each group of labels; `reducer` is its name without REDUCE_.

    Raises:
        BadAggregation: The reducer or a label is not known.
    """
    if reducer == "NONE":
        return list(rows)
    if reducer not in _FOLDS:
        raise BadAggregation(f"REDUCE_{reducer} is not supported.")
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(_label(row, field) for field in group_by)].append(row)
    return [_merged(group, group_by, _FOLDS[reducer]) for group in groups.values()]


def _fold_of(aligner: str, period: float) -> Fold:
    if aligner == "NEXT_OLDER":
        return lambda values: values[0]
    if aligner == "DELTA":
        return sum
    if aligner == "RATE":
        return lambda values: sum(values) / period
    if aligner not in _FOLDS:
        raise BadAggregation(f"ALIGN_{aligner} is not supported.")
    return _FOLDS[aligner]


def _begin(place: int, period: float, end: float, kind: Kind) -> float:
    return end - (place + 1) * period if kind.delta else end - place * period


def _merged(rows: Sequence[Row], group_by: Sequence[str], fold: Fold) -> Row:
    moments: dict[tuple[float, float], list[float]] = defaultdict(list)
    for row in rows:
        for sample in row.samples:
            moments[sample.begin, sample.end].append(sample.value)
    newest_first = sorted(moments.items(), key=lambda one: -one[0][1])
    return Row(
        _kept(rows[0], group_by, "metric"),
        _kept(rows[0], group_by, "resource"),
        tuple(Sample(begin, end, fold(values)) for (begin, end), values in newest_first),
    )


def _label(row: Row, field: str) -> str:
    prefix, _, name = field.replace(".label.", ".labels.").partition(".labels.")
    labels = {"metric": row.metric_labels, "resource": row.resource_labels}.get(prefix)
    if labels is None or name not in labels:
        raise BadAggregation(f"Field {field!r} is not one to group by.")
    return labels[name]


def _kept(row: Row, group_by: Sequence[str], prefix: str) -> dict[str, str]:
    fields = [one for one in group_by if one.startswith(f"{prefix}.")]
    return {field.split(".", 2)[2]: _label(row, field) for field in fields}


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
        node = logging.parse(words)
    except BadFilter as exc:
        raise invalid(str(exc)) from exc
    for one in logging.comparisons(node):
        label = _LABEL.match(one.field)
        known = label and label["name"] in _KNOWN_LABELS[label["of"]]
        if one.operator not in {"=", "!="} or not (known or one.field in _KNOWN_FIELDS):
            raise invalid(f"Field filter had an invalid value: {one.field} {one.operator}")
    return node


def _metric(node: Node) -> str:
    named = [one for one in logging.comparisons(node) if one.field == "metric.type"]
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
        return logging.ordered(one.operator, _actual(one.field, metric, row), one.value)

    return logging.holds(node, judge)


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
