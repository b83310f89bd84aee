"""What there is to make instances of: zones, machine types, images, disk types, networks."""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlette.routing import BaseRoute

from emulators.google.compute import paging
from emulators.google.compute.refusing import not_found
from emulators.google.compute.serving import LINK, Call, route
from emulators.google.compute.zones import region_of, zone_names
from emulators.google.state import Project, World
from emulators.google.tpu.capacity import zone_of

_FILE: Final = Path(__file__).with_name("catalog.toml")
_NOTHING: Final = {"code": "NO_RESULTS_ON_PAGE"}


class MachineType(NamedTuple):
    """One kind of machine."""

    chips: int
    """Of TPU v6e; 0 is a machine without."""
    cpus: int
    memory_gb: int
    one_thread: bool
    """Whether it has to be made with one thread per core."""


@functools.cache
def catalog() -> Mapping[str, Any]:
    """Give the whole file."""
    return tomllib.loads(_FILE.read_text("utf-8"))


def machine_types(project: Project, zone: str) -> Mapping[str, MachineType]:
    """Give the machine types of a zone: those of TPUs where there is such hardware."""
    known = {name: MachineType(**row) for name, row in catalog()["machine_types"].items()}
    told = zone_of(project, zone)
    had = {int(one.rpartition("-")[2]) for one in told.accelerators} if told else set()
    return {name: one for name, one in known.items() if not one.chips or one.chips in had}


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve zones, machine types and networks, to be read."""
    types = "zones/{zone}/machineTypes"
    networks, subnetworks = "global/networks", "regions/{region}/subnetworks"
    rows = (
        ("zones", "compute.zones.list", _zones, ""),
        ("zones/{zone}", "compute.zones.get", _zone, ""),
        (types, "compute.machineTypes.list", _types, ""),
        (f"{types}/{{type}}", "compute.machineTypes.get", _type, ""),
        (
            "aggregated/machineTypes",
            "compute.machineTypes.aggregatedList",
            _all_types,
            "compute.machineTypes.list",
        ),
        (networks, "compute.networks.list", _networks, ""),
        (f"{networks}/{{network}}", "compute.networks.get", _network, ""),
        (f"{subnetworks}/{{subnetwork}}", "compute.subnetworks.get", _subnetwork, ""),
    )
    return [route(world, "GET", path, name, give, needs) for path, name, give, needs in rows]


def aggregated(call: Call, rows: Sequence[dict[str, Any]], items: str, kind: str) -> dict[str, Any]:
    """Give one page of what lies in zones, by zone; a zone without any says so."""
    page, token = paging.page_of(call, rows)
    scopes: dict[str, Any] = {}
    for zone in zone_names(call.project):
        here = [row for row in page if str(row["zone"]).rpartition("/")[2] == zone]
        warning = {
            **_NOTHING,
            "message": f"There are no results for scope 'zones/{zone}' on this page.",
            "data": [{"key": "scope", "value": f"zones/{zone}"}],
        }
        scopes[f"zones/{zone}"] = {items: here} if here else {"warning": warning}
    answer = {"kind": kind, "id": f"projects/{call.project.id}/aggregated/{items}", "items": scopes}
    return answer | ({"nextPageToken": token} if token else {})


async def _zones(call: Call) -> dict[str, Any]:
    rows = [_zone_row(call.project, zone) for zone in zone_names(call.project)]
    return paging.listed(call, rows, "compute#zoneList")


async def _zone(call: Call) -> dict[str, Any]:
    return _zone_row(call.project, call.params["zone"])


def _zone_row(project: Project, zone: str) -> dict[str, Any]:
    parent = f"{LINK}projects/{project.id}"
    return {
        "kind": "compute#zone",
        "id": _number(zone),
        "name": zone,
        "description": zone,
        "status": "UP",
        "region": f"{parent}/regions/{region_of(zone)}",
        "selfLink": f"{parent}/zones/{zone}",
    }


async def _types(call: Call) -> dict[str, Any]:
    return paging.listed(
        call, _type_rows(call.project, call.params["zone"]), "compute#machineTypeList"
    )


async def _type(call: Call) -> dict[str, Any]:
    rows = _type_rows(call.project, call.params["zone"])
    found = next((row for row in rows if row["name"] == call.params["type"]), None)
    if found is None:
        raise not_found(f"{call.parent}/machineTypes/{call.params['type']}")
    return found


async def _all_types(call: Call) -> dict[str, Any]:
    zones = zone_names(call.project)
    rows = [row for zone in zones for row in _type_rows(call.project, zone)]
    return aggregated(call, rows, "machineTypes", "compute#machineTypeAggregatedList")


def _type_rows(project: Project, zone: str) -> list[dict[str, Any]]:
    return [_type_row(project, zone, *one) for one in machine_types(project, zone).items()]


def _type_row(project: Project, zone: str, name: str, kind: MachineType) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": _number(f"{zone}/{name}"),
        "name": name,
        "guestCpus": kind.cpus,
        "memoryMb": kind.memory_gb * 1024,
        "zone": zone,
        "selfLink": f"{LINK}projects/{project.id}/zones/{zone}/machineTypes/{name}",
    }
    if kind.chips:
        row["accelerators"] = [
            {"guestAcceleratorType": "ct6e", "guestAcceleratorCount": kind.chips}
        ]
    return row


async def _networks(call: Call) -> dict[str, Any]:
    rows = [_network_row(call.project, name) for name in catalog()["networks"]["names"]]
    return paging.listed(call, rows, "compute#networkList")


async def _network(call: Call) -> dict[str, Any]:
    name = call.params["network"]
    if name not in catalog()["networks"]["names"]:
        raise not_found(f"projects/{call.project.id}/global/networks/{name}")
    return _network_row(call.project, name)


def _network_row(project: Project, name: str) -> dict[str, Any]:
    path = f"projects/{project.id}/global/networks/{name}"
    return {
        "kind": "compute#network",
        "id": _number(path),
        "name": name,
        "autoCreateSubnetworks": True,
        "selfLink": LINK + path,
    }


async def _subnetwork(call: Call) -> dict[str, Any]:
    name, region = call.params["subnetwork"], call.params["region"]
    parent = f"projects/{call.project.id}"
    path = f"{parent}/regions/{region}/subnetworks/{name}"
    regions = {region_of(zone) for zone in zone_names(call.project)}
    if region not in regions or name not in catalog()["networks"]["names"]:
        raise not_found(path)
    return {
        "kind": "compute#subnetwork",
        "id": _number(path),
        "name": name,
        "network": f"{LINK}{parent}/global/networks/{name}",
        "region": f"{LINK}{parent}/regions/{region}",
        "selfLink": LINK + path,
    }


def _number(said: str) -> str:
    return str(int.from_bytes(said.encode()[-7:], "big"))
