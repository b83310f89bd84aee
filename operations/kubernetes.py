"""A model on Google Kubernetes Engine, as a manifest and the commands around it."""

import functools
import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from pydantic import Field

from backends.container import vllm_flags
from core.errors import DoesNotFit, InvalidArgument, NextStep
from core.records import Answer, DeploymentName, DeploymentSpec, ModelShape, Record, valid
from core.settings import Settings
from operations.deployments import name_for
from operations.forecast import loads, memory_table
from operations.planning import nearest
from operations.runtime import Command, command
from planner.advise import Goal, candidates
from planner.boot import boot, file_bytes
from planner.catalog import not_on_hub
from planner.flags import Flags, parsers_for
from planner.layouts import Arrangement, Ground, Layout, arrange
from planner.model import is_path
from planner.places import accelerator, place

_FILE: Final = Path(__file__).with_name("gke.toml")
PLACE: Final = "gke-l4"
"""Its name in the planner."""
_USUAL_LENGTH: Final = 8192
_LARGER: Final = ((1, 1), (2, 1), (2, 2), (2, 4))
"""Accelerators of a host, and hosts: what is looked at where it does not fit."""


class GkeWish(Record):
    """What is asked for."""

    model: str
    gpus: int = Field(default=1, ge=1, le=2)
    """Of each host."""
    hosts: int = Field(default=1, ge=1, le=4)
    """That one replica is spread over."""
    name: DeploymentName | None = None
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    weights: str | None = None
    """`hub`, `gs://BUCKET/FOLDER` or `pvc:CLAIM/FOLDER`."""
    max_model_len: int | None = Field(default=None, ge=256)
    layout: Layout | None = None
    image: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9./_:@-]*$")


class Machine(Record):
    """A machine type, and what a pod may have of it."""

    machine_type: str
    cpu: str
    memory: str
    shm: str


class Rules(Record):
    """`gke.toml`, which has the sources."""

    image: str
    vllm: str
    accelerator: str
    period_seconds: int
    startup_margin_seconds: int
    rollout_margin_seconds: int
    node_disk_gb: int
    grace_seconds: int
    gcsfuse_options: str
    load_format: str
    machines: dict[str, Machine]


@functools.cache
def rules() -> Rules:
    """Read them."""
    return valid(Rules, tomllib.loads(_FILE.read_text("utf-8")))


def machine(wish: GkeWish) -> Machine:
    """Give the machine with so many accelerators."""
    return rules().machines[str(wish.gpus)]


def planned(wish: GkeWish) -> tuple[ModelShape, Arrangement]:
    """Compute the flags that make it fit.

    Raises:
        InvalidArgument: The model cannot be planned, or is not so long.
        DoesNotFit: The memory of so many accelerators does not suffice.
    """
    goal = valid(
        Goal,
        {
            "model": wish.model,
            "max_model_len": wish.max_model_len or _USUAL_LENGTH,
            "layout": wish.layout,
            "vllm_version": rules().vllm,
        },
    )
    (shape,) = candidates(goal)
    most = shape.max_position_embeddings
    if most and goal.max_model_len > most:
        raise InvalidArgument(
            f"max_model_len {goal.max_model_len:,} is beyond the model's {most:,} positions.",
            fix=f"Give at most {most}.",
        )
    ground = _ground(shape, wish.gpus * wish.hosts)
    arranged = arrange(ground, goal.wish)
    if not arranged.enough:
        raise _does_not_fit(wish, goal, ground, arranged)
    return shape, arranged


def _ground(shape: ModelShape, count: int) -> Ground:
    return Ground(shape, accelerator(place(PLACE).accelerator), count)


def _does_not_fit(wish: GkeWish, goal: Goal, ground: Ground, arranged: Arrangement) -> DoesNotFit:
    memory, model = arranged.memory, ground.model.model
    near = [words for words, _ in nearest(ground, goal)][:2] if loads(ground, memory) else []
    more = next(
        (
            (gpus, hosts)
            for gpus, hosts in _LARGER
            if gpus * hosts > ground.count
            and arrange(_ground(ground.model, gpus * hosts), goal.wish).enough
        ),
        None,
    )
    fix = f"Take gpus={more[0]}, hosts={more[1]}" if more else "Call recommend_deployment"
    larger = {"model": wish.model, "gpus": more[0], "hosts": more[1]} if more else {}
    steps = (NextStep("get_vllm_gpu_deployment_config", larger),) if more else ()
    return DoesNotFit(
        f"{model} does not fit on {ground.count} L4: {' '.join(memory.reasons)}",
        fix=f"{fix}{f', or serve it {near[0]}' if near else ''}.",
        data={"memory": memory_table(memory).model_dump(mode="json"), "nearest": near},
        next_steps=(*steps, NextStep("recommend_deployment", {"model": model})),
    )


