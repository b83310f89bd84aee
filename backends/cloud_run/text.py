"""A blueprint in words for a person: gcloud commands, a docker line, and the service as YAML."""

import shlex
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import anyio

from backends.base import DeploymentConfig
from backends.cloud_run import knative, looking, ollama, rules
from backends.cloud_run.blueprint import Blueprint, blueprint
from backends.cloud_run.service import ENGINE, VOLUME, engine_in
from backends.common import containers
from backends.common.containers import Probe
from backends.common.guard import NAME
from backends.common.written import assigned
from backends.google.names import DEPLOYMENT_LABEL, MANAGED_BY
from core.errors import NotFound
from planner.model import read_model

if TYPE_CHECKING:
    from google.cloud import run_v2

    from backends.cloud_run.site import Site

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
yaml = knative.yaml


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
    flags = (*_service(made), *_volume(made), *_network(made), f"--labels={_pairs(made.labels)}")
    # What stands behind a container's name is its own: the service's flags come first.
    engine = (*_container(made), *_size(made), *_probes(made), *_mounted(made))
    if made.guard:
        engine = (f"--container={ENGINE}", *engine, *_guard(made.guard))
    track = (made.launch_stage,) if made.launch_stage in {"alpha", "beta"} else ()
    return shlex.join(("gcloud", *track, "run", "deploy", made.name, *where, *flags, *engine))


async def config(site: "Site", name: str) -> DeploymentConfig:
    """Write what runs under a name as commands and YAML, with the image that it runs.

    Raises:
        DeploymentNotFound: Nothing of that name was made here.
        NotFound: What was asked for cannot be read any more.
    """
    service = await looking.service_named(site, name)
    spec = looking.spec_in(service)
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
        commands = f"{ollama.submit(spec, **where)}\n{commands}"
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
    return containers.docker(made.name, made.container, *mounted)


def _reads_hub(service: "run_v2.Service") -> bool:
    return any(
        variable.name == "HF_TOKEN"
        for container in service.template.containers
        for variable in container.env
    )


def _as_running(made: Blueprint, service: "run_v2.Service") -> Blueprint:
    """Give it the image that runs, pinned as it may be, and the launch stage that Google took."""
    from google.api.launch_stage_pb2 import LaunchStage

    images = {row.name: row.image for row in service.template.containers}
    running, proxy = engine_in(service), made.guard
    if running:
        container = made.container.model_copy(update={"image": running.image})
        made = made.model_copy(update={"container": container})
    if proxy and NAME in images:
        proxy = proxy.model_copy(update={"image": images[NAME]})
    beta = service.launch_stage == LaunchStage.Value("BETA")
    stage = "beta" if beta else made.launch_stage
    return made.model_copy(update={"guard": proxy, "launch_stage": stage})


def _container(made: Blueprint) -> tuple[str, ...]:
    container = made.container
    kept = [f"{name}={secret}:latest" for name, secret in container.secrets.items()]
    command, args = _without_equal_words(container.command, container.args)
    return (
        f"--image={container.image}",
        f"--command={_list(command)}",
        f"--args={_list(args)}",
        *([] if made.guard else [f"--port={container.port}"]),
        *([f"--set-env-vars={_list(assigned(container.env))}"] if container.env else []),
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


def _guard(container: containers.Container) -> tuple[str, ...]:
    size = rules.rules().guard
    return (
        f"--container={NAME}",
        f"--image={container.image}",
        f"--command={_list(container.command)}",
        f"--args={_list(container.args)}",
        f"--port={container.port}",
        f"--set-env-vars={_list(assigned(container.env))}",
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
    return f"--startup-probe={_probe(made.startup)}", f"--liveness-probe={_probe(made.liveness)}"


def _probe(probe: Probe) -> str:
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


def _volume(made: Blueprint) -> tuple[str, ...]:
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
        f"--vpc-egress={knative.egress(network)}",
    )


def _pairs(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def _list(words: Iterable[str]) -> str:
    """Join words as gcloud splits them: by a comma, or by what stands between carets."""
    given = list(words)
    between = next(one for one in _DELIMITERS if not any(one in word for word in given))
    return between.join(given) if between == "," else f"^{between}^{between.join(given)}"
