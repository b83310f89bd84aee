"""How every resource type is served: admitted, checked by schema, kept, paged, waited for."""

import enum
import functools
import importlib
import json
import re
import time
import types
import typing
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclasses_field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from simulators.azure import tokens
from simulators.azure.errors import (
    Refused,
    conflict,
    denied,
    group_not_found,
    invalid,
    not_authorized,
    not_found,
    not_registered,
    take_fault,
)
from simulators.azure.state import Operation, Subscription, World

_VERBS: Final = {
    "GET": "read", "HEAD": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"
}  # fmt: skip
_ALWAYS_REGISTERED: Final = frozenset(
    {"microsoft.resources", "microsoft.authorization", "microsoft.policyinsights"}
)
_API_VERSION: Final = re.compile(r"^\d{4}-\d{2}-\d{2}(-preview)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that was admitted."""

    world: World
    sub: Subscription
    method: str
    type: str
    """Such as Microsoft.App/containerApps."""
    path: str
    """As it was asked for, without an action."""
    params: Mapping[str, str]
    """What the pattern's names stand for, as they were written."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: dict[str, Any]
    caller: str
    """Object id of whoever asks."""
    scope: str = dataclasses_field(default="")
    """The same as `path`, with the group's own name."""

    @property
    def id(self) -> str:
        """The resource's id in lower case."""
        return self.path.lower()

    @property
    def group_id(self) -> str:
        """The id of the resource group, in lower case."""
        return group_id(self.sub, self.params["group"])

    @property
    def api_version(self) -> str:
        """Which version of the API is spoken."""
        return self.query["api-version"]

    def found(self) -> dict[str, Any]:
        """Give the resource that the path names.

        Raises:
            Refused: There is none.
        """
        body = self.sub.resources.get(self.id)
        if body is None:
            raise not_found(self.path)
        return body

    def keep(self) -> None:
        """Write the subscription down."""
        self.world.keep(self.sub)


Handler = Callable[[Call], Awaitable[Response | dict[str, Any]]]
"""Answers a call; a dict is the JSON of a 200. Raises Refused."""


class _AnyCase(Route):
    """A route of ARM: it does not matter in which letters a path is written."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, method: str) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}
        self.path_regex = re.compile(self.path_regex.pattern, re.IGNORECASE)


def group_id(sub: Subscription, group: str) -> str:
    """Give the id of a resource group, in lower case."""
    return f"/subscriptions/{sub.id}/resourcegroups/{group}".lower()


def arm(
    method: str,
    pattern: str,
    handler: Handler,
    *,
    type: str,  # noqa: A002  ARM's own word
    action: str = "",
    world: World,
    permission: str = "",
    name: str = "",
    audience: str = tokens.ARM,
) -> Route:
    """Serve one method of a resource type.

    `pattern` has `{subscription}` and may have `{group}`, which must then exist. The call is known
    to faults as `METHOD type[/action]`, or `METHOD name` if that is given. `permission` is what the
    caller needs, where it is not `type/read`, `/write`, `/delete` or `type/action/action`.
    """
    verb = f"{action}/action" if action else _VERBS.get(method, "action")
    one = _Method(
        world,
        handler,
        type,
        action,
        permission or f"{type}/{verb}",
        f"{method} {name or type}{f'/{action}' if action and not name else ''}",
        audience,
    )
    return _AnyCase(pattern, one.answer, method=method)


@dataclass(frozen=True, slots=True)
class _Method:
    world: World
    handler: Handler
    type: str
    action: str
    permission: str
    name: str
    audience: str

    async def answer(self, request: Request) -> Response:
        """Answer, or refuse as ARM does."""
        self.world.touch()
        try:
            answer = await self._admitted(request)
        except Refused as refused:
            answer = refusal(refused)
        answer = JSONResponse(answer) if isinstance(answer, dict) else answer
        answer.headers["x-ms-request-id"] = str(uuid.uuid4())
        return answer

    async def _admitted(self, request: Request) -> Response | dict[str, Any]:
        sub = self.world.subscription(request.path_params["subscription"])
        sub.called(self.name)
        fault = take_fault(sub, self.name)
        if fault and fault.when in {"before", "hang"}:
            await fault.happen()
        claims = tokens.caller_of(self.world, request.headers, self.audience)
        call = Call(
            world=self.world,
            sub=sub,
            method=request.method,
            type=self.type,
            path=self._path(request),
            params=request.path_params,
            query=request.query_params,
            headers=request.headers,
            body=await json_of(request),
            caller=claims.object_id,
        )
        self._admit(call, claims)
        answer = await self.handler(call)
        if request.method not in {"GET", "HEAD"}:
            self.world.keep(sub)
        if fault:
            await fault.happen()
        return answer

    def _path(self, request: Request) -> str:
        path = request.url.path.rstrip("/")
        return path.rpartition("/")[0] if self.action else path

    def _admit(self, call: Call, claims: tokens.Claims) -> None:
        _check_version(call.query.get("api-version"))
        sub, namespace = call.sub, self.type.partition("/")[0]
        if claims.subscription != sub.id or denied(sub, self.permission):
            raise not_authorized(claims.name, claims.object_id, self.permission, call.path)
        registered = namespace.lower() in _ALWAYS_REGISTERED or sub.registered(namespace)
        if not registered and (call.method != "GET" or "/locations/" in call.id):
            raise not_registered(namespace)
        group = call.params.get("group")
        if (
            group
            and call.type != "Microsoft.Resources/resourceGroups"
            and not sub.get(group_id(sub, group))
        ):
            raise group_not_found(group)


def refusal(refused: Refused) -> Response:
    """Give an error as ARM does."""
    headers = {"x-ms-failure-cause": "gateway"} if refused.code == "ResourceNotFound" else {}
    return JSONResponse(
        {"error": refused.error}, status_code=refused.status, headers=headers | refused.headers
    )


async def json_of(request: Request) -> dict[str, Any]:
    """Read a body; none is an empty one.

    Raises:
        Refused: It is not an object of JSON.
    """
    raw = await request.body()
    try:
        read = json.loads(raw) if raw else {}
    except ValueError as exc:
        raise invalid(
            f"The request content was invalid and could not be deserialized: '{exc}'."
        ) from exc
    if not isinstance(read, dict):
        raise invalid("The request content was invalid: it is not an object.")
    return read


async def unknown(request: Request, exc: Exception) -> Response:
    """Refuse a path or method that nothing here answers."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    if status == 405:
        message = f"The requested resource does not support http method '{request.method}'."
        return refusal(Refused(405, "HttpMethodNotAllowed", message))
    return refusal(Refused(404, "InvalidResourceType", f"Nothing is served at {request.url.path}."))


def _check_version(version: str | None) -> None:
    if version is None:
        raise invalid(
            "The api-version query parameter (?api-version=) is required for all requests.",
            "MissingApiVersionParameter",
        )
    if not _API_VERSION.match(version):
        raise invalid(
            f"The api-version '{version}' is invalid. The valid api-versions are YYYY-MM-DD.",
            "InvalidApiVersionParameter",
        )


_WORDS: Final[dict[str, Any]] = {"str": str, "int": int, "long": int, "float": float, "bool": bool}
"""Types of the older models; what is not here, and no model, may be anything."""
_UNIONS: Final = (typing.Union, types.UnionType)


class Field(typing.NamedTuple):
    """One key of an object."""

    kind: Any
    """A type hint, or the Shape of what is inside."""
    read_only: bool = False
    required: bool = False


class Shape(typing.NamedTuple):
    """An object and its keys."""

    name: str
    fields: Mapping[str, Field]


def checked(model: type, body: Mapping[str, Any], *, patch: bool = False) -> dict[str, Any]:
    """Give the body without what only Azure writes; a patch may lack things and hold nulls.

    Raises:
        Refused: A key is none of the model's, a value is of another type, something is missing.
    """
    return _object(_shape(model), body, patch=patch)


def _object(shape: Shape, body: Any, *, patch: bool) -> dict[str, Any]:
    if not isinstance(body, Mapping):
        raise _wrong(shape.name, body)
    for key in body:
        if key not in shape.fields:
            raise invalid(
                "The request content was invalid and could not be deserialized: 'Could not find"
                f" member '{key}' on object of type '{shape.name}'.'."
            )
    for key, field in shape.fields.items():
        if field.required and not patch and body.get(key) is None:
            raise invalid(f"Required property '{key}' not found on object of '{shape.name}'.")
    return {
        key: _value(shape.fields[key].kind, value, f"{shape.name}.{key}", patch=patch)
        for key, value in body.items()
        if not shape.fields[key].read_only and (value is not None or patch)
    }


def _value(kind: Any, value: Any, where: str, *, patch: bool) -> Any:
    if value is None or kind is Any:
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return [_value(inner[0], one, where, patch=False) for one in _a(list, value, where)]
    if origin is dict:
        held = _a(dict, value, where)
        return {key: _value(inner[1], one, where, patch=patch) for key, one in held.items()}
    if origin in _UNIONS:
        return _choice([one for one in inner if one is not type(None)], value, where, patch=patch)
    if isinstance(kind, Shape) or _is_model(kind):
        shape = kind if isinstance(kind, Shape) else _shape(kind)
        return _object(shape, value, patch=patch)
    return _plain(kind, value, where)


def _choice(kinds: list[Any], value: Any, where: str, *, patch: bool) -> Any:
    enums = [one for one in kinds if isinstance(one, type) and issubclass(one, enum.Enum)]
    if not enums:
        return _value(kinds[0], value, where, patch=patch)
    known = [str(one.value) for one in enums[0]]
    found = next((one for one in known if one.lower() == str(value).lower()), None)
    if found is None:
        raise invalid(f"'{value}' is not a valid value of '{where}': {', '.join(known)}.")
    return found


def _plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        return _a((int, float), value, where)
    return _a(kind, value, where) if kind in {str, int, bool} else value


def _a(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(where, value)
    return value


def _wrong(where: str, value: Any) -> Refused:
    return invalid(
        "The request content was invalid and could not be deserialized: 'Error converting value"
        f" {value!r:.80} of '{where}'.'."
    )


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and (
        hasattr(kind, "_calculated") or hasattr(kind, "_attribute_map")
    )


@functools.cache
def _shape(model: Any) -> Shape:
    fields = _newer(model) if hasattr(model, "_calculated") else _older(model)
    return Shape(model.__name__, fields)


def _newer(model: Any) -> dict[str, Field]:
    """Read a model that is a mapping, with a field of REST for each attribute."""
    model.__new__(model)
    package = importlib.import_module(model.__module__.rpartition(".")[0])
    hints = typing.get_type_hints(model, localns={"_models": package})
    return {
        field._rest_name: Field(  # noqa: SLF001  the SDK has no other word for it
            hints[name],
            read_only=field._visibility == ["read"],  # noqa: SLF001  the same
            required=type(None) not in typing.get_args(hints[name]),
        )
        for name, field in model._attr_to_rest_field.items()  # noqa: SLF001  the same
    }


def _older(model: Any) -> dict[str, Field]:
    """Read a model with a map of attributes; keys such as `properties.name` lie inside."""
    fields: dict[str, Field] = {}
    for name, told in model._attribute_map.items():  # noqa: SLF001  the same
        rules = model._validation.get(name, {})  # noqa: SLF001  the same
        field = Field(
            _kind(told["type"], model), rules.get("readonly", False), rules.get("required", False)
        )
        outer, _, inner = told["key"].partition(".")
        if not inner or outer.endswith("\\"):
            fields[told["key"].replace("\\.", ".")] = field
            continue
        inside = fields.setdefault(outer, Field(Shape(f"{model.__name__}.{outer}", {}))).kind
        fields[outer] = Field(Shape(inside.name, {**inside.fields, inner: field}))
    return fields


def _kind(word: str, model: Any) -> Any:
    if word.startswith("["):
        return list[_kind(word[1:-1], model)]  # type: ignore[misc]  # made of what is read
    if word.startswith("{"):
        return dict[str, _kind(word[1:-1], model)]  # type: ignore[misc]  # the same
    package = importlib.import_module(model.__module__.rpartition(".")[0])
    return _WORDS.get(word) or getattr(package, word, Any)


_TAGS: Final = 50
_TAG_NAME: Final = 512
_TAG_VALUE: Final = 256
"""Letters. Source: learn.microsoft.com, Use tags to organize your Azure resources."""
_NOT_IN_NAMES: Final = frozenset("<>%&\\?/")


def region_of(body: Mapping[str, Any], there: Mapping[str, Any] | None = None) -> str:
    """Give the region that a body names, which must be that of what is there already.

    Raises:
        Refused: It names none, or another one.
    """
    named = body.get("location")
    if not isinstance(named, str) or not named:
        raise invalid("The location property is required for this definition.", "LocationRequired")
    region = plain_region(named)
    if there and plain_region(there["location"]) != region:
        raise conflict(
            "InvalidResourceLocation",
            f"The resource '{there['name']}' already exists in location '{there['location']}'. A"
            f" resource with the same name cannot be created in location '{named}'. Please select"
            " a new resource name.",
        )
    return region


def plain_region(named: str) -> str:
    """Write `Sweden Central` as swedencentral."""
    return named.lower().replace(" ", "")


def check_tags(tags: Mapping[str, str] | None) -> None:
    """Refuse tags that ARM does not keep.

    Raises:
        Refused: There are too many, or one is too long or has a letter that may not be.
    """
    if tags and len(tags) > _TAGS:
        raise invalid(
            f"The number of tags is '{len(tags)}'; at most '{_TAGS}' are allowed.", "InvalidTags"
        )
    for name, value in (tags or {}).items():
        if not name or len(name) > _TAG_NAME or _NOT_IN_NAMES & set(name):
            raise invalid(f"The tag name '{name[:80]}' is not valid.", "InvalidTagName")
        if len(value) > _TAG_VALUE:
            raise invalid(
                f"Tag value too large. The value of tag '{name}' has {len(value)} letters; at most"
                f" {_TAG_VALUE} are allowed.",
                "InvalidTagValueLength",
            )


def merged(there: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7396): objects merge, arrays are replaced, null removes.

    >>> merged({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"b": None}, "d": [3]})
    {'a': {'c': 2}, 'd': [3]}
    """
    result = dict(there)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            old = result.get(key)
            result[key] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def moment(at: float | None = None) -> str:
    """Write a moment (epoch seconds; None is now) as Azure does."""
    then = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return then.isoformat(timespec="microseconds").replace("+00:00", "Z")


def system_data(sub: Subscription, there: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Say who made a resource, and who changed it last: the caller, now."""
    now = moment()
    made = (there or {}).get("systemData", {})
    return {
        "createdBy": made.get("createdBy", sub.caller_name),
        "createdByType": "User",
        "createdAt": made.get("createdAt", now),
        "lastModifiedBy": sub.caller_name,
        "lastModifiedByType": "User",
        "lastModifiedAt": now,
    }


PAGE: Final = 5
"""How many rows; Azure gives more, but whoever asks must not count on that."""


def page(call: Call, rows: Sequence[dict[str, Any]], size: int = PAGE) -> dict[str, Any]:
    """Give one page of rows and the whole URL of the next, if there is one.

    Raises:
        Refused: The token is not one of ours.
    """
    token = call.query.get("$skipToken", "0")
    if not token.isdecimal():
        raise invalid("The skip token is not valid.", "InvalidSkipToken")
    begin, end = int(token), int(token) + size
    told: dict[str, Any] = {"value": list(rows[begin:end])}
    if end < len(rows):
        query = urlencode({**call.query, "$skipToken": str(end)}, safe="$")
        told["nextLink"] = f"{call.world.urls.arm}{call.path}?{query}"
    return told


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
