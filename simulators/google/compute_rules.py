"""What a new instance may be, and what there is to make it of."""

import base64
import functools
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlette.routing import BaseRoute

from simulators.google import compute_serving
from simulators.google.compute_serving import (
    LINK,
    Call,
    Denied,
    bad,
    named,
    not_found,
    parts,
    region_of,
    route,
    wrong,
    zone_names,
)
from simulators.google.state import Project, World
from simulators.google.tpu_zones import capacity_zone

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
    told = capacity_zone(project, zone)
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
        (f"{types}/{{type}}", "compute.machineTypes.get", _type_catalog, ""),
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
    page, token = compute_serving.page_of(call, rows)
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
    return compute_serving.listed(call, rows, "compute#zoneList")


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
    return compute_serving.listed(
        call, _type_rows(call.project, call.params["zone"]), "compute#machineTypeList"
    )


async def _type_catalog(call: Call) -> dict[str, Any]:
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
    return compute_serving.listed(call, rows, "compute#networkList")


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


_DISK_RULES_AT: Final = "resource.disks[0].initializeParams"
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
        raise wrong(_DISK_RULES_AT, params, "A boot disk must have a source image.")
    smallest = _image_gb(params["sourceImage"], zone)
    size = int(params.get("diskSizeGb") or given[0].get("diskSizeGb") or smallest)
    if size < smallest:
        words = f"Requested disk size cannot be smaller than the image size ({smallest} GB)"
        raise wrong(f"{_DISK_RULES_AT}.diskSizeGb", str(size), words)
    _type_disk_rules(params.get("diskType"), project, zone, machine, kind)
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
        raise wrong(
            f"{_DISK_RULES_AT}.sourceImage", link, "The referenced image resource cannot be found."
        )
    return int(size)


def _type_disk_rules(
    link: str | None, project: str, zone: str, machine: str, kind: MachineType
) -> None:
    if link is None:
        return
    name = named(link, f"{_DISK_RULES_AT}.diskType", project, "zones", zone, "diskTypes")
    known = catalog()["disk_types"]
    if name not in known:
        raise wrong(
            f"{_DISK_RULES_AT}.diskType", link, "The referenced diskType resource cannot be found."
        )
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


_SCHEDULING_RULES_AT: Final = "resource.scheduling"
_DAY_SECONDS: Final = 86_400
_RUN_SECONDS: Final = (30, 120 * _DAY_SECONDS)
_FLEX_RUN_SECONDS: Final = (600, 7 * _DAY_SECONDS)
_FLEX_USUAL_SECONDS: Final = _DAY_SECONDS
_FLEX_WAIT_SECONDS: Final = (90, 7200)
_ACTION: Final = (
    "You cannot specify a termination action for a VM instance that has the standard provisioning"
    " model (default). To use instance termination action, the VM instance must use the Spot,"
    " Reservation-Bound or Flex Start provisioning model."
)


def seconds(duration: Any) -> int:
    """Give the whole seconds of a google.protobuf.Duration as Compute Engine writes it."""
    return int((duration or {}).get("seconds", "0"))


def scheduled(body: dict[str, Any], kind: MachineType) -> dict[str, Any]:
    """Give the scheduling of an instance with what follows from it.

    Raises:
        Denied: Something in it cannot be, or not together.
    """
    said = dict(body.get("scheduling") or {})
    model = said.setdefault("provisioningModel", "SPOT" if said.get("preemptible") else "STANDARD")
    if model == "RESERVATION_BOUND":
        raise wrong(
            f"{_SCHEDULING_RULES_AT}.provisioningModel",
            model,
            "There is no reservation of that kind.",
        )
    _restart(said, model)
    _maintenance(said, model, kind)
    _end(said, model)
    _wait(body, model)
    if model == "FLEX_START":
        _flex(body, said)
    return said


def _restart(said: dict[str, Any], model: str) -> None:
    standard = model == "STANDARD"
    if said.setdefault("automaticRestart", standard) and not standard:
        raise wrong(
            f"{_SCHEDULING_RULES_AT}.automaticRestart",
            said["automaticRestart"],
            f"Automatic restart must be false for the provisioning model {model}.",
        )
    if said.setdefault("preemptible", model == "SPOT") and model != "SPOT":
        raise wrong(
            f"{_SCHEDULING_RULES_AT}.preemptible",
            "true",
            "Preemptible instances are of the model SPOT.",
        )


