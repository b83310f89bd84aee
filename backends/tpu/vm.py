"""A VM with chips, every value decided: what TPUs accept, vLLM on it, and its startup script."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from backends import container
from backends.compile_cache import PROGRAM, carried, compile_cache, may_carry
from backends.container import (
    LOOPBACK,
    PORT,
    Container,
    HubCache,
    as_assignments,
    flag_value,
    hub_environment,
    refuse_foreign_fields,
    refuse_length,
    size_known,
    vllm_arguments,
)
from backends.google import cache
from backends.google.clients import (
    DEPLOYMENT_LABEL,
    HF_SECRET,
    MANAGED_BY,
    SPEC_LABEL,
    TARGET_LABEL,
    runtime_account,
)
from backends.tpu.compute import FLEX_WAIT_SECONDS, machine_type
from backends.tpu.site import Blueprint, Place, PlaneKind, Site, key_secret, vm_id
from core import settings
from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape, Record, paid_minutes
from planner.boot import file_bytes
from planner.flags import Flags, most_tokens_of_an_item
from planner.model import is_path
from planner.places import Implementation, upstream_doubts
from planner.places import Place as Offered
from planner.price import price

_HERE: Final = Path(__file__).parent
LOG: Final = "vllm-devops"
"""The log that the startup script writes to, and the container's output with it."""


class Engine(Record):
    """The image that serves where nobody names another."""

    image: str
    vllm: str


class Guard(Record):
    """The proxy that stands before the engine."""

    image: str


class Generation(Record):
    """What one generation of chips is called, and what its VMs are made of."""

    runtime_version: str
    image_project: str
    image_family: str
    disk_type: str


class Disk(Record):
    """Sizes in 10^9 bytes."""

    least_gb: int
    unknown_gb: int
    image_gb: int
    spare_gb: int
    node_gb: int
    """Of a node of the queue, which cannot be chosen but with flex-start."""


class Wait(Record):
    """How long a place is waited for: the only one, or each of several."""

    alone_seconds: int
    each_seconds: int


class Run(Record):
    """How long a VM may live; `minutes` where nobody says."""

    minutes: int
    flex_least_minutes: int
    flex_most_minutes: int
    most_minutes: int


class Docker(Record):
    """How containers are run; the folders are the host's, one in its memory."""

    shm_size: str
    folder: str
    memory_folder: str


class Cache(Record):
    """Where compiled programs and weights are kept."""

    variable: str
    mount_path: str


class Multimodal(Record):
    """What Gemma 4 is started with."""

    max_num_batched_tokens: int
    images: int
    audios: int


class Rules(Record):
    """`rules.toml`."""

    engine: Engine
    guard: Guard
    generations: dict[str, Generation]
    disk: Disk
    wait: Wait
    run: Run
    docker: Docker
    cache: Cache
    hub: HubCache
    multimodal: Multimodal
    flex_seen: dict[str, tuple[str, ...]]
    """Zones in which the queue was seen to take flex-start, by accelerator."""


def rules() -> Rules:
    return settings.read("tpu", _HERE / "rules.toml", Rules)


def generation_of(place: Offered) -> Generation:
    """Return the rules of a target's chips.

    Raises:
        InvalidArgument: They are of a generation that is not known here.
    """
    known = rules().generations
    if place.accelerator not in known:
        raise InvalidArgument(
            f"Chips of {place.accelerator} are not known here.",
            fix=f"Give the target chips of {', '.join(known)}.",
        )
    return known[place.accelerator]


def is_known_to_give(site: Site, place: Place) -> bool:
    """Whether a place gives chips in the target's way: documented, or of flex-start seen."""
    if site.provisioning != "flex-start":
        return place.zone in site.offered.regions
    return place.plane == "queued" and place.zone in rules().flex_seen.get(site.accelerator, ())


