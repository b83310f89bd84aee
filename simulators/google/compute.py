"""Compute Engine's REST v1: instances with chips and how each lives, firewall rules, operations."""

import importlib
import json
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.google import chips, vm
from simulators.google.chips import Machine, zones_of
from simulators.google.serving import CODES, Refused, admit, check_billed, refusal, rest
from simulators.google.state import CATALOG, REFUSALS, Life, Project, World

Resource = dict[str, Any]
API: Final = "compute.googleapis.com"
LINK: Final = "https://www.googleapis.com/compute/v1/"
"""How links begin."""
_CODES: Final = {**CODES, "FAILED_PRECONDITION": 412}
_OTHERS: Final = ("us-central1-a", "us-west1-a", "europe-west1-b", "asia-east1-a")
"""Some of the zones without TPUs; which have them is said in the catalogue alone."""
_CHIPS: Final[dict[str, int]] = CATALOG["tpu_machines"]
"""Of TPU v6e in each machine type."""
_MODELS: Final = {"STANDARD": "on-demand", "SPOT": "spot", "FLEX_START": "flex-start"}


def _wrong(field: str, value: Any, why: str) -> Refused:
    said = value if isinstance(value, str) else json.dumps(value)
    return refusal("compute-field", field=f"resource.{field}", value=said, why=why)


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

    def need(self, permission: str) -> None:
        """Refuse a caller who lacks a permission."""
        if self.project.denies(permission):
            raise refusal("compute-permission", permission=permission, parent=self.parent)

    def read(self, schema: str) -> Resource:
        """Return the body as the SDK's message has it; refuses unknown fields and other types."""
        kind = getattr(importlib.import_module("google.cloud.compute_v1.types"), schema)
        message = kind.pb(kind())
        try:
            json_format.ParseDict(self.body, message)
        except (json_format.ParseError, TypeError) as exc:
            raise refusal("payload", why=exc) from exc
        said: Resource = json_format.MessageToDict(message)
        return said

    def free(self, kind: str, name: Any) -> str:
        """Return the path of a new resource, whose name has to be one that nothing has."""
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            raise _wrong("name", name or "", f"Must be a match of regex '{_NAME}'")
        path = f"{self.parent}/{kind}/{name}"
        if path in _TABLES[kind](self.project):
            raise refusal("compute-taken", path=path)
        return path

    def find(self, kind: str) -> Resource:
        """Return the resource that it is about; refuses where there is none."""
        path = f"{self.parent}/{kind}/{self.name}"
        found = _TABLES[kind](self.project).get(path)
        if found is None:
            raise refusal("compute-missing", path=path)
        return found


_NAME: Final = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
Answers = Callable[[Call], Awaitable[Resource]]


def _types(project: Project) -> Mapping[str, Resource]:
    return {
        f"projects/{project.id}/zones/{zone}/machineTypes/{name}": {"name": name, "zone": zone}
        for zone, known in zones_of(project).items()
        for name, number in _CHIPS.items()
        if f"v6e-{number}" in known.accelerators
    }


def _networks(project: Project) -> Mapping[str, Resource]:
    path = f"projects/{project.id}/global/networks/default"
    return {path: {"name": "default", "selfLink": LINK + path}}


def _disks(project: Project) -> Mapping[str, Resource]:
    """Return every disk: the boot disk of an instance is called like it, and goes with it."""
    found = dict(project.disks)
    for path, one in project.vms.items():
        disk = path.replace("/instances/", "/disks/")
        found[disk] = {
            "name": one["name"],
            "zone": one["zone"],
            "selfLink": LINK + disk,
            "labels": one["disks"][0]["initializeParams"]["labels"],
            "sizeGb": one["disks"][0]["initializeParams"]["diskSizeGb"],
            "type": one["disks"][0]["initializeParams"].get("diskType", ""),
            "users": [one["selfLink"]],
        }
    return found


_TABLES: Final[Mapping[str, Callable[[Project], Mapping[str, Resource]]]] = {
    "instances": lambda project: project.vms,
    "firewalls": lambda project: project.firewalls,
    "disks": _disks,
    "machineTypes": _types,
    "networks": _networks,
    "operations": lambda project: project.compute_operations,
}
"""What there is of each kind, by path."""


