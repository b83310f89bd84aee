"""A service: every value decided, typed for Google's SDK, and found again by name."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from google.api.launch_stage_pb2 import LaunchStage
from google.api_core.exceptions import NotFound
from google.cloud import run_v2
from google.cloud.run_v2 import Revision, Service
from pydantic import ValidationError

from backends import container as backends_container
from backends.cloud_run.container import (
    Container,
    Mount,
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
from backends.container import Probe, refuse_foreign_fields, refuse_length, refuse_spread
from backends.google.clients import (
    EXPIRES_LABEL,
    MANAGED_BY,
    NO_PROJECT,
    SPEC_LABEL,
    TARGET_LABEL,
    runtime_account,
)
from backends.google.errors import reading, translated
from core.errors import CloudRefused, DeploymentNotFound, InvalidArgument, NextStep, NotOurs
from core.records import NAME_PATTERN, DeploymentSpec, ModelShape, Record
from core.reply import note
from planner.places import Size


class Network(Record):
    """Direct VPC: the subnetwork that instances are attached to."""

    network: str
    subnetwork: str
    all_traffic: bool
    """Whether what goes to the internet takes that way too."""


class Blueprint(Record):
    """One service."""

    name: str
    project: str
    region: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    container: Container
    gpu: str
    size: Size
    """Of the engine's container."""
    guard: backends_container.Container | None = None
    """The container before the engine's, where the engine's key is its only wall."""
    concurrency: int
    """Requests that one instance is given at once."""
    min_instances: int
    max_instances: int
    timeout_seconds: int
    startup: Probe
    liveness: Probe
    network: Network | None
    service_account: str
    launch_stage: str | None = None
    """Of the API, for what is not yet generally available; None is left to Google."""
    public: bool
    """Anybody may call it who has the engine's key; Google checks nobody's identity."""
    doubts: tuple[str, ...] = ()
    """What a person should know of these values before paying for them."""

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
    """Decide every value of the service that a spec asks for; `hf_token`: that secret is kept.

    Raises:
        InvalidArgument: Cloud Run or the model cannot take the spec.
    """
    _refuse(spec, model)
    target, region = site.target, site.clients.region
    serving = _serving(site, spec, model, hf_token=hf_token)
    container, doubt = serving.container, region_doubt(target, region)
    return Blueprint(
        name=spec.name,
        project=_project(site),
        region=region,
        labels=_labels(target.name, spec),
        annotations={SPEC_ANNOTATION: spec.model_dump_json(exclude_defaults=True)},
        container=container,
        gpu=target.accelerator or "",
        size=serving.size,
        guard=serving.guard,
        concurrency=serving.concurrency,
        min_instances=spec.min_replicas,
        max_instances=spec.max_replicas,
        timeout_seconds=rules().limits.timeout_seconds,
        startup=startup_probe(serving.boot_seconds, path=container.health, port=container.port),
        liveness=liveness_probe(path=container.health, port=container.port),
        network=_network(spec, serving),
        service_account=runtime_account(_project(site)),
        launch_stage=spec.launch_stage,
        public=spec.access == "public",
        doubts=tuple(filter(None, (doubt, *serving.doubts))),
    )


def _project(site: "Site") -> str:
    return site.clients.project if site.clients.configured else NO_PROJECT


def _serving(
    site: "Site", spec: DeploymentSpec, model: ModelShape, *, hf_token: bool | None
) -> Serving:
    if spec.engine == "ollama":
        region = site.clients.region
        return ollama_serving(site.target, spec, project=_project(site), region=region)
    token = bool(site.settings.hf_token) if hf_token is None else hf_token
    return vllm_serving(site.target, spec, model, hf_token=token)


def _labels(target: str, spec: DeploymentSpec) -> dict[str, str]:
    return {"managed-by": MANAGED_BY, TARGET_LABEL: target, SPEC_LABEL: spec.fingerprint}


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


_RUN: Final = "google.cloud.run_v2"
VOLUME: Final = "weights"
_GPU: Final = "nvidia.com/gpu"
ENGINE: Final = "vllm"
"""The name of the engine's container, where another one stands beside it."""


