"""Firewall rules of a project's networks."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Any, Final

import anyio
from starlette.routing import BaseRoute

from emulators.google.compute import paging, shapes
from emulators.google.compute.catalog import catalog
from emulators.google.compute.instance_rules import check_name
from emulators.google.compute.operations import (
    Operation,
    begin,
    finish,
    moment,
    new_id,
    same,
    shown,
)
from emulators.google.compute.references import named
from emulators.google.compute.refusing import Denied, bad, not_found, wrong
from emulators.google.compute.serving import LINK, Call, route
from emulators.google.state import World

_UNDER: Final = "global/firewalls"
_LASTING_SECONDS: Final = 0.1
"""Of a change, in real time."""
_USUAL_PRIORITY: Final = 1000
_EVERYWHERE: Final = ["0.0.0.0/0"]
_PROTOCOLS: Final = ("all", "tcp", "udp", "icmp", "esp", "ah", "ipip", "sctp")
_PORTS: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_ALLOWS: Final = "compute.networks.updatePolicy"
_FIXED: Final = ("id", "creationTimestamp", "selfLink", "kind", "name", "network", "direction")
"""What no change alters."""


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve compute.firewalls."""
    api, one = "compute.firewalls", f"{_UNDER}/{{firewall}}"
    return (
        route(world, "POST", _UNDER, f"{api}.insert", _insert, f"{api}.create"),
        route(world, "GET", _UNDER, f"{api}.list", _list),
        route(world, "GET", one, f"{api}.get", _get),
        route(world, "PATCH", one, f"{api}.patch", _patch, f"{api}.update"),
        route(world, "PUT", one, f"{api}.update", _put),
        route(world, "DELETE", one, f"{api}.delete", _delete),
    )


def resume(world: World) -> None:
    """Finish what an earlier process began: changes are made at once."""
    for project in world:
        for path, operation in project.compute_operations.items():
            if "/global/operations/" in path and operation["status"] != "DONE":
                finish(operation)


async def _insert(call: Call) -> dict[str, Any]:
    again = same(call.project, call.query.get("requestId", ""))
    if again:
        return shown(again)
    call.need(_ALLOWS)
    body = shapes.read("Firewall", call.body)
    name = check_name(body.get("name"))
    rule = _checked(call, body)
    if name in call.project.firewalls:
        raise Denied(409, "alreadyExists", f"The resource '{_path(call, name)}' already exists")
    rule |= {
        "kind": "compute#firewall",
        "id": new_id(),
        "creationTimestamp": moment(),
        "selfLink": LINK + _path(call, name),
    }
    call.project.firewalls[name] = rule
    return _begun(call, "insert", rule)


async def _get(call: Call) -> dict[str, Any]:
    return _found(call)


async def _list(call: Call) -> dict[str, Any]:
    return paging.listed(call, list(call.project.firewalls.values()), "compute#firewallList")


async def _patch(call: Call) -> dict[str, Any]:
    kept = _found(call)
    return _changed(call, {**kept, **shapes.read("Firewall", call.body)})


async def _put(call: Call) -> dict[str, Any]:
    kept = _found(call)
    body = shapes.read("Firewall", call.body)
    if not body.get("allowed") and not body.get("denied"):
        raise bad("Exactly one of allowed or denied must be specified.")
    return _changed(call, {**{key: kept[key] for key in _FIXED}, **body})


def _changed(call: Call, wanted: dict[str, Any]) -> dict[str, Any]:
    call.need(_ALLOWS)
    kept = _found(call)
    rule = _checked(call, wanted)
    for key in ("name", "network", "direction"):
        if rule[key] != kept[key]:
            raise wrong(f"resource.{key}", rule[key], "It cannot be changed.")
    call.project.firewalls[kept["name"]] = {**rule, **{key: kept[key] for key in _FIXED}}
    return _begun(call, "patch", kept)


async def _delete(call: Call) -> dict[str, Any]:
    call.need(_ALLOWS)
    kept = _found(call)
    del call.project.firewalls[kept["name"]]
    return _begun(call, "delete", kept)


def _begun(call: Call, kind: str, rule: dict[str, Any]) -> dict[str, Any]:
    path, request = _path(call, rule["name"]), call.query.get("requestId", "")
    operation = begin(call.project, kind, path, rule["id"], request=request)
    call.world.tasks.start_soon(_finish, call, operation)
    return shown(operation)


async def _finish(call: Call, operation: Operation) -> None:
    await anyio.sleep(_LASTING_SECONDS)
    finish(operation)
    call.world.keep(call.project)


def _found(call: Call) -> dict[str, Any]:
    name = call.params["firewall"]
    if name not in call.project.firewalls:
        raise not_found(_path(call, name))
    return call.project.firewalls[name]


def _path(call: Call, name: str) -> str:
    return f"projects/{call.project.id}/{_UNDER}/{name}"


def _checked(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """Give a rule with everything that follows from it.

    Raises:
        Denied: Something of it cannot be.
    """
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise bad("Exactly one of allowed or denied must be specified.")
    _check_parts(body)
    rule = {
        "priority": _USUAL_PRIORITY,
        "direction": "INGRESS",
        "disabled": False,
        **body,
        "network": _network(call, body.get("network", "global/networks/default")),
    }
    sources = ("sourceRanges", "sourceTags", "sourceServiceAccounts")
    if rule["direction"] == "INGRESS" and not any(rule.get(one) for one in sources):
        rule["sourceRanges"] = _EVERYWHERE
    return rule


def _check_parts(body: dict[str, Any]) -> None:
    for kind in ("allowed", "denied"):
        for number, one in enumerate(body.get(kind, [])):
            _check_protocol(one, f"resource.{kind}[{number}]")
    for kind in ("sourceRanges", "destinationRanges"):
        for number, one in enumerate(body.get(kind, [])):
            _check_range(one, f"resource.{kind}[{number}]")
    for kind in ("sourceTags", "targetTags"):
        for number, tag in enumerate(body.get(kind, [])):
            check_name(tag, f"resource.{kind}[{number}]")
    if not 0 <= body.get("priority", _USUAL_PRIORITY) <= 65_535:
        raise wrong("resource.priority", body["priority"], "Must be between 0 and 65535.")


def _network(call: Call, link: str) -> str:
    project = call.project.id
    name = named(link, "resource.network", project, "global", "networks")
    if name not in catalog()["networks"]["names"]:
        words = "The referenced network resource cannot be found."
        raise wrong("resource.network", link, words)
    return f"{LINK}projects/{project}/global/networks/{name}"


def _check_protocol(one: dict[str, Any], at: str) -> None:
    protocol = str(one.get("IPProtocol", "")).lower()
    if protocol not in _PROTOCOLS and not (protocol.isdecimal() and int(protocol) < 256):
        raise wrong(f"{at}.IPProtocol", protocol, "Must be a protocol.")
    for number, said in enumerate(one.get("ports", [])):
        ports = _PORTS.fullmatch(said)
        if not ports or not int(ports[1]) <= int(ports[2] or ports[1]) <= 65_535:
            raise wrong(f"{at}.ports[{number}]", said, "Must be a port or a range of ports.")


def _check_range(said: str, at: str) -> None:
    try:
        ipaddress.ip_network(said)
    except ValueError as exc:
        raise wrong(at, said, "Must be a valid CIDR address range.") from exc