def _maintenance(said: dict[str, Any], model: str, kind: MachineType) -> None:
    usual = "TERMINATE" if model == "SPOT" else "MIGRATE"
    if said.setdefault("onHostMaintenance", usual) == "TERMINATE":
        return
    if kind.chips:
        raise bad("Instances with guest accelerators do not support live migration.")
    if model == "SPOT":
        raise bad("Scheduling must have onHostMaintenance be TERMINATE when preemptible is true.")


def _end(said: dict[str, Any], model: str) -> None:
    """Check what ends it, and when."""
    limited = "maxRunDuration" in said or "terminationTime" in said
    if "maxRunDuration" in said and "terminationTime" in said:
        raise bad("maxRunDuration and terminationTime are mutually exclusive.")
    action = said.get("instanceTerminationAction")
    if action and model == "STANDARD" and not limited:
        raise wrong(f"{_SCHEDULING_RULES_AT}.instanceTerminationAction", action, _ACTION)
    if "maxRunDuration" in said:
        shortest, longest = _FLEX_RUN_SECONDS if model == "FLEX_START" else _RUN_SECONDS
        if not shortest <= seconds(said["maxRunDuration"]) <= longest:
            raise wrong(
                f"{_SCHEDULING_RULES_AT}.maxRunDuration",
                said["maxRunDuration"],
                f"Must be between {shortest} and {longest} seconds.",
            )
    if (limited or model == "SPOT") and model != "FLEX_START":
        said.setdefault("instanceTerminationAction", "STOP")


def _wait(body: dict[str, Any], model: str) -> None:
    params = body.get("params") or {}
    waited = params.get("requestValidForDuration")
    if waited is None:
        return
    field, (shortest, longest) = "resource.params.requestValidForDuration", _FLEX_WAIT_SECONDS
    if model != "FLEX_START":
        raise wrong(field, waited, "Only instances of the model FLEX_START wait for capacity.")
    if seconds(waited) and not shortest <= seconds(waited) <= longest:
        raise wrong(field, waited, f"Must be 0, or between {shortest} and {longest} seconds.")


def _flex(body: dict[str, Any], said: dict[str, Any]) -> None:
    if said.get("instanceTerminationAction") not in {"STOP", "DELETE"}:
        raise wrong(
            f"{_SCHEDULING_RULES_AT}.instanceTerminationAction",
            said.get("instanceTerminationAction", ""),
            "It must be set for the provisioning model FLEX_START.",
        )
    affinity = (body.get("reservationAffinity") or {}).get("consumeReservationType")
    if affinity != "NO_RESERVATION":
        raise wrong(
            "resource.reservationAffinity.consumeReservationType",
            affinity or "",
            "It must be NO_RESERVATION for the provisioning model FLEX_START.",
        )
    if "terminationTime" not in said:
        said.setdefault("maxRunDuration", {"seconds": str(_FLEX_USUAL_SECONDS)})


_KEY: Final = re.compile(r"[^\W\dA-Z_](?:[^\WA-Z]|-){0,62}")
_VALUE: Final = re.compile(r"(?:[^\WA-Z]|-){0,63}")
_MOST_LABELS: Final = 64
_METADATA_KEY: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MOST_VALUE_BYTES: Final = 262_144
_MOST_METADATA_BYTES: Final = 524_288
"""Source: discovery document compute.v1 on Metadata: 512 KB in all, 256 KB each."""
_CHARACTERS: Final = (
    "can only contain lowercase letters, numeric characters, underscores and dashes."
    " International characters are allowed."
)


def fingerprint(held: Any) -> str:
    """Give what names exactly these labels, this metadata, these tags."""
    said = json.dumps(held, sort_keys=True).encode()
    return base64.b64encode(hashlib.sha256(said).digest()[:8]).decode()


def check_labels(labels: dict[str, str]) -> None:
    """Refuse labels that may not be.

    Raises:
        Denied: A key or a value is no label's, or there are too many.
    """
    if len(labels) > _MOST_LABELS:
        raise wrong("resource.labels", len(labels), f"At most {_MOST_LABELS} labels are possible.")
    for key, value in labels.items():
        if not _KEY.fullmatch(key):
            words = f"Label key '{key}' violates format constraints. The key must start with a"
            raise wrong("resource.labels", "", f"{words} lowercase character, {_CHARACTERS}")
        if not _VALUE.fullmatch(value):
            words = f"Label value '{value}' violates format constraints. The value"
            raise wrong("resource.labels", "", f"{words} {_CHARACTERS}")


