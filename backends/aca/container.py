"""What runs in a replica: Container Apps' limits, precision, weights, probes and boot."""

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from backends import container
from backends.aca.site import SHARE
from backends.container import HubCache, Probe, flag_value, inside, size_known
from core import settings
from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape, Record, Target
from planner.boot import boot, file_bytes, stored_bytes
from planner.flags import Flags
from planner.model import is_path
from planner.places import Accelerator, Place, Size

_FILE: Final = Path(__file__).with_name("rules.toml")


class Limits(Record):
    app_name: str
    replicas: int
    request_seconds: int
    link_characters: int
    period_seconds: int
    tag_characters: int
    json_tags: int
    startup_failures: int
    """How often in a row a startup probe may fail."""
    older_startup_failures: int
    """Where a region's service is older."""
    head_bytes: int
    """Of one token's longest head, for which 64 KiB of shared memory are enough."""


class Scaling(Record):
    cooldown_seconds: int
    polling_seconds: int
    inactive_revisions: int


class Share(Record):
    mount_path: str
    cache_path: str
    """Of what is downloaded from the Hub."""
    mount_options: str
    sku: str
    quota_gib: int
    mib_per_second: int
    usd_per_month: tuple[float, float]


class LeaseRules(Record):
    image: str


class Gpu(container.Gpu):
    """One kind of accelerator: its workload profile, and the image."""

    profile: str
    """As it is called in an environment of ours."""
    profile_type: str
    quota: str
    """What the names of its quotas contain."""


class Rules(Record):
    limits: Limits
    guard: container.GuardRules
    startup_probe: container.StartupRules
    readiness_probe: container.RunningRules
    liveness_probe: container.RunningRules
    scaling: Scaling
    lease: LeaseRules
    share: Share
    hub: HubCache
    gpus: dict[str, Gpu]


def rules() -> Rules:
    return settings.read("aca", _FILE, Rules)


def gpu_of(target: Target) -> Gpu:
    """Return the rules of a target's accelerator. Raises what `gpu_in` does."""
    return container.gpu_in(rules().gpus, target, "Container Apps")


def place_of(target: Target) -> Place:
    """Return what the planner knows of a target's replicas. Raises what `gpu_in` does."""
    gpu_of(target)
    return container.place_in(target)


def size_of(target: Target, spec: DeploymentSpec) -> Size:
    """Return the processors and memory of a replica: a whole node's unless less is asked for.

    Raises:
        InvalidArgument: Its nodes have less, or are not known here.
    """
    gpu, (node,) = gpu_of(target), place_of(target).sizes
    vcpu, ram_gib = spec.cpu or node.vcpu, spec.memory_gib or node.ram_gib
    most = vcpu > node.vcpu or ram_gib > node.ram_gib
    if most or vcpu % 1 or ram_gib % 1 or ram_gib <= rules().guard.ram_gib:
        raise InvalidArgument(
            f"{gpu.profile_type} gives a replica whole vCPUs and GiB, at most {node.vcpu} and"
            f" {node.ram_gib}: not {vcpu:g} and {ram_gib:g}.",
            fix="Give cpu and memory_gib within that, or leave them out.",
        )
    return Size(vcpu=int(vcpu), ram_gib=int(ram_gib))


def refuse_replicas(maximum: int) -> None:
    """Refuse more replicas than a revision has. Raises InvalidArgument."""
    most = rules().limits.replicas
    if maximum > most:
        raise InvalidArgument(
            f"A container app has {most} replicas at most, not {maximum}.",
            fix="Give max_replicas fewer; each is billed by the second.",
        )


def place_doubts(target: Target, spec: DeploymentSpec, region: str) -> Iterator[str]:
    place, gpu, size = place_of(target), gpu_of(target), size_of(target, spec)
    listed = place.regions
    if region not in listed:
        others = f"set AZURE_LOCATION to one of {', '.join(listed)}"
        yield f"{region} is not on Microsoft's page of 2025 of regions with this GPU: {others}."
    if size not in place.sizes:
        asked = f"{size.vcpu} vCPU and {size.ram_gib} GiB, less than a whole {gpu.profile_type}"
        fix = "leave cpu and memory_gib out"
        yield f"{asked}, may be refused (ContainerAppInvalidResourceTotal): {fix}."


