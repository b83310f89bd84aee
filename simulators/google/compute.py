"""Compute Engine: instances of TPU machine types with their lives, and firewall rules."""

import ipaddress
import re
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

import anyio
from starlette.routing import BaseRoute

from simulators.google import compute_rules, compute_serving, tpu_zones
from simulators.google import vm as vms
from simulators.google.compute_rules import (
    MachineType,
    catalog,
    check_labels,
    check_metadata,
    check_name,
    fingerprint,
    made,
    seconds,
    stale,
)
from simulators.google.compute_serving import (
    LINK,
    Call,
    Denied,
    Operation,
    bad,
    finish,
    moment,
    named,
    new_id,
    not_found,
    not_ready,
    region_of,
    route,
    same,
    shown,
    wrong,
)
from simulators.google.compute_serving import begin as compute_serving_begin
from simulators.google.state import Project, Tpu, World
from simulators.google.tpu_zones import ZONES, limit_of, pool_of
from simulators.google.vm import vm_of
from simulators.google.vm_script import VmSpec


class Failure(NamedTuple):
    """An operation's error."""

    status: int
    """Of HTTP."""
    code: str
    message: str
    details: dict[str, Any]


Resource = dict[str, Any]


def stock_out(project: Project, vm: Resource) -> Failure:
    """Say that there are no chips left."""
    zone, machine = zone_of(vm), vm["machineType"].rpartition("/")[2]
    full = f"projects/{project.id}/zones/{zone}"
    words = (
        f"The zone '{full}' does not have enough resources available to fulfill the request."
        f"  '(resource type:compute)'. A {machine} VM instance is currently unavailable in the"
        f" {zone} zone (state:STOCKOUT, sub-state:STOCKOUT)."
    )
    others = ",".join(one for one in sorted(project.knobs.tpu_zones or ZONES) if one != zone)
    info = {
        "reason": "stockout",
        "domain": "compute.googleapis.com",
        "metadatas": {"vmType": machine, "zone": zone, "attachment": "", "zonesAvailable": others},
    }
    code = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    return Failure(503, code, words, {"errorInfo": info})


def quota_exceeded(project: Project, vm: Resource) -> Failure:
    """Say that the project may not have so many."""
    zone, pool = zone_of(vm), pool_of("compute", provisioning_of(vm))
    metric = "PREEMPTIBLE_TPU_V6E" if pool.endswith("preemptible") else "TPUS_PER_TPU_FAMILY"
    limit, region = float(limit_of(project, pool, zone)), region_of(zone)
    family = {} if pool.endswith("preemptible") else {"tpu_family": "CT6E"}
    quota = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{metric.replace('_', '-')}-per-project-region",
        "dimensions": {"region": region, **family},
        "limit": limit,
    }
    words = f"Quota '{metric}' exceeded.  Limit: {limit} in region {region}."
    return Failure(403, "QUOTA_EXCEEDED", words, {"quotaInfo": quota})


def not_accepted(vm: Resource) -> Failure:
    """Say that the zone does not take the provisioning model."""
    model = vm["scheduling"]["provisioningModel"]
    machine = vm["machineType"].rpartition("/")[2]
    words = (
        f'{model} provisioning model is not supported for machine type "{machine}" in location'
        f' "{zone_of(vm)}"'
    )
    return Failure(400, "UNSUPPORTED_OPERATION", words, {})


def preempted_early(vm: Resource) -> Failure:
    """Say that it was taken back before it ran."""
    words = f"Instance '{vm['name']}' creation failed: it was preempted while it was created."
    return Failure(400, "UNSUPPORTED_OPERATION", words, {})


def deleted_early(vm: Resource) -> Failure:
    """Say that it was deleted before it ran; Google's own words are not known."""
    words = f"Instance '{vm['name']}' was deleted before it was running."
    return Failure(409, "RESOURCE_NOT_READY", words, {})


_NOTES: Final = "_notes"
_PROVISIONING: Final = {"STANDARD": "on-demand", "SPOT": "spot", "FLEX_START": "flex-start"}


def path_of(project: Project, zone: str, name: str) -> str:
    """Give where an instance is kept in `Project.vms`."""
    return f"projects/{project.id}/zones/{zone}/instances/{name}"


def zone_of(vm: Resource) -> str:
    """Give an instance's zone."""
    return str(vm["zone"]).rpartition("/")[2]


