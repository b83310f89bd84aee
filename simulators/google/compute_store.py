"""Compute Engine's REST as a store: bodies by the SDK's messages, pages, filters, operations."""

import base64
import hashlib
import importlib
import json
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.google.serving import CODES, Refused, check_billed, disabled, rest
from simulators.google.state import Project, World
from simulators.google.tpu_zones import ZONES

Resource = dict[str, Any]
API: Final = "compute.googleapis.com"
LINK: Final = "https://www.googleapis.com/compute/v1/"
"""How links begin, whatever the host was called by."""
SYSTEM: Final = "system"
"""The user of what Compute Engine does by itself."""
_REASONS: Final = {
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


def not_ready(path: str) -> Denied:
    """Say that something else is being done to it."""
    return Denied(400, "resourceNotReady", f"The resource '{path}' is not ready")


def _error(code: int, message: str, reason: str, **more: Any) -> Response:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    body = {"code": code, "message": message, "errors": errors, **more}
    return JSONResponse({"error": body}, status_code=code)


def _translated(refused: Refused) -> Response:
    """Return a refusal that all of Google's APIs share as Compute Engine writes it."""
    code, more = CODES.get(refused.status, 500), dict[str, Any](status=refused.status)
    if refused.reason != "SERVICE_DISABLED":
        reason = _REASONS.get(refused.status, "badRequest")
        return _error(code, refused.message, reason, **more)
    more["details"] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": refused.reason,
            "domain": refused.domain,
            "metadata": dict(refused.metadata),
        }
    ]
    return _error(code, refused.message, "accessNotConfigured", **more)


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was admitted."""

    world: World
    project: Project
    params: Mapping[str, str]
    """Of the path: zone and name, as far as it has them."""
    query: Mapping[str, str]
    body: Any
    """What was sent, read as JSON; None if nothing was."""

    @property
    def zone(self) -> str:
        """Of the path; empty if it has none."""
        return self.params.get("zone", "")

    @property
    def parent(self) -> str:
        """What the resource lies in, such as projects/P/zones/Z or projects/P/global."""
        return f"projects/{self.project.id}/" + (f"zones/{self.zone}" if self.zone else "global")

    @property
    def request_id(self) -> str:
        """By which a call that is made again is known."""
        return self.query.get("requestId", "")

    def need(self, permission: str, path: str = "") -> None:
        """Refuse a caller who lacks a permission."""
        if self.project.denies(permission):
            words = f"Required '{permission}' permission for '{path or self.parent}'"
            raise Denied(403, "forbidden", words)

    def read(self, schema: str) -> Resource:
        """Return the body as the SDK's message has it.

        Raises:
            Denied: A field is unknown, a value is of another type, or none of its words.
        """
        kind = getattr(importlib.import_module("google.cloud.compute_v1.types"), schema)
        if not isinstance(self.body, dict):
            raise bad("Invalid JSON payload received. Root element must be a message.")
        message = kind.pb(kind())
        try:
            json_format.ParseDict(self.body, message)
        except json_format.ParseError as exc:
            raise bad(f"Invalid JSON payload received. {exc}") from exc
        for at, value, words in _chosen(kind, message, "resource"):
            if value not in words:
                raise wrong(at, value, f"Must be one of: {', '.join(words)}.")
        said: Resource = json_format.MessageToDict(message)
        return said


def _chosen(kind: Any, message: Any, at: str) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield each word that is one of several: the SDK has them as strings beside an enum."""
    known = {field.name: field.message for field in kind.meta.fields.values()}
    for field, value in message.ListFields():
        here, inner = f"{at}.{field.json_name}", known.get(field.name)
        words = getattr(kind, field.name.title().replace("_", ""), None)
        if isinstance(value, str) and words is not None:
            yield here, value, [one.name for one in words if not one.name.startswith("UNDEFINED")]
        elif inner is not None and hasattr(inner, "meta") and field.message_type is not None:
            rows = [value] if hasattr(value, "ListFields") else value
            for row in rows if not field.message_type.GetOptions().map_entry else ():
                yield from _chosen(inner, row, here)


Answers = Callable[[Call], Awaitable[Resource]]


def route(
    world: World, verb: str, path: str, name: str, answers: Answers, *needed: str
) -> BaseRoute:
    """Serve one method, such as compute.instances.insert.

    `needed` are the permissions that the caller needs, in place of one called as the method is.
    """

    async def admitted(project: Project, request: Request) -> Response:
        try:
            check_billed(world, project, API, request.headers.get("x-goog-user-project", ""))
            if API not in project.apis:
                raise disabled(project, API)
        except Refused as refused:
            return _translated(refused)
        params = {key: value for key, value in request.path_params.items() if key != "project"}
        try:
            sent = await request.body()
            body = json.loads(sent) if sent else None
            call = Call(world, project, params, request.query_params, body)
            for permission in needed or (name,):
                call.need(permission, request.url.path.removeprefix("/compute/v1/"))
            if call.zone and call.zone not in zone_names(project):
                raise wrong("zone", call.zone, "Unknown zone.")
            return JSONResponse(shown(await answers(call)))
        except ValueError as exc:
            return _error(400, f"Invalid JSON payload received. {exc}", "badRequest")
        except Denied as denied:
            return _error(denied.code, denied.message, denied.reason)

    where = f"/compute/v1/projects/{{project}}/{path}"
    return rest(world, verb, where, name, admitted, _translated)


