"""How every method of Compute Engine is served: bodies, links, filters, pages, operations."""

import functools
import json
import operator
import re
import time
import tomllib
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from simulators.google.serving import CODES, Injected, Refused, check_billed, disabled, take_fault
from simulators.google.state import Project, World
from simulators.google.tpu_zones import ZONES

_REASONS: Final = {
    "INVALID_ARGUMENT": "badRequest",
    "PERMISSION_DENIED": "forbidden",
    "NOT_FOUND": "notFound",
    "ALREADY_EXISTS": "alreadyExists",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
    "UNAVAILABLE": "backendError",
    "INTERNAL": "backendError",
}
"""Of a refusal that names no reason of Compute Engine's own, by its status."""


class Denied(Exception):
    """A call is answered with an error of HTTP in place of a resource."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        """Of HTTP."""
        self.reason = reason
        """Compute Engine's own, such as alreadyExists."""
        self.message = message


def wrong(field: str, value: Any, words: str) -> Denied:
    """Say that a field's value cannot be; `field` is such as resource.machineType."""
    said = value if isinstance(value, str) else json.dumps(value)
    return Denied(400, "invalid", f"Invalid value for field '{field}': '{said}'. {words}")


def bad(words: str) -> Denied:
    """Say that the request as a whole cannot be."""
    return Denied(400, "badRequest", words)


def not_found(path: str) -> Denied:
    """Say that nothing is there; `path` is such as projects/P/zones/Z/instances/I."""
    return Denied(404, "notFound", f"The resource '{path}' was not found")


def not_ready(path: str) -> Denied:
    """Say that something else is being done to it."""
    return Denied(400, "resourceNotReady", f"The resource '{path}' is not ready")


def lacking(permission: str, path: str) -> Denied:
    """Say that the caller may not."""
    return Denied(403, "forbidden", f"Required '{permission}' permission for '{path}'")


def answer(denied: Denied) -> Response:
    """Give a refusal as Compute Engine writes it."""
    return _json(denied.code, denied.message, denied.reason)


def translated(refused: Refused) -> Response:
    """Give a refusal that all of Google's APIs share as Compute Engine writes it."""
    code = CODES.get(refused.status, 500)
    if refused.reason != "SERVICE_DISABLED":
        reason = _REASONS.get(refused.status, "badRequest")
        return _json(code, refused.message, reason, status=refused.status)
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": refused.reason,
        "domain": refused.domain,
        "metadata": dict(refused.metadata),
    }
    return _json(
        code, refused.message, "accessNotConfigured", status=refused.status, details=[info]
    )


def _json(code: int, message: str, reason: str, **more: Any) -> Response:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    body = {"code": code, "message": message, "errors": errors, **more}
    return JSONResponse({"error": body}, status_code=code)