def service_of(blueprint: Blueprint, *, expires_at: int | None = None) -> "run_v2.Service":
    """Type the service, as it is created; its name is said beside it.

    Args:
        blueprint: The values.
        expires_at: When its ttl ends, in seconds since 1970: a label, as only who applies knows.
    """
    expiry = {EXPIRES_LABEL: str(expires_at)} if expires_at else {}
    return run_v2.Service(
        labels={**blueprint.labels, **expiry},
        annotations=dict(blueprint.annotations),
        client=MANAGED_BY,
        launch_stage=_stage(blueprint.launch_stage),
        ingress=run_v2.IngressTraffic.INGRESS_TRAFFIC_ALL,
        invoker_iam_disabled=blueprint.public,
        # Of the service, not of a revision: changing them makes no new one.
        scaling=run_v2.ServiceScaling(
            scaling_mode=run_v2.ServiceScaling.ScalingMode.AUTOMATIC,
            min_instance_count=blueprint.min_instances,
            max_instance_count=blueprint.max_instances,
        ),
        template=_template(blueprint),
    )


async def in_beta_if_need_be(
    service: "run_v2.Service", send: Callable[[], Awaitable[object]]
) -> None:
    """Send a service; once more as BETA where Google refuses it for its launch stage.

    Source: docs.cloud.google.com/run/docs/troubleshooting, "The feature is not supported in the
    declared launch stage" (2026-11-23).
    """
    try:
        await send()
    except CloudRefused as exc:
        if service.launch_stage or "launch stage" not in exc.cause.lower():
            raise
        note(f"Google has this in BETA only, so that is what it is sent as: {exc.cause}")
        service.launch_stage = _stage("beta")
        await send()


def _stage(name: str | None) -> Any:

    return LaunchStage.Value(name.upper() if name else "LAUNCH_STAGE_UNSPECIFIED")


def _template(blueprint: Blueprint) -> "run_v2.RevisionTemplate":

    mount = blueprint.container.mount
    return run_v2.RevisionTemplate(
        labels=dict(blueprint.labels),
        scaling=run_v2.RevisionScaling(max_instance_count=blueprint.max_instances),
        vpc_access=_vpc(blueprint.network) if blueprint.network else None,
        timeout=timedelta(seconds=blueprint.timeout_seconds),
        service_account=blueprint.service_account,
        containers=[_container(blueprint), *([_guard(blueprint.guard)] if blueprint.guard else [])],
        volumes=[_volume(mount)] if mount else [],
        execution_environment=run_v2.ExecutionEnvironment.EXECUTION_ENVIRONMENT_GEN2,
        max_instance_request_concurrency=blueprint.concurrency,
        node_selector=run_v2.NodeSelector(accelerator=blueprint.gpu),
        gpu_zonal_redundancy_disabled=True,
    )


def _container(blueprint: Blueprint) -> "run_v2.Container":

    container = blueprint.container
    return run_v2.Container(
        name=ENGINE if blueprint.guard else "",
        image=container.image,
        command=list(container.command),
        args=list(container.args),
        env=_environment(container),
        resources=run_v2.ResourceRequirements(
            limits={
                "cpu": str(blueprint.size.vcpu),
                "memory": f"{blueprint.size.ram_gib}Gi",
                _GPU: "1",
            },
            cpu_idle=False,
            startup_cpu_boost=True,
        ),
        # No name: HTTP/1, as uvicorn speaks it; h2c would break it. Requests reach the container
        # with a port alone: behind the guard, the engine's own is for Cloud Run's probes, which
        # are not documented to reach a sidecar's loopback.
        ports=[] if blueprint.guard else [run_v2.ContainerPort(container_port=container.port)],
        volume_mounts=[run_v2.VolumeMount(name=VOLUME, mount_path=container.mount.path)]
        if container.mount
        else [],
        startup_probe=_probe(blueprint.startup),
        liveness_probe=_probe(blueprint.liveness),
    )


