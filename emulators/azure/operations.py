"""Long-running operations of every type: begun, looked at, gone on with after a restart."""

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure.refusing import Refused
from emulators.azure.serving import Call, arm
from emulators.azure.state import Operation, Subscription, World

_RETRY_AFTER: Final = {"Retry-After": "0"}
"""Whoever looks may take their own rhythm; Azure asks to wait some seconds."""
Worker = Callable[[World, Subscription, Operation], Awaitable[dict[str, Any] | None]]
"""Goes on with an operation to its end, also where another process left off; gives what a
`Location` answers then. Raises Refused: the operation has failed."""
_WORKERS: Final[dict[str, Worker]] = {}


def worker(name: str) -> Callable[[Worker], Worker]:
    """Register who goes on with operations of that name, such as `app-create`."""

    def register(work: Worker) -> Worker:
        _WORKERS[name] = work
        return work

    return register


def begin(call: Call, work: str, region: str, kind: str, **more: Any) -> Operation:
    """Begin an operation.

    `kind` is the collection where it is looked up, such as containerappOperationStatuses; `more`
    is what its worker finds in `Operation.more`.
    """
    namespace, number = call.type.partition("/")[0], str(uuid.uuid4())
    base = f"/subscriptions/{call.sub.id}/providers/{namespace}/locations/{region}"
    operation = Operation(
        id=number,
        work=work,
        resource=call.id,
        path=f"{base}/{kind}/{number}",
        api_version=call.api_version,
        begun=time.time(),
        more=more,
    )
    call.sub.operations[number] = operation
    call.world.tasks.start_soon(_go_on, call.world, call.sub, operation)
    return operation


def async_header(world: World, operation: Operation) -> dict[str, str]:
    """Give the headers of an operation whose status is told in a body."""
    return {"Azure-AsyncOperation": _url(world, operation), **_RETRY_AFTER}


def location_header(world: World, operation: Operation) -> dict[str, str]:
    """Give the headers of an operation that answers 202 until it is done."""
    return {"Location": _url(world, operation), **_RETRY_AFTER}


def under_way(sub: Subscription, resource_id: str) -> Operation | None:
    """Give the operation that changes a resource now."""
    return next(
        (
            one
            for one in sub.operations.values()
            if one.resource == resource_id.lower() and one.status == "InProgress"
        ),
        None,
    )


async def lasting(operation: Operation, seconds: float) -> None:
    """Wait until an operation has taken so long, counted from when it was begun.

    Raises:
        Refused: It was cancelled meanwhile.
    """
    await anyio.sleep(max(0.0, operation.begun + seconds - time.time()))
    if operation.status != "InProgress":
        raise Refused(409, "OperationCanceled", "The operation was canceled.")


def cancel(sub: Subscription) -> None:
    """Let nothing go on in a subscription that is to be forgotten."""
    for operation in sub.operations.values():
        operation.status = "Canceled"


def looked_at(world: World, namespace: str, *kinds: str) -> list[BaseRoute]:
    """Serve the collections of a provider where operations are looked up.

    Those that end in Statuses tell the status in a body, the others answer 202 until the end.
    """
    base = f"/subscriptions/{{subscription}}/providers/{namespace}/locations/{{location}}"
    return [
        arm(
            "GET",
            f"{base}/{kind}/{{operation}}",
            _status if kind.lower().endswith("statuses") else _result,
            type=f"{namespace}/locations/{kind}",
            name="operations",
            world=world,
        )
        for kind in kinds
    ]


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve what the operations of Microsoft.App are looked at by."""
    return looked_at(
        world,
        "Microsoft.App",
        "containerappOperationStatuses",
        "containerappOperationResults",
        "managedEnvironmentOperationStatuses",
        "managedEnvironmentOperationResults",
    )


def resume(world: World) -> None:
    """Go on with what another process began."""
    for sub in world:
        for operation in sub.operations.values():
            if operation.status == "InProgress":
                world.tasks.start_soon(_go_on, world, sub, operation)


async def _go_on(world: World, sub: Subscription, operation: Operation) -> None:
    try:
        operation.answer = await _WORKERS[operation.work](world, sub, operation)
        operation.status = "Succeeded"
    except Refused as refused:
        operation.error, operation.error_status = refused.error, refused.status
        operation.status = "Failed"
    world.keep(sub)


async def _status(call: Call) -> Response:
    """Tell the status: a failed operation's with 200 as well."""
    found = _found(call)
    began = datetime.fromtimestamp(found.begun, UTC).isoformat()
    told: dict[str, Any] = {
        "id": found.path,
        "name": found.id,
        "status": found.status,
        "startTime": began,
    }
    if found.error:
        told["error"] = found.error
    waiting = _RETRY_AFTER if found.status == "InProgress" else {}
    return JSONResponse(told, headers=waiting)


async def _result(call: Call) -> Response:
    """Answer 202 until it is done; then the resource, nothing, or the error."""
    found = _found(call)
    if found.status == "InProgress":
        return Response(status_code=202, headers=location_header(call.world, found))
    if found.error:
        return JSONResponse({"error": found.error}, status_code=found.error_status)
    return Response(status_code=204) if found.answer is None else JSONResponse(found.answer)


def _found(call: Call) -> Operation:
    found = call.sub.operations.get(call.params["operation"].lower())
    if found is None:
        raise Refused(
            404,
            "OperationNotFound",
            f"The operation '{call.params['operation']}' was not found.",
        )
    return found


def _url(world: World, operation: Operation) -> str:
    return f"{world.urls.arm}{operation.path}?api-version={operation.api_version}"
