"""Azure Resource Manager: one store for every type of resource, and the ways of all of them.

What is data of a type is in `types.toml`; what it does beyond being kept is in its own module.
"""

import copy
import importlib
import re
import secrets
import string
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from simulators.azure import grants
from simulators.azure.admission import (
    ARM,
    Claims,
    Refused,
    caller_of,
    endpoint,
    faults_of,
    json_of,
    not_found,
    refusal,
)
from simulators.azure.schema import checked
from simulators.azure.state import CATALOG, TYPES, Body, Operation, Subscription, World

UNREGISTERED: Final = frozenset(
    {"microsoft.resources", "microsoft.authorization", "microsoft.policyinsights"}
)
"""Nobody has to register these, which are written in lower case."""
_VERSION: Final = re.compile(r"^\d{4}-\d{2}-\d{2}(-preview)?$")
_PARTS: Final = ("location", "tags", "identity", "sku", "kind", "properties")
"""What a patch changes a part of."""
_AGAIN: Final = {"Retry-After": "0"}
"""Whoever looks may take their own rhythm; Azure asks to wait some seconds."""
_LETTERS: Final = string.ascii_lowercase + string.digits
_ACTIONS: Final = {
    "GET": "read", "LIST": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete",
}  # fmt: skip

Handler = Callable[["Call"], Awaitable[Response | Body]]
"""Answers a call; a dict is the JSON of a 200. Raises Refused."""
Work = Callable[[World, Subscription, Operation, Body], Awaitable[None]]
"""Does what a change takes beyond time. Raises Refused: the operation has failed."""


async def _no_end(_world: World, _sub: Subscription, _body: Body) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One type of resource; what `types.toml` has of it is explained there."""

    type: str
    model: Any = None
    names: str = ""
    bad_name: str = ""
    bad_body: str = ""
    busy: str = ""
    missing: str = ""
    verbs: Sequence[str] = ()
    extends: bool = False
    located: bool = True
    created: int = 201
    state: str = ""
    changing: str = ""
    deleting: str = ""
    told: str = ""
    seconds: str = "operation_seconds"
    statuses: str = ""
    results: str = ""
    may: str = ""
    call: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fill: Callable[["Call", Body, Body | None], Body] = lambda _call, asked, _there: asked
    """Makes what is kept of what was asked for and of the defaults. Raises Refused."""
    shown: Callable[[World, Subscription, Body], Body] = lambda _world, _sub, body: body
    """Makes what is told of a copy of what is kept, in which no secret is left."""
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    """What is answered otherwise than here: by verb, LIST among them, or by action."""
    work: Mapping[str, Work] = field(default_factory=dict)
    """What `put`, and actions that take time, do beyond that."""
    keep: Callable[["Call", Body], None] = lambda _call, _body: None
    """Refuses that it is deleted."""
    ended: Callable[[World, Subscription, Body], Awaitable[None]] = _no_end
    """Ends what it had beyond its body, when it is deleted."""

    def tell(self, world: World, sub: Subscription, body: Body) -> Body:
        """Return what is told of what is kept."""
        return self.shown(world, sub, _without_secrets(body))


def _without_secrets(value: Any, within: str = "") -> Any:
    """Copy a value without what may be written and is never told."""
    if isinstance(value, list):
        return [_without_secrets(one, within) for one in value]
    if not isinstance(value, dict):
        return value
    hidden = {"sharedKey", "accountKey", *(["value"] if within == "secrets" else ())}
    return {key: _without_secrets(one, key) for key, one in value.items() if key not in hidden}


KINDS: Final[dict[str, Kind]] = {}
"""By type, in lower case."""


def kind_of(type_: str, **behaviour: Any) -> Kind:
    """Return a type as `types.toml` has it, with what it does beyond that."""
    said = {"verbs": ("GET", "PUT", "DELETE", "LIST"), **TYPES[type_]}
    if model := said.get("model"):
        package, name = model.split()
        said["model"] = getattr(importlib.import_module(package), name)
    return Kind(type=type_, **said, **behaviour)


def serve(*kinds: Kind) -> None:
    """Serve types, and the collections where their operations are looked up."""
    for kind in kinds:
        KINDS[kind.type.lower()] = kind
        for name, handler in ((kind.statuses, _status), (kind.results, _result)):
            looked = f"{kind.type.partition('/')[0]}/locations/{name}"
            if name:
                told = Kind(type=looked, handlers={"GET": handler}, call="operations")
                KINDS[looked.lower()] = told


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that was admitted."""

    world: World
    sub: Subscription
    kind: Kind
    verb: str
    """Of HTTP, LIST for a collection, or the name of an action."""
    path: str
    """As it was asked for, without an action."""
    names: tuple[str, ...]
    """Those in the path below its provider, as they were written."""
    query: Mapping[str, str]
    body: Body

    @property
    def id(self) -> str:
        """The resource's id in lower case."""
        return self.path.lower()

    @property
    def name(self) -> str:
        """The resource's name."""
        return self.names[-1]

    @property
    def group(self) -> str:
        """The name of the resource group, if it is in one."""
        words = self.path.split("/")
        return words[4] if len(words) > 4 and words[3].lower() == "resourcegroups" else ""

    @property
    def scope(self) -> str:
        """What a resource that extends others is found at."""
        return self.path[: self.id.rindex("/providers/")]

    @property
    def parent(self) -> str:
        """The id of the whole resource or group that this one is a part of."""
        provider = max(0, self.id.rfind("/providers/"))
        return self.path[:provider] + "/".join(self.path[provider:].split("/")[:5])

    def found(self) -> Body:
        """Return the resource that the path names.

        Raises:
            Refused: There is none.
        """
        body = self.sub.get(self.path)
        if body is None and self.kind.missing:
            raise refusal(self.kind.missing, name=self.name)
        if body is None:
            raise not_found(self.path)
        return body


