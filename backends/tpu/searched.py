"""Where a chip is asked for, of whom, in which order, and how long each is waited for."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from backends.tpu.chip import Place, PlaneKind
from backends.tpu.compute_bodies import FLEX_WAIT_SECONDS
from backends.tpu.rules import refuse_zone, rules
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec

if TYPE_CHECKING:
    from backends.tpu.site import Site

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

    places: tuple[Place, ...]
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
    places = tuple(Place(zone, kind) for zone in zones for kind in kept)
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
    site: "Site", spec: DeploymentSpec, places: tuple[Place, ...]
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
