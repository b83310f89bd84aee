"""How every resource type is served: each call admitted, kept and refused alike."""

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emulators.azure import tokens
from emulators.azure.faults import denied, take_fault
from emulators.azure.refusing import (
    Refused,
    group_not_found,
    invalid,
    not_authorized,
    not_found,
    not_registered,
)
from emulators.azure.state import Subscription, World

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
    scope: str = field(default="")
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
