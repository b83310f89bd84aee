"""What Cloud Run refuses at once, how large a service is, and how it says how it is."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.api.launch_stage_pb2 import LaunchStage
from google.cloud.run_v2.types import (
    Condition,
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
    TrafficTargetStatus,
)
from google.protobuf.duration_pb2 import Duration

from core.records import Record
from simulators.google import projects
from simulators.google.serving import Refused, refusal
from simulators.google.state import CATALOG, Project
from simulators.google.store import moment

MAX_DEFAULT: Final = 100
"""Instances where nobody says how many at most. source: run.v2 protos"""
DEFAULT_PORT: Final = 8080
_UNITS: Final = {"Ki": 2**-20, "Mi": 2**-10, "Gi": 1.0, "M": 1e6 / 2**30, "G": 1e9 / 2**30}
_LATEST: Final = TrafficTargetAllocationType.TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST


class Gpu(Record):
    """What an instance with one accelerator of a kind may have."""

    short: str
    """As the planner calls it."""
    cpus: tuple[float, float]
    memory: tuple[float, float]
    """GiB."""
    regions: tuple[str, ...]
    quota: str
    """Of those without zonal redundancy."""


GPUS: Final = {name: Gpu(**said) for name, said in CATALOG["gpus"].items()}


def engine_of(template: RevisionTemplate | Revision) -> Container:
    """Return the container that has the accelerator; where none has, the first."""
    return next((one for one in template.containers if _gpus(one)), template.containers[0])


def ingress_of(template: RevisionTemplate | Revision) -> Container:
    """Return the container that requests are sent to."""
    return next((one for one in template.containers if one.ports), template.containers[0])


def _gpus(container: Container) -> str:
    return container.resources.limits.get("nvidia.com/gpu", "")


def _size(*containers: Container) -> tuple[float, float]:
    """Return processors and GiB of containers together; what cannot be read is not a number."""
    limits = [one.resources.limits for one in containers]
    return (
        sum(_amount(one.get("cpu", "1"), {"m": 1e-3}, 1) for one in limits),
        sum(_amount(one.get("memory", "512Mi"), _UNITS, 2**-30) for one in limits),
    )


def _amount(limit: str, units: dict[str, float], alone: float) -> float:
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", limit)
    if found is None or found[2] not in {"", *units}:
        return math.nan
    return float(found[1]) * units.get(found[2], alone)


def most_instances(service: Service) -> int:
    """Return the upper limit of instances; 0 where none is set."""
    limits = (service.scaling.max_instance_count, service.template.scaling.max_instance_count)
    return min((limit for limit in limits if limit), default=0)


def least_instances(service: Service) -> int:
    """Return how many instances are kept; in manual mode how many there are."""
    if is_manual(service):
        return service.scaling.manual_instance_count
    return max(service.scaling.min_instance_count, service.template.scaling.min_instance_count)


def timeout_seconds(template: RevisionTemplate) -> float:
    """Return how long one request may take; 0 where nobody says."""
    timeout: Duration = RevisionTemplate.pb(template).timeout
    return timeout.seconds + timeout.nanos / 1e9


def is_manual(service: Service) -> bool:
    """Whether a person says how many instances there are."""
    return service.scaling.scaling_mode == ServiceScaling.ScalingMode.MANUAL


def is_disabled(service: Service) -> bool:
    """Whether a person says that there is no instance: nobody may start one."""
    return is_manual(service) and not service.scaling.manual_instance_count


def port_of(container: Container) -> int:
    """Return the port that it listens on."""
    return container.ports[0].container_port if container.ports else DEFAULT_PORT


def fill_in(service: Service, project_number: str) -> None:
    """Set what the server sets where the request says nothing."""
    template, scaling = service.template, service.scaling
    service.ingress = service.ingress or IngressTraffic(IngressTraffic.INGRESS_TRAFFIC_ALL)
    if not service.traffic:
        service.traffic = [TrafficTarget(type_=_LATEST, percent=100)]
    # What the other mode knows is unset. source: run/docs/configuring/services/manual-scaling
    if is_manual(service):
        if "manual_instance_count" not in scaling:
            scaling.manual_instance_count = scaling.min_instance_count
        scaling.min_instance_count = scaling.max_instance_count = 0
    else:
        ServiceScaling.pb(scaling).ClearField("manual_instance_count")
        if not most_instances(service):
            template.scaling.max_instance_count = MAX_DEFAULT
    if not template.timeout:
        template.timeout = Duration(seconds=300)
    template.max_instance_request_concurrency = template.max_instance_request_concurrency or 80
    if not template.service_account:
        template.service_account = f"{project_number}-compute@developer.gserviceaccount.com"
    container = ingress_of(template)
    if not container.ports:
        container.ports = [ContainerPort(container_port=DEFAULT_PORT)]
    container.ports[0].name = container.ports[0].name or "http1"
    if not container.startup_probe:
        container.startup_probe = Probe(
            timeout_seconds=240,
            period_seconds=240,
            failure_threshold=1,
            tcp_socket=TCPSocketAction(port=port_of(container)),
        )


_SERVICE_ID: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,47}[a-z0-9])?")
_STARTUP_SECONDS: Final = 1800
"""Of failureThreshold times periodSeconds with a GPU; 240 without one."""
_EARLY: Final = {LaunchStage.Value(name) for name in ("ALPHA", "BETA")}
_GIB_PER_CPU: Final = 4
"""Source: docs.cloud.google.com/run/docs/configuring/services/memory-limits, up to 8 CPUs."""
_Problems = Iterator[tuple[str, str]]
"""Fields below the service, and what is wrong with each."""


def check(
    project: Project,
    verb: str,
    location: str,
    service_id: str,
    service: Service,
    *,
    validate_only: bool,
) -> None:
    """Refuse what cannot be; `verb` is Create or Update.

    Raises:
        Refused: INVALID_ARGUMENT, with the violated fields.
    """
    if not _SERVICE_ID.fullmatch(service_id):
        words = (
            "must contain only lowercase, digits, and hyphens; must begin with a letter, and must"
            " not end with a hyphen; must be less than 50 characters."
        )
        raise _violations(verb, [("service_id", words)])
    if problems := [(f"service.{field}", words) for field, words in _problems(service)]:
        raise _violations(verb, problems)
    if service.template.node_selector.accelerator:
        _check_gpu_quota(project, location, service, validate_only=validate_only)
    processors, memory = _size(*service.template.containers)
    totals = {
        "CpuAllocPerProjectRegion": (processors * 1000, "CPU"),
        "MemAllocPerProjectRegion": (memory * 2**30, "memory"),
    }
    for quota, (each, what) in totals.items():
        allowed = projects.limit(project, quota, location) or 0
        asked = most_instances(service) * each
        if asked > allowed:
            figures = {"fitting": allowed // each, "asked": asked, "allowed": allowed}
            raise refusal("run-total", what=what, quota=quota, **figures)


def grant_first(project: Project, location: str, service: Service) -> None:
    """Give the first deployment with a GPU in a region the quota that goes with it."""
    accelerator = service.template.node_selector.accelerator
    if accelerator and projects.limit(project, GPUS[accelerator].quota, location) is None:
        project.granted_quotas.add((GPUS[accelerator].quota, location))


def _within(where: str, value: float, least: float, most: float, unit: str = "") -> _Problems:
    if not least <= value <= most:
        yield where, f"must be between {least:g}{unit} and {most:g}{unit}."


def _problems(service: Service) -> _Problems:
    template, at = service.template, "template"
    for where, scaling in ((f"{at}.scaling", template.scaling), ("scaling", service.scaling)):
        if scaling.max_instance_count and scaling.min_instance_count > scaling.max_instance_count:
            yield f"{where}.max_instance_count", "must be greater or equal than min_instance_count."
    ports = sum(bool(one.ports) for one in template.containers)
    if ports != 1 and len(template.containers) != 1:
        yield f"{at}.containers", "exactly one container must have a port."
    yield from _within(f"{at}.timeout", timeout_seconds(template), 0, 3600)
    concurrency = template.max_instance_request_concurrency
    yield from _within(f"{at}.max_instance_request_concurrency", concurrency, 0, 1000)
    for place, container in enumerate(template.containers):
        where = f"{at}.containers[{place}]"
        if any(one.name in {"PORT", "K_SERVICE", "K_REVISION"} for one in container.env):
            yield f"{where}.env", "The following reserved env names were provided: PORT."
        longest = _STARTUP_SECONDS if _gpus(container) else 240
        yield from _of_probe(f"{where}.startup_probe", container.startup_probe, 240, longest)
        yield from _of_probe(f"{where}.liveness_probe", container.liveness_probe, 3600, math.inf)
    if len(template.containers) > 1:
        yield from _of_neighbours(template)
    engine = engine_of(template) if template.containers else None
    if engine and (_gpus(engine) or template.node_selector.accelerator):
        yield from _of_gpu(template, engine)


def _of_probe(where: str, probe: Probe, most: int, longest: float) -> _Problems:
    if not probe:
        return
    period = probe.period_seconds or 10
    yield from _within(f"{where}.initial_delay_seconds", probe.initial_delay_seconds, 0, most)
    yield from _within(f"{where}.period_seconds", period, 1, most)
    if (probe.timeout_seconds or 1) > period:
        yield f"{where}.timeout_seconds", "must be less than or equal to period_seconds."
    if (probe.failure_threshold or 3) * period > longest:
        words = f"failure_threshold * period_seconds must not exceed {longest} seconds."
        yield f"{where}.failure_threshold", words


def _of_neighbours(template: RevisionTemplate) -> _Problems:
    """Say what containers of one instance may not be to each other."""
    named = {one.name: one for one in template.containers}
    if "" in named or len(named) < len(template.containers):
        yield "template.containers", "every container must have a name of its own."
    for place, container in enumerate(template.containers):
        where = f"template.containers[{place}]"
        for other in container.depends_on:
            if other not in named or not named[other].startup_probe:
                words = f"another container must be named {other} and have a startup probe."
                yield f"{where}.depends_on", words
        processors, memory = _size(container)
        if not _gpus(container) and (processors < 1 or processors % 1):
            yield f"{where}.resources.limits.cpu", "must be a whole number beside a GPU."
        if not _gpus(container) and memory > _GIB_PER_CPU * processors:
            yield f"{where}.resources.limits.memory", f"{processors:g} CPU go with 4 GiB each."


def _of_gpu(template: RevisionTemplate, container: Container) -> _Problems:
    where = f"template.containers[{list(template.containers).index(container)}].resources"
    rule = GPUS.get(template.node_selector.accelerator)
    if rule is None:
        yield "template.node_selector.accelerator", f"must be one of {', '.join(GPUS)}."
        return
    (least, most), (smallest, largest) = rule.cpus, rule.memory
    if _gpus(container) != "1":
        yield f"{where}.limits", "nvidia.com/gpu must be 1."
    if container.resources.cpu_idle:
        yield f"{where}.cpu_idle", "must be false: GPUs need CPU that is always allocated."
    processors, memory = _size(*template.containers)
    if processors > most or memory > largest:
        words = f"all containers together may have {most:g} CPU and {largest:g}Gi beside this GPU."
        yield "template.containers", words
    processors, memory = _size(container)
    largest = min(largest, _GIB_PER_CPU * processors)
    yield from _within(f"{where}.limits.cpu", processors, least, most)
    yield from _within(f"{where}.limits.memory", memory, smallest, largest, "Gi")


def _check_gpu_quota(
    project: Project, location: str, service: Service, *, validate_only: bool
) -> None:
    accelerator = service.template.node_selector.accelerator
    rule, lone = GPUS[accelerator], service.template.gpu_zonal_redundancy_disabled
    if location not in rule.regions:
        where = "service.template.node_selector.accelerator"
        words = f"GPU type {accelerator} is not supported in region {location}."
        raise _violations("Create", [(where, words)])
    if accelerator in project.knobs.beta_gpus and service.launch_stage not in _EARLY:
        raise refusal("run-launch-stage", accelerator=accelerator)
    limit = projects.limit(project, rule.quota, location)
    granted = (limit or 0) // projects.RUN_QUOTAS[rule.quota].factor
    if limit is None and (not validate_only or project.knobs.validates_first_grant):
        granted = projects.FIRST_GRANT
    if not lone or not granted:
        raise refusal("run-no-gpus", how="without" if lone else "with")
    asked = most_instances(service) or MAX_DEFAULT
    if asked > granted:
        raise refusal("run-gpus", granted=granted, quota=rule.quota, asked=asked)


def _violations(verb: str, problems: list[tuple[str, str]]) -> Refused:
    rows = (f"Violation in {verb}ServiceRequest.{name}: {words}" for name, words in problems)
    return Refused("INVALID_ARGUMENT", "\n".join(rows))


_STATE = Condition.State
_OF_REVISION: Final = ("Active", "ContainerReady", "ContainerHealthy", "ResourcesAvailable")
_OF_SERVICE: Final = ("RoutesReady", "ConfigurationsReady")
"""Conditions, each beside Ready."""


@dataclass(eq=False, kw_only=True)
class RolloutFailed(Refused):
    """A revision will never serve."""

    because: int
    """Condition.CommonReason, or a RevisionReason of its own."""

    def condition(self, kind: str) -> Condition:
        """Return the same as a condition."""
        (told,) = _conditions((kind,), _STATE.CONDITION_FAILED, self.message)
        told.severity = Condition.Severity(Condition.Severity.ERROR)
        if isinstance(self.because, Condition.RevisionReason):
            told.revision_reason = self.because
        else:
            told.reason = Condition.CommonReason(self.because)
        return told


def rollout_failed(name: str, because: int, /, **words: Any) -> RolloutFailed:
    """Return that a revision never serves, as `refusals.toml` says it."""
    refused = refusal(name, **words)
    return RolloutFailed(refused.status, refused.message, because=because)


def reconcile(service: Service) -> None:
    """It is being acted upon."""
    service.reconciling = True
    _tell(service, _STATE.CONDITION_RECONCILING)


def settle(service: Service) -> None:
    """Everything asked for is there."""
    service.reconciling = False
    service.observed_generation = service.generation
    _tell(service, _STATE.CONDITION_SUCCEEDED)


def deploy(revision: Revision) -> None:
    """It is being brought up."""
    revision.reconciling = True
    kinds, words = ("Ready", *_OF_REVISION), "Deploying revision."
    revision.conditions = _conditions(kinds, _STATE.CONDITION_RECONCILING, words)


def serve(service: Service, revision: Revision) -> None:
    """The revision is healthy and gets what is sent to the service."""
    revision.reconciling = False
    revision.observed_generation = revision.generation
    revision.conditions = _conditions(("Ready", *_OF_REVISION), _STATE.CONDITION_SUCCEEDED)
    service.latest_ready_revision = revision.name
    service.traffic_statuses = [TrafficTargetStatus(type_=_LATEST, percent=100)]
    settle(service)


def fail(service: Service, revision: Revision, failure: RolloutFailed) -> None:
    """The revision will not come up; what served before still does."""
    of_all = isinstance(failure.because, Condition.CommonReason)
    broken = "ContainerReady" if of_all else "ContainerHealthy"
    pending = _conditions(_OF_REVISION, _STATE.CONDITION_PENDING)
    revision.reconciling = service.reconciling = False
    revision.conditions = [
        failure.condition("Ready"),
        *(failure.condition(broken) if one.type_ == broken else one for one in pending),
    ]
    service.terminal_condition = failure.condition("Ready")
    service.conditions = [failure.condition(kind) for kind in _OF_SERVICE]


def failure_of(service: Service) -> Refused | None:
    """Return why it is not well, None where it is."""
    told = service.terminal_condition
    failed = told.state == _STATE.CONDITION_FAILED
    return Refused("FAILED_PRECONDITION", told.message) if failed else None


def _tell(service: Service, state: int) -> None:
    (service.terminal_condition,) = _conditions(("Ready",), state)
    service.conditions = _conditions(_OF_SERVICE, state)


def _conditions(kinds: Iterable[str], state: int, words: str = "") -> list[Condition]:
    told, now = Condition.State(state), moment()
    return [
        Condition(type_=kind, state=told, message=words, last_transition_time=now) for kind in kinds
    ]
