"""Operations of zones and of the project: begun, told, listed, waited for."""

import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from starlette.routing import BaseRoute

from emulators.google.compute import paging
from emulators.google.compute.refusing import not_found
from emulators.google.compute.serving import LINK, Call, route
from emulators.google.state import Project, World

_KEPT: Final = 500
"""Operations of a project, newest last."""
_POLL_SECONDS: Final = 0.02
_LONGEST_WAIT_SECONDS: Final = 120.0
"""Source: discovery document compute.v1 on zoneOperations.wait: about two minutes."""
_REQUEST: Final = "_requestId"
SYSTEM: Final = "system"
"""The user of what Compute Engine does by itself."""

Operation = dict[str, Any]


def moment(at: float | None = None) -> str:
    """Give a time, now if none is given, as Compute Engine writes it."""
    return datetime.fromtimestamp(at or time.time(), UTC).isoformat(timespec="milliseconds")


def new_id() -> str:
    """Give a number that nothing else has, as JSON has it."""
    return str(uuid.uuid4().int >> 65)


def shown(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what only the simulation knows of a resource."""
    return {key: value for key, value in resource.items() if not key.startswith("_")}


def begin(
    project: Project,
    kind: str,
    target: str,
    target_id: str,
    *,
    user: str = "",
    request: str = "",
) -> Operation:
    """Begin an operation on `target`, such as projects/P/zones/Z/instances/I.

    `kind` is such as insert, or compute.instances.preempted; `user` is the caller if not said.
    """
    parent = "/".join(target.split("/")[:-2])
    path = f"{parent}/operations/{_name(system=user == SYSTEM)}"
    now = moment()
    operation: Operation = {
        "kind": "compute#operation",
        "id": new_id(),
        "name": path.rpartition("/")[2],
        "operationType": kind,
        "targetLink": LINK + target,
        "targetId": target_id,
        "status": "RUNNING",
        "user": user or project.caller,
        "progress": 0,
        "insertTime": now,
        "startTime": now,
        "selfLink": LINK + path,
        _REQUEST: request,
    }
    if "/zones/" in parent:
        operation["zone"] = LINK + parent
    project.compute_operations[path] = operation
    for old in tuple(project.compute_operations)[:-_KEPT]:
        del project.compute_operations[old]
    return operation


def same(project: Project, request: str) -> Operation | None:
    """Give the operation that the same request began before; none without a requestId."""
    found = project.compute_operations.values()
    return next((one for one in found if request and one.get(_REQUEST) == request), None)


def finish(operation: Operation) -> Operation:
    """End it well."""
    operation.update(status="DONE", progress=100, endTime=moment())
    return operation


def fail(operation: Operation, status: int, code: str, message: str, **details: Any) -> None:
    """End it with an error: a status of HTTP, Compute Engine's code, and details."""
    error: dict[str, Any] = {"code": code, "message": message}
    if details:
        error["errorDetails"] = [{key: value} for key, value in details.items()]
    finish(operation).update(
        error={"errors": [error]}, httpErrorStatusCode=status, httpErrorMessage=_PHRASES[status]
    )


_PHRASES: Final = {
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    409: "CONFLICT",
    503: "SERVICE UNAVAILABLE",
}


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve zoneOperations and globalOperations: get, list, wait."""
    found: list[BaseRoute] = []
    for path, name in (("zones/{zone}", "zoneOperations"), ("global", "globalOperations")):
        under = f"{path}/operations"
        one = f"{under}/{{operation}}"
        get = f"compute.{name}.get"
        found += [
            route(world, "GET", under, f"compute.{name}.list", _list),
            route(world, "GET", one, get, _get),
            route(world, "POST", f"{one}/wait", f"compute.{name}.wait", _wait, get),
        ]
    return found


async def _get(call: Call) -> dict[str, Any]:
    return shown(_found(call))


async def _list(call: Call) -> dict[str, Any]:
    prefix = f"{call.parent}/operations/"
    held = call.project.compute_operations.items()
    rows = [shown(one) for path, one in held if path.startswith(prefix)]
    return paging.listed(call, rows, "compute#operationList")


async def _wait(call: Call) -> dict[str, Any]:
    operation = _found(call)
    with anyio.move_on_after(_LONGEST_WAIT_SECONDS):
        while True:
            if operation["status"] == "DONE":
                break
            await anyio.sleep(_POLL_SECONDS)
    return shown(operation)


def _found(call: Call) -> Operation:
    path = f"{call.parent}/operations/{call.params['operation']}"
    operation = call.project.compute_operations.get(path)
    if operation is None:
        raise not_found(path)
    return operation


def _name(*, system: bool) -> str:
    more = uuid.uuid4().hex
    begin = "systemevent" if system else "operation"
    return f"{begin}-{time.time_ns() // 10**6}-{more[:13]}-{more[13:21]}-{more[21:29]}"
