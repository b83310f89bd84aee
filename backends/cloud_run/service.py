"""A service: every value decided, typed for Google's SDK, and found again by name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.api.launch_stage_pb2 import LaunchStage
from google.api_core.exceptions import NotFound
from google.cloud import run_v2
from google.cloud.run_v2 import Revision, Service
from pydantic import ValidationError

from backends import container as backends_container
from backends.cloud_run.container import (
    Serving,
    gpu_of,
    liveness_probe,
    ollama_serving,
    refuse_name,
    region_doubt,
    rules,
    startup_probe,
    vllm_serving,
)
from backends.cloud_run.site import SPEC_ANNOTATION, Site
from backends.container import (
    Probe,
    refuse_foreign_fields,
    refuse_length,
    refuse_spread,
)
from backends.google.clients import (
    EXPIRES_LABEL,
    HF_SECRET,
    MANAGED_BY,
    NO_PROJECT,
    SPEC_LABEL,
    TARGET_LABEL,
    key_secret,
    runtime_account,
)
from backends.google.errors import reading, translated
from core.errors import (
    CloudRefused,
    ConcurrentChange,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    NotOurs,
)
from core.records import NAME_PATTERN, DeploymentSpec, ModelShape, Record
from core.reply import note
from planner.places import Size


class Network(Record):
    """Direct VPC: the subnetwork that instances are attached to."""

    network: str
    subnetwork: str
    all_traffic: bool
    """Whether what goes to the internet takes that way too."""


class Blueprint(Serving):
    """One service: what runs in its instances, and everything else of it."""

    name: str
    project: str
    region: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    gpu: str
    min_instances: int
    max_instances: int
    startup: Probe
    liveness: Probe
    network: Network | None
    service_account: str
    launch_stage: str | None = None
    """Of the API, for what is not yet generally available; None is left to Google."""
    public: bool
    """Anybody may call it who has the engine's key; Google checks nobody's identity."""

    @property
    def parent(self) -> str:
        """What it is created in."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def instance(self) -> Size:
        """What all containers of an instance have together, which is what is paid."""
        more = rules().guard
        if self.guard is None:
            return self.size
        return Size(vcpu=self.size.vcpu + more.vcpu, ram_gib=self.size.ram_gib + more.ram_gib)

    @property
    def path(self) -> str:
        """Its full name."""
        return f"{self.parent}/services/{self.name}"


def blueprint(
    site: "Site", spec: DeploymentSpec, model: ModelShape, *, hf_token: bool | None = None
) -> Blueprint:
    """Decide every value of the service that a spec asks for; `hf_token`: that secret is kept."""
    _refuse(spec, model)
    target, region = site.target, site.clients.region
    project = site.clients.project if site.clients.configured else NO_PROJECT
    if spec.engine == "ollama":
        serving = ollama_serving(target, spec, project=project, region=region)
    else:
        serving = vllm_serving(target, spec, model)
    container, doubt = serving.container, region_doubt(target, region)
    if spec.engine == "vllm":
        secrets = {"VLLM_API_KEY": key_secret(spec.name)}
        known = bool(site.settings.hf_token) if hf_token is None else hf_token
        if serving.needs_internet and known:
            secrets["HF_TOKEN"] = HF_SECRET
        container = container.model_copy(update={"secrets": secrets})
    inside = {**dict(serving), "container": container}
    return Blueprint(
        **{**inside, "doubts": tuple(filter(None, (doubt, *serving.doubts)))},
        name=spec.name,
        project=project,
        region=region,
        labels={
            "managed-by": MANAGED_BY,
            TARGET_LABEL: target.name,
            SPEC_LABEL: spec.fingerprint,
        },
        annotations={SPEC_ANNOTATION: spec.model_dump_json(exclude_defaults=True)},
        gpu=target.accelerator or "",
        min_instances=spec.min_replicas,
        max_instances=spec.max_replicas,
        startup=startup_probe(serving.boot_seconds, path=container.health, port=container.port),
        liveness=liveness_probe(path=container.health, port=container.port),
        network=_network(spec, serving),
        service_account=runtime_account(project),
        launch_stage=spec.launch_stage,
        public=spec.access == "public",
    )