Object = dict[str, Any]

PORT: Final = 8000
MASTER_PORT: Final = 29501
"""Where the hosts of one replica meet; vLLM's own default."""
WEIGHTS: Final = "/weights"
_CACHE: Final = "/cache"
_SET_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_WAIT: Final = """\
import os, socket, sys, time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    try:
        socket.create_connection((os.environ["LWS_LEADER_ADDRESS"], {port}), 5).close()
        sys.exit(0)
    except OSError:
        time.sleep(2)
sys.exit("The leader did not listen in time.")
"""
"""A worker whose rendezvous times out restarts, and its whole group with it."""


class Volume(Record):
    """Weights that are mounted, read-only, at `WEIGHTS`."""

    bucket: str | None = None
    claim: str | None = None
    options: str = ""
    """Of gcsfuse, separated by commas."""


class Serving(Record):
    """Everything that the objects say."""

    name: str
    namespace: str
    image: str
    args: tuple[str, ...]
    """Of `vllm serve`, the model first."""
    accelerator: str
    gpus: int
    """Of each pod."""
    hosts: int
    """Pods that one replica is spread over."""
    cpu: str
    memory: str
    shm: str
    disk_gib: int
    """Of the node's disk, that a pod fills."""
    volume: Volume | None
    """None downloads from the Hub."""
    startup_seconds: int
    rollout_seconds: int
    period_seconds: int
    grace_seconds: int

    @property
    def service(self) -> str:
        """Its Service; a LeaderWorkerSet makes one of its own name for its pods."""
        return self.name if self.hosts == 1 else f"{self.name}-api"

    @property
    def api_key_secret(self) -> str:
        """The Secret with the engine's key."""
        return f"{self.name}-api-key"


def objects(serving: Serving) -> tuple[Object, ...]:
    """Give the objects in the order in which they are made."""
    account = (_account(serving),) if _mounts_bucket(serving) else ()
    workload = _deployment(serving) if serving.hosts == 1 else _leader_worker_set(serving)
    return (*account, workload, _service(serving))


def _metadata(serving: Serving, name: str) -> Object:
    return {"name": name, "namespace": serving.namespace, "labels": _labels(serving)}


def _labels(serving: Serving) -> Object:
    return {
        "app.kubernetes.io/name": serving.name,
        "app.kubernetes.io/component": "vllm",
        "app.kubernetes.io/managed-by": "vllm-devops-agent",
    }


def _account(serving: Serving) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(serving, serving.name),
    }


def _deployment(serving: Serving) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(serving, serving.name),
        "spec": {
            "replicas": 1,
            # A second pod would wait for a second GPU while the first still runs.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": serving.rollout_seconds,
            "selector": {"matchLabels": {"app.kubernetes.io/name": serving.name}},
            "template": _pod(serving, serving.args, answers=True),
        },
    }


def _leader_worker_set(serving: Serving) -> Object:
    group = ("--nnodes", str(serving.hosts), "--node-rank", "$(LWS_WORKER_INDEX)")
    meet = ("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", str(MASTER_PORT))
    args = (*serving.args, *group, *meet)
    worker = _pod(serving, (*args, "--headless"), answers=False)
    worker["spec"]["initContainers"] = [_waiting(serving)]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(serving, serving.name),
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": serving.hosts,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(serving, args, answers=True),
                "workerTemplate": worker,
            },
        },
    }


def _service(serving: Serving) -> Object:
    leader = {_SET_NAME: serving.name, _WORKER_INDEX: "0"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(serving, serving.service),
        "spec": {
            "type": "ClusterIP",
            "selector": {"app.kubernetes.io/name": serving.name} if serving.hosts == 1 else leader,
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    }


def _pod(serving: Serving, args: tuple[str, ...], *, answers: bool) -> Object:
    fuse = {"annotations": {"gke-gcsfuse/volumes": "true"}} if _mounts_bucket(serving) else {}
    identity: Object = (
        {"serviceAccountName": serving.name}
        if _mounts_bucket(serving)
        else {"automountServiceAccountToken": False}
    )
    return {
        "metadata": {"labels": _labels(serving), **fuse},
        "spec": {
            **identity,
            # A Service named `vllm` would set VLLM_PORT to a URL, and vLLM would not start.
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": serving.grace_seconds,
            "nodeSelector": {"cloud.google.com/gke-accelerator": serving.accelerator},
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
            ],
            "containers": [_engine(serving, args, answers=answers)],
            "volumes": _volumes(serving),
        },
    }


