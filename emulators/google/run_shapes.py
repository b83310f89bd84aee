"""How large a service is: accelerators, processors, memory, instances; and what is left out."""

import math
from typing import Final, NamedTuple

from google.cloud.run_v2.types import (
    Container,
    ContainerPort,
    IngressTraffic,
    Probe,
    Revision,
    RevisionTemplate,
    Service,
    ServiceScaling,
    TCPSocketAction,
    TrafficTarget,
    TrafficTargetAllocationType,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

MAX_DEFAULT: Final = 100
"""Instances where nobody says how many at most. source: run.v2 protos"""
DEFAULT_PORT: Final = 8080
_UNITS: Final = {"Ki": 2**-20, "Mi": 2**-10, "Gi": 1.0, "M": 1e6 / 2**30, "G": 1e9 / 2**30}


class Gpu(NamedTuple):
    """What an instance with one accelerator of a kind may have."""

    short: str
    """As the planner calls it."""
    cpus: tuple[float, float]
    memory: tuple[float, float]
    """GiB."""
    regions: frozenset[str]
    quota: str
    """Of those without zonal redundancy."""


GPUS: Final = {
    "nvidia-l4": Gpu(
        short="l4",
        cpus=(4, 8),
        memory=(16, 32),
        regions=frozenset(
            {
                "us-central1",
                "us-east4",
                "europe-west1",
                "europe-west4",
                "asia-southeast1",
                "asia-south1",
            }
        ),
        quota="NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion",
    ),
    "nvidia-rtx-pro-6000": Gpu(
        short="rtx-pro-6000",
        cpus=(20, math.inf),
        memory=(80, math.inf),
        regions=frozenset({"us-central1", "europe-west4", "asia-southeast1", "asia-south2"}),
        quota="NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion",
    ),
}
"""source: docs.cloud.google.com/run/docs/configuring/workerpools/gpu, stored copy of 2026-11-20;
it gives no upper bounds for the RTX"""


def gpus_of(container: Container) -> str:
    """Give how many accelerators it asks for, empty for none."""
    return container.resources.limits.get("nvidia.com/gpu", "")


def accelerator_of(template: RevisionTemplate) -> str:
    """Give the kind that its node has, empty for none."""
    return template.node_selector.accelerator


def engine_of(template: RevisionTemplate | Revision) -> Container:
    """Give the container that has the accelerator; where none has, the first."""
    return next((one for one in template.containers if gpus_of(one)), template.containers[0])


def ingress_of(template: RevisionTemplate | Revision) -> Container:
    """Give the container that requests are sent to."""
    return next((one for one in template.containers if one.ports), template.containers[0])


def cpus(limit: str) -> float:
    """Read `8` or `8000m`; what cannot be read is not a number."""
    return _number(limit[:-1]) / 1000 if limit.endswith("m") else _number(limit)


def gibibytes(limit: str) -> float:
    """Read `32Gi`; what cannot be read is not a number."""
    for unit, factor in _UNITS.items():
        if limit.endswith(unit):
            return _number(limit.removesuffix(unit)) * factor
    return _number(limit) / 2**30


def instance_cpus(template: RevisionTemplate) -> float:
    """Give the processors of all containers together."""
    return sum(cpus(one.resources.limits.get("cpu", "1")) for one in template.containers)


def instance_gibibytes(template: RevisionTemplate) -> float:
    """Give the memory of all containers together."""
    return sum(
        gibibytes(one.resources.limits.get("memory", "512Mi")) for one in template.containers
    )


def most_instances(service: Service) -> int:
    """Give the upper limit of instances; 0 where none is set."""
    limits = (service.scaling.max_instance_count, service.template.scaling.max_instance_count)
    return min((limit for limit in limits if limit), default=0)


def least_instances(service: Service) -> int:
    """Give how many instances are kept; in manual mode how many there are."""
    if is_manual(service):
        return service.scaling.manual_instance_count
    return max(service.scaling.min_instance_count, service.template.scaling.min_instance_count)


def timeout_seconds(template: RevisionTemplate) -> float:
    """Give how long one request may take; 0 where nobody says."""
    timeout: Duration = RevisionTemplate.pb(template).timeout
    return timeout.seconds + timeout.nanos / 1e9


def moment() -> Timestamp:
    """Give the time now."""
    now = Timestamp()
    now.GetCurrentTime()
    return now


def is_manual(service: Service) -> bool:
    """Whether a person says how many instances there are."""
    return service.scaling.scaling_mode == type(service.scaling).ScalingMode.MANUAL


def port_of(container: Container) -> int:
    """Give the port that it listens on."""
    return container.ports[0].container_port if container.ports else DEFAULT_PORT


def fill_in(service: Service, project_number: str) -> None:
    """Set what the server sets where the request says nothing."""
    if not service.ingress:
        service.ingress = IngressTraffic(IngressTraffic.INGRESS_TRAFFIC_ALL)
    if not service.traffic:
        latest = TrafficTargetAllocationType.TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST
        service.traffic = [TrafficTarget(type_=latest, percent=100)]
    _switch_scaling(service.scaling)
    template = service.template
    if not most_instances(service) and not is_manual(service):
        template.scaling.max_instance_count = MAX_DEFAULT
    if not template.timeout:
        template.timeout = Duration(seconds=300)
    template.max_instance_request_concurrency = template.max_instance_request_concurrency or 80
    if not template.service_account:
        template.service_account = f"{project_number}-compute@developer.gserviceaccount.com"
    _fill_in_ingress(ingress_of(template))


def _fill_in_ingress(container: Container) -> None:
    if not container.ports:
        container.ports = [ContainerPort(name="http1", container_port=DEFAULT_PORT)]
    elif not container.ports[0].name:
        container.ports[0].name = "http1"
    if not container.startup_probe:
        container.startup_probe = Probe(
            timeout_seconds=240,
            period_seconds=240,
            failure_threshold=1,
            tcp_socket=TCPSocketAction(port=port_of(container)),
        )


def _switch_scaling(scaling: ServiceScaling) -> None:
    """What the other mode knows is unset. source: run/docs/configuring/services/manual-scaling."""
    if scaling.scaling_mode != ServiceScaling.ScalingMode.MANUAL:
        ServiceScaling.pb(scaling).ClearField("manual_instance_count")
        return
    if "manual_instance_count" not in scaling:
        scaling.manual_instance_count = scaling.min_instance_count
    scaling.min_instance_count = 0
    scaling.max_instance_count = 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
