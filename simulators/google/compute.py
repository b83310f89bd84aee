"""Compute Engine's REST v1: instances with chips and how each lives, firewall rules, operations."""

import importlib
import ipaddress
import json
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import anyio
from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.google import tpu_zones, vm
from simulators.google.serving import CODES, Refused, check_billed, disabled, rest
from simulators.google.state import Project, Tpu, World
from simulators.google.tpu_zones import limit_of, pool_of
from simulators.google.vm import VmSpec

Resource = dict[str, Any]
API: Final = "compute.googleapis.com"
LINK: Final = "https://www.googleapis.com/compute/v1/"
"""How links begin."""
SYSTEM: Final = "system"
"""The user of what Compute Engine does by itself."""
_REASONS: Final = {
    "PERMISSION_DENIED": "forbidden",
    "NOT_FOUND": "notFound",
    "ALREADY_EXISTS": "alreadyExists",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
    "UNAVAILABLE": "backendError",
    "INTERNAL": "backendError",
}
"""Of a refusal that names no reason of Compute Engine's own, by its status."""
_OTHERS: Final = frozenset(
    {
        *("us-central1-a", "us-east1-b", "us-east4-a", "us-west1-a", "us-west4-a"),
        *("europe-west1-b", "europe-west2-a", "asia-east1-a", "asia-northeast1-b"),
    }
)
"""Some of the zones without TPUs; which have them is said in `tpu_zones.ZONES` alone."""


class Denied(Exception):
    """A call is answered with an error of HTTP and a reason such as alreadyExists."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


def _wrong(field: str, value: Any, words: str) -> Denied:
    """Say that a field's value cannot be; `field` is such as resource.machineType."""
    said = value if isinstance(value, str) else json.dumps(value)
    return Denied(400, "invalid", f"Invalid value for field '{field}': '{said}'. {words}")


def _bad(words: str) -> Denied:
    return Denied(400, "badRequest", words)


def _not_ready(path: str) -> Denied:
    return Denied(400, "resourceNotReady", f"The resource '{path}' is not ready")


def _error(code: int, message: str, reason: str, **more: Any) -> Response:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    body = {"code": code, "message": message, "errors": errors, **more}
    return JSONResponse({"error": body}, status_code=code)


