"""What Cloud Run does not take, as it is before anything is made.

Sources: comments of the run.v2 protos (2026-11-20); docs.cloud.google.com/run/docs/configuring
(services/gpu, workerpools/gpu, healthchecks, max-instances), stored copies; words of the quotas'
refusals from published deployments, pulumi-gcp issue 3794 and googlecodelabs feedback 2311.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.api.launch_stage_pb2 import LaunchStage
from google.cloud.run_v2.types import Container, Probe, RevisionTemplate, Service
from google.rpc.error_details_pb2 import BadRequest

from emulators.google import quotas
from emulators.google.refusing import Refused
from emulators.google.run_shapes import (
    GPUS,
    MAX_DEFAULT,
    accelerator_of,
    cpus,
    engine_of,
    gibibytes,
    gpus_of,
    instance_cpus,
    instance_gibibytes,
    most_instances,
    timeout_seconds,
)
from emulators.google.state import Project

_SERVICE_ID: Final = re.compile(r"^[a-z](?:[a-z0-9-]{0,47}[a-z0-9])?$")
_SERVICE_ID_WORDS: Final = (
    "must contain only lowercase, digits, and hyphens; must begin with a letter, and must not end"
    " with a hyphen; must be less than 50 characters."
)
_LABEL_KEY: Final = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")
_LABEL_VALUE: Final = re.compile(r"^[a-z0-9_-]{0,63}$")
_OUR_NAMESPACES: Final = (
    "run.googleapis.com",
    "cloud.googleapis.com",
    "serving.knative.dev",
    "autoscaling.knative.dev",
)
_ANNOTATIONS_BYTES: Final = 256 * 1024
_STARTUP_SECONDS: Final = 1800
"""Of failureThreshold times periodSeconds with a GPU; 240 without one."""
_EARLY: Final = {LaunchStage.Value(name) for name in ("ALPHA", "BETA")}
"""Source of the refusal: docs.cloud.google.com/run/docs/troubleshooting, "The feature is not
supported in the declared launch stage" (2026-11-23)."""
_GIB_PER_CPU: Final = 4
"""Source: docs.cloud.google.com/run/docs/configuring/services/memory-limits, up to 8 CPUs."""
_QUOTA_HELP: Final = "\n\nTo request quota: g.co/cloudrun/gpu-quota"
_SIZE_HELP: Final = (
    "\nConsider running your workload in a region with greater capacity, or requesting an increase"
    " in quota for this region."
)
_Problem = tuple[str, str]
"""A field below the service, and what is wrong with it."""


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
    if not _SERVICE_ID.match(service_id):
        raise _violations(
            verb,
            [("service_id", _SERVICE_ID_WORDS)],
        )
    problems = [(f"service.{field}", words) for field, words in _problems(service)]
    if problems:
        raise _violations(verb, problems)
    _check_gpu_quota(project, location, service, validate_only=validate_only)
    _check_size_quotas(project, location, service)


def grant_first(project: Project, location: str, service: Service) -> None:
    """Give the first deployment with a GPU in a region the quota that goes with it."""
    accelerator = accelerator_of(service.template)
    if accelerator and quotas.limit(project, GPUS[accelerator].quota, location) is None:
        quotas.grant(project, GPUS[accelerator].quota, location)


def _problems(service: Service) -> Iterator[_Problem]:
    yield from _names(service)
    yield from _scaling(service)
    template = service.template
    yield from _template(template)
    for place, container in enumerate(template.containers):
        where = f"template.containers[{place}]"
        yield from _container(where, container)
        yield from _mounts(where, template, container)
    yield from _together(template)
    for volume in template.volumes:
        if any(option.startswith("-") for option in volume.gcs.mount_options):
            yield "template.volumes", "mount options must not start with a hyphen."
    if template.containers and (gpus_of(engine_of(template)) or accelerator_of(template)):
        yield from _gpu(service, engine_of(template))


def _names(service: Service) -> Iterator[_Problem]:
    for key, value in service.labels.items():
        if key.partition("/")[0] in _OUR_NAMESPACES or not _LABEL_KEY.match(key):
            yield "labels", f"{key} is not a valid label key."
        elif not _LABEL_VALUE.match(value):
            yield "labels", f"{value} is not a valid label value."
    for key in service.annotations:
        if key.partition("/")[0] in _OUR_NAMESPACES:
            yield "annotations", f"{key} is reserved for the system."
    if sum(len(k) + len(v) for k, v in service.annotations.items()) > _ANNOTATIONS_BYTES:
        yield "annotations", "The total size of annotations must not exceed 262144 bytes."