def machine_of(vm: Resource) -> MachineType:
    """Give what kind of machine it is."""
    name = str(vm["machineType"]).rpartition("/")[2]
    return MachineType(**catalog()["machine_types"][name])


def provisioning_of(vm: Resource) -> str:
    """Give on-demand, spot or flex-start."""
    return _PROVISIONING[vm["scheduling"]["provisioningModel"]]


def notes_of(vm: Resource) -> dict[str, Any]:
    """Give what the simulation notes: `asked`, `wait` and, later, `given`, `ran`, `ending`."""
    notes: dict[str, Any] = vm.setdefault(_NOTES, {})
    return notes


def spec_of(vm: Resource) -> VmSpec:
    """Give what its VM is made with."""
    interface, kind = vm["networkInterfaces"][0], machine_of(vm)
    account: Resource = next(iter(vm["serviceAccounts"]), {"email": "", "scopes": []})
    return VmSpec(
        plane="compute",
        zone=zone_of(vm),
        id=vm["name"],
        accelerator=f"v6e-{kind.chips}",
        metadata={one["key"]: one.get("value", "") for one in vm["metadata"].get("items", [])},
        labels=dict(vm["labels"]),
        tags=tuple(vm["tags"].get("items", [])),
        network=interface["network"].rpartition("/")[2],
        service_account=account["email"],
        scopes=tuple(account["scopes"]),
        external=bool(interface["accessConfigs"]),
        disk_gb=int(vm["disks"][0]["diskSizeGb"]),
        has_docker=False,
    )


def ends_at(project: Project, vm: Resource) -> float | None:
    """Say when its run time is over, in real seconds since 1970; None if nothing limits it."""
    ran, limit = notes_of(vm).get("ran"), seconds(vm["scheduling"].get("maxRunDuration"))
    return ran + limit / project.knobs.tpu_run_clock if ran and limit else None


def told(world: World, project: Project, vm: Resource) -> Resource:
    """Give an instance as Compute Engine tells it now, with its addresses."""
    running = vm_of(world, project, "compute", zone_of(vm), vm["name"])
    interface = dict(vm["networkInterfaces"][0])
    if running:
        interface["networkIP"] = running.internal_ip
        if running.external_ip:
            interface["accessConfigs"] = [
                {**one, "natIP": running.external_ip} for one in interface["accessConfigs"]
            ]
    ends = ends_at(project, vm)
    scheduling = {"terminationTimestamp": moment(ends)} if ends else {}
    return {
        **shown(vm),
        "networkInterfaces": [interface],
        "resourceStatus": {"scheduling": scheduling},
    }


How = Literal["delete", "stop", "expired", "preempted"]

USUAL_WAIT_SECONDS: Final = 30
"""Simulated: how long it stays PENDING before a stock-out where no wait is asked for."""
_STAGING: Final = 0.7
"""Which part of its making it is PROVISIONING; STAGING is the rest."""
_MOMENT_SECONDS: Final = 0.05
_POLITE_SECONDS: Final = 10.0
"""For a VM to end by itself."""


