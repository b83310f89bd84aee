"""What runs in an instance: Cloud Run's limits, sizes, weights, probes, and vLLM."""

import math
import re
from pathlib import Path
from typing import Final

from backends import container as vllm
from backends.container import HubCache
from core import settings
from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape, Record, Target
from planner.advise import host_gib
from planner.boot import boot, file_bytes, loader, outbound_limit
from planner.flags import Flags
from planner.model import is_path
from planner.places import Place, Size

_FILE: Final = Path(__file__).with_name("rules.toml")
_REGION: Final = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}")
_BUCKET: Final = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])((?:/[^/]+)+)/?")
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
_LARGE_GIB: Final = 12
"""From here the limit of the network costs minutes of each boot."""


class Limits(Record):
    """The ends of what a service may say."""

    service_name: str
    timeout_seconds: int
    concurrency: int


class Bucket(Record):
    """How a bucket with weights is mounted and read."""

    mount_path: str
    mount_options: tuple[str, ...]


class Gpu(vllm.Gpu):
    """What instances with one kind of accelerator may have."""

    least_vcpu: int
    least_ram_gib: int
    vcpu_step: int = 1
    most_vcpu: int | None = None
    """None is not known."""
    most_ram_gib: int | None = None
    guarded: tuple[Size, ...]
    """What the engine may have where the guard runs beside it, smallest first."""


class Guard(vllm.GuardRules):
    """The proxy that stands before a public engine."""

    vcpu: int

    @property
    def size(self) -> Size:
        return Size(vcpu=self.vcpu, ram_gib=self.ram_gib)


class OllamaModel(Record):
    """A model of Ollama's library."""

    gb: float
    """As it is downloaded, in 10^9 bytes."""
    hub: tuple[str, ...] = ()
    """What the Hub calls the same model."""


class Ollama(Record):
    """The engine for small models that are baked into its image."""

    image: str
    most_gb: float
    """Larger ones do not go into an image."""
    parallel: int
    """Requests at once where nobody says."""
    builder: str
    build_seconds: int
    build_disk_gb: int
    """At least."""
    models: dict[str, OllamaModel]
    """By their tag."""


class Rules(Record):
    """`rules.toml`."""

    limits: Limits
    startup_probe: vllm.StartupRules
    liveness_probe: vllm.RunningRules
    guard: Guard
    bucket: Bucket
    hub: HubCache
    gpus: dict[str, Gpu]
    ollama: Ollama


def rules() -> Rules:
    return settings.read("cloud_run", _FILE, Rules)


def gpu_of(target: Target) -> Gpu:
    return vllm.gpu_in(rules().gpus, target, "Cloud Run")


def place_of(target: Target) -> Place:
    """Return what the planner knows of a target's instances."""
    gpu_of(target)
    return vllm.place_in(target)


def refuse_name(name: str) -> None:
    if not re.fullmatch(rules().limits.service_name, name):
        raise InvalidArgument(
            f"No Cloud Run service can be called {name!r}.",
            fix="Use lower-case letters, digits and hyphens, fewer than 50, a letter first.",
        )


def place_for(
    target: Target, spec: DeploymentSpec, weights_from: str, *, guarded: bool = False
) -> Place:
    """Return what the planner knows of such instances; `guarded`: beside a proxy."""
    for name, value in {"cpu": spec.cpu, "memory_gib": spec.memory_gib}.items():
        if value is not None and not value.is_integer():
            raise InvalidArgument(
                f"An instance with a GPU has whole vCPUs and GiB, not {value:g}.",
                fix=f"Give {name} whole.",
            )
    gpu, nothing = gpu_of(target), Size(vcpu=0, ram_gib=0)
    known = {"weights_from": weights_from, **({"sizes": gpu.guarded} if guarded else {})}
    place = place_of(target).model_copy(update=known)
    cpu, ram_gib = (None if value is None else int(value) for value in (spec.cpu, spec.memory_gib))
    place = place.sized(cpu, ram_gib)
    for size in place.sizes:
        refuse_size(gpu, place, size, rules().guard.size if guarded else nothing)
    return place