def _engine(serving: Serving, args: tuple[str, ...], *, answers: bool) -> Object:
    spoken = {"ports": [{"name": "http", "containerPort": PORT}], **_probes(serving)}
    sizes = {
        "cpu": serving.cpu,
        "memory": serving.memory,
        "ephemeral-storage": f"{serving.disk_gib}Gi",
        "nvidia.com/gpu": str(serving.gpus),
    }
    return {
        "name": "vllm",
        "image": serving.image,
        "command": ["vllm", "serve"],
        "args": list(args),
        "env": _environment(serving),
        **(spoken if answers else {}),
        # No limit for processors: it would only slow the engine down.
        "resources": {
            "requests": sizes,
            "limits": {name: size for name, size in sizes.items() if name != "cpu"},
        },
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": _mounts(serving),
    }


def _probes(serving: Serving) -> Object:
    health = {"path": "/health", "port": PORT}
    often = {"httpGet": health, "periodSeconds": serving.period_seconds, "timeoutSeconds": 5}
    tries = -(-serving.startup_seconds // serving.period_seconds)
    return {
        "startupProbe": {**often, "failureThreshold": tries},
        "readinessProbe": {**often, "failureThreshold": 3},
        # A long prefill may keep /health waiting: only minutes of silence are a death.
        "livenessProbe": {
            "httpGet": dict(health),
            "periodSeconds": 60,
            "timeoutSeconds": 10,
            "failureThreshold": 5,
        },
    }


def _environment(serving: Serving) -> list[Object]:
    cache = [{"name": "HF_HOME", "value": _CACHE}, {"name": "VLLM_CACHE_ROOT", "value": _CACHE}]
    key = _secret("VLLM_API_KEY", serving.api_key_secret, "api-key")
    if serving.volume:
        return [*cache, key, {"name": "HF_HUB_OFFLINE", "value": "1"}]
    return [*cache, key, _secret("HF_TOKEN", "hf-token", "token", optional=True)]


def _secret(name: str, secret: str, key: str, *, optional: bool = False) -> Object:
    may = {"optional": True} if optional else {}
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **may}}}


def _mounts(serving: Serving) -> list[Object]:
    shm = [{"name": "shm", "mountPath": "/dev/shm"}] if _shares_memory(serving) else []  # noqa: S108  the engine's
    weights = {"name": "weights", "mountPath": WEIGHTS, "readOnly": True}
    return [
        {"name": "cache", "mountPath": _CACHE},
        *([weights] if serving.volume else []),
        *shm,
    ]


def _volumes(serving: Serving) -> list[Object]:
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": serving.shm}}
    return [
        {"name": "cache", "emptyDir": {}},
        *([_weights_manifests(serving.volume)] if serving.volume else []),
        *([shm] if _shares_memory(serving) else []),
    ]


def _weights_manifests(volume: Volume) -> Object:
    if volume.claim:
        claim = {"claimName": volume.claim, "readOnly": True}
        return {"name": "weights", "persistentVolumeClaim": claim}
    attributes = {"bucketName": volume.bucket, "mountOptions": volume.options}
    fuse = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True}
    return {"name": "weights", "csi": {**fuse, "volumeAttributes": attributes}}


def _waiting(serving: Serving) -> Object:
    script = _WAIT.format(seconds=serving.rollout_seconds, port=MASTER_PORT)
    return {
        "name": "wait-for-leader",
        "image": serving.image,
        "command": ["python3", "-c", script],
        "securityContext": {"allowPrivilegeEscalation": False},
    }


def _shares_memory(serving: Serving) -> bool:
    """Processes that share a model talk through /dev/shm, of which a container has 64 MiB."""
    return serving.gpus * serving.hosts > 1


def _mounts_bucket(serving: Serving) -> bool:
    return bool(serving.volume and serving.volume.bucket)