class Life:
    """What goes on with one instance; there is one for each that is not TERMINATED."""

    def __init__(self, world: World, project: Project, vm: Resource) -> None:
        self.vm = vm
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()
        """It is deleted, or TERMINATED."""
        self._told = anyio.Event()
        self._world = world
        self._project = project
        self._path = path_of(project, zone_of(vm), vm["name"])
        self._notes = notes_of(vm)

    async def live(self) -> None:
        """Go on from its status to its end."""
        with self.scope:
            if not self.ending and await self._starts():
                await self._runs()
            if self.ending:
                await self._ends()
        self.over.set()

    @property
    def ending(self) -> How | None:
        """By what it is ended just now."""
        how: How | None = self._notes.get("ending")
        return how

    def end(self, how: How, operation: Operation) -> None:
        """Let it end; the operation is done when it has."""
        self._notes.update(ending=how, told=time.time(), operation=_path_life(operation))
        self._told.set()

    async def boot_again(self) -> None:
        """End the VM and start it anew, as a reset does."""
        await self._end_vm(at_once=True)
        self._boot()

    async def _starts(self) -> bool:
        """Come to RUNNING; false if it does not."""
        if self.vm["status"] == "PENDING":
            await self._rest(_MOMENT_SECONDS)
            failure = await self._wait_for_chips()
            if failure:
                self._vanish(failure)
            if failure or self.ending:
                return False
            self._notes["given"] = time.time()
            self._say("PROVISIONING")
        making = self._project.knobs.tpu_provision_seconds
        await self._until(self._notes["given"], making * _STAGING)
        if not self.ending and self.vm["status"] == "PROVISIONING":
            self._say("STAGING")
        await self._until(self._notes["given"], making)
        return not self.ending

    async def _wait_for_chips(self) -> Failure | None:
        """Give why it gets none; None if it does, or is ended before."""
        if not machine_of(self.vm).chips:
            return None
        told = tpu_zones.capacity_zone(self._project, zone_of(self.vm))
        if told is None or provisioning_of(self.vm) not in told.accepts:
            return not_accepted(self.vm)
        while not self.ending:
            row = self._row() or self._ask()
            if row is None and provisioning_of(self.vm) != "flex-start":
                return quota_exceeded(self._project, self.vm)
            if row and tpu_zones.take(self._project, row):
                return None
            if self._left(self._notes["asked"], self._notes["wait"]) <= 0:
                return stock_out(self._project, self.vm)
            await self._rest(_MOMENT_SECONDS)
        return None

    def _row(self) -> Tpu | None:
        return self._project.tpus.get(f"compute/{zone_of(self.vm)}/{self.vm['name']}")

    def _ask(self) -> Tpu | None:
        """Be counted against a quota; flex-start uses the standard one where the other is used up.

        Source: Google's page on provisioning models, quoted in a public report of 2026-08.
        """
        zone, chips, model = zone_of(self.vm), machine_of(self.vm).chips, provisioning_of(self.vm)
        pools = (model, "on-demand") if model == "flex-start" else (model,)
        for pool in pools:
            if not tpu_zones.exceeded(self._project, "compute", pool, zone, chips):
                accelerator = f"v6e-{chips}"
                name = self.vm["name"]
                return tpu_zones.asked(self._project, "compute", zone, name, accelerator, pool)
        return None

    async def _runs(self) -> None:
        """Be RUNNING until somebody, or its run time, ends it."""
        self._boot()
        if self.vm["status"] != "RUNNING":
            self._notes["ran"] = time.time()
            self.vm["lastStartTimestamp"] = compute_serving.moment()
            compute_serving.finish(self._operation("insert"))
            self._say("RUNNING")
        while not self.ending:
            ends = ends_at(self._project, self.vm)
            if ends and ends <= time.time():
                self._expire()
            else:
                await self._rest(min(ends - time.time(), 0.2) if ends else 1.0)

    def _boot(self) -> None:
        if machine_of(self.vm).chips:
            vms.start(self._world, self._project, spec_of(self.vm))

    def _expire(self) -> None:
        action = "Delete" if self._is_deleted("expired") else "Stop"
        self.end("expired", self.by_itself(f"compute.instances.deferred{action}"))

    def by_itself(self, kind: str) -> Operation:
        """Begin what Compute Engine does unasked, such as compute.instances.preempted."""
        target_id, user = self.vm["id"], compute_serving.SYSTEM
        return compute_serving.begin(self._project, kind, self._path, target_id, user=user)

    async def _ends(self) -> None:
        self._say("STOPPING")
        with anyio.move_on_after(_POLITE_SECONDS) as patience:
            await self._end_vm(at_once=False)
        if patience.cancelled_caught:
            await self._end_vm(at_once=True)
        await self._until(self._notes["told"], self._project.knobs.tpu_delete_seconds, deaf=True)
        inserted = self._operation("insert")
        if inserted.get("status") == "RUNNING":
            early = self.ending == "preempted"
            why = preempted_early if early else deleted_early
            self._fail(inserted, why(self.vm))
        compute_serving.finish(self._operation("operation"))
        self._let_go()
        if self._is_deleted(self.ending or "delete"):
            self._project.vms.pop(self._path, None)
        else:
            self._terminate()
        self._world.keep(self._project)

    def _is_deleted(self, how: How) -> bool:
        action = self.vm["scheduling"].get("instanceTerminationAction")
        return how == "delete" or (how != "stop" and action == "DELETE")

    def _terminate(self) -> None:
        """Be stopped: what limited its run time is no more said."""
        for name in ("maxRunDuration", "terminationTime"):
            self.vm["scheduling"].pop(name, None)
        for name in ("ending", "told", "operation", "ran"):
            self._notes.pop(name, None)
        self.vm["lastStopTimestamp"] = compute_serving.moment()
        self.vm["status"] = "TERMINATED"

    async def _end_vm(self, *, at_once: bool) -> None:
        running = vms.vm_of(
            self._world, self._project, "compute", zone_of(self.vm), self.vm["name"]
        )
        if running is None:
            return
        running.end(at_once=at_once)
        await running.ended.wait()
        self._world.live.pop(f"{self._project.id}/{running.spec.key}", None)

    def _vanish(self, failure: Failure) -> None:
        """Be gone, as what was never given."""
        self._fail(self._operation("insert"), failure)
        self._let_go()
        self._project.vms.pop(self._path, None)
        self._world.keep(self._project)

    def _fail(self, operation: Operation, failure: Failure) -> None:
        status, code, message, details = failure
        compute_serving.fail(operation, status, code, message, **details)

    def _let_go(self) -> None:
        row = self._row()
        if row:
            tpu_zones.gone(self._project, row)

    def _operation(self, note: str) -> Operation:
        return self._project.compute_operations.get(self._notes[note], {})

    def _say(self, status: str) -> None:
        self.vm["status"] = status
        self._world.keep(self._project)

    def _left(self, begin: float, simulated: float) -> float:
        return begin + simulated / self._project.knobs.tpu_clock - time.time()

    async def _until(self, begin: float, simulated: float, *, deaf: bool = False) -> None:
        """Wait so many simulated seconds after a time, or until it is told to end."""
        while (left := self._left(begin, simulated)) > 0 and (deaf or not self.ending):
            await (anyio.sleep(min(left, 0.2)) if deaf else self._rest(min(left, 0.2)))

    async def _rest(self, seconds: float) -> None:
        with anyio.move_on_after(max(seconds, 0.001)):
            await self._told.wait()