_OTHERS: Final = {
    "abc": (
        *("africa-south1", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast2"),
        *("asia-northeast3", "asia-south1", "asia-south2", "asia-southeast1", "asia-southeast2"),
        *("australia-southeast1", "australia-southeast2", "europe-central2", "europe-north1"),
        *("europe-north2", "europe-southwest1", "europe-west2", "europe-west3", "europe-west4"),
        *("europe-west6", "europe-west8", "europe-west9", "europe-west10", "europe-west12"),
        *("me-central1", "me-central2", "me-west1", "northamerica-northeast1"),
        *("northamerica-northeast2", "northamerica-south1", "southamerica-east1"),
        *("southamerica-west1", "us-east4", "us-east5", "us-south1", "us-west1", "us-west2"),
        *("us-west3", "us-west4"),
    ),
    "bcd": ("europe-west1", "us-east1"),
    "abcf": ("us-central1",),
}
"""Zones by letter, whatever they have; source: cloud.google.com/compute/docs/regions-zones (2026).
Which of them have TPUs is said in `tpu.capacity.ZONES` alone."""


def zone_names(project: Project) -> tuple[str, ...]:
    """Name every zone that there is, in their order."""
    others = {
        f"{region}-{letter}"
        for letters, regions in _OTHERS.items()
        for region in regions
        for letter in letters
    }
    return tuple(sorted({*others, *(project.knobs.tpu_zones or ZONES)}))


def region_of(zone: str) -> str:
    """Give a zone's region.

    >>> region_of("us-east5-b")
    'us-east5'
    """
    return zone.rpartition("-")[0]


Matches = Callable[[Mapping[str, Any]], bool]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<bracket>[()])|(?P<joint>AND\b|OR\b)
    |(?P<field>[A-Za-z][\w.\[\]-]*)\s*(?P<op>!=|<=|>=|=|<|>|:|\beq\b|\bne\b)\s*
     (?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|\*|[^\s()]+))""",
    re.VERBOSE,
)
_ORDERED: Final = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def matcher(expression: str) -> Matches:
    """Give what says whether a resource is meant; everything is without an expression.

    Raises:
        Denied: The expression cannot be read.
    """
    tokens = _tokens(expression)
    if not tokens:
        return lambda _row: True
    parser = _Parser(expression, tokens)
    matches = parser.all_of()
    if parser.left:
        raise _unreadable(expression)
    return matches


def _tokens(expression: str) -> list[re.Match[str]]:
    found, place = [], 0
    while expression[place:].strip():
        token = _TOKEN.match(expression, place)
        if token is None:
            raise _unreadable(expression)
        found.append(token)
        place = token.end()
    return found


class _Parser:
    """Reads tokens into one function; OR binds more closely than AND, as AIP-160 has it."""

    def __init__(self, expression: str, tokens: list[re.Match[str]]) -> None:
        self._expression = expression
        self.left = tokens

    def all_of(self) -> Matches:
        parts = [self._any_of()]
        while self.left and self.left[0]["bracket"] != ")":
            if self.left[0]["joint"] == "AND":
                self.left.pop(0)
            parts.append(self._any_of())
        return lambda row: all(part(row) for part in parts)

    def _any_of(self) -> Matches:
        parts = [self._one()]
        while self.left and self.left[0]["joint"] == "OR":
            self.left.pop(0)
            parts.append(self._one())
        return lambda row: any(part(row) for part in parts)

    def _one(self) -> Matches:
        if not self.left or self.left[0]["joint"] or self.left[0]["bracket"] == ")":
            raise _unreadable(self._expression)
        token = self.left.pop(0)
        if token["field"]:
            return _comparison(token["field"], token["op"], _unquoted(token["value"]))
        inner = self.all_of()
        if not self.left or self.left.pop(0)["bracket"] != ")":
            raise _unreadable(self._expression)
        return inner


def _comparison(field: str, op: str, value: str) -> Matches:
    if op in {"eq", "ne"}:
        pattern = re.compile(value)
        return lambda row: (pattern.fullmatch(_said(row, field)) is not None) == (op == "eq")
    if op == ":":
        return lambda row: _has(row, field, value)
    if op in _ORDERED:
        return lambda row: bool(_ORDERED[op](_said(row, field), value))
    return lambda row: (_said(row, field) == value) == (op == "=")


def _has(row: Mapping[str, Any], field: str, value: str) -> bool:
    found = _at(row, field)
    return found is not None and (value == "*" or value in str(found))


def _said(row: Mapping[str, Any], field: str) -> str:
    found = _at(row, field)
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else str(found)


def _at(row: Any, field: str) -> Any:
    for part in field.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


def _unquoted(value: str) -> str:
    return value[1:-1].replace('\\"', '"') if value[:1] in {'"', "'"} else value


def _unreadable(expression: str) -> Denied:
    return wrong("filter", expression, "Invalid list filter expression.")


_BEGIN: Final = re.compile(r"^https?://[^/]+/compute/[a-z0-9]+/")
"""Of whichever host the API was called by: gcloud writes its own endpoint into links."""


def parts(link: str) -> list[str]:
    """Give the words of a link behind its host.

    >>> parts("https://www.googleapis.com/compute/v1/projects/p/global/networks/default")
    ['projects', 'p', 'global', 'networks', 'default']
    """
    return _BEGIN.sub("", link).strip("/").split("/")


def named(link: str, field: str, project: str, *place: str) -> str:
    """Give the last word of a link that lies in `place` of the project, such as global, networks.

    Raises:
        Denied: It is no such link, or of another project.
    """
    words = parts(link)
    if words[:1] == ["projects"]:
        if words[1:2] != [project]:
            raise wrong(field, link, "The referenced resource is in another project.")
        words = words[2:]
    if len(words) != len(place) + 1 or tuple(words[:-1]) != place:
        raise wrong(field, link, "The URL is malformed.")
    return words[-1]


_FILE: Final = Path(__file__).with_name("shapes.toml")
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
_OUT: Final = "out"


@functools.cache
def shapes() -> Mapping[str, Mapping[str, Any]]:
    """Give the fields of every schema with their types."""
    return tomllib.loads(_FILE.read_text("utf-8"))


def read(schema: str, body: Any) -> dict[str, Any]:
    """Give a body without what only Google sets, and without nulls.

    Raises:
        Denied: A field is unknown, a value is of another type, or none of its words.
    """
    if not isinstance(body, dict):
        raise bad("Invalid JSON payload received. Root element must be a message.")
    return _object(schema, body, "resource")


def _object(schema: str, body: Any, at: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise _mistyped(at, schema, body)
    known = shapes()[schema]
    for name in body:
        if name not in known:
            raise bad(
                f"Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find"
                " field."
            )
    return {
        name: _value(known[name], value, f"{at}.{name}")
        for name, value in body.items()
        if known[name] != _OUT and value is not None
    }


def _value(kind: Any, value: Any, at: str) -> Any:
    if isinstance(kind, list):
        if value not in kind:
            raise wrong(at, value, f"Must be one of: {', '.join(kind)}.")
        return value
    if kind.startswith("["):
        items = _a(list, value, at)
        return [_value(kind[1:-1], one, f"{at}[{number}]") for number, one in enumerate(items)]
    if kind.startswith("{"):
        held = _a(dict, value, at)
        return {key: _value(kind[1:-1], one, f"{at}.{key}") for key, one in held.items()}
    if kind == "int64":
        return _int64(value, at)
    return _a(_KINDS[kind], value, at) if kind in _KINDS else _object(kind, value, at)


def _int64(value: Any, at: str) -> str:
    """Give a long number as JSON has it: in a string."""
    said = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(said, str) or not said.removeprefix("-").isdecimal():
        raise _mistyped(at, "TYPE_INT64", value)
    return said


def _a(kind: Any, value: Any, at: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _mistyped(at, getattr(kind, "__name__", "number"), value)
    return value


def _mistyped(at: str, kind: str, value: Any) -> Denied:
    return bad(f"Invalid value at '{at}' ({kind}), {value!r:.80}")


API: Final = "compute.googleapis.com"
BASE: Final = "/compute/v1/projects/{project}"
LINK: Final = "https://www.googleapis.com/compute/v1/"
"""How links begin, whatever the host was called by."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was admitted."""

    world: World
    project: Project
    params: Mapping[str, str]
    """Of the path: zone, and instance or the like."""
    query: Mapping[str, str]
    body: Any
    """What was sent, read as JSON; None if nothing was."""

    @property
    def parent(self) -> str:
        """What the resource lies in, such as projects/P/zones/Z or projects/P/global."""
        zone = self.params.get("zone")
        return f"projects/{self.project.id}/" + (f"zones/{zone}" if zone else "global")

    def need(self, permission: str, path: str = "") -> None:
        """Refuse a caller who lacks one more permission."""
        if self.project.denies(permission):
            raise lacking(permission, path or self.parent)


