"""Instances: inserted, told, listed, deleted, stopped, reset."""

import time
from collections.abc import Sequence
from typing import Any, Final

from starlette.routing import BaseRoute

from emulators.google.compute import catalog, lives, paging
from emulators.google.compute.instance_rules import made
from emulators.google.compute.life import USUAL_WAIT_SECONDS, How
from emulators.google.compute.machine import (
    Resource,
    machine_of,
    notes_of,
    path_of,
    provisioning_of,
    told,
    zone_of,
)
from emulators.google.compute.operations import begin, finish, moment, new_id, same, shown
from emulators.google.compute.refusing import Denied, bad, not_found, not_ready
from emulators.google.compute.scheduling_rules import seconds
from emulators.google.compute.serving import LINK, Call, route
from emulators.google.state import World

INSTANCES: Final = "zones/{zone}/instances"
_NEEDED: Final = (
    "compute.disks.create",
    "compute.instances.setMetadata",
    "compute.instances.setTags",
    "compute.instances.setLabels",
    "compute.instances.setServiceAccount",
    "compute.subnetworks.use",
)
"""Of whoever inserts, beside compute.instances.create."""


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve compute.instances."""
    api, one = "compute.instances", f"{INSTANCES}/{{instance}}"
    return (
        route(world, "POST", INSTANCES, f"{api}.insert", _insert, f"{api}.create"),
        route(world, "GET", INSTANCES, f"{api}.list", _list),
        route(world, "GET", one, f"{api}.get", _get),
        route(world, "DELETE", one, f"{api}.delete", _delete),
        route(world, "POST", f"{one}/stop", f"{api}.stop", _stop),
        route(world, "POST", f"{one}/start", f"{api}.start", _start),
        route(world, "POST", f"{one}/reset", f"{api}.reset", _reset),
        route(
            world,
            "GET",
            "aggregated/instances",
            f"{api}.aggregatedList",
            _list_all,
            f"{api}.list",
        ),
    )


def found(call: Call) -> Resource:
    """Give the instance that a call is about.

    Raises:
        Denied: There is none.
    """
    path = path_of(call.project, call.params["zone"], call.params["instance"])
    if path not in call.project.vms:
        raise not_found(path)
    return call.project.vms[path]


async def _insert(call: Call) -> dict[str, Any]:
    again = same(call.project, call.query.get("requestId", ""))
    if again:
        return shown(again)
    project, vm = call.project, made(call)
    for permission in _NEEDED:
        call.need(permission)
    if vm["networkInterfaces"][0]["accessConfigs"]:
        call.need("compute.subnetworks.useExternalIp")
    path = path_of(project, zone_of(vm), vm["name"])
    if path in project.vms:
        raise Denied(409, "alreadyExists", f"The resource '{path}' already exists")
    vm |= {"id": new_id(), "creationTimestamp": moment(), "status": "PENDING"}
    operation = begin(project, "insert", path, vm["id"], request=call.query.get("requestId", ""))
    notes_of(vm).update(
        asked=time.time(), wait=_wait(call, vm), insert=operation["selfLink"].removeprefix(LINK)
    )
    project.vms[path] = vm
    lives.begin(call.world, project, vm)
    return shown(operation)


def _wait(call: Call, vm: Resource) -> int:
    """Give the simulated seconds that it may wait for its chips."""
    asked = seconds((call.body.get("params") or {}).get("requestValidForDuration"))
    return asked if provisioning_of(vm) == "flex-start" and asked else USUAL_WAIT_SECONDS


async def _get(call: Call) -> dict[str, Any]:
    return told(call.world, call.project, found(call))


async def _list(call: Call) -> dict[str, Any]:
    rows = [one for one in _told(call) if one["zone"].endswith(f"/{call.params['zone']}")]
    return paging.listed(call, rows, "compute#instanceList")


async def _list_all(call: Call) -> dict[str, Any]:
    return catalog.aggregated(call, _told(call), "instances", "compute#instanceAggregatedList")


def _told(call: Call) -> list[Resource]:
    return [told(call.world, call.project, one) for one in call.project.vms.values()]


async def _delete(call: Call) -> dict[str, Any]:
    return _ended(call, "delete")


async def _stop(call: Call) -> dict[str, Any]:
    if found(call)["status"] not in {"RUNNING", "TERMINATED"}:
        raise _busy(call)
    return _ended(call, "stop")


def _ended(call: Call, how: How) -> dict[str, Any]:
    """Begin an instance's end; asked again with the same requestId it is the same."""
    request = call.query.get("requestId", "")
    again = same(call.project, request)
    if again:
        return shown(again)
    vm = found(call)
    life = lives.life_of(call.world, call.project, zone_of(vm), vm["name"])
    if life and life.ending:
        raise _busy(call)
    if how == "delete" and vm["deletionProtection"]:
        words = "'Resource cannot be deleted if it's protected against deletion.'."
        raise Denied(400, "invalidResourceUsage", f"Invalid resource usage: {words}")
    path = path_of(call.project, zone_of(vm), vm["name"])
    operation = begin(call.project, how, path, vm["id"], request=request)
    if life is None and how == "stop":
        return shown(finish(operation))
    life = life or lives.begin(call.world, call.project, vm)
    life.end(how, operation)
    return shown(operation)


async def _start(call: Call) -> dict[str, Any]:
    """Refuse: what has TPUs cannot be restarted; what has none is known for its listing alone."""
    vm = found(call)
    if vm["status"] != "TERMINATED":
        raise _busy(call)
    kind = "TPU" if machine_of(vm).chips else "simulated"
    raise bad(f"Instance '{vm['name']}' cannot be started: {kind} instances cannot be restarted.")


async def _reset(call: Call) -> dict[str, Any]:
    vm = found(call)
    life = lives.life_of(call.world, call.project, zone_of(vm), vm["name"])
    if vm["status"] != "RUNNING" or life is None or life.ending:
        raise _busy(call)
    path = path_of(call.project, zone_of(vm), vm["name"])
    operation = begin(call.project, "reset", path, vm["id"])
    await life.boot_again()
    return shown(finish(operation))


def _busy(call: Call) -> Denied:
    return not_ready(path_of(call.project, call.params["zone"], call.params["instance"]))