def _route(
    world: World, verb: str, path: str, name: str, answers: Answers, *needed: str
) -> BaseRoute:
    """Serve one method, such as compute.instances.insert.

    `needed` are the permissions that the caller needs, in place of one called as the method is.
    """

    async def admitted(project: Project, request: Request) -> Response:
        check_billed(world, project, API, request.headers.get("x-goog-user-project", ""))
        admit(project, API, "", "")
        at, sent = request.path_params, await request.body()
        zone, named, body = at.get("zone", ""), at.get("name", ""), json.loads(sent or "null")
        call = Call(world, project, zone, named, request.query_params, body)
        for permission in needed or (name,):
            call.need(permission)
        if zone and zone not in _zone_names(project):
            raise refusal("compute-field", field="zone", value=zone, why="Unknown zone.")
        return JSONResponse(_view(call, await answers(call)))

    where = f"/compute/v1/projects/{{project}}/{path}"
    return rest(world, verb, where, name, admitted, _CODES)


def _readable(world: World, path: str, service: str) -> list[BaseRoute]:
    """Serve get and list of one kind, and aggregatedList of what lies in zones; all on one page."""
    kind, api = path.rpartition("/")[2], f"compute.{service}"

    def rows(call: Call, parent: str) -> list[Resource]:
        found = _TABLES[kind](call.project).items()
        here = [_view(call, one) for path, one in found if path.startswith(f"{parent}/{kind}/")]
        return _filtered(call.query.get("filter", ""), here)

    async def get(call: Call) -> Resource:
        return call.find(kind)

    async def listed(call: Call) -> Resource:
        return {"items": rows(call, call.parent)}

    async def aggregated(call: Call) -> Resource:
        scopes: Resource = {}
        for zone in _zone_names(call.project):
            here = rows(call, f"projects/{call.project.id}/zones/{zone}")
            words = f"There are no results for scope 'zones/{zone}' on this page."
            warning = {"code": "NO_RESULTS_ON_PAGE", "message": words}
            scopes[f"zones/{zone}"] = {kind: here} if here else {"warning": warning}
        return {"items": scopes}

    return [
        _route(world, "GET", path, f"{api}.list", listed),
        _route(world, "GET", f"{path}/{{name}}", f"{api}.get", get),
        _route(
            world, "GET", f"aggregated/{kind}", f"{api}.aggregatedList", aggregated, f"{api}.list"
        ),
    ]


def _filtered(said: str, rows: list[Resource]) -> list[Resource]:
    """Return those that one term means: a field is so, or fits a pattern."""
    if not said:
        return rows
    term = re.fullmatch(r"(\w+) (=|eq) \"([^\"]*)\"", said)
    if term is None:
        raise refusal("compute-filter", words=said)
    pattern = re.compile(term[3] if term[2] == "eq" else re.escape(term[3]))
    return [row for row in rows if pattern.fullmatch(str(row.get(term[1], "")))]


def _view(call: Call, resource: Resource) -> Resource:
    """Return a resource as it is told: an instance with what its VM has."""
    return _Instance.view(call, resource) if "machineType" in resource else resource


def _zone_names(project: Project) -> Sequence[str]:
    return sorted({*_OTHERS, *zones_of(project)})


def _moment(at: float | None = None) -> str:
    return datetime.fromtimestamp(at or time.time(), UTC).isoformat(timespec="milliseconds")


def _begin(project: Project, kind: str, path: str, *, user: str = "") -> Resource:
    """Begin an operation on what has a path.

    `kind` is such as insert, or compute.instances.preempted; `user` is the caller if not said.
    """
    parent, drawn = "/".join(path.split("/")[:-2]), uuid.uuid4().hex
    name = f"operation-{time.time_ns() // 10**6}-{drawn[:13]}-{drawn[13:21]}-{drawn[21:29]}"
    operation = {
        "name": name,
        "operationType": kind,
        "targetLink": LINK + path,
        "status": "RUNNING",
        "user": user or project.caller,
        "insertTime": _moment(),
    }
    project.compute_operations[f"{parent}/operations/{name}"] = operation
    return operation


def _end(operation: Resource, failure: str = "", **words: Any) -> None:
    """End an operation; its error has a status of HTTP, and Compute Engine's code and words."""
    if operation["status"] == "DONE":
        return
    operation.update(status="DONE", endTime=_moment())
    if failure:
        status, code, message = REFUSALS[failure]
        operation.update(
            error={"errors": [{"code": code, "message": message.format(**words)}]},
            httpErrorStatusCode=status,
            httpErrorMessage=code,
        )