Answers = Callable[[Call], Awaitable[dict[str, Any]]]


def route(
    world: World, verb: str, path: str, name: str, answers: Answers, permission: str = ""
) -> BaseRoute:
    """Serve one method, such as compute.instances.insert.

    `permission` is what the caller needs, in place of one that is called as the method is.
    """
    needed = permission or name

    async def handle(request: Request) -> Response:
        world.touch()
        project = world.project(request.path_params["project"])
        project.called(name)
        fault = take_fault(project, name)
        if fault and fault.when in {"before", "hang"}:
            return await _failed(fault)
        reply = await _admitted(world, project, request, needed, answers)
        if verb != "GET":
            world.keep(project)
        return await _failed(fault) if fault else reply

    return Route(f"{BASE}/{path}", handle, methods=[verb])


async def _admitted(
    world: World, project: Project, request: Request, permission: str, answers: Answers
) -> Response:
    try:
        check_billed(world, project, API, request.headers.get("x-goog-user-project", ""))
    except Refused as refused:
        return translated(refused)
    if API not in project.apis:
        return translated(disabled(project, API))
    params = {key: value for key, value in request.path_params.items() if key != "project"}
    try:
        call = Call(world, project, params, request.query_params, await _body(request))
        call.need(permission, request.url.path.removeprefix("/compute/v1/"))
        _check_zone(project, params)
        return JSONResponse(await answers(call))
    except Denied as denied:
        return answer(denied)


