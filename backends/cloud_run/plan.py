"""What a deployment would be: its steps, price and memory, as gcloud commands and as YAML."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final

import anyio
from google.api.launch_stage_pb2 import LaunchStage
from google.cloud import run_v2, secretmanager_v1

from backends import container
from backends.base import DeploymentConfig
from backends.cloud_run.container import Mount, build_of, gpu_of, place_of, rules, submit_command
from backends.cloud_run.service import (
    ENGINE,
    VOLUME,
    Blueprint,
    Network,
    blueprint,
    engine_in,
    get_service,
    read_spec,
    service_of,
)
from backends.cloud_run.site import Site
from backends.common.preflight import always_on, price_doubts, tagged
from backends.container import GUARD_NAME, Probe, as_assignments, as_yaml
from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY, as_sent, key_secret
from backends.google.errors import not_configured
from core.errors import NotFound
from core.records import DeploymentSpec, MemoryPlan, ModelShape, Plan, PlannedStep
from planner.memory import foresee
from planner.model import read_model
from planner.places import accelerator
from planner.price import Price, price


def engine_name(site: "Site") -> tuple[str, str]:
    """Give the engine that would serve and, where no project is set, what to do first."""
    gpu = gpu_of(site.target)
    missing = "" if site.clients.configured else not_configured().fix
    return f"vLLM {gpu.vllm} ({gpu.image})", missing


def make_plan(site: "Site", spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say which secret, grant, image and service would be made; nothing is asked of anybody.

    Raises:
        InvalidArgument: Cloud Run or the model cannot take the spec.
    """
    made = blueprint(site, spec, model)
    costs = price(place_of(site.target), made.instance)
    return Plan(
        spec=spec,
        target=site.target,
        model=model,
        steps=(*_before(made, spec), _planned_service_step(made)),
        usd_per_hour=costs.usd_per_hour,
        memory=_memory(site, spec, model),
        warnings=tuple(_warnings(made, spec, costs)),
    )


def _before(made: Blueprint, spec: DeploymentSpec) -> tuple[PlannedStep, ...]:
    if spec.engine == "ollama":
        return () if spec.image else (_build(made, spec),)
    return _key(made), _grant(made)


def _build(made: Blueprint, spec: DeploymentSpec) -> PlannedStep:
    where = {"project": made.project, "region": made.region}
    return PlannedStep(
        what=f"Build the image with the model, {made.container.image}, unless it is there.",
        request={"projectId": made.project, "build": as_sent(build_of(spec, **where))},
        command=submit_command(spec, **where),
    )


def _key(made: Blueprint) -> PlannedStep:
    request = secretmanager_v1.CreateSecretRequest(
        parent=f"projects/{made.project}",
        secret_id=key_secret(made.name),
        secret=secretmanager_v1.Secret(
            labels={"managed-by": MANAGED_BY, DEPLOYMENT_LABEL: made.name},
            replication=secretmanager_v1.Replication(
                automatic=secretmanager_v1.Replication.Automatic()
            ),
        ),
    )
    return PlannedStep(
        what="Keep a random key for the engine in Secret Manager, unless it has one.",
        request=as_sent(request),
        command=key(made),
    )


def _grant(made: Blueprint) -> PlannedStep:
    reader = {"role": ACCESSOR, "members": [f"serviceAccount:{made.service_account}"]}
    secret = f"projects/{made.project}/secrets/{key_secret(made.name)}"
    return PlannedStep(
        what="Let the account that instances run as read that key, and nobody else.",
        request={"resource": secret, "policy": {"bindings": [reader]}},
        command=grants(made),
    )


def _planned_service_step(made: Blueprint) -> PlannedStep:
    request: dict[str, Any] = {
        "parent": made.parent,
        "serviceId": made.name,
        "service": as_sent(service_of(made)),
    }
    return PlannedStep(
        what=f"Create the service {made.name}, or replace what runs under that name.",
        request=request,
        command=deploy(made),
    )


def _memory(site: "Site", spec: DeploymentSpec, model: ModelShape) -> MemoryPlan | None:
    if spec.engine == "ollama":
        return None
    version = None if spec.image else gpu_of(site.target).vllm
    device = accelerator(place_of(site.target).accelerator)
    return foresee(spec, model, device, vllm_version=version)


def _warnings(made: Blueprint, spec: DeploymentSpec, costs: Price) -> Iterator[str]:
    yield from made.doubts
    if made.min_instances:
        yield always_on(made.min_instances, costs, called="instances")
    yield from price_doubts(costs)
    if spec.engine != "ollama" or spec.image:
        yield from tagged(made.container.image)
    if made.public:
        yield (
            "Anybody on the internet reaches it (access=public): a proxy before the engine lets"
            " through those with its key alone, and every request, also a refused one, keeps a GPU"
            " awake at your cost."
        )
    if made.network and made.network.all_traffic:
        yield (
            f"All traffic leaves through {made.network.subnetwork}: it needs Private Google"
            " Access, or nothing of Google's is reached."
        )


