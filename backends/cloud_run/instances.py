"""Instances: how many run, what one has, what they cost and how long a boot may take."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from google.api_core.exceptions import NotFound
from google.cloud.monitoring_v3 import Aggregation, ListTimeSeriesRequest, TimeInterval, TimeSeries
from google.cloud.run_v2 import Service
from google.protobuf.duration_pb2 import Duration

from backends.base import BootBudget
from backends.cloud_run.container import place_of, rules, weights_of
from backends.cloud_run.service import engine_in, read_spec
from backends.cloud_run.site import Site
from backends.google.clients import when
from backends.google.errors import reading, translated
from core.records import Record
from planner.places import Size
from planner.price import price

FRESH_SECONDS: Final = 300.0
"""A point is taken each 60 s and seen up to 180 s later; source: Google's list of metrics."""
_WINDOW: Final = timedelta(minutes=30)
_SAMPLE_SECONDS: Final = 60.0
_CLOCKS: Final = timedelta(seconds=10)
"""How far Google's clock may be ahead of ours, lest the newest point be missed."""


class Reading(Record):
    """The newest point of an account that is minutes old."""

    count: int
    """Instances, busy or not."""
    at: datetime

    def age_seconds(self, now: datetime) -> float:
        """Return how old it is."""
        return max(0.0, (now - self.at).total_seconds())


async def read_instances(site: Site, name: str, now: datetime) -> Sequence[Reading]:
    """Return the newest reading of a service, nothing where there is none of half an hour."""
    found = await read_series(
        site, name, "instance_count", begin=now - _WINDOW, end=now, what="read its instances"
    )
    newest = newest_reading(found)
    return (newest,) if newest else ()


def newest_reading(found: Sequence[TimeSeries]) -> Reading | None:
    """Add up the newest points of all revisions and states, None where there is no point."""
    newest = [
        (when(row.points[0].interval.end_time), int(row.points[0].value.int64_value))
        for row in found
        if row.points
    ]
    if not newest:
        return None
    at = max(ended for ended, _ in newest)
    # A series that ended, such as an older revision's, counts no more.
    counted = [count for ended, count in newest if (at - ended).total_seconds() < _SAMPLE_SECONDS]
    return Reading(count=sum(counted), at=at)


async def read_series(
    site: Site,
    name: str,
    metric: str,
    *,
    begin: datetime,
    end: datetime,
    what: str,
    aggregation: "Aggregation | None" = None,
) -> Sequence["TimeSeries"]:
    """Read a metric of a service's containers, each series newest first."""
    client = await site.clients.monitoring()

    request = ListTimeSeriesRequest(
        name=f"projects/{site.clients.project}",
        filter=f'metric.type = "run.googleapis.com/container/{metric}"'
        ' AND resource.type = "cloud_run_revision"'
        f' AND resource.labels.service_name = "{name}"'
        f' AND resource.labels.location = "{site.clients.region}"',
        interval=TimeInterval(start_time=begin, end_time=end + _CLOCKS),
        aggregation=aggregation,
    )
    try:
        with translated(what):
            pager = await client.list_time_series(request, **reading())
            return [row async for row in pager]
    except NotFound:  # so it says of a metric that the project never had a point of
        return ()


_MINUTE: Final = 60
_MEMORY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|k|M|G)?B?")
_GIB: Final = {"Ki": 2**-20, "Mi": 2**-10, "Gi": 1.0, "k": 1e3 / 2**30, "M": 1e6 / 2**30,
               "G": 1e9 / 2**30, None: 2**-30}  # fmt: skip


def usd_per_hour(site: Site, service: "Service") -> float | None:
    """Give the price of one running instance, None where nobody has said."""
    if site.target.usd_per_hour is not None:
        return site.target.usd_per_hour
    hourly = price(place_of(site.target), size_of(service)).usd_per_hour
    return None if hourly is None else round(hourly, 4)


def size_of(service: "Service") -> Size | None:
    """Give the processors and memory of an instance, all of its containers together.

    >>> from google.cloud import run_v2
    >>> limits = {"cpu": "8000m", "memory": "32768Mi"}
    >>> made = run_v2.Container(resources=run_v2.ResourceRequirements(limits=limits))
    >>> size_of(run_v2.Service(template=run_v2.RevisionTemplate(containers=[made])))
    Size(vcpu=8, ram_gib=32)
    """
    vcpu = ram_gib = 0.0
    for container in service.template.containers:
        limits = container.resources.limits
        memory = _MEMORY.fullmatch(limits.get("memory", ""))
        cpu = re.fullmatch(r"([0-9]+)(m?)", limits.get("cpu", ""))
        if not memory or not cpu:
            return None
        vcpu += int(cpu[1]) / (1000 if cpu[2] else 1)
        ram_gib += float(memory[1]) * _GIB[memory[2]]
    return Size(vcpu=ceil(vcpu), ram_gib=ceil(ram_gib)) if vcpu else None


async def usd_so_far(site: Site, service: "Service", now: datetime) -> float | None:
    """Give what its instances were billed since it was made, some minutes late."""
    hourly = usd_per_hour(site, service)
    if hourly is None:
        return None
    lived = max(1, ceil((now - when(service.create_time)).total_seconds() / _MINUTE)) * _MINUTE
    found = await read_series(
        site,
        service.name.rpartition("/")[2],
        "billable_instance_time",
        begin=when(service.create_time),
        end=now,
        what="read what was billed",
        aggregation=Aggregation(
            alignment_period=Duration(seconds=lived),
            per_series_aligner=Aggregation.Aligner.ALIGN_SUM,
            cross_series_reducer=Aggregation.Reducer.REDUCE_SUM,
        ),
    )
    seconds = sum(point.value.double_value for row in found for point in row.points)
    return round(seconds / 3600 * hourly, 4)


def boot_budget(service: Service) -> BootBudget:
    """Read the startup probe of a service."""
    spec = read_spec(service)
    seconds, probe = 240, "Cloud Run's own: a TCP probe"
    engine = engine_in(service)
    if engine and engine.startup_probe.failure_threshold:
        own = engine.startup_probe
        seconds = own.initial_delay_seconds + own.period_seconds * own.failure_threshold
        path = own.http_get.path or "TCP"
        probe = f"{own.failure_threshold} failures of {path}, {own.period_seconds} s apart"
    held = service.template.timeout.seconds
    return BootBudget(
        seconds=seconds,
        probe=probe,
        longest_seconds=rules().limits.startup_seconds,
        weights_from=weights_of(spec).boot_source if spec and spec.engine == "vllm" else "hub",
        stays_seconds=int(IDLE.total_seconds()),
        notes=(
            "Cloud Run counts from the container's start: host and image come before it.",
            f"A request that wakes it is held meanwhile, for at most {held:,} s.",
        ),
    )


IDLE: Final = timedelta(minutes=15)
"""An instance without requests is kept no longer; source: Cloud Run, about instance autoscaling."""