def check_metadata(items: list[dict[str, str]]) -> None:
    """Refuse metadata that may not be.

    Raises:
        Denied: A key is no key or there twice, or there is too much.
    """
    field, total = "resource.metadata", 0
    seen: set[str] = set()
    for number, item in enumerate(items):
        key, value = item.get("key", ""), item.get("value", "")
        if not _METADATA_KEY.fullmatch(key):
            raise wrong(
                f"{field}.items[{number}].key", key, "Must be a match of '[a-zA-Z0-9-_]{1,128}'"
            )
        if key in seen:
            raise wrong(field, key, "Metadata has duplicate key.")
        size = len(value.encode())
        if size > _MOST_VALUE_BYTES:
            words = f"Value of key is too large: maximum size {_MOST_VALUE_BYTES} bytes."
            raise wrong(f"{field}.items[{number}].value", f"{key}", words)
        total += len(key) + size
        seen.add(key)
    if total > _MOST_METADATA_BYTES:
        raise wrong(field, "", f"Metadata is too large: maximum {_MOST_METADATA_BYTES} bytes.")


def stale(what: str) -> Denied:
    """Say that a fingerprint is not of what is there now."""
    return Denied(412, "conditionNotMet", f"Supplied fingerprint does not match current {what}.")


NAME: Final = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
_MOST_TAGS: Final = 64
_SCOPE: Final = re.compile(r"^https://(?:www\.googleapis\.com/auth/|mail\.google\.com)\S*$")
_CPUS: Final = "AMD Turin"


def check_name(name: Any, field: str = "resource.name") -> str:
    """Give a name that may be one.

    Raises:
        Denied: It may not.
    """
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise wrong(field, name or "", f"Must be a match of regex '{NAME}'")
    return name


def made(call: Call) -> dict[str, Any]:
    """Give the instance that a request asks for, with everything that follows from it.

    Raises:
        Denied: Something of it cannot be.
    """
    project, zone = call.project, call.params["zone"]
    body = compute_serving.read("Instance", call.body)
    name = check_name(body.get("name"))
    machine, kind = _machine(project, zone, body)
    _check_told(body)
    parent = f"projects/{project.id}/zones/{zone}"
    return {
        **{key: value for key, value in body.items() if key != "params"},
        "kind": "compute#instance",
        "machineType": f"{LINK}{parent}/machineTypes/{machine}",
        "zone": LINK + parent,
        "selfLink": f"{LINK}{parent}/instances/{name}",
        "cpuPlatform": _CPUS,
        "scheduling": scheduled(body, kind),
        "disks": disks(body, project.id, zone, machine, kind),
        "networkInterfaces": [_interface(body, project, zone)],
        "serviceAccounts": _accounts(body, call),
        "labels": body.get("labels", {}),
        "labelFingerprint": fingerprint(body.get("labels", {})),
        "tags": _with_fingerprint(body.get("tags", {})),
        "metadata": {"kind": "compute#metadata", **_with_fingerprint(body.get("metadata", {}))},
        "deletionProtection": bool(body.get("deletionProtection")),
        "startRestricted": False,
    }


def _check_told(body: dict[str, Any]) -> None:
    check_labels(body.get("labels", {}))
    check_metadata(body.get("metadata", {}).get("items", []))
    _check_tags(body.get("tags", {}).get("items", []))


def _machine(project: Project, zone: str, body: dict[str, Any]) -> tuple[str, MachineType]:
    field, link = "resource.machineType", body.get("machineType", "")
    name = named(link, field, project.id, "zones", zone, "machineTypes")
    if name.startswith("ct5l"):
        raise Denied(
            403, "forbidden", f"This user agent is not allowed to use the machine type [{name}]."
        )
    kind = machine_types(project, zone).get(name)
    if kind is None:
        raise wrong(
            field, link, f"Machine type with name '{name}' does not exist in zone '{zone}'."
        )
    if body.get("guestAccelerators"):
        raise bad(f"[guestAccelerators, {name}] features are not compatible for creating instance.")
    threads = (body.get("advancedMachineFeatures") or {}).get("threadsPerCore")
    if kind.one_thread and threads != 1:
        field = "resource.advancedMachineFeatures.threadsPerCore"
        raise wrong(field, threads or 2, f"Machine type {name} supports 1 thread per core alone.")
    return name, kind


