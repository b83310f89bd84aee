"""A model on Google Kubernetes Engine: planned on one or two L4 for each host, as a manifest."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

from backends.container import vllm_flags
from core.errors import InvalidArgument
from core.records import Answer, DeploymentSpec, ModelShape, valid
from core.settings import Settings
from operations.commands import Command
from operations.kubernetes.gke_commands import notes, steps
from operations.kubernetes.gke_fitting import PLACE, GkeWish, machine, planned, rules
from operations.kubernetes.manifests import PORT, WEIGHTS, Object, Serving, Volume, objects
from operations.lives.deploying import name_for
from planner.boot import boot, file_bytes
from planner.catalog import not_on_hub
from planner.flags import Flags, parsers_for
from planner.layouts import Arrangement
from planner.model import is_path
from planner.places import place

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
    weights = _weights(wish, shape.model)
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


def _weights(wish: GkeWish, model: str) -> _Weights:
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
