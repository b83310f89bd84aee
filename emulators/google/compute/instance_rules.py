"""What a new instance may be, and what follows from its request."""

import re
from typing import Any, Final

from emulators.google.compute import disk_rules, scheduling_rules, shapes
from emulators.google.compute.catalog import MachineType, catalog, machine_types
from emulators.google.compute.label_rules import check_labels, check_metadata, fingerprint
from emulators.google.compute.references import named
from emulators.google.compute.refusing import Denied, bad, wrong
from emulators.google.compute.serving import LINK, Call
from emulators.google.compute.zones import region_of
from emulators.google.state import Project

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
    body = shapes.read("Instance", call.body)
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
        "scheduling": scheduling_rules.scheduled(body, kind),
        "disks": disk_rules.disks(body, project.id, zone, machine, kind),
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