def _translated(refused: Refused) -> Response:
    """Return a refusal that all of Google's APIs share as Compute Engine writes it."""
    code, more = CODES.get(refused.status, 500), dict[str, Any](status=refused.status)
    if refused.reason != "SERVICE_DISABLED":
        reason = _REASONS.get(refused.status, "badRequest")
        return _error(code, refused.message, reason, **more)
    more["details"] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": refused.reason,
            "domain": refused.domain,
            "metadata": dict(refused.metadata),
        }
    ]
    return _error(code, refused.message, "accessNotConfigured", **more)


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was admitted."""

    world: World
    project: Project
    zone: str
    """Of the path; empty if it has none."""
    name: str
    query: Mapping[str, str]
    body: Any
    """What was sent, read as JSON; None if nothing was."""

    @property
    def parent(self) -> str:
        """What the resource lies in, such as projects/P/zones/Z or projects/P/global."""
        return f"projects/{self.project.id}/" + (f"zones/{self.zone}" if self.zone else "global")

    def need(self, permission: str, path: str = "") -> None:
        """Refuse a caller who lacks a permission."""
        if self.project.denies(permission):
            words = f"Required '{permission}' permission for '{path or self.parent}'"
            raise Denied(403, "forbidden", words)

    def read(self, schema: str) -> Resource:
        """Return the body as the SDK's message has it.

        Raises:
            Denied: A field is unknown, or a value is of another type.
        """
        kind = getattr(importlib.import_module("google.cloud.compute_v1.types"), schema)
        if not isinstance(self.body, dict):
            raise _bad("Invalid JSON payload received. Root element must be a message.")
        message = kind.pb(kind())
        try:
            json_format.ParseDict(self.body, message)
        except json_format.ParseError as exc:
            raise _bad(f"Invalid JSON payload received. {exc}") from exc
        said: Resource = json_format.MessageToDict(message)
        return said

    def find(self, rows: "Rows", kind: str) -> Resource:
        """Return the resource that it is about.

        Raises:
            Denied: There is none.
        """
        for row in rows(self.world, self.project, self.zone):
            if row["name"] == self.name:
                return row
        path = f"{self.parent}/{kind}/{self.name}"
        raise Denied(404, "notFound", f"The resource '{path}' was not found")


Answers = Callable[[Call], Awaitable[Resource]]
Rows = Callable[[World, Project, str], Sequence[Resource]]
"""What there is in a zone; of what belongs to none its name is empty."""


def _route(
    world: World, verb: str, path: str, name: str, answers: Answers, *needed: str
) -> BaseRoute:
    """Serve one method, such as compute.instances.insert.

    `needed` are the permissions that the caller needs, in place of one called as the method is.
    """

    async def admitted(project: Project, request: Request) -> Response:
        try:
            check_billed(world, project, API, request.headers.get("x-goog-user-project", ""))
            if API not in project.apis:
                raise disabled(project, API)
        except Refused as refused:
            return _translated(refused)
        at, sent = request.path_params, await request.body()
        try:
            body = json.loads(sent) if sent else None
            zone, named = at.get("zone", ""), at.get("name", "")
            call = Call(world, project, zone, named, request.query_params, body)
            for permission in needed or (name,):
                call.need(permission, request.url.path.removeprefix("/compute/v1/"))
            if zone and zone not in _zone_names(project):
                raise _wrong("zone", zone, "Unknown zone.")
            return JSONResponse(_shown(await answers(call)))
        except ValueError as exc:
            return _error(400, f"Invalid JSON payload received. {exc}", "badRequest")
        except Denied as denied:
            return _error(denied.code, denied.message, denied.reason)

    where = f"/compute/v1/projects/{{project}}/{path}"
    return rest(world, verb, where, name, admitted, _translated)


def _readable(world: World, path: str, service: str, rows: Rows) -> list[BaseRoute]:
    """Serve get and list of one kind, and aggregatedList of what lies in zones; all on one page."""
    kind, api = path.rpartition("/")[2], f"compute.{service}"

    async def get(call: Call) -> Resource:
        return call.find(rows, kind)

    async def listed(call: Call) -> Resource:
        return {"items": _filtered(call, rows(world, call.project, call.zone))}

    async def aggregated(call: Call) -> Resource:
        scopes: Resource = {}
        for zone in _zone_names(call.project):
            here = _filtered(call, rows(world, call.project, zone))
            words = f"There are no results for scope 'zones/{zone}' on this page."
            warning = {"code": "NO_RESULTS_ON_PAGE", "message": words}
            scopes[f"zones/{zone}"] = {kind: here} if here else {"warning": warning}
        return {"items": scopes}

    many = _route(
        world, "GET", f"aggregated/{kind}", f"{api}.aggregatedList", aggregated, f"{api}.list"
    )
    return [
        _route(world, "GET", path, f"{api}.list", listed),
        _route(world, "GET", f"{path}/{{name}}", f"{api}.get", get),
        *([many] if kind in {"instances", "machineTypes"} else []),
    ]


_TERM: Final = re.compile(r"(?P<field>\w+) (?P<op>=|eq) \"(?P<value>[^\"]*)\"")


def _filtered(call: Call, rows: Sequence[Resource]) -> list[Resource]:
    """Return those that one term means: a field is so, or fits a pattern."""
    said = call.query.get("filter", "")
    term = _TERM.fullmatch(said)
    if said and term is None:
        raise _wrong("filter", said, "Invalid list filter expression.")
    if term is None:
        return [_shown(row) for row in rows]
    field, value = term["field"], term["value"]
    pattern = re.compile(value if term["op"] == "eq" else re.escape(value))
    return [_shown(row) for row in rows if pattern.fullmatch(str(row.get(field, "")))]


def _shown(resource: Mapping[str, Any]) -> Resource:
    """Leave out what only the simulation knows of a resource."""
    return {key: value for key, value in resource.items() if not key.startswith("_")}


def _zone_names(project: Project) -> tuple[str, ...]:
    return tuple(sorted({*_OTHERS, *(project.knobs.tpu_zones or tpu_zones.ZONES)}))


def _moment(at: float | None = None) -> str:
    """Return a time, now if none is given, as Compute Engine writes it."""
    return datetime.fromtimestamp(at or time.time(), UTC).isoformat(timespec="milliseconds")


_KEPT: Final = 500
"""Operations of a project, newest last."""
_PHRASES: Final = {400: "BAD REQUEST", 403: "FORBIDDEN", 503: "SERVICE UNAVAILABLE"}


def _begin(
    project: Project, kind: str, target: Resource, *, user: str = "", request: str = ""
) -> Resource:
    """Begin an operation on a resource.

    `kind` is such as insert, or compute.instances.preempted; `user` is the caller if not said.
    """
    path, drawn = str(target["selfLink"]).removeprefix(LINK), uuid.uuid4().hex
    parent, word = "/".join(path.split("/")[:-2]), "systemevent" if user else "operation"
    name = f"{word}-{time.time_ns() // 10**6}-{drawn[:13]}-{drawn[13:21]}-{drawn[21:29]}"
    operation = {
        "name": name,
        "operationType": kind,
        "targetLink": LINK + path,
        "status": "RUNNING",
        "user": user or project.caller,
        "insertTime": _moment(),
        "_request": request,
        "_path": f"{parent}/operations/{name}",
    }
    project.compute_operations[str(operation["_path"])] = operation
    for old in tuple(project.compute_operations)[:-_KEPT]:
        del project.compute_operations[old]
    return operation


def _same(call: Call) -> Resource | None:
    """Return the operation that the same request began before; none without a requestId."""
    asked, rows = call.query.get("requestId"), call.project.compute_operations.values()
    return next((one for one in rows if asked and one["_request"] == asked), None)


def _finish(operation: Resource) -> Resource:
    operation.update(status="DONE", endTime=_moment())
    return operation


def _fail(operation: Resource, status: int, code: str, message: str) -> None:
    """End it with an error: a status of HTTP, and Compute Engine's code."""
    _finish(operation).update(
        error={"errors": [{"code": code, "message": message}]},
        httpErrorStatusCode=status,
        httpErrorMessage=_PHRASES[status],
    )


