"""What Container Apps accept and what is chosen within it, as data: `rules.toml`."""

import re
from pathlib import Path
from typing import Final

from backends.container import HubCache
from core import overrides
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec, Target
from planner.places import Place, Size, places

_FILE: Final = Path(__file__).with_suffix(".toml")


class Failures(Record):
    """How often in a row each kind of probe may fail."""

    startup: int
    older_startup: int
    """Where a region's service is older."""
    readiness: int
    liveness: int


class Limits(Record):
    """The ends of what an app may say."""

    app_name: str
    replicas: int
    request_seconds: int
    addresses: int
    link_characters: int
    initial_delay_seconds: int
    period_seconds: int
    timeout_seconds: int
    tag_characters: int
    json_tags: int
    failures: Failures


class Guard(Record):
    """The proxy before every engine."""

    image: str
    vcpu: float
    ram_gib: int


class StartupProbe(Record):
    """How a boot is watched."""

    period_seconds: int
    timeout_seconds: int
    margin_seconds: int
    """On top of the slowest boot that is foreseen."""
    least_seconds: int
    most_seconds: int


class RunningProbe(Record):
    """How a server is watched that has started."""

    period_seconds: int
    timeout_seconds: int
    failures: int


class Scaling(Record):
    """When replicas come and go."""

    cooldown_seconds: int
    polling_seconds: int
    inactive_revisions: int


class Share(Record):
    """How a file share with weights is mounted, and what it gives and costs."""

    mount_path: str
    cache_path: str
    """Of what is downloaded from the Hub."""
    mount_options: str
    sku: str
    quota_gib: int
    mib_per_second: int
    usd_per_month: tuple[float, float]


class Half(Record):
    """Models that vLLM does not run in float16."""

    refused_by: tuple[str, ...]


class Turing(Record):
    """What 64 KiB of shared memory are enough for."""

    head_bytes: int
    """Of one token's longest head."""


class Gpu(Record):
    """One kind of accelerator: its workload profile, the pair it comes with, and the image."""

    profile: str
    """As it is called in an environment of ours."""
    profile_type: str
    quota: str
    """What the names of its quotas contain."""
    vcpu: int
    ram_gib: int
    image: str
    vllm: str
    cuda: str
    max_num_seqs: int
    """That vLLM takes where nobody says."""


class Rules(Record):
    """`rules.toml`."""

    limits: Limits
    guard: Guard
    startup_probe: StartupProbe
    readiness_probe: RunningProbe
    liveness_probe: RunningProbe
    scaling: Scaling
    share: Share
    hub: HubCache
    gpus: dict[str, Gpu]
    half: Half
    turing: Turing


def rules() -> Rules:
    """Return them, with what `overrides.toml` puts in their place."""
    return overrides.read("aca", _FILE, Rules)


def gpu_of(target: Target) -> Gpu:
    """Give the rules of a target's accelerator.

    Raises:
        InvalidArgument: Container Apps have no such accelerator that is known here.
    """
    known = rules().gpus
    if target.accelerator not in known:
        what = target.accelerator or "target without a GPU"
        raise InvalidArgument(
            f"Container Apps have no {what} that is known here.",
            fix=f"Give the target an accelerator of {', '.join(known)}.",
        )
    return known[target.accelerator]


def place_of(target: Target) -> Place:
    """Give what the planner knows of a target's replicas.

    Raises:
        InvalidArgument: Container Apps have no such accelerator that is known here.
    """
    gpu_of(target)
    return next(
        place
        for place in places().values()
        if place.deployable_by == "aca" and place.accelerator == target.accelerator
    )


def size_of(target: Target, spec: DeploymentSpec) -> Size:
    """Give the processors and memory of a replica: a whole node's unless less is asked for.

    Raises:
        InvalidArgument: Container Apps have no such accelerator that is known here, or its nodes
            have less.
    """
    gpu = gpu_of(target)
    vcpu, ram_gib = spec.cpu or gpu.vcpu, spec.memory_gib or gpu.ram_gib
    most = vcpu > gpu.vcpu or ram_gib > gpu.ram_gib
    if most or vcpu % 1 or ram_gib % 1 or ram_gib <= rules().guard.ram_gib:
        raise InvalidArgument(
            f"{gpu.profile_type} gives a replica whole vCPUs and GiB, at most {gpu.vcpu} and"
            f" {gpu.ram_gib}: not {vcpu:g} and {ram_gib:g}.",
            fix="Give cpu and memory_gib within that, or leave them out.",
        )
    return Size(vcpu=int(vcpu), ram_gib=int(ram_gib))


def refuse_name(name: str) -> None:
    """Refuse a deployment that no app can be called.

    Raises:
        InvalidArgument: Azure would not take it.
    """
    if not re.fullmatch(rules().limits.app_name, name):
        raise InvalidArgument(
            f"No container app can be called {name!r}.",
            fix="Use 2 to 32 lower-case letters, digits and single hyphens, a letter first.",
        )


def refuse_replicas(maximum: int) -> None:
    """Refuse more replicas than a revision has.

    Raises:
        InvalidArgument: Azure would not take them.
    """
    most = rules().limits.replicas
    if maximum > most:
        raise InvalidArgument(
            f"A container app has {most} replicas at most, not {maximum}.",
            fix="Give max_replicas fewer; each is billed by the second.",
        )


def size_doubt(target: Target, spec: DeploymentSpec) -> str | None:
    """Say what stands against less than a whole node."""
    gpu, size = gpu_of(target), size_of(target, spec)
    if (size.vcpu, size.ram_gib) == (gpu.vcpu, gpu.ram_gib):
        return None
    return (
        f"{size.vcpu} vCPU and {size.ram_gib} GiB are less than the whole {gpu.profile_type}, and"
        " which pairs Azure takes is not documented: if it refuses this one"
        " (ContainerAppInvalidResourceTotal), leave cpu and memory_gib out."
    )


def region_doubt(target: Target, region: str) -> str | None:
    """Say what stands against a region; who has GPUs is Azure's to say, and changes."""
    listed = place_of(target).regions
    if region in listed:
        return None
    return (
        f"{region} is not on Microsoft's page of 2025 of regions with this GPU; the check asks"
        f" Azure itself. Set AZURE_LOCATION to one of {', '.join(listed)}."
    )
