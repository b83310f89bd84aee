"""Which boot disk an instance may have: image, size, type."""

from typing import Any, Final

from emulators.google.compute.catalog import MachineType, catalog
from emulators.google.compute.references import named, parts
from emulators.google.compute.refusing import bad, wrong
from emulators.google.compute.serving import LINK

_AT: Final = "resource.disks[0].initializeParams"
_USUAL_TYPE: Final = "hyperdisk-balanced"


def disks(
    body: dict[str, Any], project: str, zone: str, machine: str, kind: MachineType
) -> list[dict[str, Any]]:
    """Give the disks of an instance, with what follows from the request.

    Raises:
        Denied: There is no boot disk, or its image, size or type cannot be.
    """
    given = body.get("disks") or []
    if not given or not given[0].get("boot"):
        raise wrong("resource.disks", "", "The first disk must be a boot disk.")
    if len(given) > 1:
        raise wrong("resource.disks", len(given), "The simulation knows boot disks alone.")
    params = given[0].get("initializeParams") or {}
    if "sourceImage" not in params:
        raise wrong(_AT, params, "A boot disk must have a source image.")
    smallest = _image_gb(params["sourceImage"], zone)
    size = int(params.get("diskSizeGb") or given[0].get("diskSizeGb") or smallest)
    if size < smallest:
        words = f"Requested disk size cannot be smaller than the image size ({smallest} GB)"
        raise wrong(f"{_AT}.diskSizeGb", str(size), words)
    _type(params.get("diskType"), project, zone, machine, kind)
    return [_made(given[0], project, zone, str(body["name"]), size)]


def _image_gb(link: str, zone: str) -> int:
    """Read a family's link: that of every zone, or what one zone sees of it (gcloud's)."""
    words = parts(link)
    shape = [words[0], *words[2:5]] if len(words) == 6 else []
    known = shape in (
        ["projects", "global", "images", "family"],
        ["projects", "zones", zone, "imageFamilyViews"],
    )
    size = catalog()["images"].get(f"{words[1]}/{words[5]}") if known else None
    if size is None:
        raise wrong(f"{_AT}.sourceImage", link, "The referenced image resource cannot be found.")
    return int(size)


def _type(link: str | None, project: str, zone: str, machine: str, kind: MachineType) -> None:
    if link is None:
        return
    name = named(link, f"{_AT}.diskType", project, "zones", zone, "diskTypes")
    known = catalog()["disk_types"]
    if name not in known:
        raise wrong(f"{_AT}.diskType", link, "The referenced diskType resource cannot be found.")
    if kind.chips and not known[name]:
        raise bad(f"[{name}, {machine}] features are not compatible for creating instance.")


def _made(
    disk: dict[str, Any], project: str, zone: str, instance: str, size: int
) -> dict[str, Any]:
    params = disk.get("initializeParams") or {}
    name = params.get("diskName") or instance
    kept = {key: value for key, value in disk.items() if key != "initializeParams"}
    return {
        **kept,
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "index": 0,
        "autoDelete": bool(disk.get("autoDelete")),
        "deviceName": disk.get("deviceName") or "persistent-disk-0",
        "diskSizeGb": str(size),
        "source": f"{LINK}projects/{project}/zones/{zone}/disks/{name}",
    }
