"""What an instance says of itself, serial port and guest attributes; and its labels, metadata."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.routing import BaseRoute

from emulators.google.compute import shapes
from emulators.google.compute.instances import INSTANCES, found
from emulators.google.compute.label_rules import (
    check_labels,
    check_metadata,
    fingerprint,
    stale,
)
from emulators.google.compute.machine import Resource, path_of, zone_of
from emulators.google.compute.operations import begin, finish, shown
from emulators.google.compute.refusing import Denied, not_ready, wrong
from emulators.google.compute.serving import LINK, Call, route
from emulators.google.state import World
from emulators.google.tpu.vm import vm_of

_PORTS: Final = ("1", "2", "3", "4")


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve what is read of an instance, and what is written to it."""
    api, one = "compute.instances", f"{INSTANCES}/{{instance}}"
    return (
        route(world, "GET", f"{one}/serialPort", f"{api}.getSerialPortOutput", _serial),
        route(world, "GET", f"{one}/getGuestAttributes", f"{api}.getGuestAttributes", _attributes),
        route(world, "POST", f"{one}/setLabels", f"{api}.setLabels", _set_labels),
        route(world, "POST", f"{one}/setMetadata", f"{api}.setMetadata", _set_metadata),
    )


async def _serial(call: Call) -> dict[str, Any]:
    """Tell what port 1 has shown from a byte on; the others show nothing."""
    vm, port = found(call), call.query.get("port", "1")
    if port not in _PORTS:
        raise wrong("port", port, "Must be between 1 and 4.")
    if vm["status"] in {"PENDING", "PROVISIONING", "TERMINATED"}:
        raise not_ready(path_of(call.project, zone_of(vm), vm["name"]))
    asked = call.query.get("start", "0")
    if not asked.removeprefix("-").isdecimal():
        raise wrong("start", asked, "Must be a number.")
    running = vm_of(call.world, call.project, "compute", zone_of(vm), vm["name"])
    shows = running if port == "1" else None
    said = shows.serial.encode() if shows else b""
    lost = shows.serial_dropped if shows else 0
    end = lost + len(said)
    start = int(asked) if int(asked) >= 0 else end + int(asked)
    start = min(max(start, lost), end)
    return {
        "kind": "compute#serialPortOutput",
        "contents": said[start - lost :].decode(errors="replace"),
        "start": str(start),
        "next": str(end),
        "selfLink": f"{vm['selfLink']}/serialPort",
    }


async def _attributes(call: Call) -> dict[str, Any]:
    """Tell that there are none: the startup script writes none."""
    found(call)
    asked = call.query.get("queryPath") or call.query.get("variableKey") or ""
    words = f"The resource '{asked}' of type 'Guest Attribute' was not found."
    raise Denied(404, "notFound", words)


async def _set_labels(call: Call) -> dict[str, Any]:
    vm, body = found(call), shapes.read("InstancesSetLabelsRequest", call.body)
    if body.get("labelFingerprint") != vm["labelFingerprint"]:
        raise stale("labels fingerprint")
    labels = body.get("labels", {})
    check_labels(labels)
    vm.update(labels=labels, labelFingerprint=fingerprint(labels))
    return _done(call, vm, "setLabels")


async def _set_metadata(call: Call) -> dict[str, Any]:
    vm, body = found(call), shapes.read("Metadata", call.body)
    if body.get("fingerprint") != vm["metadata"]["fingerprint"]:
        raise stale("metadata fingerprint")
    items = body.get("items", [])
    check_metadata(items)
    vm["metadata"] = {
        "kind": "compute#metadata",
        "items": items,
        "fingerprint": fingerprint(items),
    }
    return _done(call, vm, "setMetadata")


def _done(call: Call, vm: Resource, kind: str) -> dict[str, Any]:
    path = str(vm["selfLink"]).removeprefix(LINK)
    return shown(finish(begin(call.project, kind, path, vm["id"])))