_NEEDED: Final = (
    *("compute.instances.create", "compute.disks.create", "compute.instances.setMetadata"),
    *("compute.instances.setTags", "compute.instances.setLabels"),
    *("compute.instances.setServiceAccount", "compute.subnetworks.use"),
)
"""Of whoever inserts."""


def compute_routes(world: World) -> Sequence[BaseRoute]:
    """Serve compute/v1."""
    instances, rules = "zones/{zone}/instances", "global/firewalls"
    api, fire, changes = "compute.instances", "compute.firewalls", "compute.networks.updatePolicy"
    rule = f"{rules}/{{name}}"
    disks, used = "zones/{zone}/disks", "compute.disks"
    return [
        *_readable(world, instances, "instances"),
        *_readable(world, disks, "disks"),
        *_readable(world, rules, "firewalls"),
        *_readable(world, "zones/{zone}/machineTypes", "machineTypes"),
        *_readable(world, "global/networks", "networks"),
        *_readable(world, "zones/{zone}/operations", "zoneOperations"),
        *_readable(world, "global/operations", "globalOperations"),
        _route(world, "POST", instances, f"{api}.insert", _insert, *_NEEDED),
        _route(world, "DELETE", f"{instances}/{{name}}", f"{api}.delete", _delete),
        _route(world, "POST", f"{instances}/{{name}}/stop", f"{api}.stop", _stop),
        _route(world, "POST", disks, f"{used}.insert", _insert_disk, f"{used}.create"),
        _route(world, "DELETE", f"{disks}/{{name}}", f"{used}.delete", _delete_disk),
        _route(world, "POST", rules, f"{fire}.insert", _insert_rule, f"{fire}.create", changes),
        _route(world, "PATCH", rule, f"{fire}.patch", _patch_rule, f"{fire}.update", changes),
        _route(world, "DELETE", rule, f"{fire}.delete", _delete_rule, f"{fire}.delete", changes),
    ]


_USUAL_WAIT_SECONDS: Final = 30
"""Simulated: how long it stays PENDING before a stock-out where no wait is asked for."""