_LWS: Final = "v0.8.0"
"""Source: lws.sigs.k8s.io's page on installation, read 2026-11."""
_CLUSTER: Final = '--cluster="${CLUSTER:?Set CLUSTER to the name of your cluster.}"'
_TOKEN: Final = '"${HF_TOKEN:?Set HF_TOKEN first.}"'  # noqa: S105  a variable's name
_SLOW: Final = (
    "The hosts talk over the network for every token: one host with two L4 is faster, where the"
    " model fits on it."
)

_USUAL_DISK_GIB: Final = 93
"""Of a node where nobody says: 100 GB."""


def steps(settings: Settings, serving: Serving, machine_type: str) -> tuple[Command, ...]:
    """Give every command, in order.

    Flags: gcloud's reference of `container node-pools create` and of `storage buckets
    add-iam-policy-binding`, kubectl's of `create secret generic`, `rollout status` and `wait`,
    read 2026-11.
    """
    return (
        _node_pool(settings, serving, machine_type),
        *_before(settings, serving),
        *_making(serving),
        *_asking(serving),
    )


def notes(serving: Serving) -> tuple[str, ...]:
    """Warn of what only the cluster's owner can see."""
    return tuple(_notes(serving))


def _notes(serving: Serving) -> Iterator[str]:
    yield "Nothing was made: apply the manifest yourself. Its node bills until its pool shrinks."
    if "@" not in serving.image:
        yield f"{serving.image} is a tag, which may move: give `image` by digest to pin it."
    if 2 * serving.disk_gib > _USUAL_DISK_GIB:
        yield (
            f"It keeps {serving.disk_gib} GiB on its node's boot disk, of which pods get about"
            " half: with nodes of your own, one larger than GKE's usual 100 GB (the command takes"
            f" {rules().node_disk_gb})."
        )
    if serving.hosts > 1:
        yield _SLOW
    if serving.volume and serving.volume.claim:
        many = ", and every host must be able to mount it" if serving.hosts > 1 else ""
        yield f"The claim {serving.volume.claim} must hold the files already{many}."


def _node_pool(settings: Settings, serving: Serving, machine_type: str) -> Command:
    region, project = settings.google_cloud_location, settings.google_cloud_project
    card = f"type={serving.accelerator},count={serving.gpus},gpu-driver-version=latest"
    words = [
        f"--machine-type={machine_type}",
        f"--accelerator={card}",
        f"--disk-size={rules().node_disk_gb}",
        "--enable-image-streaming",
        "--enable-autoscaling",
        "--num-nodes=0",
        "--min-nodes=0",
        f"--max-nodes={serving.hosts}",
        "--workload-metadata=GKE_METADATA",
        *([f"--location={region}"] if region else []),
        *([f"--project={project}"] if project else []),
    ]
    head = f"gcloud container node-pools create vllm-l4-{serving.gpus} {_CLUSTER}"
    what = "Make nodes for it in a standard cluster; an Autopilot cluster makes its own."
    return Command(what=what, command=f"{head} {shlex.join(words)}")


def _before(settings: Settings, serving: Serving) -> Iterator[Command]:
    space = f"--namespace={serving.namespace}"
    if serving.hosts > 1:
        where = f"https://github.com/kubernetes-sigs/lws/releases/download/{_LWS}/manifests.yaml"
        words = ("kubectl", "apply", "--server-side", "-f", where)
        yield command("Install LeaderWorkerSet, once for each cluster.", *words)
    if serving.namespace != "default":
        made = f"kubectl create namespace {serving.namespace} --dry-run=client -o yaml"
        yield Command(what="Make the namespace.", command=f"{made} | kubectl apply -f -")
    keep = f"kubectl create secret generic {serving.api_key_secret} {space}"
    key = "openssl rand -hex 32 | tr -d '\\n'"
    yield Command(
        what="Make a key for its API, which is shown to nobody.",
        command=f"{key} | {keep} --from-file=api-key=/dev/stdin",
    )
    if serving.volume is None:
        keep = f"kubectl create secret generic hf-token {space} --from-file=token=/dev/stdin"
        yield Command(
            what="Only for a gated model: keep a Hub token.",
            command=f"printf %s {_TOKEN} | {keep}",
        )
    elif serving.volume.bucket:
        yield _reading(settings, serving, serving.volume.bucket)