def _guard(container: backends_container.Container) -> "run_v2.Container":

    size = rules().guard
    return run_v2.Container(
        name=backends_container.GUARD_NAME,
        image=container.image,
        command=list(container.command),
        args=list(container.args),
        env=_environment(container),
        resources=run_v2.ResourceRequirements(
            limits={"cpu": str(size.vcpu), "memory": f"{size.ram_gib}Gi"}, cpu_idle=False
        ),
        ports=[run_v2.ContainerPort(container_port=container.port)],
        # Requests come once this one listens: not before the engine answers.
        depends_on=[ENGINE],
    )


def engine_in(service: "run_v2.Service") -> "run_v2.Container | None":
    """Return the container of a service that has its GPU, or else its first."""
    rows = list(service.template.containers)
    return next((row for row in rows if row.resources.limits.get(_GPU)), rows[0] if rows else None)


def is_open(service: "run_v2.Service") -> bool:
    """Whether everybody's requests reach an engine that asks for its key at some paths alone."""
    engine = engine_in(service)
    return bool(service.invoker_iam_disabled and engine and engine.ports)


def _environment(container: backends_container.Container) -> list["run_v2.EnvVar"]:

    plain = [run_v2.EnvVar(name=name, value=value) for name, value in container.env.items()]
    kept = [
        run_v2.EnvVar(
            name=name,
            value_source=run_v2.EnvVarSource(
                secret_key_ref=run_v2.SecretKeySelector(secret=secret, version="latest")
            ),
        )
        for name, secret in container.secrets.items()
    ]
    return [*plain, *kept]


def _probe(probe: Probe) -> "run_v2.Probe":

    return run_v2.Probe(
        initial_delay_seconds=probe.initial_delay_seconds,
        timeout_seconds=probe.timeout_seconds,
        period_seconds=probe.period_seconds,
        failure_threshold=probe.failures,
        http_get=run_v2.HTTPGetAction(path=probe.path, port=probe.port),
    )


def _volume(mount: Mount) -> "run_v2.Volume":

    return run_v2.Volume(
        name=VOLUME,
        gcs=run_v2.GCSVolumeSource(
            bucket=mount.bucket, read_only=True, mount_options=list(mount.options)
        ),
    )


def _vpc(network: Network) -> "run_v2.VpcAccess":

    egress = run_v2.VpcAccess.VpcEgress
    return run_v2.VpcAccess(
        network_interfaces=[
            run_v2.VpcAccess.NetworkInterface(
                network=network.network, subnetwork=network.subnetwork
            )
        ],
        egress=egress.ALL_TRAFFIC if network.all_traffic else egress.PRIVATE_RANGES_ONLY,
    )


async def list_services(site: Site) -> Sequence["Service"]:
    """Give every service with this target's label.

    Raises:
        CloudError: Cloud Run cannot be asked.
    """
    client = await site.clients.run()
    with translated("list the services"):
        pager = await client.list_services(parent=site.clients.parent, **reading())
        return [row async for row in pager if is_ours(row) and target_of(row) == site.target.name]


async def get_service(site: Site, name: str) -> "Service":
    """Give the service of a deployment.

    Raises:
        DeploymentNotFound: There is none, or it is another target's.
        NotOurs: A service of that name was not made here.
        CloudError: Cloud Run cannot be asked.
    """
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
    """Give the service of that name, whoever made it; None if there is none.

    Raises:
        CloudError: Cloud Run cannot be asked.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        return None
    client = await site.clients.run()

    try:
        with translated(f"look at the service {name}"):
            return await client.get_service(name=service_path(site, name), **reading())
    except NotFound:
        return None


async def find_revision(site: Site, name: str) -> "Revision | None":
    """Give a revision by its full name, None if there is none (any more).

    Raises:
        CloudError: Cloud Run cannot be asked.
    """
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


async def get_spec(site: Site, name: str) -> DeploymentSpec | None:
    """Give what was asked for, None where the service does not say it any more.

    Raises:
        DeploymentNotFound: There is no such service.
    """
    return read_spec(await get_service(site, name))


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