async def answer(world: World, request: Request) -> Response:
    """Answer a call to Resource Manager, or refuse it as that does."""
    response = await endpoint(world, partial(_answered, world))(request)
    response.headers["x-ms-request-id"] = str(uuid.uuid4())
    return response


async def _answered(world: World, request: Request) -> Response | Body:
    path = request.scope["path"].rstrip("/")
    words = path.split("/")[1:]
    if len(words) < 2:
        raise refusal("not-served", path=path)
    kind, names, action, listed = _read(words[2:], request.method, path)
    verb = action or ("LIST" if listed and request.method == "GET" else request.method)
    if verb not in {*kind.verbs, *kind.handlers} or (listed and verb != "LIST"):
        raise refusal("no-verb", method=request.method)
    sub = world.subscription(words[1])
    label = f"{request.method} {kind.call or kind.type}{action and '/'}{action}"
    async with faults_of(sub, label):
        claims = caller_of(world, request.headers, ARM)
        call = Call(
            world=world,
            sub=sub,
            kind=kind,
            verb=verb,
            path=path.rpartition("/")[0] if action else path,
            names=tuple(names),
            query=request.query_params,
            body=await json_of(request),
        )
        _admit(call, claims)
        answered = await kind.handlers.get(verb, _HANDLERS.get(verb, _list))(call)
        if request.method != "GET":
            world.keep(sub)
    return answered


def _read(words: list[str], method: str, path: str) -> tuple[Kind, list[str], str, bool]:
    """Return whose a path is, the names in it, an action, and whether it is a collection's."""
    action = words[-1] if method == "POST" and words else ""
    words = words[:-1] if action else words
    lower = [word.lower() for word in words]
    if "providers" not in lower:
        kind, rest = "/".join(["Microsoft.Resources", *words[::2]]), words
    else:
        namespace, *rest = words[len(lower) - lower[::-1].index("providers") :] or [""]
        kind = "/".join([namespace, *rest[::2]])
        if action == "register" or not (rest or action):
            kind = "Microsoft.Resources/subscriptions/providers"
            rest = ["providers", *filter(None, [namespace])]
    if kind.lower() not in KINDS:
        raise refusal("not-served", path=path)
    return KINDS[kind.lower()], rest[1::2], action, len(rest) % 2 == 1


