"""What Cloud Run accepts and what is chosen within it, as data: `rules.toml`."""

import re
from pathlib import Path
from typing import Final

from backends.common.hub_cache import HubCache
from core import overrides
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec, Target
from planner.places import Place, Size, places

_FILE: Final = Path(__file__).with_suffix(".toml")
_INVITED: Final = " (by invitation)"
_REGION: Final = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}")


class Limits(Record):
    """The ends of what a service may say."""

    service_name: str
    timeout_seconds: int
    concurrency: int
    initial_delay_seconds: int
    period_seconds: int
    startup_seconds: int


class StartupProbe(Record):
    """How a boot is watched."""

    period_seconds: int
    timeout_seconds: int
    margin_seconds: int
    """On top of the slowest boot that is foreseen."""
    least_seconds: int


class LivenessProbe(Record):
    """How a server is watched that has started."""

    period_seconds: int
    timeout_seconds: int
    failures: int


class Bucket(Record):
    """How a bucket with weights is mounted and read."""

    mount_path: str
    mount_options: tuple[str, ...]
    load_format: str


class Gpu(Record):
    """One kind of accelerator, and the image that is made for its hosts' driver."""

    image: str
    vllm: str
    cuda: str
    driver: str
    driver_cuda_major: int
    least_vcpu: int
    least_ram_gib: int
    vcpu_step: int = 1
    most_vcpu: int | None = None
    """None is not known."""
    most_ram_gib: int | None = None
    guarded: tuple[Size, ...]
    """What the engine may have where the guard runs beside it, smallest first."""
    max_num_seqs: int
    """That vLLM takes where nobody says."""


class Guard(Record):
    """The proxy that stands before a public engine."""

    image: str
    vcpu: int
    ram_gib: int


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
    startup_probe: StartupProbe
    liveness_probe: LivenessProbe
    guard: Guard
    bucket: Bucket
    hub: HubCache
    gpus: dict[str, Gpu]
    ollama: Ollama


def rules() -> Rules:
    """Return them, with what `overrides.toml` puts in their place."""
    return overrides.read("cloud_run", _FILE, Rules)


def gpu_of(target: Target) -> Gpu:
    """Give the rules of a target's accelerator.

    Raises:
        InvalidArgument: Cloud Run has no such accelerator that is known here.
    """
    known = rules().gpus
    if target.accelerator not in known:
        raise InvalidArgument(
            f"Cloud Run has no {target.accelerator or 'target without a GPU'} that is known here.",
            fix=f"Give the target an accelerator of {', '.join(known)}.",
        )
    return known[target.accelerator]


def place_of(target: Target) -> Place:
    """Give what the planner knows of a target's instances.

    Raises:
        InvalidArgument: Cloud Run has no such accelerator that is known here.
    """
    gpu_of(target)
    return next(
        place
        for place in places().values()
        if place.deployable_by == "cloud_run"
        and f"nvidia-{place.accelerator}" == target.accelerator
    )


def refuse_name(name: str) -> None:
    """Refuse a deployment that no service can be called.

    Raises:
        InvalidArgument: Cloud Run would not take it.
    """
    if not re.fullmatch(rules().limits.service_name, name):
        raise InvalidArgument(
            f"No Cloud Run service can be called {name!r}.",
            fix="Use lower-case letters, digits and hyphens, fewer than 50, a letter first.",
        )


def place_for(
    target: Target, spec: DeploymentSpec, weights_from: str, *, guarded: bool = False
) -> Place:
    """Return what the planner knows of instances as a spec wants them; `guarded`: beside a proxy.

    Raises:
        InvalidArgument: Cloud Run gives none of that size beside this GPU.
    """
    if spec.cpu is not None and not spec.cpu.is_integer():
        raise InvalidArgument(
            f"An instance with a GPU has whole vCPUs, not {spec.cpu:g}.", fix="Give cpu whole."
        )
    if spec.memory_gib is not None and not spec.memory_gib.is_integer():
        raise InvalidArgument("Memory is given in whole GiB.", fix="Give memory_gib whole.")
    cpu = None if spec.cpu is None else int(spec.cpu)
    ram = None if spec.memory_gib is None else int(spec.memory_gib)
    gpu, proxy = gpu_of(target), rules().guard
    known = {"weights_from": weights_from, **({"sizes": gpu.guarded} if guarded else {})}
    place = place_of(target).model_copy(update=known).sized(cpu, ram)
    beside = Size(vcpu=proxy.vcpu, ram_gib=proxy.ram_gib) if guarded else Size(vcpu=0, ram_gib=0)
    for size in place.sizes:
        refuse_size(gpu, place, size, beside)
    return place


def refuse_size(gpu: Gpu, place: Place, size: Size, beside: Size) -> None:
    """Refuse processors and memory that Cloud Run does not give beside a GPU and another container.

    Raises:
        InvalidArgument: They are too few or too many.
    """
    each = place.gib_per_vcpu or size.ram_gib
    small = size.vcpu < gpu.least_vcpu or size.ram_gib < gpu.least_ram_gib
    large = bool(gpu.most_vcpu and size.vcpu + beside.vcpu > gpu.most_vcpu) or bool(
        gpu.most_ram_gib and size.ram_gib + beside.ram_gib > gpu.most_ram_gib
    )
    if small or large or size.ram_gib > each * size.vcpu or size.vcpu % gpu.vcpu_step:
        ends = f" and at most {gpu.most_vcpu} and {gpu.most_ram_gib} GiB" if gpu.most_vcpu else ""
        step = f" in steps of {gpu.vcpu_step}" if gpu.vcpu_step > 1 else ""
        raise InvalidArgument(
            f"Cloud Run gives no {size.vcpu} vCPU and {size.ram_gib} GiB beside this GPU.",
            fix=f"Take at least {gpu.least_vcpu} vCPU and {gpu.least_ram_gib} GiB{ends};"
            f" vCPU{step}, and at most {each} GiB for each.",
        )


def size_doubt(gpu: Gpu, size: Size) -> str | None:
    """Say what stands against a size beyond the least where Google names no largest."""
    if gpu.most_vcpu or (size.vcpu, size.ram_gib) == (gpu.least_vcpu, gpu.least_ram_gib):
        return None
    return f"Google names no largest size beside this GPU: {size.vcpu} vCPU may be refused."


def region_doubt(target: Target, region: str) -> str | None:
    """Say what stands against a region; Google adds some often, and knows which.

    Raises:
        InvalidArgument: It is not the name of a region.
    """
    listed = place_of(target).regions
    if region in listed:
        return None
    if region + _INVITED in listed:
        return (
            f"{region} gives out {target.accelerator} by invitation only, says Google's page;"
            " check_gpu_quotas tells whether your project has any."
        )
    if not _REGION.fullmatch(region):
        raise InvalidArgument(
            f"{region} is no region of Google Cloud.",
            fix=f"Set GOOGLE_CLOUD_LOCATION to one of {', '.join(listed)}.",
        )
    return (
        f"{region} is not on Google's page of 2026-11-20 of regions with {target.accelerator}; the"
        f" check asks Google itself. Set GOOGLE_CLOUD_LOCATION to one of {', '.join(listed)}."
    )