@dataclass(frozen=True, slots=True)
class Collection:
    """Resources of one kind, to be read."""

    service: str
    """As permissions and paths have it, such as instances."""
    rows: Callable[[World, Project, str], Sequence[Resource]]
    """What there is in a zone; of what belongs to none its name is empty."""
    scope: str = "zones/{zone}/"
    """What its path begins with."""
    path: str = ""
    """If it is not called as the service is."""

    def routes(self, world: World) -> list[BaseRoute]:
        """Serve get and list, and aggregatedList of what lies in zones."""
        name, path = self.path or self.service, f"{self.scope}{self.path or self.service}"
        api, kind = f"compute.{self.service}", f"compute#{name[:-1]}"

        async def get(call: Call) -> Resource:
            return self.found(call)

        async def listed(call: Call) -> Resource:
            page, token = _page(call, self.rows(call.world, call.project, call.zone))
            more = {"nextPageToken": token} if token else {}
            return {"kind": f"{kind}List", "id": call.parent, "items": page, **more}

        async def aggregated(call: Call) -> Resource:
            zones = zone_names(call.project)
            rows = [row for zone in zones for row in self.rows(call.world, call.project, zone)]
            page, token = _page(call, rows)
            scopes: Resource = {}
            for zone in zones:
                here = [row for row in page if str(row["zone"]).rpartition("/")[2] == zone]
                warning = {
                    "code": "NO_RESULTS_ON_PAGE",
                    "message": f"There are no results for scope 'zones/{zone}' on this page.",
                    "data": [{"key": "scope", "value": f"zones/{zone}"}],
                }
                scopes[f"zones/{zone}"] = {name: here} if here else {"warning": warning}
            more = {"nextPageToken": token} if token else {}
            id_ = f"projects/{call.project.id}/aggregated/{name}"
            return {"kind": f"{kind}AggregatedList", "id": id_, "items": scopes, **more}

        served = [
            route(world, "GET", path, f"{api}.list", listed),
            route(world, "GET", f"{path}/{{name}}", f"{api}.get", get),
        ]
        if self.scope.startswith("zones/") and not self.path:
            where = f"aggregated/{name}"
            served.append(
                route(world, "GET", where, f"{api}.aggregatedList", aggregated, f"{api}.list")
            )
        return served

    def found(self, call: Call) -> Resource:
        """Return what a call is about.

        Raises:
            Denied: There is none.
        """
        for row in self.rows(call.world, call.project, call.zone):
            if row["name"] == call.params["name"]:
                return row
        path = f"{call.parent}/{self.path or self.service}/{call.params['name']}"
        raise Denied(404, "notFound", f"The resource '{path}' was not found")


_MOST: Final = 500
"""Also what is given where nothing is asked for."""


def _page(call: Call, rows: Sequence[Resource]) -> tuple[list[Resource], str]:
    """Return a page as the query asks for it, and the token of the next; empty after the last."""
    matches = _matcher(call.query.get("filter", ""))
    found = sorted((shown(row) for row in rows if matches(row)), key=lambda row: str(row["name"]))
    size, token = call.query.get("maxResults") or str(_MOST), call.query.get("pageToken") or "0"
    for field, said in (("maxResults", size), ("pageToken", token)):
        if not said.isdecimal():
            raise wrong(field, said, f"Invalid {field}.")
    end = int(token) + min(int(size) or _MOST, _MOST)
    return found[int(token) : end], str(end) if end < len(found) else ""


_TERM: Final = re.compile(r"(?P<field>\w+) (?P<op>=|eq) \"(?P<value>[^\"]*)\"")


def _matcher(expression: str) -> Callable[[Resource], bool]:
    """Return what says whether a resource is meant by one term: it is so, or fits a pattern."""
    if not expression:
        return lambda _row: True
    term = _TERM.fullmatch(expression)
    if term is None:
        raise wrong("filter", expression, "Invalid list filter expression.")
    field, value = term["field"], term["value"]
    pattern = value if term["op"] == "eq" else re.escape(value)
    return lambda row: re.fullmatch(pattern, str(row.get(field, ""))) is not None


_OTHERS: Final = frozenset(
    {
        *("us-central1-a", "us-east1-b", "us-east4-a", "us-west1-a", "us-west4-a"),
        *("europe-west1-b", "europe-west2-a", "asia-east1-a", "asia-northeast1-b"),
    }
)
"""Some of the zones without TPUs; which have them is said in `tpu_zones.ZONES` alone."""