def refuse_numbers(spec: DeploymentSpec, device: Accelerator) -> None:
    """Refuse numbers that the card lacks, where no plan of a model's memory says so."""
    words = spec.engine_args
    dtype = flag_value(words, "--dtype") or spec.dtype
    cache = flag_value(words, "--kv-cache-dtype") or spec.kv_cache_dtype
    fp8 = "fp8" in {flag_value(words, "--quantization", "-q"), spec.quantization}
    for lacks, what, field in (
        (not device.bf16 and dtype == "bfloat16", "bfloat16", "dtype"),
        (
            not device.bf16 and cache == "bfloat16",
            "bfloat16, also not for a cache",
            "kv_cache_dtype",
        ),
        (not device.fp8_kv and (cache or "").startswith("fp8"), "fp8 cache", "kv_cache_dtype"),
        (not device.bf16 and fp8, "fp8 weights", "quantization"),
    ):
        if lacks:
            raise InvalidArgument(
                f"{device.title} has no {what}.", fix=f"Leave {field} out, or take another target."
            )


def refuse_heads(spec: DeploymentSpec, model: ModelShape, device: Accelerator) -> None:
    """Refuse a model that is too wide for an older card's attention. Raises InvalidArgument."""
    widest = max((layer.head_size for layer in model.layers), default=0)
    if device.bf16 or spec.image or widest * 2 <= rules().limits.head_bytes:
        return
    raise InvalidArgument(
        f"{spec.model} cannot be served there: heads of {widest} in 16 bits need"
        f" {widest * 192:,} bytes of shared memory, and {device.title} has 65,536.",
        cause="https://github.com/vllm-project/vllm/issues/57712 was open on 2026-11-20.",
        fix="Take target aca-a100, a model with heads of 256 or fewer, or give image= with a"
        " vLLM whose tiles are smaller (its pull request 39018).",
    )


_FOLDER: Final = re.compile(r"files://([a-z0-9](?:-?[a-z0-9]){2,62})((?:/[^/]+)+)/?")
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}
FILES: Final = "azure-files"


class Mount(Record):
    share: str
    read_only: bool
    path: str = ""

    @property
    def link(self) -> str:
        return link_of(self.share, read_only=self.read_only)

    @property
    def mode(self) -> str:
        return "ReadOnly" if self.read_only else "ReadWrite"


class Weights(Record):
    kind: Literal["hub", "files", "baked"]
    model: str
    """What `vllm serve` is given."""
    env: dict[str, str] = {}
    mount: Mount | None = None
    boot_source: str
    """Its row of `planner/boot.toml`, once the files are where they stay."""
    doubts: tuple[str, ...] = ()

    @property
    def persistent(self) -> bool:
        """Whether what is downloaded at the first boot stays for the later ones."""
        return self.kind == "hub" and self.mount is not None


def weights_of(spec: DeploymentSpec, model: ModelShape, place: Place) -> Weights:
    """Say where the weights come from; `place` is what the planner knows of the target.

    Raises:
        InvalidArgument: There is no such place, or what it needs is missing.
    """
    match spec.weights or "hub":
        case "hub" | "hub:disk" | "hub:share":
            return _hub(spec, model, place)
        case "baked":
            if not spec.image:
                raise InvalidArgument(
                    "Weights that are baked into an image need the image.",
                    fix="Give image=REGISTRY/NAME@sha256:…",
                )
            return Weights(kind="baked", model=spec.model, env=_OFFLINE, boot_source="baked")
        case location:
            return _folder(location)


def link_of(share: str, *, read_only: bool) -> str:
    """Name an environment's link to a share; each way to open it is a link of its own.

    Its name is shorter than a share's may be, and begins with a letter.

    >>> link_of("weights", read_only=True), link_of("2026", read_only=False)
    ('weights-ro', 's-158a323a7ba4')
    """
    end = "-ro" if read_only else ""
    if share[0].isdigit() or len(share + end) > rules().limits.link_characters:
        share = f"s-{hashlib.sha256(share.encode()).hexdigest()[:12]}"
    return f"{share}{end}"