class _Instance(Machine):
    """An instance. What ends, whoever ends it, is deleted."""

    plane, table = "compute", "vms"

    @staticmethod
    def view(call: Call, kept: Mapping[str, Any]) -> Resource:
        path = str(kept["selfLink"]).removeprefix(LINK)
        running = _Instance(call.world, call.project, path).vm
        interface, ends = dict(kept["networkInterfaces"][0]), _ends_at(call.project, kept)
        if running:
            interface["networkIP"] = running.internal_ip
        if running and running.external_ip:
            interface["accessConfigs"] = [
                {**config, "natIP": running.external_ip} for config in interface["accessConfigs"]
            ]
        until = {"terminationTimestamp": ends.isoformat(timespec="milliseconds")} if ends else {}
        return {
            **kept,
            "networkInterfaces": [interface],
            "resourceStatus": {"scheduling": until},
        }

    @property
    def kind(self) -> str:
        return _last(self.kept["machineType"])

    @property
    def chips(self) -> int:
        return _CHIPS[self.kind]

    @property
    def model(self) -> str:
        return _MODELS[self.kept["scheduling"]["provisioningModel"]]

    def become(self, status: str) -> None:
        self.kept["status"] = status
        self.turned()

    def finish(self, failure: str = "", **more: Any) -> None:
        """End its operations, well or by one of `refusals.toml`."""
        words = {"project": self.project.id, "zone": self.zone, "kind": self.kind, **more}
        for path in self.life.operations:
            _end(self.project.compute_operations[path], failure, **words)
        self.life.operations = []
        self.world.keep(self.project)

    def begin(self, kind: str, *, user: str = "") -> Resource:
        operation = _begin(self.project, kind, self.name, user=user)
        self.life.operations.append(next(reversed(self.project.compute_operations)))
        return operation

    def leave(self, kind: str, *, user: str = "system") -> Resource:
        self.finish("operation-ended", name=self.short)
        operation = self.begin(kind, user=user)
        self.become("STOPPING")
        self.end_vm()
        self.watch()
        return operation

    def step(self) -> bool:
        steps: Mapping[str, Callable[[], bool | None]] = {
            "PENDING": self._wait,
            "PROVISIONING": self._provision,
            "RUNNING": self._run,
            "STOPPING": self._go,
        }
        step = steps.get(self.kept["status"])
        return step is not None and step() is not False

    def _wait(self) -> None:
        project, zone, model = self.project, self.zone, self.model
        known = zones_of(project).get(zone)
        if known is None or model not in known.accepts:
            self._fail("operation-model", model=self.kept["scheduling"]["provisioningModel"])
        elif not self.row and not self._ask() and model != "flex-start":
            pool, region = chips.pool_of("compute", model), zone.rpartition("-")[0]
            preemptible = pool.endswith("preemptible")
            metric = "PREEMPTIBLE_TPU_V6E" if preemptible else "TPUS_PER_TPU_FAMILY"
            limit = float(chips.limit_of(project, pool, zone))
            self._fail("operation-quota", metric=metric, limit=limit, region=region)
        elif self.row and chips.take(project, self.row):
            self.become("PROVISIONING")
        elif self.after(self.life.patience):  # only where there was none: a clock may be fast
            self._fail("operation-stock-out")

    def _fail(self, failure: str, **words: Any) -> None:
        self.finish(failure, **words)
        self.forget()

    def _ask(self) -> bool:
        """Be counted against a quota; flex-start uses the standard one where the other is used up.

        Source: Google's page on provisioning models, quoted in a public report of 2026-08.
        """
        pools = ("flex-start", "on-demand") if self.model == "flex-start" else (self.model,)
        zone, name, number = self.zone, self.short, self.chips
        return any(chips.ask(self.project, "compute", zone, name, number, one) for one in pools)

    def _provision(self) -> None:
        if self.after(self.project.knobs.tpu_provision_seconds):
            self.kept["lastStartTimestamp"] = _moment()
            self.become("RUNNING")
            self.boot()
            self.finish()

    def _run(self) -> bool:
        ends = _ends_at(self.project, self.kept)
        if ends and ends <= datetime.now(UTC):
            self.leave("compute.instances.deferredDelete")
        return ends is not None

    def _go(self) -> None:
        if self.is_away():
            self.finish()
            self.forget()

    def boot(self) -> None:
        one = self.kept
        interface = one["networkInterfaces"][0]
        account: Resource = next(iter(one["serviceAccounts"]), {"email": "", "scopes": []})
        spec = vm.VmSpec(
            plane="compute",
            zone=self.zone,
            id=self.short,
            chips=self.chips,
            metadata={row["key"]: row.get("value", "") for row in one["metadata"].get("items", [])},
            tags=tuple(one["tags"].get("items", [])),
            network=_last(interface["network"]),
            service_account=account["email"],
            scopes=tuple(account["scopes"]),
            external=bool(interface["accessConfigs"]),
        )
        vm.start(self.world, self.project, spec)


def _ends_at(project: Project, one: Mapping[str, Any]) -> datetime | None:
    """Say when its run time is over; None if nothing limits it, or it does not run."""
    limit = _seconds(one["scheduling"].get("maxRunDuration"))
    if not limit or "lastStartTimestamp" not in one:
        return None
    began = datetime.fromisoformat(one["lastStartTimestamp"])
    return began + timedelta(seconds=limit / project.knobs.tpu_run_clock)


async def _insert(call: Call) -> Resource:
    project, made = call.project, _made(call)
    path = made["selfLink"].removeprefix(LINK)
    project.vms[path] = made
    patience = _waits(call.body) or _USUAL_WAIT_SECONDS
    project.lives[path] = Life(since=time.time(), patience=patience)
    instance = _Instance(call.world, project, path)
    instance.watch()
    return instance.begin("insert")


def _instance_of(call: Call) -> _Instance:
    path = str(call.find("instances")["selfLink"]).removeprefix(LINK)
    return _Instance(call.world, call.project, path)


async def _delete(call: Call) -> Resource:
    instance = _instance_of(call)
    if instance.kept["status"] == "STOPPING":
        raise refusal("compute-busy", path=instance.name)
    return instance.leave("delete", user=call.project.caller)


async def _stop(call: Call) -> Resource:
    """Stop an instance that runs; one with a TPU cannot be started again, and keeps its disk."""
    instance = _instance_of(call)
    if instance.kept["status"] != "RUNNING":
        raise refusal("compute-busy", path=instance.name)
    operation = instance.begin("stop")
    instance.end_vm()
    if row := instance.row:
        call.project.tpus.pop(row.key)
    instance.become("TERMINATED")
    instance.finish()
    return operation


