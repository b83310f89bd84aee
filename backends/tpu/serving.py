"""What runs on a VM with chips, how it is started, and how long it may boot."""

import json
import math
from collections.abc import Iterator
from typing import Final

from backends.container import (
    LOOPBACK,
    PORT,
    Container,
    flag_value,
    hub_environment,
    size_known,
    vllm_arguments,
)
from backends.google.clients import HF_SECRET
from backends.tpu.names import key_secret
from backends.tpu.rules import rules
from backends.tpu.weights import Weights, weights_of
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec, ModelShape
from planner.boot import boot, file_bytes
from planner.defaults import most_tokens_of_an_item
from planner.flags import Flags
from planner.places import Place
from planner.upstream import Implementation, upstream_doubts

ENGINE_PORT: Final = 8001
"""Of the VM alone: what is asked from outside asks the proxy before it."""
_WHOLE: Final = "--disable-chunked-mm-input"
_BATCHED: Final = "--max-num-batched-tokens"
_LIMIT: Final = "--limit-mm-per-prompt"
_SPREADING: Final = {
    "tensor": ("--tensor-parallel-size", "-tp"),
    "pipeline": ("--pipeline-parallel-size", "-pp"),
    "data": ("--data-parallel-size", "-dp"),
}


class Serving(Record):
    """vLLM on one VM."""

    spec: DeploymentSpec
    """With every flag as it is passed on."""
    container: Container
    boot_seconds: float
    """The slowest boot that is foreseen, from the VM to the first answer."""
    disk_gb: int
    """Where the disk's size can be chosen."""
    on_node: bool
    """Whether image and weights find room on a node of the queue, whose disk is given."""
    doubts: tuple[str, ...] = ()


def serving(
    spec: DeploymentSpec, model: ModelShape, place: Place, *, hf_token: bool, small_disk: bool
) -> Serving:
    """Decide how vLLM serves a model; `small_disk`: some VM's disk cannot be chosen.

    Raises:
        InvalidArgument: The chips or the model cannot take the spec.
    """
    weights = weights_of(spec)
    whole = with_flags(spec, model, place.count)
    room = _room(weights, model, place, small_disk=small_disk)
    if spec.boot_disk_gb:
        room = _chosen_disk(spec.boot_disk_gb, weights, model, small_disk=small_disk)
    fetch = weights.kind == "hub"
    secrets = {"VLLM_API_KEY": key_secret(spec.name)}
    return Serving(
        spec=whole,
        container=Container(
            image=spec.image or rules().engine.image,
            command=("vllm",),
            args=vllm_arguments(whole, spec.model, host=LOOPBACK, port=ENGINE_PORT),
            env={**weights.env, **_environment(place, room, fetch=fetch), **spec.variables},
            secrets={**secrets, "HF_TOKEN": HF_SECRET} if fetch and hf_token else secrets,
            port=PORT,
            health="/health",
        ),
        boot_seconds=_boot_seconds(whole, model, place, weights),
        disk_gb=room.disk_gb,
        on_node=room.on_node,
        doubts=(*_doubts(whole, model, place), *room.doubts),
    )


def with_flags(spec: DeploymentSpec, model: ModelShape, chips: int) -> DeploymentSpec:
    """Fill in what chips and model ask for; what is filled in already stays.

    Raises:
        InvalidArgument: Another number of chips is wanted, or images would not be taken.
    """
    _refuse_spread(spec, chips)
    changes: dict[str, object] = {"tensor_parallel_size": chips}
    item = most_tokens_of_an_item(model, Flags.of(spec))
    if item:
        batched = _batched(spec)
        if batched is None:
            changes["max_num_batched_tokens"] = rules().multimodal.max_num_batched_tokens
        elif batched < item:
            raise InvalidArgument(
                f"max_num_batched_tokens {batched} is less than the {item} of an image: on TPUs"
                f" {spec.model} reads an image in one piece.",
                fix=f"Give {item} or more, or engine_args --language-model-only.",
            )
        changes["engine_args"] = (*spec.engine_args, *_images(spec, model))
    return spec.model_copy(update=changes)


def _batched(spec: DeploymentSpec) -> int | None:
    own = flag_value(spec.engine_args, _BATCHED)
    return int(own) if own and own.isdecimal() else spec.max_num_batched_tokens


def _images(spec: DeploymentSpec, model: ModelShape) -> Iterator[str]:
    chosen = rules().multimodal
    if flag_value(spec.engine_args, _WHOLE) is None:
        yield _WHOLE
    if flag_value(spec.engine_args, _LIMIT) is None:
        audio = {"audio": chosen.audios} if model.audio else {}
        yield from (_LIMIT, json.dumps({"image": chosen.images, **audio}))