def _scaling(service: Service) -> Iterator[_Problem]:
    own, revision = service.scaling, service.template.scaling
    if revision.max_instance_count and revision.min_instance_count > revision.max_instance_count:
        yield (
            "template.scaling.max_instance_count",
            "must be greater or equal than min_instance_count.",
        )
    if own.max_instance_count and own.min_instance_count > own.max_instance_count:
        yield "scaling.max_instance_count", "must be greater or equal than min_instance_count."
    if min(own.min_instance_count, own.max_instance_count, own.manual_instance_count) < 0:
        yield "scaling", "must not be negative."


def _template(template: RevisionTemplate) -> Iterator[_Problem]:
    ports = sum(bool(one.ports) for one in template.containers)
    if ports != 1 and len(template.containers) != 1:
        yield "template.containers", "exactly one container must have a port."
    if not 0 <= timeout_seconds(template) <= 3600:
        yield "template.timeout", "must be between 1 and 3600 seconds."
    if not 0 <= template.max_instance_request_concurrency <= 1000:
        yield "template.max_instance_request_concurrency", "must be between 1 and 1000."
    if template.vpc_access.network_interfaces and template.vpc_access.connector:
        yield "template.vpc_access", "connector and network_interfaces exclude each other."


def _container(where: str, container: Container) -> Iterator[_Problem]:
    if not container.image:
        yield f"{where}.image", "must be set."
    if len(container.ports) > 1:
        yield f"{where}.ports", "must have at most one port."
    for port in container.ports:
        if port.name not in {"", "http1", "h2c"}:
            yield f"{where}.ports[0].name", "must be either 'http1' or 'h2c'."
        if not 1 <= port.container_port <= 65535:
            yield f"{where}.ports[0].container_port", "must be between 1 and 65535."
    if any(one.name in {"PORT", "K_SERVICE", "K_REVISION"} for one in container.env):
        yield f"{where}.env", "The following reserved env names were provided: PORT."
    longest = _STARTUP_SECONDS if gpus_of(container) else 240
    yield from _probe(f"{where}.startup_probe", container.startup_probe, 240, longest)
    yield from _probe(f"{where}.liveness_probe", container.liveness_probe, 3600, 0)


def _probe(where: str, probe: Probe, most: int, longest: int) -> Iterator[_Problem]:
    if not probe:
        return
    period, timeout = probe.period_seconds or 10, probe.timeout_seconds or 1
    if not 0 <= probe.initial_delay_seconds <= most:
        yield f"{where}.initial_delay_seconds", f"must be between 0 and {most}."
    if not 1 <= period <= most:
        yield f"{where}.period_seconds", f"must be between 1 and {most}."
    if timeout > period:
        yield f"{where}.timeout_seconds", "must be less than or equal to period_seconds."
    if longest and (probe.failure_threshold or 3) * period > longest:
        yield (
            f"{where}.failure_threshold",
            f"failure_threshold * period_seconds must not exceed {longest} seconds.",
        )


def _together(template: RevisionTemplate) -> Iterator[_Problem]:
    """What containers of one instance are to each other."""
    if len(template.containers) < 2:
        return
    named = {one.name: one for one in template.containers}
    if "" in named or len(named) < len(template.containers):
        yield "template.containers", "every container must have a name of its own."
    for place, container in enumerate(template.containers):
        where = f"template.containers[{place}]"
        for other in container.depends_on:
            if other not in named or other == container.name:
                yield f"{where}.depends_on", f"no other container is named {other}."
            elif not named[other].startup_probe:
                yield f"{where}.depends_on", f"{other} must have a startup probe."
        if gpus_of(container):
            continue
        limits = container.resources.limits
        processors, memory = cpus(limits.get("cpu", "1")), gibibytes(limits.get("memory", "512Mi"))
        if processors < 1 or processors % 1:
            yield f"{where}.resources.limits.cpu", "must be a whole number beside a GPU."
        if memory > 4 * processors:
            yield f"{where}.resources.limits.memory", f"{processors:g} CPU go with 4 GiB each."
    if sum(bool(gpus_of(one)) for one in template.containers) > 1:
        yield "template.containers", "only one container can have a GPU."


def _mounts(where: str, template: RevisionTemplate, container: Container) -> Iterator[_Problem]:
    names = {volume.name for volume in template.volumes}
    for mount in container.volume_mounts:
        if mount.name not in names:
            yield f"{where}.volume_mounts", f"no volume is named {mount.name}."
        if not mount.mount_path.startswith("/"):
            yield f"{where}.volume_mounts", "mount_path must be absolute."


