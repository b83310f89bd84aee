"""How every simulated API is served: calls admitted, kept, refused, paged and waited for."""

import importlib
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.longrunning.operations_pb2 import GetOperationRequest, Operation
from google.protobuf import json_format
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from simulators.common.world import meeting_faults
from simulators.google.grants import AS, acting_as
from simulators.google.state import REFUSALS, Fault, Project, World


@dataclass(eq=False)
class Refused(Exception):
    """A call is answered with a status of gRPC in place of a message."""

    status: str
    """Name of a grpc.StatusCode, such as NOT_FOUND."""
    message: str
    reason: str = ""
    """Of the ErrorInfo that goes with it; none if empty."""
    domain: str = "googleapis.com"
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Of that ErrorInfo."""

    @property
    def as_status(self) -> Status:
        """The same as the error of a long-running operation."""
        return Status(code=grpc.StatusCode[self.status].value[0], message=self.message)

    @property
    def details(self) -> Sequence[Any]:
        """The ErrorInfo that goes with it, if there is one."""
        info = ErrorInfo(reason=self.reason, domain=self.domain, metadata=dict(self.metadata))
        return (info,) if self.reason else ()


def refusal(name: str, /, **words: Any) -> Refused:
    """Return one of `refusals.toml`, with its words filled in."""
    status, message, *more = REFUSALS[name]
    reason, details = more or ("", {})
    told = {key: text.format(**words) for key, text in details.items()}
    domain = told.pop("domain", "googleapis.com")
    return Refused(status, message.format(**words), reason, domain, told)


def check_acting(project: Project, account: str) -> None:
    """Refuse what is to run as an account that the caller may not act as, or that is not there."""
    act = "iam.serviceAccounts.actAs"
    ours = account.endswith(f"@{project.id}.iam.gserviceaccount.com")
    resource = f"projects/-/serviceAccounts/{account or 'default'}"
    if project.denies(act, resource) or (ours and account not in project.accounts):
        raise refusal("not-permitted", permission=act, resource=resource)


_PROJECTS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r'(?:(?<!\\)"|/)projects/(?!-/)([^/"]+)',
        r"@([a-z0-9-]+)\.iam\.gserviceaccount\.com",
        r'\boperations/acf\.[^/]*?-([^/"]+)',
    )
)
"""Where in the text of a request its project is named."""
_NO_PROJECT: Final = "rehearsal"
ALWAYS_ENABLED: Final = frozenset({"serviceusage.googleapis.com"})
"""Without it nothing could ever be enabled."""
_CLIENT_BASED: Final = frozenset(
    f"{name}.googleapis.com" for name in ("cloudquotas", "cloudresourcemanager", "serviceusage")
)
"""APIs that count a call for the project of the credentials, not for the one that it is about."""
USE: Final = "serviceusage.services.use"


def project_of(request: Any) -> str:
    """Return the id or number of the project that a request is about."""
    message = plain(request)
    found = (pattern.search(str(message)) for pattern in _PROJECTS)
    named = str(getattr(message, "project_id", "")) or _NO_PROJECT
    return next((one[1] for one in found if one), named)


def admit(project: Project, api: str, permission: str, resource: str) -> None:
    """Refuse a call to an API that is off, or by a caller who may not."""
    if api and api not in project.apis | ALWAYS_ENABLED:
        raise refusal("api-off", api=api, number=project.number)
    if project.denies(permission, resource):
        raise refusal("not-permitted", permission=permission, resource=resource)


def _of_fault(fault: Fault) -> Refused:
    words = fault.message or f"Rehearsed: {fault.status}."
    return Refused(fault.status, words, reason=fault.reason)


def check_billed(world: World, project: Project, api: str, billed: str) -> None:
    """Refuse a call of a person that no project pays for, or one that may not or cannot."""
    if project.knobs.identity_kind != "user" or not api or project.account:
        return
    if not billed:
        if api in _CLIENT_BASED:
            raise refusal("no-quota-project", api=api)
        return
    paying = world.project(billed)
    if paying.denies(USE):
        raise refusal("quota-project", api=api, billed=billed, permission=USE)
    if api not in paying.apis | ALWAYS_ENABLED:
        raise refusal("api-off", api=api, number=paying.number)


CODES: Final = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""Source: the comments of google/rpc/code.proto."""


def _refusal_body(refused: Refused, codes: Mapping[str, int]) -> Response:
    """Return a refusal as Google's JSON APIs tell it."""
    code = codes.get(refused.status, 500)
    body: dict[str, Any] = {"code": code, "message": refused.message, "status": refused.status}
    for one in refused.details:
        kind = f"type.googleapis.com/{one.DESCRIPTOR.full_name}"
        body["details"] = [{"@type": kind, **json_format.MessageToDict(one)}]
    return JSONResponse({"error": body}, status_code=code)