def _network(spec: DeploymentSpec, serving: Serving) -> Network | None:
    """Attach to a subnetwork; what must reach the internet does not go through it."""
    if spec.network is None:
        return None
    network, slash, subnetwork = spec.network.partition("/")
    if not (network and slash and subnetwork) or "/" in subnetwork:
        raise InvalidArgument(
            f"{spec.network} names no subnetwork.", fix="Give network=NETWORK/SUBNETWORK."
        )
    return Network(network=network, subnetwork=subnetwork, all_traffic=not serving.needs_internet)


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    refuse_name(spec.name)
    refuse_spread(spec, "An instance of Cloud Run")
    refuse_length(spec, model)
    refuse_foreign_fields(spec, "Cloud Run")
    if spec.build_machine and (spec.engine != "ollama" or spec.image):
        raise InvalidArgument(
            "Nothing is built here: build_machine is for the image of engine=ollama.",
            fix="Leave build_machine out.",
        )
    if spec.port is not None:
        raise InvalidArgument(
            "Cloud Run answers on its own address, always on port 443.", fix="Leave port out."
        )
    if spec.access == "internal":
        raise InvalidArgument(
            "A service of Cloud Run is not kept inside a network here.",
            fix="Take access=private: it answers only whom Google knows and you have let in.",
        )


VOLUME: Final = "weights"
_GPU: Final = "nvidia.com/gpu"
ENGINE: Final = "vllm"
"""The name of the engine's container, where another one stands beside it."""


def service_of(drawn: Blueprint, *, expires_at: int | None = None) -> run_v2.Service:
    """Type the service, as it is created; its name is said beside it.

    Args:
        drawn: The values.
        expires_at: When its ttl ends, in seconds since 1970: a label, as only who applies knows.
    """
    box, guard, mount, network = drawn.container, drawn.guard, drawn.container.mount, drawn.network
    limits = {"cpu": str(drawn.size.vcpu), "memory": f"{drawn.size.ram_gib}Gi", _GPU: "1"}
    engine = {
        "name": ENGINE if guard else "",
        **_command(box),
        "resources": {"limits": limits, "cpu_idle": False, "startup_cpu_boost": True},
        # No name: HTTP/1, as uvicorn speaks it; h2c would break it. Requests reach the container
        # with a port alone: behind the guard, the engine's own is for Cloud Run's probes, which
        # are not documented to reach a sidecar's loopback.
        "ports": [] if guard else [{"container_port": box.port}],
        "volume_mounts": [{"name": VOLUME, "mount_path": mount.path}] if mount else [],
        "startup_probe": _probe(drawn.startup),
        "liveness_probe": _probe(drawn.liveness),
    }
    guarding = []
    if guard:
        size = rules().guard
        row = {
            "name": backends_container.GUARD_NAME,
            **_command(guard),
            "resources": {
                "limits": {"cpu": str(size.vcpu), "memory": f"{size.ram_gib}Gi"},
                "cpu_idle": False,
            },
            "ports": [{"container_port": guard.port}],
            # Requests come once this one listens: not before the engine answers.
            "depends_on": [ENGINE],
        }
        guarding.append(row)
    volumes: list[dict[str, Any]] = []
    if mount:
        bucket = {"bucket": mount.bucket, "read_only": True, "mount_options": list(mount.options)}
        volumes.append({"name": VOLUME, "gcs": bucket})
    egress = run_v2.VpcAccess.VpcEgress
    template = {
        "labels": dict(drawn.labels),
        "scaling": {"max_instance_count": drawn.max_instances},
        "timeout": {"seconds": rules().limits.timeout_seconds},
        "service_account": drawn.service_account,
        "containers": [engine, *guarding],
        "volumes": volumes,
        "execution_environment": run_v2.ExecutionEnvironment.EXECUTION_ENVIRONMENT_GEN2,
        "max_instance_request_concurrency": drawn.concurrency,
        "node_selector": {"accelerator": drawn.gpu},
        "gpu_zonal_redundancy_disabled": True,
    }
    if network:
        template["vpc_access"] = {
            "network_interfaces": [{"network": network.network, "subnetwork": network.subnetwork}],
            "egress": egress.ALL_TRAFFIC if network.all_traffic else egress.PRIVATE_RANGES_ONLY,
        }
    return run_v2.Service(
        {
            "labels": {
                **drawn.labels,
                **({EXPIRES_LABEL: str(expires_at)} if expires_at else {}),
            },
            "annotations": dict(drawn.annotations),
            "client": MANAGED_BY,
            "launch_stage": _stage(drawn.launch_stage),
            "ingress": run_v2.IngressTraffic.INGRESS_TRAFFIC_ALL,
            "invoker_iam_disabled": drawn.public,
            # Of the service, not of a revision: changing them makes no new one.
            "scaling": {
                "scaling_mode": run_v2.ServiceScaling.ScalingMode.AUTOMATIC,
                "min_instance_count": drawn.min_instances,
                "max_instance_count": drawn.max_instances,
            },
            "template": template,
        }
    )