def places_of(site: Site, spec: DeploymentSpec) -> tuple[Place, ...]:
    """Return the places that a spec names, by each control plane that it allows."""
    kinds = _PLANES[spec.control_plane]
    return tuple(Place(zone, kind) for zone in _zones(site, spec) for kind in kinds)


ENGINE_PORT: Final = 8001
"""Of the VM alone: what is asked from outside asks the proxy before it."""
_PLANES: Final[dict[str, tuple[PlaneKind, ...]]] = {
    "auto": ("compute", "queued"),
    "queued": ("queued",),
    "compute": ("compute",),
}
_ZONE: Final = r"[a-z]+-[a-z]+[0-9]{1,2}-[a-z][a-z0-9]{0,5}"
_NETWORK: Final = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"


def blueprint(
    site: Site,
    spec: DeploymentSpec,
    model: ModelShape,
    *,
    hf_token: bool | None = None,
    store: str | None = None,
) -> Blueprint:
    """Decide every value of the VM that a spec asks for; `hf_token`: that secret is kept.

    `store`: where what it compiles is carried; None is as planned. Its own `spec`, decided again,
    gives the same.

    Raises:
        InvalidArgument: The platform or the model cannot take the spec.
    """
    _refuse(spec, model)
    offered, generation = site.offered, generation_of(site.offered)
    zones, baked = _zones(site, spec), spec.weights == "baked"
    most = paid_minutes(spec, price(offered, zones=zones).usd_per_hour_highest)
    minutes = run_minutes(spec, offered, most)
    whole = with_flags(spec, model, offered.count).model_copy(update={"ttl_minutes": minutes})
    small = "queued" in _PLANES[spec.control_plane] and site.provisioning != "flex-start"
    room = _room(spec, model, offered, baked=baked, small_disk=small)
    kinds, alone = _planes(spec, on_node=room.on_node)
    places = tuple(Place(zone, kind) for zone in zones for kind in kinds)
    usual = rules().wait.alone_seconds if len(places) == 1 else rules().wait.each_seconds
    network, subnetwork = network_of(spec)
    project = site.clients.project_id
    token = bool(site.settings.hf_token) if hf_token is None else hf_token
    if store is None:
        store = "" if may_carry(spec) else cache.store(site, spec)
    image = f"{generation.image_project}/global/images/family/{generation.image_family}"
    made = Blueprint(
        spec=whole,
        id=vm_id(spec.name),
        labels={
            "managed-by": MANAGED_BY,
            TARGET_LABEL: site.target.name,
            DEPLOYMENT_LABEL: spec.name,
            SPEC_LABEL: whole.fingerprint,
        },
        project=project,
        service_account=runtime_account(project),
        accelerator=site.accelerator,
        machine_type=machine_type(site.accelerator),
        chips=offered.count,
        provisioning=site.provisioning,
        runtime_version=generation.runtime_version,
        image=f"projects/{image}",
        disk_type=generation.disk_type,
        places=places,
        wait_seconds=spec.zone_wait_minutes * 60 if spec.zone_wait_minutes else usual,
        run_seconds=minutes * 60 or None,
        disk_gb=room.disk_gb,
        network=network,
        subnetwork=subnetwork,
        # Without an address of its own nothing outside Google is reached, but by a NAT of theirs.
        external_ip=not (spec.access == "internal" and spec.network),
        opened=spec.access != "internal",
        anybody=spec.access == "public",
        container=_carried(
            site, whole, _container(whole, offered, room, baked=baked, token=token), store
        ),
        store=store,
    )
    doubts = (*([alone] if alone else ()), *_doubts(site, made, room, model))
    return made.model_copy(update={"doubts": doubts})


def network_of(spec: DeploymentSpec) -> tuple[str, str]:
    """Return network and subnetwork; an empty subnetwork is that of the zone's region.

    Raises:
        InvalidArgument: They cannot be called so.
    """
    network, slash, subnetwork = (spec.network or "default").partition("/")
    named = (network, subnetwork) if slash else (network,)
    if not all(re.fullmatch(_NETWORK, name) for name in named):
        raise InvalidArgument(
            f"{spec.network} names no network.", fix="Give network=NETWORK or NETWORK/SUBNETWORK."
        )
    return network, subnetwork