ACCESSOR: Final = "roles/secretmanager.secretAccessor"
_KEY_VARIABLE: Final = "VLLM_API_KEY"
_DELIMITERS: Final = ",~|@;!%#+\x1f"
_REPLACE: Final = (
    "yaml is the service for Cloud Run: save it as service.yaml, then"
    " `gcloud run services replace service.yaml --project=PROJECT --region=REGION`."
)
_ANNOTATION: Final = (
    "gcloud run deploy has no flag for annotations: only the YAML keeps what was asked for, which"
    " the tools here read back."
)
_KEY: Final = (
    "The key is made in a pipe and kept in Secret Manager; it is in no file and no argument."
)


def gcloud(made: Blueprint) -> str:
    """Give every command that makes the deployment, one after the other, to be pasted."""
    return "\n".join(part for part in (key(made), grants(made), deploy(made)) if part)


def key(made: Blueprint) -> str:
    """Make a random key and keep it; it is in no file, no argument and no variable."""
    secret = made.container.secrets.get(_KEY_VARIABLE)
    if secret is None:
        return ""
    labels = _pairs({"managed-by": MANAGED_BY, DEPLOYMENT_LABEL: made.name})
    kept = ("gcloud", "secrets", "create", secret, f"--project={made.project}")
    how = ("--replication-policy=automatic", f"--labels={labels}", "--data-file=-")
    return f"openssl rand -hex 32 | tr -d '\\n' | {shlex.join((*kept, *how))}"


def grants(made: Blueprint) -> str:
    """Let the runtime account read every secret of the deployment."""
    whom = (f"--member=serviceAccount:{made.service_account}", f"--role={ACCESSOR}")
    allow = ("gcloud", "secrets", "add-iam-policy-binding")
    return "\n".join(
        shlex.join((*allow, secret, f"--project={made.project}", *whom))
        for secret in dict.fromkeys(made.container.secrets.values())
    )


def deploy(made: Blueprint) -> str:
    """Create or replace the service in one command."""
    where = (f"--project={made.project}", f"--region={made.region}")
    flags = (
        *_service(made),
        *_volume_gcloud(made),
        *_network(made),
        f"--labels={_pairs(made.labels)}",
    )
    # What stands behind a container's name is its own: the service's flags come first.
    engine = (*_container_gcloud(made), *_size(made), *_probes(made), *_mounted(made))
    if made.guard:
        engine = (f"--container={ENGINE}", *engine, *_guard_gcloud(made.guard))
    track = (made.launch_stage,) if made.launch_stage in {"alpha", "beta"} else ()
    return shlex.join(("gcloud", *track, "run", "deploy", made.name, *where, *flags, *engine))


async def config(site: "Site", name: str) -> DeploymentConfig:
    """Write what runs under a name as commands and YAML, with the image that it runs.

    Raises:
        DeploymentNotFound: Nothing of that name was made here.
        NotFound: What was asked for cannot be read any more.
    """
    service = await get_service(site, name)
    spec = read_spec(service)
    if spec is None:
        raise NotFound(
            f"What was asked for when {name} was made cannot be read any more.",
            fix=f"Read the service itself: `gcloud run services describe {name} --format=yaml`.",
        )
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    made = _as_running(blueprint(site, spec, model, hf_token=_reads_hub(service)), service)
    commands = gcloud(made)
    if spec.engine == "ollama" and not spec.image:
        where = {"project": made.project, "region": made.region}
        commands = f"{submit_command(spec, **where)}\n{commands}"
    return DeploymentConfig(
        command=commands,
        docker_run=docker(made),
        yaml=yaml(made),
        notes=(_REPLACE, _ANNOTATION, *([_KEY] if key(made) else [])),
    )


def docker(made: Blueprint) -> str:
    """Run the same container on a machine with a GPU of one's own."""
    mount = made.container.mount
    mounted = (f"/mnt/{mount.bucket}:{mount.path}:ro",) if mount else ()
    return container.docker_command(made.name, made.container, *mounted)


def _reads_hub(service: "run_v2.Service") -> bool:
    return any(
        variable.name == "HF_TOKEN"
        for container in service.template.containers
        for variable in container.env
    )