class MachineType(NamedTuple):
    """One kind of machine."""

    chips: int
    """Of TPU v6e; 0 is a machine without."""
    cpus: int
    memory_gb: int
    one_thread: bool
    """Whether it has to be made with one thread per core."""


_MACHINES: Final = {
    "ct6e-standard-1t": MachineType(1, 44, 176, one_thread=False),
    "ct6e-standard-4t": MachineType(4, 180, 720, one_thread=False),
    "ct6e-standard-8t": MachineType(8, 180, 1440, one_thread=True),
    "e2-medium": MachineType(0, 2, 4, one_thread=False),
}
"""Source: accelerator-optimized machines, quoted in public reports of 2026-08; one without TPUs, so
that a project may have something else."""


def _machine_types(project: Project, zone: str) -> Mapping[str, MachineType]:
    """Return the machine types of a zone: those of TPUs where there is such hardware."""
    told = tpu_zones.capacity_zone(project, zone)
    had = {int(one.rpartition("-")[2]) for one in told.accelerators} if told else set()
    return {name: one for name, one in _MACHINES.items() if not one.chips or one.chips in had}


def _type_rows(_world: World, project: Project, zone: str) -> Sequence[Resource]:
    return [
        {"name": name, "guestCpus": kind.cpus, "memoryMb": kind.memory_gb * 1024, "zone": zone}
        for name, kind in _machine_types(project, zone).items()
    ]


def _network_rows(_world: World, project: Project, _zone: str) -> Sequence[Resource]:
    link = f"{LINK}projects/{project.id}/global/networks/default"
    return [{"name": "default", "selfLink": link}]


def _instance_rows(world: World, project: Project, zone: str) -> Sequence[Resource]:
    """Return a zone's instances as Compute Engine tells them now, with their addresses."""
    return [_told(world, project, one) for one in project.vms.values() if _zone(one) == zone]


def _firewall_rows(_world: World, project: Project, _zone: str) -> Sequence[Resource]:
    return list(project.firewalls.values())


def _operation_rows(_world: World, project: Project, zone: str) -> Sequence[Resource]:
    begins = f"projects/{project.id}/" + (f"zones/{zone}/" if zone else "global/")
    return [one for path, one in project.compute_operations.items() if path.startswith(begins)]


_NEEDED: Final = (
    *("compute.instances.create", "compute.disks.create", "compute.instances.setMetadata"),
    *("compute.instances.setTags", "compute.instances.setLabels"),
    *("compute.instances.setServiceAccount", "compute.subnetworks.use"),
)
"""Of whoever inserts."""


def compute_routes(world: World) -> Sequence[BaseRoute]:
    """Serve compute/v1."""
    instances, rules = "zones/{zone}/instances", "global/firewalls"
    one, api = f"{instances}/{{name}}", "compute.instances"
    rule, fire = f"{rules}/{{name}}", "compute.firewalls"
    changes = "compute.networks.updatePolicy"
    return [
        *_readable(world, instances, "instances", _instance_rows),
        *_readable(world, rules, "firewalls", _firewall_rows),
        *_readable(world, "zones/{zone}/machineTypes", "machineTypes", _type_rows),
        *_readable(world, "global/networks", "networks", _network_rows),
        *_readable(world, "zones/{zone}/operations", "zoneOperations", _operation_rows),
        *_readable(world, "global/operations", "globalOperations", _operation_rows),
        _route(world, "POST", instances, f"{api}.insert", _insert, *_NEEDED),
        _route(world, "DELETE", one, f"{api}.delete", _deleted),
        _route(world, "POST", rules, f"{fire}.insert", _insert_rule, f"{fire}.create", changes),
        _route(world, "PATCH", rule, f"{fire}.patch", _patch_rule, f"{fire}.update", changes),
        _route(world, "DELETE", rule, f"{fire}.delete", _delete_rule, f"{fire}.delete", changes),
    ]


def compute_resume(world: World) -> None:
    """Go on with what an earlier process began; changes but of instances are made at once."""
    for project in world:
        for one in project.vms.values():
            _live(world, project, one)
        for path, operation in project.compute_operations.items():
            if "/global/" in path:
                _finish(operation)