def run_minutes(spec: DeploymentSpec, place: Offered, most_paid: int | None = None) -> int:
    """Return how long it may live, no longer than its money lasts; 0 is for ever.

    Raises:
        InvalidArgument: Chips that are given in this way do not live so long, or so briefly.
    """
    chosen = rules().run
    minutes = chosen.minutes if spec.ttl_minutes is None else spec.ttl_minutes
    if most_paid is not None:
        minutes = min(minutes or most_paid, most_paid)
    least, most = 0, chosen.most_minutes
    if place.provisioning == "flex-start":
        least, most = chosen.flex_least_minutes, chosen.flex_most_minutes
    if not least <= minutes <= most:
        raise InvalidArgument(
            f"ttl_minutes {minutes} cannot be: {place.title} runs for"
            f" {f'{least} to ' if least else 'at most '}{most} minutes.",
            fix=f"Give ttl_minutes from {max(1, least)} to {most}"
            f"{'' if least else ', or 0 for ever'}.",
        )
    return minutes


def _planes(spec: DeploymentSpec, *, on_node: bool) -> tuple[tuple[PlaneKind, ...], str]:
    """Return who is asked, and why not the queue: on its nodes is no room for what is served."""
    kinds = _PLANES[spec.control_plane]
    if on_node or "queued" not in kinds:
        return kinds, ""
    what = f"{spec.model} does not fit"
    if spec.boot_disk_gb:
        what = f"boot_disk_gb={spec.boot_disk_gb} cannot be had"
    why = (
        f"{what} on a node of the queue, whose disk of {rules().disk.node_gb} GB is as large"
        " as it is but for flex-start."
    )
    if kinds == ("queued",):
        raise InvalidArgument(
            why, fix="Take control_plane=compute, whose disk is as large as it is to be."
        )
    return ("compute",), f"Only Compute Engine is asked: {why}"


def _zones(site: Site, spec: DeploymentSpec) -> tuple[str, ...]:
    zones = tuple(dict.fromkeys(spec.zones or (site.clients.region, *site.offered.regions)))
    for zone in zones:
        if not re.fullmatch(_ZONE, zone):
            raise InvalidArgument(
                f"{zone} is no zone of Google Cloud.",
                fix="Give zones such as us-east5-b, in zones or GOOGLE_CLOUD_ZONE.",
            )
    return zones


_WHOLE: Final = "--disable-chunked-mm-input"
_BATCHED: Final = "--max-num-batched-tokens"
_LIMIT: Final = "--limit-mm-per-prompt"
_TENSOR: Final = ("--tensor-parallel-size", "-tp")
_OTHERS: Final = (("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp"))


def with_flags(spec: DeploymentSpec, model: ModelShape, chips: int) -> DeploymentSpec:
    """Fill in what chips and model ask for; what is filled in already stays.

    Raises:
        InvalidArgument: Another number of chips is wanted, or images would not be taken.
    """
    tensor = flag_value(spec.engine_args, *_TENSOR) or str(spec.tensor_parallel_size)
    others = [flag_value(spec.engine_args, *flags) or "1" for flags in _OTHERS]
    if tensor not in {"1", str(chips)} or any(count != "1" for count in others):
        raise InvalidArgument(  # those that are left over would be paid for
            f"A model is spread over all {chips} chips of the VM, by tensor parallelism alone.",
            fix="Leave tensor, pipeline and data parallelism out.",
        )
    changes: dict[str, object] = {"tensor_parallel_size": chips}
    item, chosen = most_tokens_of_an_item(model, Flags.of(spec)), rules().multimodal
    if item:
        own = flag_value(spec.engine_args, _BATCHED)
        batched = int(own) if own and own.isdecimal() else spec.max_num_batched_tokens
        if batched is None:
            changes["max_num_batched_tokens"] = chosen.max_num_batched_tokens
        elif batched < item:
            raise InvalidArgument(
                f"max_num_batched_tokens {batched} is less than the {item} of an image: on TPUs"
                f" {spec.model} reads an image in one piece.",
                fix=f"Give {item} or more, or engine_args --language-model-only.",
            )
        more: list[str] = []
        if flag_value(spec.engine_args, _WHOLE) is None:
            more += [_WHOLE]
        if flag_value(spec.engine_args, _LIMIT) is None:
            audio = {"audio": chosen.audios} if model.audio else {}
            more += [_LIMIT, json.dumps({"image": chosen.images, **audio})]
        changes["engine_args"] = (*spec.engine_args, *more)
    return spec.model_copy(update=changes)