def _as_running(made: Blueprint, service: "run_v2.Service") -> Blueprint:
    """Give it the image that runs, pinned as it may be, and the launch stage that Google took."""
    images = {row.name: row.image for row in service.template.containers}
    running, proxy = engine_in(service), made.guard
    if running:
        container = made.container.model_copy(update={"image": running.image})
        made = made.model_copy(update={"container": container})
    if proxy and GUARD_NAME in images:
        proxy = proxy.model_copy(update={"image": images[GUARD_NAME]})
    beta = service.launch_stage == LaunchStage.Value("BETA")
    stage = "beta" if beta else made.launch_stage
    return made.model_copy(update={"guard": proxy, "launch_stage": stage})


def _container_gcloud(made: Blueprint) -> tuple[str, ...]:
    container = made.container
    kept = [f"{name}={secret}:latest" for name, secret in container.secrets.items()]
    command, args = _without_equal_words(container.command, container.args)
    return (
        f"--image={container.image}",
        f"--command={_list(command)}",
        f"--args={_list(args)}",
        *([] if made.guard else [f"--port={container.port}"]),
        *([f"--set-env-vars={_list(as_assignments(container.env))}"] if container.env else []),
        *([f"--set-secrets={_list(kept)}"] if kept else []),
    )


def _without_equal_words(
    command: tuple[str, ...], args: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write a command line in words of which no two are equal: gcloud refuses a list with such.

    A flag takes its only value into its word; where words are equal even so, a shell reads them.
    Source: gcloud 578, `argument --args: "…" cannot be specified multiple times` (2026-11-23).
    """
    words: list[str] = []
    rest = list(args)
    while rest:
        flag = rest.pop(0)
        values = list(takewhile(lambda word: not word.startswith("-"), rest))
        one = flag.startswith("--") and "=" not in flag and len(values) == 1
        words.append(f"{flag}={rest.pop(0)}" if one else flag)
    if len(set(words)) == len(words):
        return command, tuple(words)
    return ("sh",), ("-c", f"exec {shlex.join((*command, *args))}")


def _guard_gcloud(container: container.Container) -> tuple[str, ...]:
    size = rules().guard
    return (
        f"--container={GUARD_NAME}",
        f"--image={container.image}",
        f"--command={_list(container.command)}",
        f"--args={_list(container.args)}",
        f"--port={container.port}",
        f"--set-env-vars={_list(as_assignments(container.env))}",
        f"--cpu={size.vcpu}",
        f"--memory={size.ram_gib}Gi",
        f"--depends-on={ENGINE}",
    )


def _service(made: Blueprint) -> tuple[str, ...]:
    return (
        f"--service-account={made.service_account}",
        "--ingress=all",
        "--no-allow-unauthenticated",
        "--no-invoker-iam-check" if made.public else "--invoker-iam-check",
        f"--gpu-type={made.gpu}",
        "--no-gpu-zonal-redundancy",
        "--no-cpu-throttling",
        "--cpu-boost",
        "--execution-environment=gen2",
        f"--concurrency={made.concurrency}",
        f"--timeout={made.timeout_seconds}",
        f"--min={made.min_instances}",
        f"--max={made.max_instances}",
        f"--max-instances={made.max_instances}",
    )


def _size(made: Blueprint) -> tuple[str, ...]:
    return (
        f"--cpu={made.size.vcpu}",
        f"--memory={made.size.ram_gib}Gi",
        "--gpu=1",
    )


def _probes(made: Blueprint) -> tuple[str, ...]:
    return (
        f"--startup-probe={_probe_gcloud(made.startup)}",
        f"--liveness-probe={_probe_gcloud(made.liveness)}",
    )


def _probe_gcloud(probe: Probe) -> str:
    return _pairs(
        {
            "httpGet.path": probe.path,
            "httpGet.port": probe.port,
            "initialDelaySeconds": probe.initial_delay_seconds,
            "periodSeconds": probe.period_seconds,
            "timeoutSeconds": probe.timeout_seconds,
            "failureThreshold": probe.failures,
        }
    )


def _volume_gcloud(made: Blueprint) -> tuple[str, ...]:
    mount = made.container.mount
    if mount is None:
        return ()
    source = {
        "name": VOLUME,
        "type": "cloud-storage",
        "bucket": mount.bucket,
        "readonly": "true",
        "mount-options": ";".join(mount.options),
    }
    return (f"--add-volume={_pairs(source)}",)


def _mounted(made: Blueprint) -> tuple[str, ...]:
    mount = made.container.mount
    if mount is None:
        return ()
    return (f"--add-volume-mount={_pairs({'volume': VOLUME, 'mount-path': mount.path})}",)


def _network(made: Blueprint) -> tuple[str, ...]:
    network = made.network
    if network is None:
        return ()
    return (
        f"--network={network.network}",
        f"--subnet={network.subnetwork}",
        f"--vpc-egress={egress(network)}",
    )


def _pairs(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def _list(words: Iterable[str]) -> str:
    """Join words as gcloud splits them: by a comma, or by what stands between carets."""
    given = list(words)
    between = next(one for one in _DELIMITERS if not any(one in word for word in given))
    return between.join(given) if between == "," else f"^{between}^{between.join(given)}"


_RUN: Final = "run.googleapis.com"


def yaml(made: Blueprint) -> str:
    """Write the service, every value as it is typed for the API."""
    service = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": made.name,
            "labels": {**made.labels, "cloud.googleapis.com/location": made.region},
            "annotations": {**made.annotations, **_service_annotations(made)},
        },
        "spec": {
            "template": {
                "metadata": {
                    "labels": dict(made.labels),
                    "annotations": _revision_annotations(made),
                },
                "spec": _revision(made),
            }
        },
    }
    return as_yaml(service)


def egress(network: Network) -> str:
    """Say which traffic leaves through a network."""
    return "all-traffic" if network.all_traffic else "private-ranges-only"


def _service_annotations(made: Blueprint) -> dict[str, str]:
    public = {f"{_RUN}/invoker-iam-disabled": "true"} if made.public else {}
    stage = {f"{_RUN}/launch-stage": made.launch_stage.upper()} if made.launch_stage else {}
    return {
        f"{_RUN}/ingress": "all",
        f"{_RUN}/minScale": str(made.min_instances),
        f"{_RUN}/maxScale": str(made.max_instances),
        **public,
        **stage,
    }


def _revision_annotations(made: Blueprint) -> dict[str, str]:
    return {
        "autoscaling.knative.dev/maxScale": str(made.max_instances),
        f"{_RUN}/cpu-throttling": "false",
        f"{_RUN}/startup-cpu-boost": "true",
        f"{_RUN}/execution-environment": "gen2",
        f"{_RUN}/gpu-zonal-redundancy-disabled": "true",
        **(
            {f"{_RUN}/container-dependencies": json.dumps({GUARD_NAME: [ENGINE]})}
            if made.guard
            else {}
        ),
        **(_attached(made.network) if made.network else {}),
    }


def _attached(network: Network) -> dict[str, str]:
    interface = {"network": network.network, "subnetwork": network.subnetwork}
    return {
        f"{_RUN}/network-interfaces": json.dumps([interface]),
        f"{_RUN}/vpc-access-egress": egress(network),
    }


def _revision(made: Blueprint) -> dict[str, Any]:
    mount = made.container.mount
    return {
        "containerConcurrency": made.concurrency,
        "timeoutSeconds": made.timeout_seconds,
        "serviceAccountName": made.service_account,
        "nodeSelector": {f"{_RUN}/accelerator": made.gpu},
        "containers": [_container_yaml(made), *([_guard_yaml(made.guard)] if made.guard else [])],
        **({"volumes": [_volume_yaml(mount)]} if mount else {}),
    }


def _container_yaml(made: Blueprint) -> dict[str, Any]:
    container, size = made.container, made.size
    limits = {"cpu": str(size.vcpu), "memory": f"{size.ram_gib}Gi", "nvidia.com/gpu": "1"}
    plain = [{"name": name, "value": value} for name, value in container.env.items()]
    kept = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": "latest"}}}
        for name, secret in container.secrets.items()
    ]
    mounted = [{"name": VOLUME, "mountPath": container.mount.path}] if container.mount else []
    return {
        **({"name": ENGINE} if made.guard else {}),
        "image": container.image,
        "command": list(container.command),
        "args": list(container.args),
        **({} if made.guard else {"ports": [{"containerPort": container.port}]}),
        "env": [*plain, *kept],
        "resources": {"limits": limits},
        **({"volumeMounts": mounted} if mounted else {}),
        "startupProbe": _probe_yaml(made.startup),
        "livenessProbe": _probe_yaml(made.liveness),
    }


def _guard_yaml(container: container.Container) -> dict[str, Any]:
    size = rules().guard
    return {
        "name": GUARD_NAME,
        "image": container.image,
        "command": list(container.command),
        "args": list(container.args),
        "ports": [{"containerPort": container.port}],
        "env": [{"name": name, "value": value} for name, value in container.env.items()],
        "resources": {"limits": {"cpu": str(size.vcpu), "memory": f"{size.ram_gib}Gi"}},
    }


def _probe_yaml(probe: Probe) -> dict[str, Any]:
    return {
        "httpGet": {"path": probe.path, "port": probe.port},
        "initialDelaySeconds": probe.initial_delay_seconds,
        "periodSeconds": probe.period_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "failureThreshold": probe.failures,
    }


def _volume_yaml(mount: Mount) -> dict[str, Any]:
    attributes = {"bucketName": mount.bucket, "mountOptions": ",".join(mount.options)}
    source = {"driver": f"gcsfuse.{_RUN}", "readOnly": True, "volumeAttributes": attributes}
    return {"name": VOLUME, "csi": source}
