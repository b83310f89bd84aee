"""What TPUs accept and what is chosen within it, as data: `rules.toml`."""

import re
from pathlib import Path
from typing import Final

from backends.container import HubCache
from core import overrides
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec
from planner.places import Place

_FILE: Final = Path(__file__).with_suffix(".toml")


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
    return overrides.read("tpu", _FILE, Rules)


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
