"""Long-running operations of every API: begun, looked at, waited for."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import grpc.aio
from google.longrunning.operations_pb2 import (
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    WaitOperationRequest,
)

from emulators.google.refusing import Refused, not_found, not_permitted
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

_POLL_SECONDS: Final = 0.02
_PERMISSIONS: Final = {
    "run": "run.operations.get",
    "tpu": "tpu.operations.get",
    "cloudbuild": "cloudbuild.builds.get",
}
"""Source: iam-dataset's table of methods and permissions (2026-08), made of Google's own pages."""
_LONGEST_WAIT_SECONDS: Final = 30.0


def new_name(project: Project, location: str) -> str:
    """Give a name as most APIs form it."""
    return f"projects/{project.id}/locations/{location}/operations/{uuid.uuid4()}"


def opened(project: Project, name: str, metadata: Any = None) -> Operation:
    """Begin an operation that somebody else finishes."""
    operation = Operation(name=name)
    if metadata is not None:
        operation.metadata.Pack(_plain(metadata))
    project.operations[name] = operation
    return operation


def succeeded(operation: Operation, answer: Any) -> Operation:
    """Finish it with an answer."""
    operation.response.Pack(_plain(answer))
    operation.done = True
    return operation


def validated(answer: Any) -> Operation:
    """Return the answer to validate_only: over at once, with the method's metadata."""
    operation = Operation()
    operation.metadata.Pack(_plain(answer))
    return succeeded(operation, answer)


def failed(operation: Operation, refused: Refused) -> Operation:
    """Finish it with a google.rpc.Status."""
    operation.error.CopyFrom(refused.as_status)
    operation.done = True
    return operation


def begun(
    world: World,
    project: Project,
    name: str,
    work: Callable[[], Awaitable[Any]],
    *,
    metadata: Any = None,
) -> Operation:
    """Begin an operation whose `work` goes on by itself; its answer, or Refused, finishes it."""
    operation = opened(project, name, metadata)

    async def go_on() -> None:
        try:
            succeeded(operation, await work())
        except Refused as refused:
            failed(operation, refused)
        world.keep(project)

    world.tasks.start_soon(go_on)
    return operation


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve google.longrunning.Operations for all APIs."""
    add(
        server,
        world,
        "google.longrunning.Operations",
        {
            "GetOperation": unary(GetOperationRequest, Operation, _get),
            "ListOperations": unary(ListOperationsRequest, ListOperationsResponse, _list),
            "WaitOperation": unary(WaitOperationRequest, Operation, _wait),
        },
    )


async def _get(_world: World, project: Project, request: GetOperationRequest) -> Operation:
    found: Operation | None = project.operations.get(request.name)
    if found is None:
        raise not_found("Operation", request.name)
    permission = _permission(found.metadata.type_url)
    if project.denies(permission):
        raise not_permitted(permission, request.name)
    return found


def _permission(kind: str) -> str:
    """Give what a look at an operation takes, by the API that its metadata is of."""
    return next((needed for part, needed in _PERMISSIONS.items() if f".{part}." in kind), "")


async def _list(
    _world: World, project: Project, request: ListOperationsRequest
) -> ListOperationsResponse:
    under = [one for name, one in project.operations.items() if name.startswith(request.name)]
    return ListOperationsResponse(operations=under)


async def _wait(_world: World, project: Project, request: WaitOperationRequest) -> Operation:
    asked = request.timeout.seconds + request.timeout.nanos / 1e9
    longest = min(asked or _LONGEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS)
    operation = await _get(_world, project, GetOperationRequest(name=request.name))
    with anyio.move_on_after(longest):
        while True:
            if operation.done:
                break
            await anyio.sleep(_POLL_SECONDS)
    return operation


def _plain(message: Any) -> Any:
    return type(message).pb(message) if hasattr(type(message), "pb") else message
