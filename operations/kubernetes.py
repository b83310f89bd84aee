"""A model on Google Kubernetes Engine, as a manifest and the commands around it."""

import copy
import functools
import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any, Final, Literal, NamedTuple

import yaml
from pydantic import Field

from backends.container import vllm_flags
from core.errors import DoesNotFit, InvalidArgument, NextStep
from core.records import Answer, DeploymentName, DeploymentSpec, ModelShape, Record, valid
from core.settings import Settings
from operations.deployments import name_for
from operations.forecast import loads, memory_table
from operations.planning import nearest
from operations.runtime import Command
from planner.advise import Goal, candidates
from planner.boot import boot, file_bytes
from planner.catalog import not_on_hub
from planner.flags import Flags, parsers_for
from planner.layouts import Arrangement, Ground, Layout, arrange
from planner.model import is_path
from planner.places import accelerator, place

_FILE: Final = Path(__file__).with_name("gke.toml")
_OBJECTS: Final = _FILE.with_suffix(".yaml")
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
    read = tomllib.loads(_FILE.read_text("utf-8"))
    return valid(Rules, {name: row for name, row in read.items() if name != "step"})


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
_WEIGHTS: Final = "/weights"
"""Where weights are mounted, read-only."""
_MASTER_PORT: Final = 29501
"""Where the hosts of one replica meet; vLLM's own default."""
_USUAL_DISK_GIB: Final = 93
"""Of a node where nobody says: 100 GB."""


class Serving(NamedTuple):
    """What fills the objects and the commands in."""

    said: Mapping[str, str]
    """By the names of `gke.yaml` and `gke.toml`."""
    args: tuple[str, ...]
    """Of `vllm serve`, the model first."""
    gpus: int
    hosts: int
    """Pods that one replica is spread over."""
    source: Literal["hub", "bucket", "claim"]

    @property
    def kind(self) -> str:
        """A Deployment, or a LeaderWorkerSet where tensor parallelism crosses hosts."""
        return "Deployment" if self.hosts == 1 else "LeaderWorkerSet"


def objects(serving: Serving) -> tuple[Object, ...]:
    """Give the objects in the order in which they are made."""
    made = yaml.safe_load(Template(_OBJECTS.read_text("utf-8")).substitute(serving.said))
    pod = _pod(serving, made["pod"])
    workload, service = made[serving.kind], made["Service"]
    if serving.hosts == 1:
        workload["spec"]["template"] = _with_args(pod, serving.args)
    else:
        group = (
            *serving.args,
            *("--nnodes", str(serving.hosts), "--node-rank", "$(LWS_WORKER_INDEX)"),
            *("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", str(_MASTER_PORT)),
        )
        worker = _with_args(pod, (*group, "--headless"))
        for name in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
            del worker["spec"]["containers"][0][name]  # it answers nobody
        worker["spec"]["initContainers"] = made["initContainers"]
        template = workload["spec"]["leaderWorkerTemplate"]
        template |= {"leaderTemplate": _with_args(pod, group), "workerTemplate": worker}
        lws = "leaderworkerset.sigs.k8s.io"
        leader = {f"{lws}/name": serving.said["name"], f"{lws}/worker-index": "0"}
        service["spec"]["selector"] = leader
    account = (made["ServiceAccount"],) if serving.source == "bucket" else ()
    return (*account, workload, service)


def _pod(serving: Serving, pod: Object) -> Object:
    """Take out what it does not have."""
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    mounted, shared = serving.source != "hub", serving.gpus * serving.hosts > 1
    gone = {*(() if mounted else ("weights",)), *(() if shared else ("shm",))}
    for owner, name in ((container, "volumeMounts"), (spec, "volumes")):
        owner[name] = [one for one in owner[name] if one["name"] not in gone]
    other = "HF_TOKEN" if mounted else "HF_HUB_OFFLINE"
    container["env"] = [one for one in container["env"] if one["name"] != other]
    for volume in spec["volumes"]:
        volume.pop("persistentVolumeClaim" if serving.source == "bucket" else "csi", None)
    if serving.source == "bucket":
        del spec["automountServiceAccountToken"]
    else:
        del spec["serviceAccountName"], pod["metadata"]["annotations"]
    return pod


def _with_args(pod: Object, args: tuple[str, ...]) -> Object:
    mine = copy.deepcopy(pod)
    mine["spec"]["containers"][0]["args"] = list(args)
    return mine


def steps(settings: Settings, serving: Serving) -> Iterator[Command]:
    """Give every command that a person types, in order."""
    region, project = settings.google_cloud_location, settings.google_cloud_project
    flags = ((" --location=", region), (" --project=", project))
    said = {
        **serving.said,
        "place": "".join(f"{flag}{shlex.quote(value)}" for flag, value in flags if value),
        "project": shlex.quote(project) if project else '"$(gcloud config get-value project)"',
    }
    there = {"", serving.kind, serving.source}
    there |= {"namespace"} if said["namespace"] != "default" else set()
    for row in tomllib.loads(_FILE.read_text("utf-8"))["step"]:
        if row.get("of", "") in there:
            yield Command(
                what=Template(row["what"]).safe_substitute(said),
                command=Template(row["command"]).safe_substitute(said),
            )