async def _failed(fault: Injected) -> Response:
    if fault.when.startswith("hang"):
        await anyio.sleep_forever()
    return translated(fault.refusal)


async def _body(request: Request) -> Any:
    sent = await request.body()
    try:
        return json.loads(sent) if sent else None
    except ValueError as exc:
        raise bad(f"Invalid JSON payload received. {exc}") from exc


def _check_zone(project: Project, params: Mapping[str, str]) -> None:
    zone = params.get("zone")
    if zone is not None and zone not in zone_names(project):
        raise wrong("zone", zone, "Unknown zone.")


_MOST: Final = 500
"""Also what is given where nothing is asked for."""
_ORDERS: Final = ("", "name", "creationTimestamp desc")

Row = dict[str, Any]


def listed(call: Call, rows: Sequence[Row], kind: str) -> dict[str, Any]:
    """Give one page of a collection, such as compute#instanceList.

    Raises:
        Denied: The filter, the order, the size or the token cannot be.
    """
    page, token = page_of(call, rows)
    answer: dict[str, Any] = {"kind": kind, "id": call.parent, "items": page}
    if token:
        answer["nextPageToken"] = token
    return answer


def page_of(call: Call, rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Give the rows of a page as the query asks, and the token of the next; empty after the last.

    Raises:
        Denied: The filter, the order, the size or the token cannot be.
    """
    matches = matcher(call.query.get("filter", ""))
    found = sorted((row for row in rows if matches(row)), key=_order(call))
    if call.query.get("orderBy") == "creationTimestamp desc":
        found.reverse()
    begin = _number(call, "pageToken", 0, _bad_token)
    end = begin + min(_number(call, "maxResults", _MOST, _bad_size) or _MOST, _MOST)
    return found[begin:end], str(end) if end < len(found) else ""


def _order(call: Call) -> Callable[[Row], str]:
    order = call.query.get("orderBy", "")
    if order not in _ORDERS:
        raise wrong("orderBy", order, "Invalid order by expression.")
    by = "name" if order in {"", "name"} else "creationTimestamp"
    return lambda row: str(row.get(by) or row.get("insertTime") or "")


def _number(call: Call, key: str, usual: int, refusal: Callable[[str], Denied]) -> int:
    said = call.query.get(key, "")
    if said and not said.isdecimal():
        raise refusal(said)
    return int(said) if said else usual


def _bad_token(said: str) -> Denied:
    return wrong("pageToken", said, "Invalid page token.")


def _bad_size(said: str) -> Denied:
    return wrong("maxResults", said, "Must be between 0 and 500.")


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
    return listed(call, rows, "compute#operationList")


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