class _Room(NamedTuple):
    """Where image and weights lie."""

    disk_gb: int
    """Where the disk's size can be chosen."""
    in_memory: bool = False
    on_node: bool = True
    """Whether they find room on a node of the queue, whose disk is given."""
    doubt: str = ""


def _room(
    spec: DeploymentSpec, model: ModelShape, place: Offered, *, baked: bool, small_disk: bool
) -> _Room:
    """Choose the disk; `small_disk`: on some VM it is given, and weights may lie in memory."""
    disk, known = rules().disk, size_known(model)
    weights_gb = file_bytes(model) / 1e9 if known else 0.0
    least = math.ceil(disk.image_gb + weights_gb)
    if spec.boot_disk_gb:
        doubt = ""
        if known and not baked and spec.boot_disk_gb < least:
            doubt = (
                f"boot_disk_gb={spec.boot_disk_gb} is less than the {least} GB of image and"
                " weights: the VM would be paid for and end with a full disk."
            )
        return _Room(spec.boot_disk_gb, on_node=not small_disk, doubt=doubt)
    if not known:
        doubt = (
            f"How large {model.model} is, is not known: a disk of {disk.unknown_gb} GB is planned;"
            f" a node of the queue has {disk.node_gb} GB, whatever is planned."
        )
        return _Room(disk.unknown_gb, doubt=doubt)
    needed = math.ceil(disk.image_gb + weights_gb + disk.spare_gb)
    chosen = max(disk.least_gb, needed)
    if not small_disk or needed <= disk.node_gb:
        return _Room(chosen)
    memory_gb = (place.largest_ram_gib or 0) * 1.073741824 / 2  # what Linux gives /dev/shm
    if baked or weights_gb > memory_gb:
        return _Room(chosen, on_node=False)
    doubt = (
        f"The weights, {weights_gb:.0f} GB, are kept in the VM's memory (/dev/shm): a node of the"
        f" queue has a disk of {disk.node_gb} GB that cannot be larger. After a reboot they are"
        " fetched again."
    )
    return _Room(chosen, in_memory=True, doubt=doubt)


def _container(
    spec: DeploymentSpec, place: Offered, room: _Room, *, baked: bool, token: bool
) -> Container:
    own_cache, docker = rules().cache, rules().docker
    env = {own_cache.variable: f"{own_cache.mount_path}/xla"}
    if baked:
        env["HF_HUB_OFFLINE"] = "1"
    else:
        home = docker.memory_folder if room.in_memory else own_cache.mount_path
        own = hub_environment(rules().hub, place.largest_ram_gib or 0)
        env |= {"HF_HOME": f"{home}/hub", **own}
    secrets = {"VLLM_API_KEY": key_secret(spec.name)}
    return Container(
        image=spec.image or rules().engine.image,
        command=("vllm",),
        args=vllm_arguments(spec, spec.model, host=LOOPBACK, port=ENGINE_PORT),
        env={**env, **spec.variables},
        secrets={**secrets, "HF_TOKEN": HF_SECRET} if token and not baked else secrets,
        port=PORT,
        health="/health",
    )