def _reading(settings: Settings, serving: Serving, bucket: str) -> Command:
    """Let the pods' own identity read the bucket; GKE federates it, no key is needed."""
    named = settings.google_cloud_project
    project = shlex.quote(named) if named else '"$(gcloud config get-value project)"'
    pool = 'workloadIdentityPools/"$PROJECT".svc.id.goog'
    number = '"$(gcloud projects describe "$PROJECT" --format=\'value(projectNumber)\')"'
    member = (
        f"principal://iam.googleapis.com/projects/{number}/locations/global/{pool}"
        f"/subject/ns/{serving.namespace}/sa/{serving.name}"
    )
    bind = f"gcloud storage buckets add-iam-policy-binding gs://{bucket}"
    return Command(
        what="Let its service account read the bucket; the cluster needs the GCS FUSE CSI driver.",
        command=f"PROJECT={project}; {bind} --role=roles/storage.objectViewer --member={member}",
    )


def _making(serving: Serving) -> Iterator[Command]:
    space, file = f"--namespace={serving.namespace}", f"{serving.name}.yaml"
    limit = f"--timeout={serving.rollout_seconds}s"
    yield command(f"Save the manifest as {file}, and apply it.", "kubectl", "apply", "-f", file)
    watched = (
        ("rollout", "status", f"deployment/{serving.name}")
        if serving.hosts == 1
        else ("wait", f"leaderworkerset/{serving.name}", "--for=condition=Available")
    )
    yield command("Wait until it answers.", "kubectl", *watched, space, limit)


def _asking(serving: Serving) -> Iterator[Command]:
    space, ports = f"--namespace={serving.namespace}", f"{PORT}:{PORT}"
    secret = f"kubectl get secret {serving.api_key_secret} {space}"
    key = f"{secret} -o jsonpath='{{.data.api-key}}' | base64 -d"
    yield command(
        "Reach it from here, in a terminal of its own.",
        *("kubectl", "port-forward", f"service/{serving.service}", ports, space),
    )
    yield Command(
        what="Ask it which models it serves.",
        command=f'curl -sS http://127.0.0.1:{PORT}/v1/models -H "Authorization: Bearer $({key})"',
    )
    yield command(
        "Remove it; the node pool shrinks by itself.",
        *("kubectl", "delete", "--ignore-not-found", "-f", f"{serving.name}.yaml"),
    )
    yield command(
        "Remove its key.",
        *("kubectl", "delete", "secret", serving.api_key_secret, space, "--ignore-not-found"),
    )


_GIB: Final = 2**30
_SPARE_DISK_GIB: Final = 10
"""Compiled graphs and what the engine writes beside weights."""
_BUCKET: Final = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])((?:/[\w.-]+)+)/?")
_CLAIM: Final = re.compile(r"pvc:([a-z0-9][a-z0-9.-]{0,251}[a-z0-9]|[a-z0-9])((?:/[\w.-]+)*)/?")


class GkeConfig(Answer):
    """A manifest, with what a person types around it."""

    model: str
    name: str
    namespace: str
    kind: str
    """Deployment, or LeaderWorkerSet where tensor parallelism crosses hosts."""
    tensor_parallel_size: int
    machine_type: str
    holds: str
    """What the planner foresees of its memory."""
    startup_seconds: int
    """That a boot may take before the pod is started anew."""
    manifest: str
    steps: tuple[Command, ...]
    notes: tuple[str, ...]

    def summary(self) -> str:
        """Say what it makes, and that it fits."""
        of = f"tensor parallel over {self.tensor_parallel_size} L4, {self.machine_type}"
        return f"A {self.kind} of {self.model} on GKE: {of}; {self.holds}"

    def facts(self) -> Mapping[str, Any]:
        """Return the manifest; what a person types around it is part of the whole record."""
        return {"manifest": self.manifest}

    def warnings(self) -> tuple[str, ...]:
        """Warn of what only the cluster's owner can see."""
        return self.notes


class _Weights(NamedTuple):
    model: str
    """What `vllm serve` is given."""
    args: tuple[str, ...]
    volume: Volume | None
    boot_source: str
    """Its row of `planner/boot.toml`: the slowest that it may be."""