def _gpu(service: Service, container: Container) -> Iterator[_Problem]:
    template = service.template
    where = f"template.containers[{list(template.containers).index(container)}].resources"
    rule = GPUS.get(accelerator_of(template))
    if rule is None:
        yield "template.node_selector.accelerator", f"must be one of {', '.join(GPUS)}."
        return
    if gpus_of(container) != "1":
        yield f"{where}.limits", "nvidia.com/gpu must be 1."
    if container.resources.cpu_idle:
        yield f"{where}.cpu_idle", "must be false: GPUs need CPU that is always allocated."
    if template.execution_environment.name == "EXECUTION_ENVIRONMENT_GEN1":
        yield "template.execution_environment", "GPUs need the second generation."
    limits = container.resources.limits
    if instance_cpus(template) > rule.cpus[1] or instance_gibibytes(template) > rule.memory[1]:
        most = f"{rule.cpus[1]:g} CPU and {rule.memory[1]:g}Gi"
        yield "template.containers", f"all containers together may have {most} beside this GPU."
    if not rule.cpus[0] <= cpus(limits.get("cpu", "1")) <= rule.cpus[1]:
        yield f"{where}.limits.cpu", f"must be between {rule.cpus[0]:g} and {rule.cpus[1]:g}."
    largest = min(rule.memory[1], _GIB_PER_CPU * cpus(limits.get("cpu", "1")))
    if not rule.memory[0] <= gibibytes(limits.get("memory", "512Mi")) <= largest:
        yield f"{where}.limits.memory", f"must be between {rule.memory[0]:g}Gi and {largest:g}Gi."


def _check_gpu_quota(
    project: Project, location: str, service: Service, *, validate_only: bool
) -> None:
    accelerator = accelerator_of(service.template)
    if not accelerator:
        return
    rule = GPUS[accelerator]
    if location not in rule.regions:
        where = "service.template.node_selector.accelerator"
        words = f"GPU type {accelerator} is not supported in region {location}."
        raise _violations("Create", [(where, words)])
    if accelerator in project.knobs.beta_gpus and service.launch_stage not in _EARLY:
        raise Refused(
            "FAILED_PRECONDITION",
            f"The feature 'GPU type {accelerator}' is not supported in the declared launch stage.",
        )
    lone = service.template.gpu_zonal_redundancy_disabled
    limit = quotas.limit(project, rule.quota, location)
    unused = limit is None and (not validate_only or project.knobs.validates_first_grant)
    granted = quotas.FIRST_GRANT if unused else (limit or 0) // quotas.KNOWN[rule.quota].factor
    allowed = granted if lone else 0
    if not allowed:
        raise Refused(
            "INVALID_ARGUMENT",
            "template.scaling.max_instance_count: You do not have quota for using GPUs"
            f" {'without' if lone else 'with'} zonal redundancy. Learn more about GPU zonal"
            f" redundancy: g.co/cloudrun/gpu-redundancy-help{_QUOTA_HELP}",
        )
    asked = most_instances(service) or MAX_DEFAULT
    if asked > allowed:
        raise Refused(
            "INVALID_ARGUMENT",
            f"scaling.max_instance_count: Max instances must be set to {allowed} or fewer in order"
            f" to set GPU requirements.{_QUOTA_HELP}\n\nQuota violated:\n{rule.quota}"
            f" requested: {asked} allowed: {allowed}",
        )


def _check_size_quotas(project: Project, location: str, service: Service) -> None:
    """Refuse more CPU or memory than the project has for as many instances as may be."""
    milli = instance_cpus(service.template) * 1000
    octets = instance_gibibytes(service.template) * quotas.GIB
    for quota_id, each, what in (
        ("CpuAllocPerProjectRegion", milli, "CPU"),
        ("MemAllocPerProjectRegion", octets, "memory"),
    ):
        allowed = quotas.limit(project, quota_id, location) or 0
        _check_size(service, quota_id, allowed, each, what)


def _check_size(service: Service, quota_id: str, allowed: int, each: float, what: str) -> None:
    asked = most_instances(service) * each
    if asked > allowed:
        raise Refused(
            "INVALID_ARGUMENT",
            f"scaling.max_instance_count: Max instances must be set to {allowed // each:.0f} or"
            f" fewer to set the requested total {what}.{_SIZE_HELP}\n\nQuota violated:\n{quota_id}"
            f" requested: {asked:.0f} allowed: {allowed}",
        )


def _violations(verb: str, problems: list[_Problem]) -> Refused:
    prefix = f"Violation in {verb}ServiceRequest"
    field: Callable[..., Any] = BadRequest.FieldViolation
    details = BadRequest(
        field_violations=[field(field=f"{prefix}.{name}", description=w) for name, w in problems]
    )
    return Refused(
        "INVALID_ARGUMENT",
        "\n".join(f"{prefix}.{name}: {words}" for name, words in problems),
        details=(details,),
    )
