"""What TPUs accept and what is chosen within it, as data: `rules.toml`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from backends.container import HubCache
from backends.tpu.compute import FLEX_WAIT_SECONDS
from backends.tpu.site import Place as ChipPlace
from backends.tpu.site import PlaneKind, Site
from core import settings
from core.errors import InvalidArgument
from core.records import DeploymentSpec, Record
from planner.model import is_path
from planner.places import Place

_FILE: Final = Path(__file__).with_name("rules.toml")


class Engine(Record):
    """The image that serves where nobody names another."""

    image: str
    vllm: str


class Guard(Record):
    """The proxy that stands before the engine."""

    image: str


class Generation(Record):
    """What one generation of chips is called, and what its VMs are made of."""

    machine_type: str
    """With `{count}` in place of the chips."""
    runtime_version: str
    image_project: str
    image_family: str
    disk_type: str

    @property
    def image(self) -> str:
        """The newest image for the boot disk of an instance."""
        return f"projects/{self.image_project}/global/images/family/{self.image_family}"


class Disk(Record):
    """Sizes in 10^9 bytes."""

    least_gb: int
    unknown_gb: int
    image_gb: int
    spare_gb: int
    node_gb: int
    """Of a node of the queue, which cannot be chosen but with flex-start."""


class Wait(Record):
    """How long a place is waited for."""

    alone_seconds: int
    each_seconds: int
    """Where there are others to try."""


class Run(Record):
    """How long a VM may live."""

    minutes: int
    """Where nobody says."""
    flex_least_minutes: int
    flex_most_minutes: int
    most_minutes: int


class Boot(Record):
    """How long a boot is given at least before it is called slow."""

    least_seconds: int
    unknown_seconds: int


class Limits(Record):
    """What names may be."""

    zone: str
    network: str


class Docker(Record):
    """How containers are run."""

    shm_size: str
    folder: str
    """Of the host, for certificate, weights and compiled programs."""
    memory_folder: str
    """Of the host, in its memory."""


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
    boot: Boot
    limits: Limits
    docker: Docker
    cache: Cache
    hub: HubCache
    multimodal: Multimodal


def rules() -> Rules:
    """Return them, with what `overrides.toml` puts in their place."""
    return settings.read("tpu", _FILE, Rules)


def generation_of(place: Place) -> Generation:
    """Give the rules of a target's chips.

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


def network_of(spec: DeploymentSpec) -> tuple[str, str]:
    """Give network and subnetwork; an empty subnetwork is that of the zone's region.

    Raises:
        InvalidArgument: They cannot be called so.
    """
    network, slash, subnetwork = (spec.network or "default").partition("/")
    named = (network, subnetwork) if slash else (network,)
    if not all(re.fullmatch(rules().limits.network, name) for name in named):
        raise InvalidArgument(
            f"{spec.network} names no network.", fix="Give network=NETWORK or NETWORK/SUBNETWORK."
        )
    return network, subnetwork


def refuse_zone(zone: str) -> None:
    """Refuse what cannot be a zone.

    Raises:
        InvalidArgument: It does not look like one; a region does not either.
    """
    if not re.fullmatch(rules().limits.zone, zone):
        raise InvalidArgument(
            f"{zone} is no zone of Google Cloud.",
            fix="Give zones such as us-east5-b, in zones or GOOGLE_CLOUD_ZONE.",
        )


def run_minutes(spec: DeploymentSpec, place: Place) -> int:
    """Give how long it may live; 0 is for ever.

    Raises:
        InvalidArgument: Chips that are given in this way do not live so long, or so briefly.
    """
    chosen = rules().run
    minutes = chosen.minutes if spec.ttl_minutes is None else spec.ttl_minutes
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


_OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}


class Weights(Record):
    """Where they come from."""

    kind: Literal["hub", "baked"]
    env: dict[str, str] = {}

    @property
    def boot_source(self) -> str:
        """Its row of `planner/boot.toml`."""
        return self.kind


def weights_of(spec: DeploymentSpec) -> Weights:
    """Say where the weights come from.

    Raises:
        InvalidArgument: A VM with chips does not read them from there, or an image is missing.
    """
    match spec.weights or "hub":
        case "hub":
            return _hub(spec)
        case "baked":
            return _baked(spec)
        case location:
            raise InvalidArgument(
                f"VMs with TPUs do not read {location} here: its files would have to be copied"
                " to the VM first.",
                fix="Leave weights out: the VM fetches them from the Hugging Face Hub; or bake"
                " them into an image (weights=baked, image=…).",
            )