def refuse_size(gpu: Gpu, place: Place, size: Size, beside: Size) -> None:
    """Refuse processors and memory that Cloud Run does not give beside a GPU."""
    each = place.gib_per_vcpu or size.ram_gib
    small = size.vcpu < gpu.least_vcpu or size.ram_gib < gpu.least_ram_gib
    large = size.vcpu + beside.vcpu > (gpu.most_vcpu or math.inf) or (
        size.ram_gib + beside.ram_gib > (gpu.most_ram_gib or math.inf)
    )
    if small or large or size.ram_gib > each * size.vcpu or size.vcpu % gpu.vcpu_step:
        ends = f" and at most {gpu.most_vcpu} and {gpu.most_ram_gib} GiB" if gpu.most_vcpu else ""
        raise InvalidArgument(
            f"Cloud Run gives no {size.vcpu} vCPU and {size.ram_gib} GiB beside this GPU.",
            fix=f"Take at least {gpu.least_vcpu} vCPU and {gpu.least_ram_gib} GiB{ends}; vCPU in"
            f" steps of {gpu.vcpu_step}, and at most {each} GiB for each.",
        )


def region_doubt(target: Target, region: str) -> str | None:
    """Say what stands against a region; Google adds some often, and knows which."""
    listed = place_of(target).regions
    if region in listed:
        return None
    if f"{region} (by invitation)" in listed:
        return (
            f"{region} gives out {target.accelerator} by invitation only, says Google's page;"
            " check_gpu_quotas tells whether your project has any."
        )
    fix = f"Set GOOGLE_CLOUD_LOCATION to one of {', '.join(listed)}."
    if not _REGION.fullmatch(region):
        raise InvalidArgument(f"{region} is no region of Google Cloud.", fix=fix)
    return (
        f"{region} is not on Google's page of 2026-11-20 of regions with {target.accelerator}; the"
        f" check asks Google itself. {fix}"
    )


class Mount(Record):
    """A bucket as a folder that can be read."""

    bucket: str
    path: str
    options: tuple[str, ...]
    """Of gcsfuse, without dashes."""


class Weights(Record):
    """Where they come from."""

    model: str
    """What `vllm serve` is given."""
    boot_source: str
    """Its row of `planner/boot.toml`."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    mount: Mount | None = None

    @property
    def fills_memory(self) -> bool:
        """Whether the files are fetched to the instance's own disk, which is its memory."""
        return self.boot_source == "hub"


def weights_of(spec: DeploymentSpec) -> Weights:
    if spec.weights == "baked":
        if not spec.image:
            raise InvalidArgument(
                "Weights that are baked into an image need the image.",
                fix="Give image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…",
            )
        return Weights(model=spec.model, boot_source="baked", env=_OFFLINE)
    if spec.weights in {None, "hub"}:
        if is_path(spec.model):
            raise InvalidArgument(
                f"Cloud Run does not see {spec.model}, a folder of this machine.",
                fix="Copy it into a bucket and give weights=gs://BUCKET/FOLDER, or give a Hub id.",
            )
        return Weights(model=spec.model, boot_source="hub")
    found, chosen = _BUCKET.fullmatch(str(spec.weights)), rules().bucket
    if not found or {".", ".."} & set(found[2].split("/")):
        raise InvalidArgument(
            f"{spec.weights} is no folder of a bucket.", fix="Give gs://BUCKET/FOLDER."
        )
    own, usual = vllm.own_loader(spec), loader("gcs-streamed").args
    return Weights(
        model=f"{chosen.mount_path}{found[2]}",
        args=() if own else usual,
        env=_OFFLINE,
        mount=Mount(bucket=found[1], path=chosen.mount_path, options=chosen.mount_options),
        boot_source="gcs-streamed" if own in {(), usual} else "gcs-fuse",
    )


class Container(vllm.Container):
    """What runs in an instance."""

    mount: Mount | None = None


class Serving(Record):
    """An engine in an instance of Cloud Run."""

    container: Container
    size: Size
    """Of the engine."""
    guard: vllm.Container | None = None
    """What lets through to it those who have the key, where that is its only wall."""
    concurrency: int
    """Requests that it takes at once."""
    boot_seconds: float
    """The slowest boot that is foreseen, from the container's start to the first answer."""
    needs_internet: bool
    """It fetches something at every boot that does not come from Google."""
    doubts: tuple[str, ...] = ()