async def _insert_disk(call: Call) -> Resource:
    body = call.read("Disk")
    path = call.free("disks", body.get("name"))
    own = {"zone": LINK + call.parent, "selfLink": LINK + path, "status": "READY"}
    usual = {"sizeGb": _USUAL_DISK_GB, "type": f"{LINK}{call.parent}/diskTypes/pd-standard"}
    call.project.disks[path] = {**usual, **body, **own}
    return _ended(call.project, "insert", path)


async def _delete_disk(call: Call) -> Resource:
    disk = call.find("disks")
    path = str(disk["selfLink"]).removeprefix(LINK)
    if users := disk.get("users"):
        where = users[0].removeprefix(LINK)
        raise refusal("compute-disk-used", path=path, user=where)
    del call.project.disks[path]
    return _ended(call.project, "delete", path)


def _ended(project: Project, kind: str, path: str) -> Resource:
    """Return an operation that is over at once."""
    operation = _begin(project, kind, path)
    _end(operation)
    return operation


def resume(world: World) -> None:
    """Go on with what an earlier process began; VMs that were up boot again."""
    for project in world:
        for path, operation in project.compute_operations.items():
            if "/global/" in path:
                _end(operation)
        for path, one in project.vms.items():
            instance = _Instance(world, project, path)
            if one["status"] == "RUNNING":
                instance.boot()
            instance.watch()


def preempt(world: World, project: Project, zone: str, name: str) -> bool:
    """Take an instance back that is SPOT and has its chips; false if there is none such."""
    path = f"projects/{project.id}/zones/{zone}/instances/{name}"
    instance = _Instance(world, project, path)
    there = path in project.vms and instance.row is not None and instance.row.given
    if not there or instance.model != "spot" or instance.kept["status"] == "STOPPING":
        return False
    operation = instance.leave("compute.instances.preempted")
    operation["statusMessage"] = "Instance was preempted."
    return True


_USUAL_DISK_GB: Final = "10"
_RUN_SECONDS: Final = {False: (30, 120 * 86_400), True: (600, 7 * 86_400)}
"""At least and at most; whether it is FLEX_START."""
_FLEX_WAIT_SECONDS: Final = (90, 7200)
_NO_NETWORK: Final = "The referenced network resource cannot be found."


def _made(call: Call) -> Resource:
    """Return the instance that a request asks for, with everything that follows from it."""
    body = call.read("Instance")
    path, parent = call.free("instances", body.get("name")), LINK + call.parent
    disks, interfaces = body.get("disks") or [{}], body.get("networkInterfaces") or [{}]
    disk, interface = disks[0].get("initializeParams") or {}, interfaces[0]
    interface = {"network": "global/networks/default", "accessConfigs": [], **interface}
    scheduling = {"provisioningModel": "STANDARD", **body.get("scheduling", {})}
    for wrong in (*_of_machine(call, body, disk, interface), *_of_scheduling(body, scheduling)):
        raise wrong
    if interface["accessConfigs"]:
        _check_external(call, body["name"])
    return {
        **{key: value for key, value in body.items() if key != "params"},
        "machineType": f"{parent}/machineTypes/{_last(body['machineType'])}",
        "zone": parent,
        "selfLink": LINK + path,
        "creationTimestamp": _moment(),
        "status": "PENDING",
        "scheduling": scheduling,
        "disks": [{"initializeParams": {"diskSizeGb": _USUAL_DISK_GB, "labels": {}, **disk}}],
        "networkInterfaces": [interface],
        "serviceAccounts": [_account(one, call) for one in body.get("serviceAccounts", [])[:1]],
        "labels": body.get("labels", {}),
        "tags": body.get("tags", {}),
        "metadata": body.get("metadata", {}),
    }


def _of_machine(
    call: Call, body: Resource, disk: Resource, interface: Resource
) -> Iterator[Refused]:
    """Yield what machine, disk and network cannot be; one with TPUs takes hyperdisks alone."""
    link = body.get("machineType", "")
    machine, disk_type = _last(link), _last(disk.get("diskType", ""))
    if f"{call.parent}/machineTypes/{machine}" not in _types(call.project):
        words = f"Machine type with name '{machine}' does not exist in zone '{call.zone}'."
        yield _wrong("machineType", link, words)
    if disk_type.startswith("pd-"):
        yield refusal("compute-disk-type", disk=disk_type, machine=machine)
    if _last(interface["network"]) != "default":
        yield _wrong("networkInterfaces[0].network", interface["network"], _NO_NETWORK)


