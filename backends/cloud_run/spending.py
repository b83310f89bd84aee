"""What a deployment costs: by the hour as it is made, and so far as it was billed."""

import re
from datetime import datetime
from math import ceil
from typing import TYPE_CHECKING, Final

from backends.cloud_run import instances
from backends.cloud_run.rules import place_of
from backends.cloud_run.site import Site
from backends.google.moments import when
from planner.places import Size
from planner.price import price

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

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
    """Give what its instances were billed since it was made, some minutes late.

    Raises:
        CloudError: Cloud Monitoring cannot be asked.
    """
    hourly = usd_per_hour(site, service)
    if hourly is None:
        return None
    seconds = await billed_seconds(site, service, now)
    return round(seconds / 3600 * hourly, 4)


async def billed_seconds(site: Site, service: "Service", now: datetime) -> float:
    """Give how long instances of a service were billed, all of them together.

    Raises:
        CloudError: Cloud Monitoring cannot be asked.
    """
    lived = max(1, ceil((now - when(service.create_time)).total_seconds() / _MINUTE)) * _MINUTE
    await site.clients.monitoring()
    from google.cloud.monitoring_v3 import Aggregation
    from google.protobuf.duration_pb2 import Duration

    found = await instances.series(
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
    return sum(point.value.double_value for row in found for point in row.points)
