"""How every method of Compute Engine is served: counted, admitted, kept and refused alike."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from emulators.google.compute.refusing import Denied, answer, bad, lacking, translated, wrong
from emulators.google.compute.zones import zone_names
from emulators.google.faults import Injected, check_billed, disabled, take_fault
from emulators.google.refusing import Refused
from emulators.google.state import Project, World

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