def _hub(spec: DeploymentSpec, model: ModelShape, place: Place) -> Weights:
    if is_path(spec.model):
        raise InvalidArgument(
            f"Azure does not see {spec.model}, a folder of this machine.",
            fix="Copy it to a file share and give weights=files://SHARE/FOLDER, or give a Hub id.",
        )
    gib, fits, share = stored_bytes(model) / 2**30, place.hub_disk_gib or 0, rules().share
    is_small = 0 < gib <= fits
    size = f"{gib:.1f} GiB" if gib else "files of a size that is not known"
    seen = f"{fits:g} GiB were seen to fit on its disk, whose size is not known"
    if spec.weights == "hub:disk" or (spec.weights != "hub:share" and is_small):
        risk = "" if is_small else f" ({seen}: a full one ends the boot and says so)"
        low, high = share.usd_per_month
        doubt = f"Every start downloads {size} of {spec.model} to the container's disk{risk}."
        other = f"weights=hub:share keeps them, for about ${low:.0f} to ${high:.0f} a month."
        found = Weights(kind="hub", model=spec.model, boot_source="hub", doubts=(doubt, other))
    else:
        why = "" if is_small else f", as {seen} (weights=hub:disk tries it, without a share)"
        doubt = f"The first boot downloads {size} to the share {SHARE}; later ones read it{why}."
        found = Weights(
            kind="hub",
            model=spec.model,
            env={"HF_HOME": share.cache_path},
            mount=Mount(share=SHARE, path=share.mount_path, read_only=False),
            boot_source=FILES,
            doubts=(doubt,),
        )
    return found


def _folder(location: str) -> Weights:
    found = _FOLDER.fullmatch(location)
    if not found or {".", ".."} & set(found[2].split("/")):
        raise InvalidArgument(
            f"{location} is no folder of a file share.",
            fix="Give files://SHARE/FOLDER; what lies in a bucket or a blob container is copied to"
            " a share first, as Container Apps mount nothing else.",
        )
    mount = Mount(share=found[1], path=rules().share.mount_path, read_only=True)
    model = f"{mount.path}{found[2]}"
    return Weights(kind="files", model=model, env=_OFFLINE, mount=mount, boot_source=FILES)


def startup_probe(target: Target, boot_seconds: float, failures: int | None = None) -> Probe:
    """Return one that gives a boot its time, with no more `failures` than a service takes."""
    limits, most = rules().limits, place_of(target).startup_seconds_max or 0
    taken = failures or limits.startup_failures
    return container.startup_probe(
        rules().startup_probe,
        boot_seconds,
        path="/health",
        port=container.GUARD_PORT,
        most_seconds=min(most, taken * limits.period_seconds),
        most_failures=taken,
    )


class SlowestBoot(NamedTuple):
    """Seconds of the slowest boot that is foreseen."""

    inside: float
    """From the container's start to the first answer."""
    whole: float
    """From when the replica is scheduled: the host and its image come first."""
    doubts: tuple[str, ...] = ()


def slowest_boot(
    spec: DeploymentSpec, model: ModelShape, place: Place, weights: Weights
) -> SlowestBoot:
    """Foresee the boot of a replica; the first one may have to download, then read."""
    most = place.startup_seconds_max or 0
    if not size_known(model):
        doubt = f"How long the boot takes is not known; the startup probe gives up after {most} s."
        return SlowestBoot(most, most, (doubt,))
    flags, doubts = Flags.of(spec), list[str]()
    foreseen = boot(model, place, flags, weights_from=weights.boot_source)
    seconds = inside(foreseen)
    host = foreseen.seconds.high - seconds
    if weights.persistent:
        phases = boot(model, place, flags, weights_from="hub").phases
        seconds += next(phase.seconds.high for phase in phases if phase.name == "weights")
    if weights.boot_source == FILES:
        rate, mib = rules().share.mib_per_second, file_bytes(model) / 2**20
        doubts.append(
            f"A boot reads {mib / 1024:.1f} GiB from the file share, at {rate} MiB/s in"
            f" {math.ceil(mib / rate / 60)} min or more; a larger share is faster."
        )
    if seconds > most:
        doubts.append(
            f"The boot may take {seconds:,.0f} s ({foreseen.weights_from}), and the startup probe"
            f" gives up after {most:,} s: put the files on a share first, or take a smaller"
            " checkpoint."
        )
    return SlowestBoot(seconds, seconds + host, tuple(doubts))