def zone_names(project: Project) -> tuple[str, ...]:
    """Name every zone that there is, in their order."""
    return tuple(sorted({*_OTHERS, *(project.knobs.tpu_zones or ZONES)}))


_BEGIN: Final = re.compile(r"^https?://[^/]+/compute/[a-z0-9]+/")
"""Of whichever host the API was called by: gcloud writes its own endpoint into links."""


def parts(link: str) -> list[str]:
    """Return the words of a link behind its host.

    >>> parts("https://www.googleapis.com/compute/v1/projects/p/global/networks/default")
    ['projects', 'p', 'global', 'networks', 'default']
    """
    return _BEGIN.sub("", link).strip("/").split("/")


def named(link: str, field: str, project: str, *place: str) -> str:
    """Return the last word of a link that lies in `place` of the project, such as global, networks.

    Raises:
        Denied: It is no such link, or of another project.
    """
    words = parts(link)
    if words[:1] == ["projects"]:
        if words[1:2] != [project]:
            raise wrong(field, link, "The referenced resource is in another project.")
        words = words[2:]
    if tuple(words[:-1]) != place:
        raise wrong(field, link, "The URL is malformed.")
    return words[-1]


def fingerprint(held: Any) -> str:
    """Return what names exactly these labels, this metadata, these tags."""
    said = json.dumps(held, sort_keys=True).encode()
    return base64.b64encode(hashlib.sha256(said).digest()[:8]).decode()


def moment(at: float | None = None) -> str:
    """Return a time, now if none is given, as Compute Engine writes it."""
    return datetime.fromtimestamp(at or time.time(), UTC).isoformat(timespec="milliseconds")


def new_id() -> str:
    """Return a number that nothing else has, as JSON has it."""
    return str(uuid.uuid4().int >> 65)


def shown(resource: Mapping[str, Any]) -> Resource:
    """Leave out what only the simulation knows of a resource."""
    return {key: value for key, value in resource.items() if not key.startswith("_")}


_KEPT: Final = 500
"""Operations of a project, newest last."""
_PHRASES: Final = {
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    409: "CONFLICT",
    503: "SERVICE UNAVAILABLE",
}


def begin(
    project: Project, kind: str, target: Resource, *, user: str = "", request: str = ""
) -> Resource:
    """Begin an operation on a resource.

    `kind` is such as insert, or compute.instances.preempted; `user` is the caller if not said.
    """
    path = str(target["selfLink"]).removeprefix(LINK)
    parent, drawn, now = "/".join(path.split("/")[:-2]), uuid.uuid4().hex, moment()
    word = "systemevent" if user == SYSTEM else "operation"
    name = f"{word}-{time.time_ns() // 10**6}-{drawn[:13]}-{drawn[13:21]}-{drawn[21:29]}"
    operation = {
        "kind": "compute#operation",
        "id": new_id(),
        "name": name,
        "operationType": kind,
        "targetLink": LINK + path,
        "targetId": target["id"],
        "status": "RUNNING",
        "user": user or project.caller,
        "progress": 0,
        "insertTime": now,
        "startTime": now,
        "selfLink": f"{LINK}{parent}/operations/{name}",
        "_requestId": request,
        **({"zone": LINK + parent} if "/zones/" in parent else {}),
    }
    project.compute_operations[f"{parent}/operations/{name}"] = operation
    for old in tuple(project.compute_operations)[:-_KEPT]:
        del project.compute_operations[old]
    return operation


def same(call: Call) -> Resource | None:
    """Return the operation that the same request began before; none without a requestId."""
    asked = call.request_id
    rows = call.project.compute_operations.values()
    return next((one for one in rows if asked and one["_requestId"] == asked), None)


def finish(operation: Resource) -> Resource:
    """End it well."""
    operation.update(status="DONE", progress=100, endTime=moment())
    return operation


def fail(operation: Resource, status: int, code: str, message: str) -> None:
    """End it with an error: a status of HTTP, and Compute Engine's code."""
    finish(operation).update(
        error={"errors": [{"code": code, "message": message}]},
        httpErrorStatusCode=status,
        httpErrorMessage=_PHRASES[status],
    )


def operation_routes(world: World) -> list[BaseRoute]:
    """Serve zoneOperations and globalOperations: get and list."""

    def rows(_world: World, project: Project, zone: str) -> Sequence[Resource]:
        begins = f"projects/{project.id}/" + (f"zones/{zone}/" if zone else "global/")
        held = project.compute_operations.items()
        return [one for path, one in held if path.startswith(begins)]

    zonal = Collection("zoneOperations", rows, path="operations")
    overall = Collection("globalOperations", rows, scope="global/", path="operations")
    return [*zonal.routes(world), *overall.routes(world)]