def _interface(body: dict[str, Any], project: Project, zone: str) -> dict[str, Any]:
    given = body.get("networkInterfaces") or []
    if len(given) != 1:
        raise wrong("resource.networkInterfaces", len(given), "Exactly one must be given.")
    one, at = dict(given[0]), "resource.networkInterfaces[0]"
    known, region = catalog()["networks"]["names"], region_of(zone)
    name = subnetwork = "default"
    if "network" in one:
        name = named(one["network"], f"{at}.network", project.id, "global", "networks")
        if name not in known:
            raise _no(f"{at}.network", one["network"], "network")
    if "subnetwork" in one:
        place = ("regions", region, "subnetworks")
        subnetwork = named(one["subnetwork"], f"{at}.subnetwork", project.id, *place)
        if subnetwork not in known:
            raise _no(f"{at}.subnetwork", one["subnetwork"], "subnetwork")
    parent = f"{LINK}projects/{project.id}"
    outside = [
        {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": "External NAT", **config}
        for config in one.get("accessConfigs", [])
    ]
    if len(outside) > 1:
        raise wrong(f"{at}.accessConfigs", len(outside), "At most one access config is possible.")
    if outside and "compute.vmExternalIpAccess" in project.knobs.constraints:
        instance = f"projects/{project.id}/zones/{zone}/instances/{body.get('name')}"
        raise Denied(
            412,
            "conditionNotMet",
            f"Constraint constraints/compute.vmExternalIpAccess violated for project"
            f" {project.number}. Add instance {instance} to the constraint to use external IP with"
            " it.",
        )
    return {
        **one,
        "kind": "compute#networkInterface",
        "name": "nic0",
        "network": f"{parent}/global/networks/{name}",
        "subnetwork": f"{parent}/regions/{region}/subnetworks/{subnetwork}",
        "accessConfigs": outside,
    }


def _accounts(body: dict[str, Any], call: Call) -> list[dict[str, Any]]:
    given, project = body.get("serviceAccounts", []), call.project
    if len(given) > 1:
        raise wrong("resource.serviceAccounts", len(given), "At most one can be given.")
    usual = f"{project.number}-compute@developer.gserviceaccount.com"
    found = []
    for one in given:
        email = usual if one.get("email") in {None, "", "default"} else one["email"]
        path = f"projects/{project.id}/serviceAccounts/{email}"
        if email != usual and email not in project.accounts:
            words = f"The resource '{path}' of type 'serviceAccount' was not found."
            raise Denied(404, "notFound", words)
        _check_user(project, email)
        _check_scopes(one.get("scopes", []))
        found.append({"email": email, "scopes": one.get("scopes", [])})
    return found


def _check_user(project: Project, email: str) -> None:
    if project.denies("iam.serviceAccounts.actAs"):
        raise Denied(
            400,
            "serviceAccountAccessDenied",
            f"The user does not have access to service account '{email}'.  User:"
            f" '{project.caller}'.  Ask a project owner to grant you the iam.serviceAccountUser"
            " role on the service account",
        )


def _check_scopes(scopes: list[str]) -> None:
    for number, scope in enumerate(scopes):
        if not _SCOPE.match(scope):
            field = f"resource.serviceAccounts[0].scopes[{number}]"
            raise wrong(field, scope, "The scope is not a valid one.")


def _check_tags(tags: list[str]) -> None:
    if len(tags) > _MOST_TAGS:
        raise wrong("resource.tags.items", len(tags), f"At most {_MOST_TAGS} tags are possible.")
    for number, tag in enumerate(tags):
        check_name(tag, f"resource.tags.items[{number}]")


def _with_fingerprint(held: dict[str, Any]) -> dict[str, Any]:
    return {**held, "fingerprint": fingerprint(held.get("items", []))}


def _no(field: str, link: str, kind: str) -> Denied:
    return wrong(field, link, f"The referenced {kind} resource cannot be found.")