def config(settings: Settings, said: dict[str, Any]) -> GkeConfig:
    """Plan a model and write its manifest; deterministic, and nothing is asked of any cluster.

    Raises:
        InvalidArgument: Something said cannot be, or nothing can be planned for the model.
        DoesNotFit: The memory of so many L4 does not suffice; the error names what would.
    """
    wish = valid(GkeWish, said)
    shape, arranged = planned(wish)
    weights = _weights_gke(wish, shape.model)
    serving = _serving(wish, shape, arranged.flags, weights)
    made = objects(serving)
    return GkeConfig(
        model=shape.model,
        name=serving.name,
        namespace=serving.namespace,
        kind="Deployment" if wish.hosts == 1 else "LeaderWorkerSet",
        tensor_parallel_size=arranged.flags.tensor_parallel_size,
        machine_type=machine(wish).machine_type,
        holds=_holds(arranged),
        startup_seconds=serving.startup_seconds,
        manifest=as_yaml(made),
        steps=steps(settings, serving, machine(wish).machine_type),
        notes=(*_unpublished(shape.model, weights), *notes(serving)),
    )


def as_yaml(made: tuple[Object, ...]) -> str:
    """Write objects as `kubectl apply` reads them."""
    return str(yaml.dump_all(made, Dumper=_Plain, sort_keys=False, width=100))


class _Plain(yaml.SafeDumper):
    """Without anchors, and with texts of several lines as they are."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  the library's signature
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text)


def _weights_gke(wish: GkeWish, model: str) -> _Weights:
    where, chosen = wish.weights or "hub", rules()
    if where == "hub" and not is_path(model):
        return _Weights(model, (), None, "hub")
    bucket, claim = _BUCKET.fullmatch(where), _CLAIM.fullmatch(where)
    found = bucket or claim
    if found is None or {".", ".."} & set(found[2].split("/")):
        raise InvalidArgument(
            f"GKE cannot read the weights of {model} from {where[:100]}.",
            fix="Give weights=gs://BUCKET/FOLDER, pvc:CLAIM/FOLDER, or hub with a Hub id.",
        )
    served = ("--served-model-name", DeploymentSpec(name="x", model=model).served_model_name)
    path = f"{WEIGHTS}{found[2]}"
    if bucket:
        volume = Volume(bucket=found[1], options=chosen.gcsfuse_options)
        return _Weights(path, (*served, "--load-format", chosen.load_format), volume, "gcs-fuse")
    return _Weights(path, served, Volume(claim=found[1]), "hub")


def _serving(wish: GkeWish, shape: ModelShape, flags: Flags, weights: _Weights) -> Serving:
    chosen, size = rules(), machine(wish)
    foreseen = boot(shape, place(PLACE), flags, weights_from=weights.boot_source)
    host, *inside = foreseen.phases
    startup = sum(phase.seconds.high for phase in inside) + chosen.startup_margin_seconds
    startup_seconds = math.ceil(startup / chosen.period_seconds) * chosen.period_seconds
    rollout = startup_seconds + host.seconds.high + chosen.rollout_margin_seconds
    files = 0 if weights.volume else math.ceil(file_bytes(shape) / _GIB)
    said = flags.model_dump(exclude_none=True, include=set(DeploymentSpec.model_fields))
    name = wish.name or name_for(shape.model)
    parsers = parsers_for(shape.model_type, None if wish.image else chosen.vllm, ())
    said["engine_args"] = parsers.words
    spec = valid(DeploymentSpec, {"name": name, "model": shape.model, **said})
    listens = ("--host", "0.0.0.0", "--port", str(PORT))  # noqa: S104  a Service sends to it
    return Serving(
        name=name,
        namespace=wish.namespace,
        image=wish.image or chosen.image,
        args=(weights.model, *weights.args, *listens, *vllm_flags(spec)),
        accelerator=chosen.accelerator,
        gpus=wish.gpus,
        hosts=wish.hosts,
        **size.model_dump(exclude={"machine_type"}),
        disk_gib=files + _SPARE_DISK_GIB,
        volume=weights.volume,
        startup_seconds=startup_seconds,
        rollout_seconds=math.ceil(rollout),
        period_seconds=chosen.period_seconds,
        grace_seconds=chosen.grace_seconds,
    )


def _unpublished(model: str, weights: _Weights) -> Iterator[str]:
    """Warn of what cannot be fetched: its pods would fail after their nodes bill."""
    if weights.volume is None and (why := not_on_hub(model)):
        yield f"{why} Give weights=gs://BUCKET/FOLDER or pvc:CLAIM/FOLDER with its files."


def _holds(arranged: Arrangement) -> str:
    memory = arranged.memory
    return (
        f"{memory.weights_gib:.2f} GiB of weights on each leave"
        f" {memory.kv_cache_gib.expected:.2f} GiB of KV cache: at least"
        f" {memory.kv_low.max_concurrency:.1f} requests of {memory.max_model_len:,} tokens."
    )
