"""How every simulated API is served: by name, each call admitted, kept and refused alike."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Never

import anyio
import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from emulators.google.faults import Injected, admit, check_billed, project_of, take_fault
from emulators.google.refusing import Refused
from emulators.google.state import Project, World

_READS: Final = ("Get", "List", "Test", "Access", "Wait", "BatchGet")
"""How methods begin that change nothing."""
Answer = Callable[[World, Project, Any], Awaitable[Any]]
"""Answers a request that was admitted, in the project it names; raises Refused."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of an API."""

    asked: Any
    """Class of the request, of proto-plus or plain."""
    answered: Any
    answer: Answer
    permission: str
    """What the caller needs, such as run.services.create; none if empty."""


class Billed(NamedTuple):
    """Which API a call is of, and whose quota its header names; empty if none."""

    api: str
    project: str


def unary(asked: Any, answered: Any, answer: Answer, permission: str = "") -> Method:
    """Describe a method that takes one message and gives one."""
    return Method(asked, answered, answer, permission)


def add(
    server: grpc.aio.Server,
    world: World,
    service: str,
    methods: Mapping[str, Method],
    *,
    api: str = "",
) -> None:
    """Serve a service such as google.cloud.run.v2.Services.

    `api` is what has to be enabled, such as run.googleapis.com; empty is nothing.
    """
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _behaviour(world, f"{service}/{name}", method, api),
            request_deserializer=_reader(method.asked),
            response_serializer=_writer(method.answered),
        )
        for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _behaviour(world: World, name: str, method: Method, api: str) -> Callable[..., Awaitable[Any]]:
    async def behave(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        world.touch()
        try:
            sent = dict(context.invocation_metadata() or ())
            billed = str(sent.get("x-goog-user-project", ""))
            return await _answered(world, name, method, Billed(api, billed), request)
        except Refused as refused:
            await _abort(context, refused)

    return behave


async def _answered(world: World, name: str, method: Method, to: Billed, request: Any) -> Any:
    project = world.project(project_of(request))
    project.called(name)
    fault = take_fault(project, name)
    if fault and fault.when in {"before", "hang"}:
        await _fail(fault)
    check_billed(world, project, to.api, to.project)
    admit(project, request, to.api, method.permission)
    answer = await method.answer(world, project, request)
    if not name.partition("/")[2].startswith(_READS):
        world.keep(project)
    if fault:
        await _fail(fault)
    return answer


async def _fail(fault: Injected) -> Never:
    if fault.when.startswith("hang"):
        await anyio.sleep_forever()
    raise fault.refusal


async def _abort(context: grpc.aio.ServicerContext[Any, Any], refused: Refused) -> Never:
    code = grpc.StatusCode[refused.status]
    status = Status(code=code.value[0], message=refused.message)
    details = list(refused.details)
    if refused.reason:
        info = ErrorInfo(
            reason=refused.reason, domain=refused.domain, metadata=dict(refused.metadata)
        )
        details.insert(0, info)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    trailing = (("grpc-status-details-bin", status.SerializeToString()),) if details else ()
    await context.abort(code, refused.message, trailing)


def _reader(kind: Any) -> Callable[[bytes], Any]:
    read: Callable[[bytes], Any] = getattr(kind, "deserialize", None) or kind.FromString
    return read


def _writer(kind: Any) -> Callable[[Any], bytes]:
    write: Callable[[Any], bytes] = getattr(kind, "serialize", None) or kind.SerializeToString
    return write