def vllm_serving(target: Target, spec: DeploymentSpec, model: ModelShape) -> Serving:
    weights, gpu, chosen = weights_of(spec), gpu_of(target), rules()
    proxy = vllm.guard_container(chosen.guard.image) if spec.access == "public" else None
    place = place_for(target, spec, weights.boot_source, guarded=proxy is not None)
    if spec.network and weights.mount:  # Google's own are reached through it; the Hub is not
        place = place.model_copy(update={"outbound_mib_per_second": None})
    doubts: list[str] = []
    size = _size(spec, model, place, weights, doubts)
    if not gpu.most_vcpu and (size.vcpu, size.ram_gib) != (gpu.least_vcpu, gpu.least_ram_gib):
        doubts.append(
            f"Google names no largest size beside this GPU: {size.vcpu} vCPU may be refused."
        )
    boot_seconds = _boot(spec, model, place, weights, doubts)
    cache = vllm.hub_environment(chosen.hub, size.ram_gib) if weights.fills_memory else {}
    requests = vllm.requests_at_once(spec, model, place, gpu.max_num_seqs)
    pinned = vllm.pinned_arguments(spec, model, place, gpu.vllm)
    return Serving(
        container=Container(
            image=spec.image or gpu.image,
            command=("vllm",),
            args=vllm.vllm_arguments(spec, weights.model, *weights.args, *pinned),
            env={**weights.env, **cache, **spec.variables},
            port=vllm.PORT,
            health="/health",
            mount=weights.mount,
        ),
        size=size,
        guard=proxy,
        concurrency=min(requests, chosen.limits.concurrency),
        boot_seconds=boot_seconds,
        needs_internet=weights.fills_memory,
        doubts=tuple(doubts),
    )


def _size(
    spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights, doubts: list[str]
) -> Size:
    """Return the smallest host that holds files and offloaded weights."""
    largest, flags = place.sizes[-1], Flags.of(spec)
    if not vllm.size_known(model):
        doubts.append(f"How large {model.model} is, is not known: the largest instance is planned.")
        return largest
    needed = host_gib(model, place, flags)
    if fitting := place.size_for(needed):
        return fitting
    must = needed if weights.fills_memory else (flags.cpu_offload_gb or 0)
    if place.size_for(must) is None:
        raise InvalidArgument(
            f"{spec.model} needs {must:.1f} GiB of an instance's memory, of {largest.ram_gib} GiB"
            " at most, and the engine's own on top.",
            fix="Stream it from a bucket (weights=gs://BUCKET/FOLDER), offload less, or take a"
            " target with more memory.",
        )
    doubts.append(
        f"The files, {needed:.1f} GiB, are more than an instance of {largest.ram_gib} GiB can keep"
        " in memory: they must be streamed, as planned, and not be cached."
    )
    return largest


def _boot(
    spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights, doubts: list[str]
) -> float:
    """Return how long the slowest boot takes, in seconds; doubts whether it may."""
    longest, gib = place.startup_seconds_max or 0, 0.0
    slowest: float = longest
    if vllm.size_known(model):
        foreseen = boot(model, place, Flags.of(spec), weights_from=weights.boot_source)
        slowest, gib = vllm.inside(foreseen), file_bytes(model) / 2**30
        if (in_time := foreseen.within_budget) != "yes":
            doubts.append(
                f"The boot may be ended before it is done ({in_time} in time): {foreseen.advice}"
            )
    else:
        doubts.append(
            f"How long the boot takes is not known; the startup probe gives up after {longest} s."
        )
    most = outbound_limit(place, weights.boot_source)
    if most and gib >= _LARGE_GIB:
        doubts.append(
            f"An instance fetches {most:g} MiB/s at most (600 Mbps), so {gib:.0f} GiB take"
            f" {gib * 1024 / most / 60:.0f} min; from a bucket with network=NETWORK/SUBNETWORK"
            " (Direct VPC, with Private Google Access) it is faster."
        )
    if weights.fills_memory:
        doubts.append(
            f"Every start downloads {f'{gib:.1f} GiB' if gib else 'all files'} of {spec.model} from"
            " the Hugging Face Hub into the instance's memory; weights=gs://BUCKET/FOLDER loads"
            " them from a bucket instead."
        )
    return slowest
