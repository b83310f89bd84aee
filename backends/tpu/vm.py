"""A VM with chips, every value decided: vLLM on it, and its startup script."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from backends import container
from backends.container import (
    LOOPBACK,
    PORT,
    Container,
    as_assignments,
    flag_value,
    hub_environment,
    refuse_foreign_fields,
    refuse_length,
    size_known,
    vllm_arguments,
)
from backends.google.clients import (
    DEPLOYMENT_LABEL,
    HF_SECRET,
    MANAGED_BY,
    NO_PROJECT,
    SPEC_LABEL,
    TARGET_LABEL,
    runtime_account,
)
from backends.tpu.rules import (
    Searched,
    Weights,
    generation_of,
    has_small_disk,
    network_of,
    rules,
    run_minutes,
    searched,
    weights_of,
)
from backends.tpu.site import LOG, Blueprint, Site, key_secret, vm_id
from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape, Record
from planner.boot import boot, file_bytes
from planner.flags import Flags, most_tokens_of_an_item
from planner.places import Implementation, Place, upstream_doubts

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
        doubts=(*_doubts_serving(whole, model, place), *room.doubts),
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


def _doubts_serving(spec: DeploymentSpec, model: ModelShape, place: Place) -> Iterator[str]:
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


def blueprint(
    site: "Site", spec: DeploymentSpec, model: ModelShape, *, hf_token: bool | None = None
) -> Blueprint:
    """Decide every value of the VM that a spec asks for; `hf_token`: that secret is kept.

    Its own `spec`, drawn again, gives the same.

    Raises:
        InvalidArgument: The platform or the model cannot take the spec.
    """
    _refuse(spec, model)
    minutes = run_minutes(spec, site.offered)
    token = bool(site.settings.hf_token) if hf_token is None else hf_token
    small = has_small_disk(site, spec)
    served = serving(spec, model, site.offered, hf_token=token, small_disk=small)
    search = searched(site, spec, on_node=served.on_node)
    whole = served.spec.model_copy(update={"ttl_minutes": minutes})
    return Blueprint(
        spec=whole,
        id=vm_id(spec.name),
        labels=_labels(site.target.name, whole),
        **_machine(site),
        places=search.places,
        reason=search.reason,
        wait_seconds=search.wait_seconds,
        run_seconds=minutes * 60 or None,
        disk_gb=served.disk_gb,
        **_network(spec),
        container=served.container,
        boot_seconds=served.boot_seconds,
        doubts=(*search.doubts, *served.doubts, *_doubts_drawing(whole, search, served)),
    )


def _machine(site: "Site") -> Mapping[str, Any]:
    """Give what the target and its project alone decide."""
    offered, generation = site.offered, generation_of(site.offered)
    project = site.clients.project if site.clients.configured else NO_PROJECT
    return {
        "project": project,
        "service_account": runtime_account(project),
        "accelerator": site.accelerator,
        "machine_type": generation.machine_type.format(count=offered.count),
        "chips": offered.count,
        "provisioning": site.provisioning,
        "runtime_version": generation.runtime_version,
        "image": generation.image,
        "disk_type": generation.disk_type,
    }


def _network(spec: DeploymentSpec) -> Mapping[str, Any]:
    """Give where it is reached, and by whom."""
    network, subnetwork = network_of(spec)
    return {
        "network": network,
        "subnetwork": subnetwork,
        "external_ip": _has_external_ip(spec),
        "opened": spec.access != "internal",
        "anybody": spec.access == "public",
        "tls": spec.access != "internal",
    }


def _labels(target: str, spec: DeploymentSpec) -> dict[str, str]:
    return {
        "managed-by": MANAGED_BY,
        TARGET_LABEL: target,
        DEPLOYMENT_LABEL: spec.name,
        SPEC_LABEL: spec.fingerprint,
    }


def _has_external_ip(spec: DeploymentSpec) -> bool:
    """Say no only inside a network of one's own: without one nothing outside Google is reached."""
    return not (spec.access == "internal" and spec.network)


def _doubts_drawing(spec: DeploymentSpec, search: Searched, served: Serving) -> Iterator[str]:
    if not _has_external_ip(spec):
        yield (
            f"The VM has no address of its own: {spec.network} needs Cloud NAT, or neither Docker"
            " Hub nor the Hugging Face Hub is reached."
        )
    if not served.on_node:
        yield search.reason


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    refuse_length(spec, model)
    refuse_foreign_fields(spec, "Cloud TPU")
    if spec.engine == "ollama":
        raise InvalidArgument(
            "Ollama has no build for TPUs.",
            fix="Leave engine out, which is vLLM, or take target cloud-run-l4.",
        )
    if spec.port is not None:
        raise InvalidArgument(
            "A VM with TPUs answers on port 8000, which its firewall rule and tunnel name.",
            fix="Leave port out.",
        )
    if (spec.min_replicas, spec.max_replicas) != (1, 1):
        raise InvalidArgument(
            "A deployment on TPUs is one VM.",
            fix="Leave min_replicas and max_replicas out; deploy a second name for a second one.",
        )
    if any(re.search(r"[\x00-\x1f\x7f]", word) for word in spec.engine_args):
        raise InvalidArgument(
            "A word of engine_args has a control character, such as a new line.",
            fix="Put long text, such as a chat template, into the image or the model's folder.",
        )