def _path_life(operation: Operation) -> str:
    return str(operation["selfLink"]).removeprefix(LINK)


def begin(world: World, project: Project, vm: Resource) -> Life:
    """Let an instance live in the background."""
    life = Life(world, project, vm)
    world.live[_key(project, zone_of(vm), vm["name"])] = life
    world.tasks.start_soon(life.live)
    return life


def life_of(world: World, project: Project, zone: str, name: str) -> Life | None:
    """Give what goes on with an instance; None if it is TERMINATED, or not there."""
    found: Life | None = world.live.get(_key(project, zone, name))
    return found if found and not found.over.is_set() else None


def lives_resume(world: World) -> None:
    """Go on where an earlier process left off."""
    for project in world:
        for vm in project.vms.values():
            if vm["status"] != "TERMINATED":
                begin(world, project, vm)
        for operation in project.compute_operations.values():
            if operation["operationType"] in {"setLabels", "setMetadata", "reset"}:
                finish(operation)


async def forget(world: World, project: Project) -> None:
    """End every instance of a project at once, and its VM with it."""
    for vm in tuple(project.vms.values()):
        zone, name = zone_of(vm), vm["name"]
        life = world.live.pop(_key(project, zone, name), None)
        if life:
            life.scope.cancel()
        running = vm_of(world, project, "compute", zone, name)
        if running:
            running.end(at_once=True)
            await running.ended.wait()
            world.live.pop(f"{project.id}/{running.spec.key}", None)
    project.vms.clear()


def preempt(world: World, project: Project, zone: str, name: str) -> bool:
    """Take an instance back that is SPOT and has its chips; false if there is none such."""
    life = life_of(world, project, zone, name)
    if life is None or life.ending:
        return False
    spot = life.vm["scheduling"]["provisioningModel"] == "SPOT"
    if not spot or "given" not in notes_of(life.vm):
        return False
    operation = life.by_itself("compute.instances.preempted")
    operation["statusMessage"] = "Instance was preempted."
    life.end("preempted", operation)
    return True


def _key(project: Project, zone: str, name: str) -> str:
    return f"{project.id}/compute-life/{zone}/{name}"


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


