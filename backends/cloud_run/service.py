"""A blueprint as Google's SDK types it."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from backends.cloud_run import rules
from backends.cloud_run.blueprint import Blueprint, Network
from backends.cloud_run.weights import Mount
from backends.common import containers, guard
from backends.common.containers import Probe
from backends.google import slim
from backends.google.names import EXPIRES_LABEL, MANAGED_BY
from core.cloud_errors import CloudRefused
from core.reply import note

if TYPE_CHECKING:
    from google.cloud import run_v2

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
    slim.opened(_RUN)
    from google.cloud import run_v2

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
    from google.api.launch_stage_pb2 import LaunchStage

    return LaunchStage.Value(name.upper() if name else "LAUNCH_STAGE_UNSPECIFIED")


def _template(blueprint: Blueprint) -> "run_v2.RevisionTemplate":
    from google.cloud import run_v2

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
    from google.cloud import run_v2

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


def _guard(container: containers.Container) -> "run_v2.Container":
    from google.cloud import run_v2

    size = rules.rules().guard
    return run_v2.Container(
        name=guard.NAME,
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


def _environment(container: containers.Container) -> list["run_v2.EnvVar"]:
    from google.cloud import run_v2

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
    from google.cloud import run_v2

    return run_v2.Probe(
        initial_delay_seconds=probe.initial_delay_seconds,
        timeout_seconds=probe.timeout_seconds,
        period_seconds=probe.period_seconds,
        failure_threshold=probe.failures,
        http_get=run_v2.HTTPGetAction(path=probe.path, port=probe.port),
    )


def _volume(mount: Mount) -> "run_v2.Volume":
    from google.cloud import run_v2

    return run_v2.Volume(
        name=VOLUME,
        gcs=run_v2.GCSVolumeSource(
            bucket=mount.bucket, read_only=True, mount_options=list(mount.options)
        ),
    )


def _vpc(network: Network) -> "run_v2.VpcAccess":
    from google.cloud import run_v2

    egress = run_v2.VpcAccess.VpcEgress
    return run_v2.VpcAccess(
        network_interfaces=[
            run_v2.VpcAccess.NetworkInterface(
                network=network.network, subnetwork=network.subnetwork
            )
        ],
        egress=egress.ALL_TRAFFIC if network.all_traffic else egress.PRIVATE_RANGES_ONLY,
    )