async def _insert(call: Call) -> Resource:
    again = _same(call)
    if again:
        return again
    project, made = call.project, _made(call)
    if made["networkInterfaces"][0]["accessConfigs"]:
        call.need("compute.subnetworks.useExternalIp")
    path = _path(project, made)
    if path in project.vms:
        raise Denied(409, "alreadyExists", f"The resource '{path}' already exists")
    made |= {"creationTimestamp": _moment(), "status": "PENDING"}
    operation = _begin(project, "insert", made, request=call.query.get("requestId", ""))
    waits = _seconds((call.body.get("params") or {}).get("requestValidForDuration"))
    flex = _provisioning(made) == "flex-start"
    made["_notes"] = {
        "asked": time.time(),
        "wait": waits if flex and waits else _USUAL_WAIT_SECONDS,
        "insert": operation["_path"],
    }
    project.vms[path] = made
    _live(call.world, project, made)
    return operation


async def _deleted(call: Call) -> Resource:
    """Begin an instance's end; asked again with the same requestId it is the same."""
    again = _same(call)
    if again:
        return again
    project, one = call.project, _kept(call)
    life = life_of(call.world, project, call.zone, one["name"])
    if life and life.ending:
        raise _not_ready(_path(project, one))
    operation = _begin(project, "delete", one, request=call.query.get("requestId", ""))
    (life or _live(call.world, project, one)).end("delete", operation)
    return operation


def _kept(call: Call) -> Resource:
    """Return the instance that a call is about, as it is kept."""
    return call.project.vms[_path(call.project, call.find(_instance_rows, "instances"))]


def _path(project: Project, one: Resource) -> str:
    return f"projects/{project.id}/zones/{_zone(one)}/instances/{one['name']}"


def _zone(one: Resource) -> str:
    return str(one["zone"]).rpartition("/")[2]


def _machine_name(one: Resource) -> str:
    return str(one["machineType"]).rpartition("/")[2]


def _chips(one: Resource) -> int:
    return _MACHINES[_machine_name(one)].chips


def _provisioning(one: Resource) -> str:
    """Return on-demand, spot or flex-start."""
    models = {"STANDARD": "on-demand", "SPOT": "spot", "FLEX_START": "flex-start"}
    return models[one["scheduling"]["provisioningModel"]]


def _ends_at(project: Project, one: Resource) -> float | None:
    """Say when its run time is over, in real seconds since 1970; None if nothing limits it."""
    ran, limit = one["_notes"].get("ran"), _seconds(one["scheduling"].get("maxRunDuration"))
    return ran + limit / project.knobs.tpu_run_clock if ran and limit else None


def _told(world: World, project: Project, one: Resource) -> Resource:
    running = vm.vm_of(world, project, "compute", _zone(one), one["name"])
    interface, ends = dict(one["networkInterfaces"][0]), _ends_at(project, one)
    if running:
        interface["networkIP"] = running.internal_ip
    if running and running.external_ip:
        interface["accessConfigs"] = [
            {**config, "natIP": running.external_ip} for config in interface["accessConfigs"]
        ]
    scheduling = {"terminationTimestamp": _moment(ends)} if ends else {}
    status = {"scheduling": scheduling}
    return {**one, "networkInterfaces": [interface], "resourceStatus": status}


class Failure(NamedTuple):
    """An operation's error."""

    status: int
    """Of HTTP."""
    code: str
    message: str