def _refuse_spread(spec: DeploymentSpec, chips: int) -> None:
    """Refuse another spread than over all chips: those that are left over would be paid for."""
    asked = {name: flag_value(spec.engine_args, *flags) for name, flags in _SPREADING.items()}
    tensor = asked.pop("tensor") or str(spec.tensor_parallel_size)
    if tensor not in {"1", str(chips)} or any((count or "1") != "1" for count in asked.values()):
        raise InvalidArgument(
            f"A model is spread over all {chips} chips of the VM, by tensor parallelism alone.",
            fix="Leave tensor, pipeline and data parallelism out.",
        )


class _Room(Record):
    disk_gb: int
    in_memory: bool = False
    on_node: bool = True
    doubts: tuple[str, ...] = ()


def _room(weights: Weights, model: ModelShape, place: Place, *, small_disk: bool) -> _Room:
    """Say where image and weights lie: on the disk, or where that is too small in memory."""
    disk = rules().disk
    if not size_known(model):
        doubt = (
            f"How large {model.model} is, is not known: a disk of {disk.unknown_gb} GB is planned;"
            f" a node of the queue has {disk.node_gb} GB, whatever is planned."
        )
        return _Room(disk_gb=disk.unknown_gb, doubts=(doubt,))
    weights_gb = file_bytes(model) / 1e9
    needed = math.ceil(disk.image_gb + weights_gb + disk.spare_gb)
    chosen = max(disk.least_gb, needed)
    if not small_disk or needed <= disk.node_gb:
        return _Room(disk_gb=chosen)
    memory_gb = (place.largest_ram_gib or 0) * 1.073741824 / 2  # what Linux gives /dev/shm
    if weights.kind != "hub" or weights_gb > memory_gb:
        return _Room(disk_gb=chosen, on_node=False)
    doubt = (
        f"The weights, {weights_gb:.0f} GB, are kept in the VM's memory (/dev/shm): a node of the"
        f" queue has a disk of {disk.node_gb} GB that cannot be larger. After a reboot they are"
        " fetched again."
    )
    return _Room(disk_gb=chosen, in_memory=True, doubts=(doubt,))


def _chosen_disk(disk_gb: int, weights: Weights, model: ModelShape, *, small_disk: bool) -> _Room:
    """Take the disk that is asked for; where its size cannot be chosen it is not had."""
    disk = rules().disk
    doubts: tuple[str, ...] = ()
    if weights.kind == "hub" and size_known(model):
        needed = math.ceil(disk.image_gb + file_bytes(model) / 1e9)
        if disk_gb < needed:
            short = f"boot_disk_gb={disk_gb} is less than the {needed} GB of image and weights"
            doubts = (f"{short}: the VM would be paid for and end with a full disk.",)
    return _Room(disk_gb=disk_gb, on_node=not small_disk, doubts=doubts)


def _environment(place: Place, room: _Room, *, fetch: bool) -> dict[str, str]:
    cache, docker = rules().cache, rules().docker
    compiled = {cache.variable: f"{cache.mount_path}/xla"}
    if not fetch:
        return compiled
    home = docker.memory_folder if room.in_memory else cache.mount_path
    own = hub_environment(rules().hub, place.largest_ram_gib or 0)
    return {**compiled, "HF_HOME": f"{home}/hub", **own}


def _boot_seconds(spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights) -> float:
    given = rules().boot
    if not size_known(model):
        return given.unknown_seconds
    foreseen = boot(model, place, Flags.of(spec), weights_from=weights.boot_source)
    return max(given.least_seconds, foreseen.seconds.high)


def _doubts(spec: DeploymentSpec, model: ModelShape, place: Place) -> Iterator[str]:
    chosen: Implementation = (
        "vllm" if spec.variables.get("MODEL_IMPL_TYPE") == "vllm" else "default"
    )
    version = None if spec.image else rules().engine.vllm
    yield from upstream_doubts(model.model, place.accelerator, version, chosen)
    method = f"{spec.quantization or ''} {model.quantization or ''} {spec.dtype or ''}".lower()
    if "fp8" in method or model.quantization_bits == 8:
        yield (
            "A v6e does not compute in fp8: such weights are stored small and widened for every"
            " step, which saves memory and no time."
        )
    cache = spec.kv_cache_dtype or flag_value(spec.engine_args, "--kv-cache-dtype") or ""
    if cache.startswith("fp8"):
        yield "An fp8 KV cache is stored on a v6e, and gains nothing with one KV head per chip."
    if not size_known(model):
        yield f"How long {model.model} takes to boot is not known."