def _command(container: backends_container.Container) -> dict[str, Any]:
    kept = [
        {"name": name, "value_source": {"secret_key_ref": {"secret": one, "version": "latest"}}}
        for name, one in container.secrets.items()
    ]
    plain = [{"name": name, "value": value} for name, value in container.env.items()]
    return {
        "image": container.image,
        "command": list(container.command),
        "args": list(container.args),
        "env": [*plain, *kept],
    }


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "initial_delay_seconds": probe.initial_delay_seconds,
        "timeout_seconds": probe.timeout_seconds,
        "period_seconds": probe.period_seconds,
        "failure_threshold": probe.failures,
        "http_get": {"path": probe.path, "port": probe.port},
    }


def _stage(name: str | None) -> Any:
    return LaunchStage.Value(name.upper() if name else "LAUNCH_STAGE_UNSPECIFIED")


def may_be_beta(service: "run_v2.Service", exc: CloudRefused) -> bool:
    """Whether Google refuses it for its launch stage: it is to be sent again, as BETA.

    Source: docs.cloud.google.com/run/docs/troubleshooting, "The feature is not supported in the
    declared launch stage" (2026-11-23).
    """
    if service.launch_stage or "launch stage" not in exc.cause.lower():
        return False
    note(f"Google has this in BETA only, so that is what it is sent as: {exc.cause}")
    service.launch_stage = _stage("beta")
    return True


def is_stopped(service: "Service") -> bool:
    """Whether a person set it to no instance."""
    scaling = service.scaling
    by_hand = scaling.scaling_mode == run_v2.ServiceScaling.ScalingMode.MANUAL
    return by_hand and scaling.manual_instance_count == 0


def engine_in(service: "run_v2.Service") -> "run_v2.Container | None":
    """Return the container of a service that has its GPU, or else its first."""
    rows = list(service.template.containers)
    return next((row for row in rows if row.resources.limits.get(_GPU)), rows[0] if rows else None)


def is_open(service: "run_v2.Service") -> bool:
    """Whether everybody's requests reach an engine that asks for its key at some paths alone."""
    engine = engine_in(service)
    return bool(service.invoker_iam_disabled and engine and engine.ports)


async def list_services(site: Site) -> Sequence["Service"]:
    """Give every service with this target's label."""
    client = await site.clients.run()
    with translated("list the services"):
        pager = await client.list_services(parent=site.clients.parent, **reading())
        return [row async for row in pager if is_ours(row) and target_of(row) == site.target.name]