def _admit(call: Call, claims: Claims) -> None:
    """Refuse whoever may not, and what is nowhere."""
    version = call.query.get("api-version")
    if version is None:
        raise refusal("no-version")
    if not _VERSION.match(version):
        raise refusal("bad-version", version=version)
    sub, kind = call.sub, call.kind
    action = f"{kind.may or kind.type}/{_ACTIONS.get(call.verb, f'{call.verb}/action')}"
    if call.verb == "register":
        action = f"{call.name}/{call.verb}/action"
    forbidden = call.verb == "register" and sub.knobs.group_alone
    elsewhere = claims.rehearsed_subscription != sub.id
    if forbidden or elsewhere or grants.refuses(sub, claims, action, call.path):
        raise refusal(
            "not-authorized", who=claims.name, oid=claims.oid, action=action, scope=call.path
        )
    namespace = kind.type.partition("/")[0]
    known = namespace.lower() in UNREGISTERED or sub.registered(namespace)
    if not known and (call.verb not in {"GET", "LIST"} or "/locations/" in call.id):
        raise refusal("registration", namespace=namespace)
    group = f"/subscriptions/{sub.id}/resourcegroups/{call.group}"
    if call.group and group.lower() != call.id and not sub.get(group):
        raise refusal("no-group", name=call.group)
    if kind.extends:
        needed = call.scope if "/providers/" in call.scope.lower() else ""
    else:
        needed = call.parent if call.group and kind.type.count("/") > 1 else ""
    if needed and not sub.get(needed):
        raise not_found(needed)


async def _get(call: Call) -> Body:
    return call.kind.tell(call.world, call.sub, call.found())


async def _list(call: Call) -> Body:
    whole = call.group or call.kind.extends
    rows = call.sub.under(call.path) if whole else call.sub.of_type(call.kind.type)
    return {"value": [call.kind.tell(call.world, call.sub, one) for one in rows]}


async def _write(call: Call) -> Response:
    """Make a resource, write over it, or change a part of it."""
    kind, is_patch = call.kind, call.verb == "PATCH"
    there = call.found() if is_patch else call.sub.get(call.path)
    asked = _asked(call, there)
    if is_patch and there:
        asked = merged({key: there[key] for key in _PARTS if key in there}, asked)
    body = kept(call, asked, there)
    status = 202 if is_patch else 200 if there else kind.created
    if not is_patch and not (kind.changing if there else kind.state):
        return JSONResponse(kind.tell(call.world, call.sub, body), status)
    operation = begin(call, "put", revision=body.pop("revision", ""))
    if status == 202:
        return Response(status_code=202, headers=location(operation))
    headers = {kind.told: operation.url, **_AGAIN} if kind.told else {}
    return JSONResponse(kind.tell(call.world, call.sub, body), status, headers)


def _asked(call: Call, there: Body | None) -> Body:
    """Return what is asked for, as far as it is the caller's to say."""
    kind, named = call.kind, call.body.get("location")
    if kind.located:
        if not isinstance(named, str) or not named:  # a patch has to say it as well
            raise refusal("no-location")
        if there and plain_region(there["location"]) != plain_region(named):
            before = {"name": there["name"], "there": there["location"]}
            raise refusal("other-location", asked=named, **before)
    try:
        asked = checked(kind.model, call.body, patch=call.verb == "PATCH")
    except Refused as refused:
        raise refusal(kind.bad_body, why=refused.message) if kind.bad_body else refused from refused
    if kind.names and not re.match(kind.names, call.name):
        raise refusal(kind.bad_name, name=call.name)
    _check_tags(asked.get("tags") or {})
    check_free(call)
    return asked