def _hub(spec: DeploymentSpec) -> Weights:
    if is_path(spec.model):
        raise InvalidArgument(
            f"A VM with TPUs does not see {spec.model}, a folder of this machine.",
            fix="Give a Hub id, or bake the files into an image (weights=baked, image=…).",
        )
    return Weights(kind="hub")


def _baked(spec: DeploymentSpec) -> Weights:
    if not spec.image:
        raise InvalidArgument(
            "Weights that are baked into an image need the image.",
            fix="Give image=REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…",
        )
    return Weights(kind="baked", env=_OFFLINE)


_PLANES: Final[dict[str, tuple[PlaneKind, ...]]] = {
    "auto": ("compute", "queued"),
    "queued": ("queued",),
    "compute": ("compute",),
}
_REASONS: Final = {
    "auto": "In each zone Compute Engine is asked first, because it ends a VM by itself and Google"
    " calls the Cloud TPU API legacy; then the queue of Cloud TPU, which has a quota of its own.",
    "queued": "Only the queue of Cloud TPU is asked, as control_plane=queued says.",
    "compute": "Only Compute Engine is asked, as control_plane=compute says.",
}


class Searched(Record):
    """The order of a search."""

    places: tuple[ChipPlace, ...]
    reason: str
    wait_seconds: int
    doubts: tuple[str, ...] = ()


def has_small_disk(site: "Site", spec: DeploymentSpec) -> bool:
    """Whether a VM may be a node whose disk cannot be chosen: flex-start's can."""
    return "queued" in _PLANES[spec.control_plane] and site.provisioning != "flex-start"


def searched(site: "Site", spec: DeploymentSpec, *, on_node: bool) -> Searched:
    """Give the places; `on_node`: what is served finds room on a node of the queue.

    Raises:
        InvalidArgument: A zone is none, or no place is left.
    """
    zones, kinds = _zones(site, spec), _PLANES[spec.control_plane]
    dropped = "queued" in kinds and not on_node
    kept = tuple(kind for kind in kinds if not (dropped and kind == "queued"))
    if not kept:
        raise InvalidArgument(
            f"{_why_no_node(spec)}.",
            fix="Take control_plane=compute, whose disk is as large as it is to be.",
        )
    places = tuple(ChipPlace(zone, kind) for zone in zones for kind in kept)
    reason = _REASONS[spec.control_plane] if not dropped else _too_large(spec)
    wait, capped = _wait(site, spec, places)
    doubts = (*_unknown(site, zones), *capped)
    return Searched(places=places, reason=reason, wait_seconds=wait, doubts=doubts)


def _zones(site: "Site", spec: DeploymentSpec) -> tuple[str, ...]:
    """Give those that are said, or the settings' own and then every other that is known."""
    zones = spec.zones or (site.clients.region, *site.offered.regions)
    for zone in zones:
        refuse_zone(zone)
    return tuple(dict.fromkeys(zones))


def _too_large(spec: DeploymentSpec) -> str:
    return f"Only Compute Engine is asked: {_why_no_node(spec)}."


def _why_no_node(spec: DeploymentSpec) -> str:
    what = f"{spec.model} does not fit"
    if spec.boot_disk_gb:
        what = f"boot_disk_gb={spec.boot_disk_gb} cannot be had"
    return (
        f"{what} on a node of the queue, whose disk of {rules().disk.node_gb} GB is as large as it"
        " is but for flex-start"
    )


def _wait(
    site: "Site", spec: DeploymentSpec, places: tuple[ChipPlace, ...]
) -> tuple[int, tuple[str, ...]]:
    chosen = rules().wait
    usual = chosen.alone_seconds if len(places) == 1 else chosen.each_seconds
    wait = spec.zone_wait_minutes * 60 if spec.zone_wait_minutes else usual
    _, most = FLEX_WAIT_SECONDS
    flex = site.provisioning == "flex-start" and any(place.plane == "compute" for place in places)
    if not flex or wait <= most:
        return wait, ()
    doubt = (
        f"Compute Engine keeps a request for {most // 60} minutes at most: its places are waited"
        " for so long."
    )
    return wait, (doubt,)


def _unknown(site: "Site", zones: tuple[str, ...]) -> Iterator[str]:
    """Name zones that the data does not have; the cloud knows more, so they are asked."""
    unknown = [zone for zone in zones if zone not in site.offered.regions]
    if unknown:
        how = "" if site.provisioning == "on-demand" else f" as {site.provisioning}"
        yield (
            f"{', '.join(unknown)}: not known to give {site.accelerator}{how};"
            " get_zones_with_available_quota shows what can be seen of zones."
        )