def rest(
    world: World,
    verb: str,
    path: str,
    name: str,
    admitted: Callable[[Project, Request], Awaitable[Response]],
    codes: Mapping[str, int] = CODES,
) -> Route:
    """Serve a method of REST by the name that faults and counts have of it."""

    async def handle(request: Request) -> Response:
        world.touch()
        email = request.path_params.get("email", "")
        named = request.path_params.get("project") or email.rpartition("@")[2].partition(".")[0]
        project = world.project(named)
        try:
            with acting_as(request.headers.get(AS, "")):
                async with meeting_faults(project, name, _of_fault):
                    reply = await admitted(project, request)
                    if verb != "GET":
                        world.keep(project)
        except Refused as refused:
            return _refusal_body(refused, codes)
        return reply

    return Route(path, handle, methods=[verb])


_READS: Final = ("Get", "List", "Test", "Access", "Wait", "BatchGet")
"""How methods begin that change nothing."""
Answer = Callable[[World, Project, Any], Awaitable[Any]]
"""Answers a request that was admitted, in the project it names; raises Refused."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of an API, which takes one message and gives one."""

    asked: Any
    """Class of the request, of proto-plus or plain; or where it is, as module:Class."""
    answer: Answer
    permission: str = ""
    """What the caller needs, such as run.services.create; none if empty."""

    def read(self, data: bytes) -> Any:
        """Read a request; its class is imported with the first."""
        kind = self.asked
        if isinstance(kind, str):
            module, _, name = kind.partition(":")
            kind = getattr(importlib.import_module(module), name)
        return (getattr(kind, "deserialize", None) or kind.FromString)(data)


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
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(
            _behaviour(world, f"{service}/{name}", method, api),
            request_deserializer=method.read,
            response_serializer=lambda answer: plain(answer).SerializeToString(),
        )
        for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _behaviour(world: World, name: str, method: Method, api: str) -> Callable[..., Awaitable[Any]]:
    async def behave(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        world.touch()
        sent = dict(context.invocation_metadata() or ())
        project = world.project(project_of(request))
        named = re.search(r'"([^"]+)"', str(plain(request)))
        resource = named[1] if named else f"projects/{project.id}"
        try:
            with acting_as(str(sent.get(AS, ""))):
                async with meeting_faults(project, name, _of_fault):
                    check_billed(world, project, api, str(sent.get("x-goog-user-project", "")))
                    admit(project, api, method.permission, resource)
                    answer = await method.answer(world, project, request)
                    if not name.partition("/")[2].startswith(_READS):
                        world.keep(project)
                return answer
        except Refused as refused:
            status = refused.as_status
            for detail in refused.details:
                status.details.add().Pack(detail)
            told = status.SerializeToString() if status.details else b""
            trailing = (("grpc-status-details-bin", told),) if told else ()
            await context.abort(grpc.StatusCode[refused.status], refused.message, trailing)

    return behave


T = TypeVar("T")


def page_of(
    rows: Sequence[T], size: int, token: str, *, most: int, usual: int = 0
) -> tuple[list[T], str]:
    """Give one page of rows and the token of the next, empty after the last.

    `usual` is the size where none is asked for (0: as `most`), which no page goes beyond.
    """
    begin = int(token or 0)
    end = begin + min(size or usual or most, most)
    return list(rows[begin:end]), str(end) if end < len(rows) else ""


_PERMISSIONS: Final = {
    "run": "run.operations.get",
    "tpu": "tpu.operations.get",
}
"""What a look at an operation takes, by the API that its metadata is of.

Source: iam-dataset's table of methods and permissions (2026-08), made of Google's own pages.
"""


def new_name(project: Project, about: str) -> str:
    """Give the name of an operation on what has a full name, as most APIs form it."""
    return f"projects/{project.id}/locations/{about.split('/')[3]}/operations/{uuid.uuid4()}"


def opened(project: Project, name: str, metadata: Any = None) -> Operation:
    """Begin an operation that somebody else finishes."""
    operation = Operation(name=name)
    if metadata is not None:
        operation.metadata.Pack(plain(metadata))
    project.operations[name] = operation
    return operation


def finished(operation: Operation, answer: Any) -> Operation:
    """End an operation that goes on, with an answer or with Refused."""
    if operation.done:
        return operation
    if isinstance(answer, Refused):
        operation.error.CopyFrom(answer.as_status)
    else:
        operation.response.Pack(plain(answer))
    operation.done = True
    return operation


def validated(answer: Any) -> Operation:
    """Return the answer to validate_only: over at once, with the method's metadata."""
    operation = Operation()
    operation.metadata.Pack(plain(answer))
    return finished(operation, answer)


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve google.longrunning.Operations for all APIs."""
    methods = {"GetOperation": Method(GetOperationRequest, _get)}
    add(server, world, "google.longrunning.Operations", methods)


async def _get(_world: World, project: Project, request: GetOperationRequest) -> Operation:
    found: Operation | None = project.operations.get(request.name)
    if found is None:
        raise refusal("no-operation", name=request.name)
    kind = found.metadata.type_url
    permission = next((one for api, one in _PERMISSIONS.items() if f".{api}." in kind), "")
    if project.denies(permission):
        raise refusal("not-permitted", permission=permission, resource=request.name)
    return found


def plain(message: Any) -> Any:
    """Return the protocol buffer of a message of proto-plus."""
    return type(message).pb(message) if hasattr(type(message), "pb") else message