def _check_tags(tags: Mapping[str, str]) -> None:
    """Source: learn.microsoft.com, Use tags to organize your Azure resources."""
    if len(tags) > 50:
        raise refusal("tags", count=len(tags))
    for name, value in tags.items():
        if len(value) > 256:
            raise refusal("tag-value", name=name, count=len(value))


def kept(call: Call, asked: Body, there: Body | None, *, at_once: bool = False) -> Body:
    """Keep what was asked for, filled in as its type is."""
    kind, known = call.kind, there or {"id": call.path, "name": call.name}
    body: Body = {"id": known["id"], "name": known["name"], "type": kind.type}
    if kind.located:
        body |= {"location": plain_region(asked["location"]), "tags": asked.get("tags") or {}}
    body |= kind.fill(call, merged(copy.deepcopy(kind.defaults), asked), there)
    if kind.state:
        state = "" if at_once else kind.changing if there else kind.state
        body["properties"]["provisioningState"] = state or "Succeeded"
    call.sub.resources[call.id] = body
    return body


def made(world: World, sub: Subscription, path: str, asked: Body) -> Body:
    """Make a resource at once."""
    kind, names, _, _ = _read(path.split("/")[3:], "PUT", path)
    call = Call(
        world=world, sub=sub, kind=kind, verb="PUT", path=path, names=tuple(names), query={},
        body=asked,
    )  # fmt: skip
    return kept(call, asked, sub.get(path), at_once=True)


async def _delete(call: Call) -> Response:
    """Delete a resource; what is not there is gone already."""
    body = call.sub.get(call.path)
    if body is None:
        return Response(status_code=204)
    check_free(call)
    call.kind.keep(call, body)
    if not call.kind.deleting:
        await remove(call.world, call.sub, call.id)
        return Response(status_code=200)
    operation = begin(call, "delete")
    body["properties"]["provisioningState"] = call.kind.deleting
    return Response(status_code=202, headers=location(operation))


async def remove(world: World, sub: Subscription, resource: str) -> None:
    """Forget a resource with everything below it, once it has ended what it had."""
    for name in [one for one in sub.resources if f"{one}/".startswith(f"{resource}/")]:
        if body := sub.resources.get(name):
            await KINDS[body["type"].lower()].ended(world, sub, body)
    for name in [one for one in sub.resources if f"{one}/".startswith(f"{resource}/")]:
        del sub.resources[name]


_HANDLERS: Final[Mapping[str, Handler]] = {
    "GET": _get, "LIST": _list, "PUT": _write, "PATCH": _write, "DELETE": _delete
}  # fmt: skip


def begin(call: Call, work: str, revision: str = "") -> Operation:
    """Begin an operation, which is looked up by its status or else by its result."""
    number, kind = str(uuid.uuid4()), call.kind
    body = call.sub.get(call.path)
    region = plain_region(body.get("location", "global")) if body else "global"
    by_status = call.verb == "PUT" and kind.told == "Azure-AsyncOperation"
    where = f"locations/{region}/{kind.statuses if by_status else kind.results}/{number}"
    provider = f"/subscriptions/{call.sub.id}/providers/{kind.type.partition('/')[0]}"
    operation = Operation(
        id=number,
        type=kind.type.lower(),
        work=work,
        resource=call.id,
        url=f"{call.world.urls.arm}{provider}/{where}?api-version={call.query['api-version']}",
        begun=time.time(),
        revision=revision,
    )
    call.sub.operations[number] = operation
    call.world.tasks.start_soon(_go_on, call.world, call.sub, operation)
    return operation


def resume(world: World) -> None:
    """Go on with what another process began."""
    for sub in world:
        for operation in sub.operations.values():
            if operation.status == "InProgress":
                world.tasks.start_soon(_go_on, world, sub, operation)