def instance_routes(world: World) -> Sequence[BaseRoute]:
    """Serve compute.instances."""
    api, one = "compute.instances", f"{INSTANCES}/{{instance}}"
    return (
        route(world, "POST", INSTANCES, f"{api}.insert", _insert_instance, f"{api}.create"),
        route(world, "GET", INSTANCES, f"{api}.list", _list_instance),
        route(world, "GET", one, f"{api}.get", _get_instance),
        route(world, "DELETE", one, f"{api}.delete", _delete_instance),
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


async def _insert_instance(call: Call) -> dict[str, Any]:
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
    operation = compute_serving_begin(
        project, "insert", path, vm["id"], request=call.query.get("requestId", "")
    )
    notes_of(vm).update(
        asked=time.time(), wait=_wait(call, vm), insert=operation["selfLink"].removeprefix(LINK)
    )
    project.vms[path] = vm
    begin(call.world, project, vm)
    return shown(operation)


def _wait(call: Call, vm: Resource) -> int:
    """Give the simulated seconds that it may wait for its chips."""
    asked = seconds((call.body.get("params") or {}).get("requestValidForDuration"))
    return asked if provisioning_of(vm) == "flex-start" and asked else USUAL_WAIT_SECONDS


async def _get_instance(call: Call) -> dict[str, Any]:
    return told(call.world, call.project, found(call))


async def _list_instance(call: Call) -> dict[str, Any]:
    rows = [one for one in _told(call) if one["zone"].endswith(f"/{call.params['zone']}")]
    return compute_serving.listed(call, rows, "compute#instanceList")


async def _list_all(call: Call) -> dict[str, Any]:
    return compute_rules.aggregated(
        call, _told(call), "instances", "compute#instanceAggregatedList"
    )


def _told(call: Call) -> list[Resource]:
    return [told(call.world, call.project, one) for one in call.project.vms.values()]


async def _delete_instance(call: Call) -> dict[str, Any]:
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
    life = life_of(call.world, call.project, zone_of(vm), vm["name"])
    if life and life.ending:
        raise _busy(call)
    if how == "delete" and vm["deletionProtection"]:
        words = "'Resource cannot be deleted if it's protected against deletion.'."
        raise Denied(400, "invalidResourceUsage", f"Invalid resource usage: {words}")
    path = path_of(call.project, zone_of(vm), vm["name"])
    operation = compute_serving_begin(call.project, how, path, vm["id"], request=request)
    if life is None and how == "stop":
        return shown(finish(operation))
    life = life or begin(call.world, call.project, vm)
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
    life = life_of(call.world, call.project, zone_of(vm), vm["name"])
    if vm["status"] != "RUNNING" or life is None or life.ending:
        raise _busy(call)
    path = path_of(call.project, zone_of(vm), vm["name"])
    operation = compute_serving_begin(call.project, "reset", path, vm["id"])
    await life.boot_again()
    return shown(finish(operation))


def _busy(call: Call) -> Denied:
    return not_ready(path_of(call.project, call.params["zone"], call.params["instance"]))


_READING_PORTS: Final = ("1", "2", "3", "4")


def reading_routes(world: World) -> Sequence[BaseRoute]:
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
    if port not in _READING_PORTS:
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
    vm, body = found(call), compute_serving.read("InstancesSetLabelsRequest", call.body)
    if body.get("labelFingerprint") != vm["labelFingerprint"]:
        raise stale("labels fingerprint")
    labels = body.get("labels", {})
    check_labels(labels)
    vm.update(labels=labels, labelFingerprint=fingerprint(labels))
    return _done(call, vm, "setLabels")


async def _set_metadata(call: Call) -> dict[str, Any]:
    vm, body = found(call), compute_serving.read("Metadata", call.body)
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
    return shown(finish(compute_serving_begin(call.project, kind, path, vm["id"])))


_UNDER: Final = "global/firewalls"
_LASTING_SECONDS: Final = 0.1
"""Of a change, in real time."""
_USUAL_PRIORITY: Final = 1000
_EVERYWHERE: Final = ["0.0.0.0/0"]
_PROTOCOLS: Final = ("all", "tcp", "udp", "icmp", "esp", "ah", "ipip", "sctp")
_FIREWALL_PORTS: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_ALLOWS: Final = "compute.networks.updatePolicy"
_FIXED: Final = ("id", "creationTimestamp", "selfLink", "kind", "name", "network", "direction")
"""What no change alters."""


def firewall_routes(world: World) -> Sequence[BaseRoute]:
    """Serve compute.firewalls."""
    api, one = "compute.firewalls", f"{_UNDER}/{{firewall}}"
    return (
        route(world, "POST", _UNDER, f"{api}.insert", _insert_firewall, f"{api}.create"),
        route(world, "GET", _UNDER, f"{api}.list", _list_firewall),
        route(world, "GET", one, f"{api}.get", _get_firewall),
        route(world, "PATCH", one, f"{api}.patch", _patch, f"{api}.update"),
        route(world, "PUT", one, f"{api}.update", _put),
        route(world, "DELETE", one, f"{api}.delete", _delete_firewall),
    )


def firewall_resume(world: World) -> None:
    """Finish what an earlier process began: changes are made at once."""
    for project in world:
        for path, operation in project.compute_operations.items():
            if "/global/operations/" in path and operation["status"] != "DONE":
                finish(operation)


async def _insert_firewall(call: Call) -> dict[str, Any]:
    again = same(call.project, call.query.get("requestId", ""))
    if again:
        return shown(again)
    call.need(_ALLOWS)
    body = compute_serving.read("Firewall", call.body)
    name = check_name(body.get("name"))
    rule = _checked(call, body)
    if name in call.project.firewalls:
        raise Denied(
            409, "alreadyExists", f"The resource '{_path_firewall(call, name)}' already exists"
        )
    rule |= {
        "kind": "compute#firewall",
        "id": new_id(),
        "creationTimestamp": moment(),
        "selfLink": LINK + _path_firewall(call, name),
    }
    call.project.firewalls[name] = rule
    return _begun(call, "insert", rule)


async def _get_firewall(call: Call) -> dict[str, Any]:
    return _found(call)


async def _list_firewall(call: Call) -> dict[str, Any]:
    return compute_serving.listed(
        call, list(call.project.firewalls.values()), "compute#firewallList"
    )


async def _patch(call: Call) -> dict[str, Any]:
    kept = _found(call)
    return _changed(call, {**kept, **compute_serving.read("Firewall", call.body)})


async def _put(call: Call) -> dict[str, Any]:
    kept = _found(call)
    body = compute_serving.read("Firewall", call.body)
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


async def _delete_firewall(call: Call) -> dict[str, Any]:
    call.need(_ALLOWS)
    kept = _found(call)
    del call.project.firewalls[kept["name"]]
    return _begun(call, "delete", kept)


def _begun(call: Call, kind: str, rule: dict[str, Any]) -> dict[str, Any]:
    path, request = _path_firewall(call, rule["name"]), call.query.get("requestId", "")
    operation = compute_serving_begin(call.project, kind, path, rule["id"], request=request)
    call.world.tasks.start_soon(_finish, call, operation)
    return shown(operation)


async def _finish(call: Call, operation: Operation) -> None:
    await anyio.sleep(_LASTING_SECONDS)
    finish(operation)
    call.world.keep(call.project)


def _found(call: Call) -> dict[str, Any]:
    name = call.params["firewall"]
    if name not in call.project.firewalls:
        raise not_found(_path_firewall(call, name))
    return call.project.firewalls[name]


def _path_firewall(call: Call, name: str) -> str:
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
        ports = _FIREWALL_PORTS.fullmatch(said)
        if not ports or not int(ports[1]) <= int(ports[2] or ports[1]) <= 65_535:
            raise wrong(f"{at}.ports[{number}]", said, "Must be a port or a range of ports.")


def _check_range(said: str, at: str) -> None:
    try:
        ipaddress.ip_network(said)
    except ValueError as exc:
        raise wrong(at, said, "Must be a valid CIDR address range.") from exc


def compute_routes(world: World) -> Sequence[BaseRoute]:
    """Serve compute/v1."""
    parts = (
        SimpleNamespace(routes=instance_routes),
        SimpleNamespace(routes=reading_routes),
        SimpleNamespace(routes=compute_serving.routes),
        SimpleNamespace(routes=firewall_routes, resume=firewall_resume),
        SimpleNamespace(routes=compute_rules.routes),
    )
    return [route for part in parts for route in part.routes(world)]


def compute_resume(world: World) -> None:
    """Go on with what an earlier process began."""
    lives_resume(world)
    firewall_resume(world)