def _carried(site: Site, spec: DeploymentSpec, engine: Container, store: str) -> Container:
    """Return what runs on the VM; where it carries what it compiles, with the program for that."""
    if not store:
        return engine
    chips = f"tpu-{site.accelerator}"
    found = compile_cache(spec, image=engine.image, accelerator=chips, store=store)
    made = carried(engine, found)
    # Each decision of the script is one line.
    program = f"exec({made.env[PROGRAM]!r})"
    return made.model_copy(update={"env": {**made.env, PROGRAM: program}})


def _doubts(site: Site, made: Blueprint, room: _Room, model: ModelShape) -> Iterator[str]:
    """Say what is not certain of zones, network, disk and numbers; the cloud knows more zones."""
    spec, asked = made.spec, dict.fromkeys(place.zone for place in made.places)
    given = {place.zone for place in made.places if is_known_to_give(site, place)}
    if unknown := [zone for zone in asked if zone not in given]:
        how = "" if site.provisioning == "on-demand" else f" as {site.provisioning}"
        yield (
            f"{', '.join(unknown)}: not known to give {site.accelerator}{how};"
            " get_zones_with_available_quota shows what can be seen of zones."
        )
    most, compute = FLEX_WAIT_SECONDS[1], any(one.plane == "compute" for one in made.places)
    if site.provisioning == "flex-start" and compute and made.wait_seconds > most:
        yield (
            f"Compute Engine keeps a request for {most // 60} minutes at most: its places are"
            " waited for so long."
        )
    if not made.external_ip:
        yield (
            f"The VM has no address of its own: {spec.network} needs Cloud NAT, or neither Docker"
            " Hub nor the Hugging Face Hub is reached."
        )
    if room.doubt:
        yield room.doubt
    own: Implementation = "vllm" if spec.variables.get("MODEL_IMPL_TYPE") == "vllm" else "default"
    version = None if spec.image else rules().engine.vllm
    yield from upstream_doubts(model.model, site.offered.accelerator, version, own)
    method = f"{spec.quantization or ''} {model.quantization or ''} {spec.dtype or ''}".lower()
    if "fp8" in method or model.quantization_bits == 8:
        yield (
            "A v6e does not compute in fp8: such weights are stored small and widened for every"
            " step, which saves memory and no time."
        )
    cache = spec.kv_cache_dtype or flag_value(spec.engine_args, "--kv-cache-dtype") or ""
    if cache.startswith("fp8"):
        yield "An fp8 KV cache is stored on a v6e, and gains nothing with one KV head per chip."


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    refuse_length(spec, model)
    refuse_foreign_fields(spec, "Cloud TPU")
    weights, bake = spec.weights or "hub", "bake the files into an image (weights=baked, image=…)"
    control = any(re.search(r"[\x00-\x1f\x7f]", word) for word in spec.engine_args)
    for refused, words, fix in (
        (
            spec.engine == "ollama",
            "Ollama has no build for TPUs.",
            "Leave engine out, which is vLLM, or take target cloud-run-l4.",
        ),
        (
            spec.port is not None,
            "A VM with TPUs answers on port 8000, the only one that is let in and tunnelled.",
            "Leave port out.",
        ),
        (
            (spec.min_replicas, spec.max_replicas) != (1, 1),
            "A deployment on TPUs is one VM.",
            "Leave min_replicas and max_replicas out; deploy a second name for a second one.",
        ),
        (
            control,
            "A word of engine_args has a control character, such as a new line.",
            "Put long text, such as a chat template, into the image or the model's folder.",
        ),
        (
            weights == "hub" and is_path(spec.model),
            f"A VM with TPUs does not see {spec.model}, a folder of this machine.",
            f"Give a Hub id, or {bake}.",
        ),
        (
            weights not in {"hub", "baked"},
            f"VMs with TPUs do not read {weights} here: the VM would have to copy its files first.",
            f"Leave weights out: the VM fetches them from the Hugging Face Hub; or {bake}.",
        ),
        (
            weights == "baked" and not spec.image,
            "Weights that are baked into an image need the image.",
            "Give image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…",
        ),
    ):
        if refused:
            raise InvalidArgument(words, fix=fix)