def _check_external(call: Call, name: str) -> None:
    """Refuse an external address that the organisation or the caller's permissions do not give."""
    if "compute.vmExternalIpAccess" in call.project.knobs.constraints:
        raise refusal("compute.vmExternalIpAccess", number=call.project.number, name=name)
    call.need("compute.subnetworks.useExternalIp")


def _last(link: str) -> str:
    return link.rpartition("/")[2]


def _account(one: Resource, call: Call) -> Resource:
    project = call.project
    usual = f"{project.number}-compute@developer.gserviceaccount.com"
    email = usual if one.get("email", "") in {"", "default"} else one["email"]
    if email != usual and email not in project.accounts:
        raise refusal("compute-no-account", project=project.id, email=email)
    if project.denies("iam.serviceAccounts.actAs", f"projects/-/serviceAccounts/{email}"):
        raise refusal("compute-account", email=email, caller=project.caller)
    return {"email": email, "scopes": one.get("scopes", [])}


def _seconds(duration: Any) -> int:
    """Return the whole seconds of a duration as Compute Engine writes it."""
    return int((duration or {}).get("seconds", "0"))


def _of_scheduling(body: Resource, said: Resource) -> Iterator[Refused]:
    """Yield what cannot be, or not together."""
    flex = said["provisioningModel"] == "FLEX_START"
    moves = said.get("onHostMaintenance", "MIGRATE")
    if moves != "TERMINATE" and said["provisioningModel"] != "SPOT":
        yield refusal("compute-moves")
    shortest, longest = _RUN_SECONDS[flex]
    if "maxRunDuration" in said and not shortest <= _seconds(said["maxRunDuration"]) <= longest:
        words = f"Must be between {shortest} and {longest} seconds."
        yield _wrong("scheduling.maxRunDuration", said["maxRunDuration"], words)
    waited, (shortest, longest) = _waits(body), _FLEX_WAIT_SECONDS
    if waited and not (flex and shortest <= waited <= longest):
        words = f"Must be 0, or between {shortest} and {longest} seconds with FLEX_START."
        yield _wrong("params.requestValidForDuration", waited, words)
    affinity = body.get("reservationAffinity", {}).get("consumeReservationType", "")
    if flex and affinity != "NO_RESERVATION":
        words = "It must be NO_RESERVATION for the provisioning model FLEX_START."
        yield _wrong("reservationAffinity.consumeReservationType", affinity, words)


def _waits(body: Resource) -> int:
    return _seconds((body.get("params") or {}).get("requestValidForDuration"))


_RULE_SECONDS: Final = 0.1
"""Of a change of a rule, in real time."""


async def _insert_rule(call: Call) -> Resource:
    body = call.read("Firewall")
    return _change_rule(call, "insert", call.free("firewalls", body.get("name")), body)


async def _patch_rule(call: Call) -> Resource:
    rule = {**call.find("firewalls"), **call.read("Firewall")}
    return _change_rule(call, "patch", f"{call.parent}/firewalls/{call.name}", rule)


async def _delete_rule(call: Call) -> Resource:
    call.find("firewalls")
    return _change_rule(call, "delete", f"{call.parent}/firewalls/{call.name}", None)


_USUAL_RULE: Final[Resource] = {
    "priority": 1000,
    "direction": "INGRESS",
    "disabled": False,
    "sourceRanges": ["0.0.0.0/0"],
}


def _change_rule(call: Call, kind: str, path: str, rule: Resource | None) -> Resource:
    """Keep a rule, or none, and begin the operation that says so a moment later."""
    rules, network = call.project.firewalls, f"{LINK}{call.parent}/networks/default"
    if rule is None:
        del rules[path]
    elif _last(rule.get("network", network)) != "default":
        raise _wrong("network", rule["network"], _NO_NETWORK)
    else:
        rules[path] = {**_USUAL_RULE, **rule, "network": network, "selfLink": LINK + path}
    operation = _begin(call.project, kind, path)

    async def end() -> None:
        await anyio.sleep(_RULE_SECONDS)
        _end(operation)
        call.world.keep(call.project)

    call.world.tasks.start_soon(end)
    return operation