async def _go_on(world: World, sub: Subscription, operation: Operation) -> None:
    kind = KINDS[operation.type]
    try:
        await _lasting(sub, operation, kind)
        body = sub.resources.get(operation.resource)
        if operation.work == "delete":
            await remove(world, sub, operation.resource)
        elif body:
            if work := kind.work.get(operation.work):
                await work(world, sub, operation, body)
            body["properties"]["provisioningState"] = "Succeeded"
            operation.answer = kind.tell(world, sub, body)
        operation.status = "Succeeded"
    except Refused as refused:
        if failed := sub.resources.get(operation.resource):
            failed["properties"]["provisioningState"] = "Failed"
        operation.error, operation.status = refused.error, "Failed"
    world.keep(sub)


async def _lasting(sub: Subscription, operation: Operation, kind: Kind) -> None:
    """Wait until it has taken as long as it is set to take now: it may be let end sooner."""
    body = sub.resources.get(operation.resource) or {"properties": {}}
    new = operation.work == "put" and body["properties"].get("provisioningState") == kind.state
    while operation.status == "InProgress":
        lasts = getattr(sub.knobs, kind.seconds if new else "operation_seconds")
        left = operation.begun + lasts - time.time()
        if left <= 0:
            return
        await anyio.sleep(min(left, 0.05))
    raise refusal("canceled")


def check_free(call: Call) -> None:
    """Refuse a second change while one is under way, where the type does."""
    under_way = any(
        one.resource == call.id and one.status == "InProgress"
        for one in call.sub.operations.values()
    )
    if call.kind.busy and under_way:
        raise refusal(call.kind.busy, name=call.name)


async def _status(call: Call) -> Response:
    """Tell the status: a failed operation's with 200 as well."""
    found = _operation(call)
    told: Body = {
        "id": call.path,
        "name": found.id,
        "status": found.status,
        "startTime": datetime.fromtimestamp(found.begun, UTC).isoformat(),
    }
    if found.error:
        told["error"] = found.error
    return JSONResponse(told, headers=_AGAIN if found.status == "InProgress" else {})


async def _result(call: Call) -> Response:
    """Answer 202 until it is done; then the resource, nothing, or the error."""
    found = _operation(call)
    if found.status == "InProgress":
        return Response(status_code=202, headers=location(found))
    if found.error:
        return JSONResponse({"error": found.error}, 400)
    return Response(status_code=204) if found.answer is None else JSONResponse(found.answer)


def _operation(call: Call) -> Operation:
    found = call.sub.operations.get(call.name.lower())
    if found is None:
        raise refusal("no-operation", name=call.name)
    return found


def location(operation: Operation) -> dict[str, str]:
    """Return the headers of an operation that answers 202 until it is done."""
    return {"Location": operation.url, **_AGAIN}


def paged(rows: Sequence[Body], query: Mapping[str, str], url: str, size: int) -> Body:
    """Return the page that is asked for, with the address of the next one."""
    start = int(query.get("$skiptoken", 0))
    page: Body = {"value": list(rows[start : start + size])}
    if len(rows) > start + size:
        words = {"api-version": query["api-version"], "$skiptoken": start + size}
        page["nextLink"] = f"{url}?{urlencode(words)}"
    return page


def plain_region(named: str) -> str:
    """Write `Sweden Central` as swedencentral."""
    return named.lower().replace(" ", "")


def display_of(region: str) -> str:
    """Return a region's name as Azure shows it, such as Sweden Central."""
    return str(CATALOG["regions"].get(region, [region.title()])[0])


def merged(there: Mapping[str, Any], change: Mapping[str, Any]) -> Body:
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


def letters(number: int) -> str:
    """Make up so many letters of the end of a name."""
    return "".join(secrets.choice(_LETTERS) for _ in range(number))


def moment(at: float | None = None) -> str:
    """Write a moment (epoch seconds; None is now) as Azure does."""
    then = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return then.isoformat(timespec="microseconds").replace("+00:00", "Z")