TLS_FOLDER: Final = "/tls"
"""Of the proxy's container; the startup script makes what is in it."""
DECIDED: Final = "# --- decided ---\n"
TO_DO: Final = "# --- to do ---\n"


def startup_script(made: Blueprint, *, image: str) -> str:
    """Fill in the script; `image` is the blueprint's, best by its digest. It holds no secret."""
    template = (_HERE / "startup.sh").read_text(encoding="utf-8")
    before, _, rest = template.partition(DECIDED)
    _, _, after = rest.partition(TO_DO)
    return f"{before}{DECIDED}{''.join(_decided(made, image))}{TO_DO}{after}"


def docker_arguments(made: Blueprint) -> tuple[str, ...]:
    """Return what stands between `docker run` and the image; secrets by the names of variables."""
    chosen, container = rules().docker, made.container
    memory, folder = chosen.memory_folder.rpartition("/")[0], chosen.folder
    # A log that cannot be reached must not keep the engine waiting.
    logged = (f"gcp-project={made.project}", "labels=deployment", "mode=non-blocking")
    mounted = (f"{memory}:{memory}", f"{folder}/cache:{rules().cache.mount_path}")
    return (
        *("--name", made.id, "--label", f"deployment={made.spec.name}"),
        *("--privileged", "--net=host", f"--shm-size={chosen.shm_size}", "--restart=no"),
        "--log-driver=gcplogs",
        *(word for one in logged for word in ("--log-opt", one)),
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
        tls=tls if made.opened else None,
    )


def guard_arguments(made: Blueprint) -> tuple[str, ...]:
    """Return what stands between `docker run` and the proxy's image; it writes in memory alone."""
    mounted = ("-v", f"{rules().docker.folder}/tls:{TLS_FOLDER}:ro") if made.opened else ()
    return (
        *("--name", f"{made.id}-guard", "--net=host", "--restart=always", "--read-only"),
        *("--tmpfs", "/tmp", "--security-opt", "no-new-privileges", *mounted),  # noqa: S108
        # nginx needs no lines, and each decision of the script is one.
        *(w for pair in as_assignments(guard_of(made).env) for w in ("-e", " ".join(pair.split()))),
    )


def container_command(made: Blueprint) -> tuple[str, ...]:
    return (*made.container.command, *made.container.args)


def _decided(made: Blueprint, image: str) -> Iterable[str]:
    secrets, before = made.container.secrets, guard_of(made)
    decided: dict[str, str | tuple[str, ...]] = {
        "DEPLOYMENT": made.spec.name,
        "PROJECT": made.project,
        "IMAGE": image,
        "KEY_SECRET": secrets["VLLM_API_KEY"],
        "TOKEN_SECRET": secrets.get("HF_TOKEN", ""),
        "PORT": str(made.container.port),
        "TLS": "yes" if made.opened else "no",
        "LOG": LOG,
        "CACHE": f"{rules().docker.folder}/cache",
        "GUARD_IMAGE": rules().guard.image,
        "DOCKER": docker_arguments(made),
        "COMMAND": container_command(made),
        "GUARD_DOCKER": guard_arguments(made),
        "GUARD_COMMAND": (*before.command, *before.args),
    }
    for name, one in decided.items():
        several = f"({' '.join(map(_quoted, one))})" if isinstance(one, tuple) else _quoted(one)
        yield f"readonly {name}={several}\n"


def _quoted(word: str) -> str:
    """Quote always: shellcheck takes a bare comma in an array for a mistake (SC2054).

    >>> print(_quoted("it's"))
    'it'"'"'s'
    """
    return "'" + word.replace("'", "'\"'\"'") + "'"
