"""Regions of targets, by the names that clouds give them or by the continent they are on."""

from collections.abc import Sequence
from typing import Final

from core.errors import InvalidArgument
from operations.runtime import Runtime
from planner.places import Place, place, places

_AZURE: Final = {
    "europe": (
        "swedencentral", "francecentral", "italynorth", "westeurope", "northeurope",
        "germanywestcentral", "polandcentral", "spaincentral",
    ),
    "us": (
        "eastus", "eastus2", "centralus", "northcentralus", "southcentralus", "westus", "westus2",
        "westus3",
    ),
    "canada": ("canadacentral", "canadaeast"),
    "asia": (
        "centralindia", "eastasia", "japaneast", "japanwest", "koreacentral", "southeastasia",
        "southindia",
    ),
    "australia": ("australiaeast",),
    "southamerica": ("brazilsouth",),
}  # fmt: skip
_ALSO: Final = {"eu": "europe", "usa": "us", "america": "us", "united states": "us"}
_SETTINGS: Final = {"azure": "AZURE_LOCATION", "google": "GOOGLE_CLOUD_LOCATION"}
_BY_INVITATION: Final = "("
_SHOWN: Final = 6
"""Regions, or targets, that one sentence names."""


def within(where: Place, region: str) -> tuple[str, ...]:
    """Return the regions of a place that `europe`, `eu`, `us-east5` or a full name means.

    >>> from planner.places import place
    >>> within(place("cloud-run-l4"), "eu")
    ('europe-west1', 'europe-west4')
    >>> within(place("aca-a100"), "Europe")
    ('italynorth', 'swedencentral')
    """
    wanted = region.strip().lower()
    wanted = _ALSO.get(wanted, wanted).replace(" ", "")
    names = _AZURE.get(wanted, ())
    found = [one for one in where.regions if one.startswith((wanted, *names))]
    return tuple(sorted(found, key=lambda one: _BY_INVITATION in one))


def limited_to(where: Place, region: str | None) -> Place:
    """Return the place with those of its regions alone.

    Raises:
        InvalidArgument: It has none there.
    """
    if not region or where.provider == "own":
        return where
    if found := within(where, region):
        return where.model_copy(update={"regions": found})
    raise _nowhere(where.name, [where], region)


def in_region(names: Sequence[str], region: str | None) -> tuple[str, ...]:
    """Return those of these places that have a region there; all, where none is said.

    Raises:
        InvalidArgument: None has.
    """
    known = places()
    found = tuple(name for name in names if region is None or within(known[name], region))
    if found:
        return found
    raise _nowhere(", ".join(names[:_SHOWN]), [known[name] for name in names], region or "")


def _nowhere(what: str, sites: Sequence[Place], region: str) -> InvalidArgument:
    """Say that there is none, with those that are on the same continent first."""
    near = region.strip().lower().partition("-")[0]
    names = {one.partition(" ")[0] for where in sites for one in where.regions}
    known = sorted(names, key=lambda one: (not one.startswith(near), one))
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    listed = f"{', '.join(known[:_SHOWN])}{more}" if known else "none that is known"
    return InvalidArgument(
        f"{what}: no region in {region}, as far as is known here; there is {listed}.",
        fix=f"Give one of {', '.join(known)}; or europe, us, asia."
        if known
        else "Name another target.",
    )


def goes_to(runtime: Runtime, where: Place) -> tuple[str, str | None]:
    """Return the region of a deployment, and what must be set first so that it goes there."""
    names = [one.partition(" ")[0] for one in where.regions]
    if not names or where.deployable_by == "tpu":
        return names[0] if names else "", None
    setting, target = _SETTINGS[where.provider], runtime.stage.targets.get(where.name)
    now = getattr(runtime.settings, setting.lower()) or (target and target.region)
    if now in names:
        return now, None
    return names[0], f"set {setting}={names[0]} for this server"


def check(runtime: Runtime, target: str, region: str, zones: list[str] | None) -> list[str] | None:
    """Return the zones to look in, so that a deployment goes to the region or nowhere.

    Raises:
        InvalidArgument: The target has none there, or this server is set to another region.
    """
    where = limited_to(place(target), region)
    _, todo = goes_to(runtime, where)
    if todo:
        raise InvalidArgument(
            f"{target} would go to another region than {region}.",
            fix=f"{todo[0].upper()}{todo[1:]}, and start it again; or leave `region` out.",
        )
    return zones or zones_of(where) or None


def zones_of(where: Place) -> list[str]:
    """Return the zones to look for a chip in; none where a target has regions instead."""
    return list(where.regions) if where.deployable_by == "tpu" else []