def _stock_out(project: Project, one: Resource) -> Failure:
    zone, machine = _zone(one), _machine_name(one)
    words = (
        f"The zone 'projects/{project.id}/zones/{zone}' does not have enough resources available to"
        f" fulfill the request.  '(resource type:compute)'. A {machine} VM instance is currently"
        f" unavailable in the {zone} zone (state:STOCKOUT, sub-state:STOCKOUT)."
    )
    return Failure(503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", words)


def _quota_exceeded(project: Project, one: Resource) -> Failure:
    zone, pool = _zone(one), pool_of("compute", _provisioning(one))
    preemptible = pool.endswith("preemptible")
    metric = "PREEMPTIBLE_TPU_V6E" if preemptible else "TPUS_PER_TPU_FAMILY"
    limit, region = float(limit_of(project, pool, zone)), zone.rpartition("-")[0]
    words = f"Quota '{metric}' exceeded.  Limit: {limit} in region {region}."
    return Failure(403, "QUOTA_EXCEEDED", words)


def _not_accepted(one: Resource) -> Failure:
    words = (
        f"{one['scheduling']['provisioningModel']} provisioning model is not supported for machine"
        f' type "{_machine_name(one)}" in location "{_zone(one)}"'
    )
    return Failure(400, "UNSUPPORTED_OPERATION", words)


How = Literal["delete", "expired", "preempted"]
_USUAL_WAIT_SECONDS: Final = 30
"""Simulated: how long it stays PENDING before a stock-out where no wait is asked for."""
_STAGING: Final = 0.7
"""Which part of its making it is PROVISIONING; STAGING is the rest."""
_RHYTHM_SECONDS: Final = 0.05
_POLITE_SECONDS: Final = 10.0
"""For a VM to end by itself."""


class Life:
    """What goes on with one instance. What ends, whoever ends it, is deleted."""

    def __init__(self, world: World, project: Project, one: Resource) -> None:
        self.vm = one
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()
        """It is deleted."""
        self._told = anyio.Event()
        self._world, self._project = world, project
        self._notes: dict[str, Any] = one["_notes"]

    @property
    def ending(self) -> How | None:
        """By what it is ended just now."""
        how: How | None = self._notes.get("ending")
        return how

    def end(self, how: How, operation: Resource) -> None:
        """Let it end; the operation is done when it has."""
        self._notes.update(ending=how, told=time.time(), operation=operation["_path"])
        self._told.set()

    def by_itself(self, kind: str) -> Resource:
        """Begin what Compute Engine does unasked, such as compute.instances.preempted."""
        return _begin(self._project, kind, self.vm, user=SYSTEM)

    async def live(self) -> None:
        """Go on from its status to its end."""
        with self.scope:
            failure = None if self.ending else await self._start()
            if failure:
                _fail(self._operation("insert"), *failure)
                self._forget()
            else:
                if not self.ending:
                    await self._run()
                await self._end()
            self._world.keep(self._project)
        self.over.set()

    async def _start(self) -> Failure | None:
        """Come to RUNNING, unless it is ended before; return why it gets no chips."""
        if self.vm["status"] == "RUNNING":
            return None
        if self.vm["status"] == "PENDING":
            await self._rest(_RHYTHM_SECONDS)
            failure = await self._wait_for_chips() if _chips(self.vm) else None
            if failure or self.ending:
                return failure
            self._notes["given"] = time.time()
        making = self._project.knobs.tpu_provision_seconds
        for status, part in (("PROVISIONING", _STAGING), ("STAGING", 1.0)):
            self._become(status)
            while not self.ending and (left := self._left("given", making * part)) > 0:
                await self._rest(min(left, 0.2))
        if not self.ending:
            self._notes["ran"] = time.time()
            self.vm["lastStartTimestamp"] = _moment()
            _finish(self._operation("insert"))
            self._become("RUNNING")
        return None

    async def _wait_for_chips(self) -> Failure | None:
        """Return why it gets none; None if it does, or is ended before."""
        project, model = self._project, _provisioning(self.vm)
        zone = tpu_zones.capacity_zone(project, _zone(self.vm))
        if zone is None or model not in zone.accepts:
            return _not_accepted(self.vm)
        while not self.ending:
            row = self._row() or self._ask(model)
            if row is None and model != "flex-start":
                return _quota_exceeded(project, self.vm)
            if row and tpu_zones.take(project, row):
                return None
            if self._left("asked", self._notes["wait"]) <= 0:
                return _stock_out(project, self.vm)
            await self._rest(_RHYTHM_SECONDS)
        return None

    def _row(self) -> Tpu | None:
        return self._project.tpus.get(f"compute/{_zone(self.vm)}/{self.vm['name']}")

    def _ask(self, model: str) -> Tpu | None:
        """Be counted against a quota; flex-start uses the standard one where the other is used up.

        Source: Google's page on provisioning models, quoted in a public report of 2026-08.
        """
        zone, chips = _zone(self.vm), _chips(self.vm)
        for pool in (model, "on-demand") if model == "flex-start" else (model,):
            if not tpu_zones.exceeded(self._project, "compute", pool, zone, chips):
                name = self.vm["name"]
                return tpu_zones.asked(self._project, "compute", zone, name, f"v6e-{chips}", pool)
        return None

    async def _run(self) -> None:
        """Be RUNNING until somebody, or its run time, ends it."""
        if _chips(self.vm):
            vm.start(self._world, self._project, _spec(self.vm))
        while not self.ending:
            ends = _ends_at(self._project, self.vm)
            if ends and ends <= time.time():
                self.end("expired", self.by_itself("compute.instances.deferredDelete"))
            else:
                await self._rest(min(ends - time.time(), 0.2) if ends else 1.0)

    async def _end(self) -> None:
        self._become("STOPPING")
        with anyio.move_on_after(_POLITE_SECONDS) as patience:
            await self.end_vm(at_once=False)
        if patience.cancelled_caught:
            await self.end_vm(at_once=True)
        seconds = self._left("told", self._project.knobs.tpu_delete_seconds)
        while seconds > 0:
            await anyio.sleep(min(seconds, 0.2))
            seconds = self._left("told", self._project.knobs.tpu_delete_seconds)
        how, inserted, name = self.ending or "delete", self._operation("insert"), self.vm["name"]
        if inserted.get("status") == "RUNNING":  # Google's own words are not known
            words = f"Instance '{name}' creation failed: it was {how} while it was created."
            _fail(inserted, 400, "UNSUPPORTED_OPERATION", words)
        _finish(self._operation("operation"))
        self._forget()

    async def end_vm(self, *, at_once: bool) -> None:
        """Tell its VM to be gone, and see that it is."""
        zone, name = _zone(self.vm), self.vm["name"]
        running = vm.vm_of(self._world, self._project, "compute", zone, name)
        if running:
            running.end(at_once=at_once)
            await running.ended.wait()

    def _forget(self) -> None:
        """Give the chips back, and be gone."""
        row = self._row()
        if row:
            tpu_zones.gone(self._project, row)
        self._project.vms.pop(_path(self._project, self.vm), None)

    def _operation(self, note: str) -> Resource:
        return self._project.compute_operations.get(self._notes[note], {})

    def _become(self, status: str) -> None:
        self.vm["status"] = status
        self._world.keep(self._project)

    def _left(self, since: str, simulated: float) -> float:
        """Return the real seconds that are left of simulated ones since it was noted."""
        return float(self._notes[since] + simulated / self._project.knobs.tpu_clock - time.time())

    async def _rest(self, seconds: float) -> None:
        with anyio.move_on_after(max(seconds, 0.001)):
            await self._told.wait()


def _spec(one: Resource) -> VmSpec:
    """Return what its VM is made with."""
    interface = one["networkInterfaces"][0]
    account: Resource = next(iter(one["serviceAccounts"]), {"email": "", "scopes": []})
    return VmSpec(
        plane="compute",
        zone=_zone(one),
        id=one["name"],
        accelerator=f"v6e-{_chips(one)}",
        metadata={row["key"]: row.get("value", "") for row in one["metadata"].get("items", [])},
        tags=tuple(one["tags"].get("items", [])),
        network=interface["network"].rpartition("/")[2],
        service_account=account["email"],
        scopes=tuple(account["scopes"]),
        external=bool(interface["accessConfigs"]),
        disk_gb=int(one["disks"][0]["diskSizeGb"]),
        has_docker=False,
    )


def _live(world: World, project: Project, one: Resource) -> Life:
    """Let an instance live in the background."""
    life = Life(world, project, one)
    world.live[f"{project.id}/compute-life/{_zone(one)}/{one['name']}"] = life
    world.tasks.start_soon(life.live)
    return life


def life_of(world: World, project: Project, zone: str, name: str) -> Life | None:
    """Return what goes on with an instance; None if it is not there."""
    found: Life | None = world.live.get(f"{project.id}/compute-life/{zone}/{name}")
    return found if found and not found.over.is_set() else None


async def forget(world: World, project: Project) -> None:
    """End every instance of a project at once, and its VM with it."""
    for one in tuple(project.vms.values()):
        key = f"{project.id}/compute-life/{_zone(one)}/{one['name']}"
        life: Life | None = world.live.pop(key, None)
        if life:
            life.scope.cancel()
            await life.end_vm(at_once=True)
    project.vms.clear()


def preempt(world: World, project: Project, zone: str, name: str) -> bool:
    """Take an instance back that is SPOT and has its chips; false if there is none such."""
    life = life_of(world, project, zone, name)
    if life is None or life.ending or "given" not in life.vm["_notes"]:
        return False
    if _provisioning(life.vm) != "spot":
        return False
    operation = life.by_itself("compute.instances.preempted")
    operation["statusMessage"] = "Instance was preempted."
    life.end("preempted", operation)
    return True


_NAME: Final = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
_USUAL_DISK_GB: Final = "10"


def _made(call: Call) -> Resource:
    """Return the instance that a request asks for, with everything that follows from it.

    Raises:
        Denied: Something of it cannot be.
    """
    project, zone, body = call.project, call.zone, call.read("Instance")
    name = _check_name(body.get("name"))
    machine, kind = _machine(project, zone, body)
    parent = f"{LINK}projects/{project.id}/zones/{zone}"
    return {
        **{key: value for key, value in body.items() if key != "params"},
        "machineType": f"{parent}/machineTypes/{machine}",
        "zone": parent,
        "selfLink": f"{parent}/instances/{name}",
        "scheduling": _scheduled(body, kind),
        "disks": [{"diskSizeGb": _disk_gb(body, machine, kind)}],
        "networkInterfaces": [_interface(body, project)],
        "serviceAccounts": [_account(one, call) for one in body.get("serviceAccounts", [])[:1]],
        "labels": body.get("labels", {}),
        "tags": body.get("tags", {}),
        "metadata": body.get("metadata", {}),
    }


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise _wrong("resource.name", name or "", f"Must be a match of regex '{_NAME}'")
    return name


def _machine(project: Project, zone: str, body: Resource) -> tuple[str, MachineType]:
    field, link = "resource.machineType", body.get("machineType", "")
    name = _last(link)
    kind = _machine_types(project, zone).get(name)
    if kind is None:
        words = f"Machine type with name '{name}' does not exist in zone '{zone}'."
        raise _wrong(field, link, words)
    threads = body.get("advancedMachineFeatures", {}).get("threadsPerCore")
    if kind.one_thread and threads != 1:
        field = "resource.advancedMachineFeatures.threadsPerCore"
        raise _wrong(field, threads or 2, f"Machine type {name} supports 1 thread per core alone.")
    return name, kind


def _disk_gb(body: Resource, machine: str, kind: MachineType) -> str:
    """Return the size of the boot disk; more disks are not simulated.

    A machine with TPUs takes hyperdisks alone: field notes of 2026-08.
    """
    given = body.get("disks") or []
    if len(given) != 1 or not given[0].get("boot"):
        raise _wrong("resource.disks", len(given), "The one disk must be a boot disk.")
    params = given[0].get("initializeParams") or {}
    name = _last(params.get("diskType", ""))
    if not params.get("sourceImage", "").startswith("projects/"):
        words = "The referenced image resource cannot be found."
        raise _wrong("resource.disks[0].initializeParams.sourceImage", "", words)
    if kind.chips and name.startswith("pd-"):
        raise _bad(f"[{name}, {machine}] features are not compatible for creating instance.")
    return str(params.get("diskSizeGb") or _USUAL_DISK_GB)


def _interface(body: Resource, project: Project) -> Resource:
    given, at = body.get("networkInterfaces") or [], "resource.networkInterfaces[0]"
    if len(given) != 1:
        raise _wrong("resource.networkInterfaces", len(given), "Exactly one must be given.")
    link = given[0].get("network", "global/networks/default")
    _check_network(link, f"{at}.network")
    outside = given[0].get("accessConfigs", [])
    if outside and "compute.vmExternalIpAccess" in project.knobs.constraints:
        raise Denied(
            412,
            "conditionNotMet",
            f"Constraint constraints/compute.vmExternalIpAccess violated for project"
            f" {project.number}. Add instance {body.get('name')} to the constraint to use external"
            " IP with it.",
        )
    return {**given[0], "network": link, "accessConfigs": outside}


def _check_network(link: str, field: str) -> None:
    """Refuse any network but the one that a project has at first."""
    if _last(link) != "default":
        raise _wrong(field, link, "The referenced network resource cannot be found.")


def _last(link: str) -> str:
    return link.rpartition("/")[2]


def _account(one: Resource, call: Call) -> Resource:
    project = call.project
    usual = f"{project.number}-compute@developer.gserviceaccount.com"
    email = usual if one.get("email", "") in {"", "default"} else one["email"]
    if email != usual and email not in project.accounts:
        path = f"projects/{project.id}/serviceAccounts/{email}"
        words = f"The resource '{path}' of type 'serviceAccount' was not found."
        raise Denied(404, "notFound", words)
    if project.denies("iam.serviceAccounts.actAs"):
        words = (
            f"The user does not have access to service account '{email}'.  User:"
            f" '{project.caller}'.  Ask a project owner to grant you the iam.serviceAccountUser"
            " role on the service account"
        )
        raise Denied(400, "serviceAccountAccessDenied", words)
    return {"email": email, "scopes": one.get("scopes", [])}


_AT: Final = "resource.scheduling"
_DAY_SECONDS: Final = 86_400
_RUN_SECONDS: Final = {False: (30, 120 * _DAY_SECONDS), True: (600, 7 * _DAY_SECONDS)}
"""At least and at most; whether it is FLEX_START."""
_FLEX_WAIT_SECONDS: Final = (90, 7200)


def _seconds(duration: Any) -> int:
    """Return the whole seconds of a duration as Compute Engine writes it."""
    return int((duration or {}).get("seconds", "0"))


def _scheduled(body: Resource, kind: MachineType) -> Resource:
    """Return the scheduling of an instance with what follows from it.

    Raises:
        Denied: Something in it cannot be, or not together.
    """
    said: Resource = dict(body.get("scheduling", {}))
    model = said.setdefault("provisioningModel", "STANDARD")
    said.setdefault("automaticRestart", model == "STANDARD")
    said.setdefault("onHostMaintenance", "TERMINATE" if model == "SPOT" else "MIGRATE")
    if model == "SPOT" or (model == "STANDARD" and "maxRunDuration" in said):
        said.setdefault("instanceTerminationAction", "STOP")
    for denied in _contradictions(body, said, kind):
        raise denied
    return said


def _contradictions(body: Resource, said: Resource, kind: MachineType) -> Iterator[Denied]:
    """Yield what cannot be, or not together."""
    model, flex = said["provisioningModel"], said["provisioningModel"] == "FLEX_START"
    if said["automaticRestart"] and model != "STANDARD":
        words = f"Automatic restart must be false for the provisioning model {model}."
        yield _wrong(f"{_AT}.automaticRestart", True, words)  # noqa: FBT003  the field's value
    if said["onHostMaintenance"] != "TERMINATE" and kind.chips:
        yield _bad("Instances with guest accelerators do not support live migration.")
    action = said.get("instanceTerminationAction", "")
    if action and model == "STANDARD" and "maxRunDuration" not in said:
        yield _wrong(
            f"{_AT}.instanceTerminationAction",
            action,
            "You cannot specify a termination action for a VM instance that has the standard"
            " provisioning model (default). To use instance termination action, the VM instance"
            " must use the Spot, Reservation-Bound or Flex Start provisioning model.",
        )
    shortest, longest = _RUN_SECONDS[flex]
    if "maxRunDuration" in said and not shortest <= _seconds(said["maxRunDuration"]) <= longest:
        words = f"Must be between {shortest} and {longest} seconds."
        yield _wrong(f"{_AT}.maxRunDuration", said["maxRunDuration"], words)
    waited = body.get("params", {}).get("requestValidForDuration")
    field, (shortest, longest) = "resource.params.requestValidForDuration", _FLEX_WAIT_SECONDS
    if waited is not None and not flex:
        yield _wrong(field, waited, "Only instances of the model FLEX_START wait for capacity.")
    if _seconds(waited) and not shortest <= _seconds(waited) <= longest:
        yield _wrong(field, waited, f"Must be 0, or between {shortest} and {longest} seconds.")
    if flex and not action:
        words = "It must be set for the provisioning model FLEX_START."
        yield _wrong(f"{_AT}.instanceTerminationAction", action, words)
    affinity = body.get("reservationAffinity", {}).get("consumeReservationType", "")
    if flex and affinity != "NO_RESERVATION":
        words = "It must be NO_RESERVATION for the provisioning model FLEX_START."
        yield _wrong("resource.reservationAffinity.consumeReservationType", affinity, words)


_RULE_SECONDS: Final = 0.1
"""Of a change of a rule, in real time."""
_FIXED: Final = ("name", "network", "direction")
"""What no change of a rule alters."""


async def _insert_rule(call: Call) -> Resource:
    again = _same(call)
    if again:
        return again
    body = call.read("Firewall")
    name, rule = _check_name(body.get("name")), _rule(call, body)
    path = f"projects/{call.project.id}/global/firewalls/{name}"
    if name in call.project.firewalls:
        raise Denied(409, "alreadyExists", f"The resource '{path}' already exists")
    rule |= {"selfLink": LINK + path, "creationTimestamp": _moment()}
    call.project.firewalls[name] = rule
    return _changing(call, "insert", rule)


async def _patch_rule(call: Call) -> Resource:
    kept = call.find(_firewall_rows, "firewalls")
    said = call.read("Firewall")
    network = f"global/networks/{kept['network'].rpartition('/')[2]}"
    rule = _rule(call, {**kept, "network": network, **said})
    for key in _FIXED:
        if rule[key] != kept[key]:
            raise _wrong(f"resource.{key}", rule[key], "It cannot be changed.")
    call.project.firewalls[kept["name"]] = rule
    return _changing(call, "patch", rule)


async def _delete_rule(call: Call) -> Resource:
    rule = call.find(_firewall_rows, "firewalls")
    return _changing(call, "delete", call.project.firewalls.pop(rule["name"]))


def _changing(call: Call, kind: str, rule: Resource) -> Resource:
    operation = _begin(call.project, kind, rule, request=call.query.get("requestId", ""))

    async def end() -> None:
        await anyio.sleep(_RULE_SECONDS)
        _finish(operation)
        call.world.keep(call.project)

    call.world.tasks.start_soon(end)
    return operation


def _rule(call: Call, body: Resource) -> Resource:
    """Return a rule with everything that follows from it.

    Raises:
        Denied: Something of it cannot be.
    """
    if not body.get("allowed"):
        raise _bad("Exactly one of allowed or denied must be specified.")
    for number, one in enumerate(body.get("sourceRanges", [])):
        try:
            ipaddress.ip_network(one)
        except ValueError as exc:
            field = f"resource.sourceRanges[{number}]"
            raise _wrong(field, one, "Must be a valid CIDR address range.") from exc
    _check_network(body.get("network", "global/networks/default"), "resource.network")
    rule = {"priority": 1000, "direction": "INGRESS", "disabled": False, **body}
    rule.setdefault("sourceRanges", ["0.0.0.0/0"])
    return {**rule, "network": f"{LINK}projects/{call.project.id}/global/networks/default"}