def _notes(serving: Serving) -> Iterator[str]:
    """Warn of what only the cluster's owner can see."""
    image, disk = serving.said["image"], int(serving.said["disk_gib"])
    yield "Nothing was made: apply the manifest yourself. Its node bills until its pool shrinks."
    if "@" not in image:
        yield f"{image} is a tag, which may move: give `image` by digest to pin it."
    if 2 * disk > _USUAL_DISK_GIB:
        yield (
            f"It keeps {disk} GiB on its node's boot disk, of which pods get about half: with nodes"
            f" of your own, one larger than GKE's usual 100 GB (the command takes"
            f" {rules().node_disk_gb})."
        )
    if serving.hosts > 1:
        yield (
            "The hosts talk over the network for every token: one host with two L4 is faster, where"
            " the model fits on it."
        )
    if serving.source == "claim":
        many = ", and every host must be able to mount it" if serving.hosts > 1 else ""
        yield f"The claim {serving.said['claim']} must hold the files already{many}."


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


def config(settings: Settings, said: dict[str, Any]) -> GkeConfig:
    """Plan a model and write its manifest; deterministic, and nothing is asked of any cluster.

    Raises:
        InvalidArgument: Something said cannot be, or nothing can be planned for the model.
        DoesNotFit: The memory of so many L4 does not suffice; the error names what would.
    """
    wish = valid(GkeWish, said)
    shape, arranged = planned(wish)
    serving = _serving(wish, shape, arranged.flags)
    memory = arranged.memory
    unpublished = not_on_hub(shape.model) if serving.source == "hub" else None
    where = "Give weights=gs://BUCKET/FOLDER or pvc:CLAIM/FOLDER with its files."
    return GkeConfig(
        model=shape.model,
        name=serving.said["name"],
        namespace=wish.namespace,
        kind=serving.kind,
        tensor_parallel_size=arranged.flags.tensor_parallel_size,
        machine_type=serving.said["machine_type"],
        holds=f"{memory.weights_gib:.2f} GiB of weights on each,"
        f" {memory.kv_cache_gib.expected:.2f} GiB of KV cache: at least"
        f" {memory.kv_low.max_concurrency:.1f} requests of {memory.max_model_len:,} tokens.",
        startup_seconds=int(serving.said["startup_seconds"]),
        manifest=as_yaml(objects(serving)),
        steps=tuple(steps(settings, serving)),
        notes=(*((f"{unpublished} {where}",) if unpublished else ()), *_notes(serving)),
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


def _serving(wish: GkeWish, shape: ModelShape, flags: Flags) -> Serving:
    chosen, where = rules(), wish.weights or "hub"
    bucket, claim = _BUCKET.fullmatch(where), _CLAIM.fullmatch(where)
    mounted = bucket or claim
    from_hub = where == "hub" and not is_path(shape.model)
    if not from_hub and (mounted is None or {".", ".."} & set(mounted[2].split("/"))):
        raise InvalidArgument(
            f"GKE cannot read the weights of {shape.model} from {where[:100]}.",
            fix="Give weights=gs://BUCKET/FOLDER, pvc:CLAIM/FOLDER, or hub with a Hub id.",
        )
    foreseen = boot(shape, place(PLACE), flags, weights_from="gcs-fuse" if bucket else "hub")
    host, *inside = foreseen.phases
    startup = sum(phase.seconds.high for phase in inside) + chosen.startup_margin_seconds
    failures = math.ceil(startup / chosen.period_seconds)
    startup_seconds = failures * chosen.period_seconds
    rollout = startup_seconds + host.seconds.high + chosen.rollout_margin_seconds
    files = 0 if mounted else math.ceil(file_bytes(shape) / _GIB)
    name = wish.name or name_for(shape.model)
    asked = flags.model_dump(exclude_none=True, include=set(DeploymentSpec.model_fields))
    asked["engine_args"] = parsers_for(
        shape.model_type, None if wish.image else chosen.vllm, ()
    ).words
    spec = valid(DeploymentSpec, {"name": name, "model": shape.model, **asked})
    model: tuple[str, ...] = (shape.model,)
    if mounted:
        model = (f"{_WEIGHTS}{mounted[2]}", "--served-model-name", spec.served_model_name)
    if bucket:
        model = (*model, "--load-format", chosen.load_format)
    listens = ("--host", "0.0.0.0", "--port", "8000")  # noqa: S104  a Service sends to it
    said = {
        **chosen.model_dump(exclude={"machines"}),
        **chosen.machines[str(wish.gpus)].model_dump(),
        **wish.model_dump(include={"namespace", "gpus", "hosts"}),
        "name": name,
        # A LeaderWorkerSet makes a Service of its own name for its pods.
        "service": name if wish.hosts == 1 else f"{name}-api",
        "image": wish.image or chosen.image,
        "bucket": bucket[1] if bucket else "",
        "claim": claim[1] if claim else "",
        "disk_gib": files + _SPARE_DISK_GIB,
        "startup_seconds": startup_seconds,
        "startup_failures": failures,
        "rollout_seconds": math.ceil(rollout),
    }
    return Serving(
        said={key: str(value) for key, value in said.items()},
        args=(*model, *listens, *vllm_flags(spec)),
        gpus=wish.gpus,
        hosts=wish.hosts,
        source="bucket" if bucket else "claim" if claim else "hub",
    )
