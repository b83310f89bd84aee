"""The process: a server with TLS for Azure, a plain one for the rest, and the controls."""

import json
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from core.settings import AzurePlane
from simulators.azure import (
    admission,
    apps,
    arm,
    fleet,
    grants,
    ground,
    jobs,
    logs,
    roles,
    storage,
    vaults,
)
from simulators.azure.admission import ARM, refusal
from simulators.azure.logs import Lines
from simulators.azure.state import CATALOG, Knobs, Subscription, World
from simulators.common import certificates, registry
from simulators.common.doors import loopback, start_web
from simulators.common.lifetime import Recorder, controls, stay_up

_TOLD_LINES: Final = 500
_PORTS: Final = "ports.json"


async def _token(world: World, sub: Subscription, request: Request) -> Any:
    asked = await request.json()
    if refused := CATALOG["logins"].get(sub.knobs.login):
        return JSONResponse(refused, status_code=400)
    scopes, oid = asked.get("scopes", []), asked.get("oid", "")
    token, ends = admission.issue_token(world, sub, scopes, oid=oid)
    return {"access_token": token, "expires_on": ends}


async def _plant(world: World, sub: Subscription, request: Request) -> Any:
    return {"lines": logs.plant(world, sub, Lines.model_validate_json(await request.body()))}


def _prepare(world: World, sub: Subscription, knobs: Knobs) -> None:
    if knobs.prepared and not sub.knobs.prepared:
        ground.prepare(world, sub)


async def _drop(world: World, sub: Subscription) -> None:
    world.forget(sub)
    await fleet.forget(world, sub)


def _summary(sub: Subscription) -> dict[str, Any]:
    """Tell what there is; no secret's value."""
    return {
        "id": sub.id,
        "tenant": sub.tenant,
        "knobs": sub.knobs.model_dump(mode="json"),
        "providers": sorted(name for name in sub.providers if sub.registered(name)),
        "resources": sorted(sub.resources),
        "operations": [
            one.model_dump(mode="json", include={"work", "resource", "status", "error"})
            for one in sub.operations.values()
        ],
        "secrets": {
            vault: sorted(name for name, one in held.items() if one.deleted is None)
            for vault, held in sub.secrets.items()
        },
        "replicas": [one.model_dump(mode="json") for one in sub.living()],
        "principals": {
            one["name"]: one["identity"].get("principalId") for one in sub.of_type(grants.JOB)
        },
        "executions": [
            {"name": one["name"], **one["properties"]} for one in sub.of_type(jobs.EXECUTION)
        ],
        "log": [one.text for one in sub.log[-_TOLD_LINES:]],
        "calls": list(sub.calls),
        "needed": list(sub.needed),
    }


def secured_app(world: World) -> Starlette:
    """Return what is served by TLS: Resource Manager, and the services with hosts of their own."""
    for part in (ground, roles, vaults, storage, apps, jobs):
        arm.serve(*part.KINDS)

    async def manager(request: Request) -> Response:
        return await arm.answer(world, request)

    verbs = ["GET", "PUT", "PATCH", "DELETE", "POST"]
    routes: list[BaseRoute] = [
        *logs.routes(world),
        *vaults.routes(world),
        *storage.routes(world),
        Route("/subscriptions/{rest:path}", manager, methods=verbs),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _unknown})


def plain_app(world: World) -> Starlette:
    """Return what is served without: the controls, streams of apps, and Docker Hub's manifests."""
    more = {("POST", "/token"): _token, ("PUT", "/log"): _plant}
    routes: list[BaseRoute] = [
        *controls(world, world.subscription, _summary, prepare=_prepare, drop=_drop, more=more),
        *logs.http_routes(world),
        *jobs.http_routes(world),
        *registry.routes(lambda: world.urls.http, world.touch, registry.hub_digest_of),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _unknown})


async def _unknown(request: Request, exc: Exception) -> Response:
    """Refuse a path or method that nothing here answers."""
    if isinstance(exc, HTTPException) and exc.status_code == 405:
        return refusal("no-verb", method=request.method).response()
    return refusal("not-served", path=request.url.path).response()


async def serve(
    folder: Path, idle_exit_seconds: float | None, recorder: Recorder | None = None
) -> None:
    """Be an Azure until SIGTERM, or until nobody has called for so long."""
    secure, plain = _listeners(folder)
    async with anyio.create_task_group() as tasks:
        world = World(folder=folder, tasks=tasks)
        world.urls = _urls(folder, *(one.getsockname()[1] for one in (secure, plain)))
        secured: ASGIApp = secured_app(world)
        if recorder:
            secured = recorder.web(secured)
        if not (folder / certificates.BOTH).exists():
            certificates.make(folder, "azure", ("127.0.0.1", urlsplit(ARM).netloc))
        await start_web(tasks, secure, secured, certificate=folder / certificates.BOTH)
        await start_web(tasks, plain, plain_app(world))
        for part in (storage, arm, fleet):
            part.resume(world)
        tasks.start_soon(jobs.keep_time, world)
        await stay_up(world, world.urls, idle_exit_seconds)


def _listeners(folder: Path) -> list[Any]:
    """Listen where the process before did, if nobody else does: operations are known by URL."""
    file = folder / _PORTS
    kept: list[int] = json.loads(file.read_bytes()) if file.exists() else [0, 0]
    try:
        found = [loopback(port) for port in kept]
    except OSError:
        found = [loopback(), loopback()]
    file.write_text(json.dumps([one.getsockname()[1] for one in found]), encoding="utf-8")
    return found


def _urls(folder: Path, secure: int, plain: int) -> AzurePlane:
    base = f"https://127.0.0.1:{secure}"
    return AzurePlane(
        arm=base,
        logs=f"{base}/v1",
        vaults=f"{base}/vaults",
        storage=f"{base}/storage",
        http=f"http://127.0.0.1:{plain}",
        ca=str(folder / certificates.CERTIFICATE),
        pid=os.getpid(),
    )