_TEMPLATE: Final = Path(__file__).with_name("startup.sh")
TLS_FOLDER: Final = "/tls"
"""Of the proxy's container; the startup script makes what is in it."""
DECIDED: Final = "# --- decided ---\n"
TO_DO: Final = "# --- to do ---\n"


def startup_script(made: Blueprint, *, image: str) -> str:
    """Fill in the script; `image` is the blueprint's, best by its digest. It holds no secret."""
    template = _TEMPLATE.read_text(encoding="utf-8")
    before, _, rest = template.partition(DECIDED)
    _, _, after = rest.partition(TO_DO)
    return f"{before}{DECIDED}{''.join(_decided(made, image))}{TO_DO}{after}"


def docker_arguments(made: Blueprint) -> tuple[str, ...]:
    """Give what stands between `docker run` and the image; secrets by the names of variables."""
    chosen, container = rules().docker, made.container
    memory, folder = chosen.memory_folder.rpartition("/")[0], chosen.folder
    mounted = (f"{memory}:{memory}", f"{folder}/cache:{rules().cache.mount_path}")
    return (
        *("--name", made.id, "--label", f"deployment={made.spec.name}"),
        *("--privileged", "--net=host", f"--shm-size={chosen.shm_size}", "--restart=no"),
        *_logged(made),
        *(word for folder in mounted for word in ("-v", folder)),
        *(word for pair in as_assignments(container.env) for word in ("-e", pair)),
        *(word for variable in container.secrets for word in ("-e", variable)),
    )


def guard_of(made: Blueprint) -> Container:
    """Return the proxy before the engine, which answers by the VM's certificate."""
    tls = container.Certificate(certificate=f"{TLS_FOLDER}/cert.pem", key=f"{TLS_FOLDER}/key.pem")
    return container.guard_container(
        rules().guard.image,
        port=made.container.port,
        engine_port=ENGINE_PORT,
        tls=tls if made.tls else None,
    )


def guard_arguments(made: Blueprint) -> tuple[str, ...]:
    """Give what stands between `docker run` and the proxy's image; it writes in memory alone."""
    mounted = ("-v", f"{rules().docker.folder}/tls:{TLS_FOLDER}:ro") if made.tls else ()
    return (
        *("--name", f"{made.id}-guard", "--net=host", "--restart=always", "--read-only"),
        *("--tmpfs", "/tmp", "--security-opt", "no-new-privileges", *mounted),  # noqa: S108
        # nginx needs no lines, and each decision of the script is one.
        *(w for pair in as_assignments(guard_of(made).env) for w in ("-e", " ".join(pair.split()))),
    )


def container_command(made: Blueprint) -> tuple[str, ...]:
    """Give what follows the image."""
    return (*made.container.command, *made.container.args)


def _logged(made: Blueprint) -> tuple[str, ...]:
    """A log that cannot be reached must not keep the engine waiting."""
    options = (f"gcp-project={made.project}", "labels=deployment", "mode=non-blocking")
    return ("--log-driver=gcplogs", *(word for one in options for word in ("--log-opt", one)))


def _decided(made: Blueprint, image: str) -> Iterable[str]:
    secrets, container = made.container.secrets, made.container
    words = {
        "DEPLOYMENT": made.spec.name,
        "PROJECT": made.project,
        "IMAGE": image,
        "KEY_SECRET": secrets["VLLM_API_KEY"],
        "TOKEN_SECRET": secrets.get("HF_TOKEN", ""),
        "PORT": str(container.port),
        "TLS": "yes" if made.tls else "no",
        "LOG": LOG,
        "CACHE": f"{rules().docker.folder}/cache",
        "GUARD_IMAGE": rules().guard.image,
    }
    before = guard_of(made)
    lists = {
        "DOCKER": docker_arguments(made),
        "COMMAND": container_command(made),
        "GUARD_DOCKER": guard_arguments(made),
        "GUARD_COMMAND": (*before.command, *before.args),
    }
    yield from (f"readonly {name}={_quoted(word)}\n" for name, word in words.items())
    for name, several in lists.items():
        yield f"readonly {name}=({' '.join(map(_quoted, several))})\n"


def _quoted(word: str) -> str:
    """Quote always, so that each line has one form.

    >>> print(_quoted("it's"))
    'it'"'"'s'
    """
    return "'" + word.replace("'", "'\"'\"'") + "'"