async def get_service(site: Site, name: str) -> "Service":
    """Give the service of a deployment."""
    return own_service(site, name, await find_service(site, name))


def own_service(site: Site, name: str, service: "Service | None") -> "Service":
    if service is None:
        raise not_found(site, name, "")
    if not is_ours(service):
        raise NotOurs(
            f"The service {name} in {site.clients.region} was not made here: it is left alone.",
            fix="Take another name; or label it managed-by=vllm-devops-agent to hand it over.",
        )
    if target_of(service) != site.target.name:
        raise not_found(site, name, f": it is on {target_of(service)}")
    return service


async def find_service(site: Site, name: str) -> "Service | None":
    """Give the service of that name, whoever made it; None if there is none."""
    if not re.fullmatch(NAME_PATTERN, name):
        return None
    client = await site.clients.run()

    try:
        with translated(f"look at the service {name}"):
            return await client.get_service(name=service_path(site, name), **reading())
    except NotFound:
        return None


async def refuse_foreign(site: Site, name: str) -> Service | None:
    """Return the service of that name, None if there is none."""
    service = await find_service(site, name)
    if service is None:
        return None
    target, where = target_of(service), f"{name} in {site.clients.region}"
    if not is_ours(service):
        raise NotOurs(
            f"A service {where} exists that was not made here; it is left alone.",
            fix="Deploy under another name.",
        )
    if target != site.target.name:
        raise NotOurs(
            f"The service {where} belongs to the target {target}.",
            fix=f"Deploy under another name, or to {target}.",
        )
    if service.delete_time:
        raise ConcurrentChange(
            f"The service {where} is being deleted.", fix="Call the tool again in a minute."
        )
    return service


async def find_revision(site: Site, name: str) -> "Revision | None":
    """Give a revision by its full name, None if there is none (any more)."""
    if not name:
        return None
    client = await site.clients.revisions()

    try:
        with translated("look at its revision"):
            return await client.get_revision(name=name, **reading())
    except NotFound:
        return None


def newest_revision(service: "Service") -> str:
    """Return its newest revision's full name; Google gives it with or without its parent."""
    name = service.latest_created_revision
    return f"{service.name}/revisions/{name}" if name and "/" not in name else name


def read_spec(service: "Service") -> DeploymentSpec | None:
    """Read a service's annotation."""
    try:
        return DeploymentSpec.model_validate_json(service.annotations.get(SPEC_ANNOTATION, ""))
    except ValidationError:
        return None


def service_path(site: Site, name: str) -> str:
    """Give a service's full name."""
    return f"{site.clients.parent}/services/{name}"


def is_ours(service: "Service") -> bool:
    """Whether it carries our label."""
    return service.labels.get("managed-by") == MANAGED_BY


def target_of(service: "Service") -> str:
    """Give the target that it was made for."""
    return service.labels.get(TARGET_LABEL, "another target")


def not_found(site: Site, name: str, where: str) -> DeploymentNotFound:
    return DeploymentNotFound(
        f"No deployment named '{name[:60]}' on {site.target.name}{where}.",
        fix="Call list_deployments for those that there are.",
        next_steps=(NextStep("list_deployments"),),
    )


_NAMES: Final = {"vllm": "vLLM", "ollama": "Ollama"}


def version_of(site: Site, service: "Service") -> str | None:
    """Give vLLM's version: by the image's tag, or as the target's own image has it."""
    engine, own = engine_in(service), gpu_of(site.target)
    return backends_container.version_of(engine.image, own.image, own.vllm) if engine else None


def label_of(site: Site, service: "Service", engine: str) -> str:
    """Give an engine's name for people."""
    name = f"simulated {_NAMES[engine]}" if site.rehearsed else _NAMES[engine]
    version = version_of(site, service)
    if engine == "ollama":
        return name
    return f"{name} {version or '(version not known)'}"
