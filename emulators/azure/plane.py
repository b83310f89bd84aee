"""The process: a server with TLS for Azure, a plain one for the rest, until nobody needs them."""

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from core.rehearsal import AzurePlane
from emulators.azure import (
    apps,
    apps_actions,
    blobs,
    controls,
    dockerhub,
    environments,
    fileshares,
    fleet,
    groups,
    identities,
    links,
    loganalytics,
    metrics,
    operations,
    policies,
    profiles,
    providers,
    revisions_api,
    roles,
    roles_read,
    shares_arm,
    storage_accounts,
    streams,
    vaults,
    vaults_arm,
    workspaces,
)
from emulators.azure.certificates import AUTHORITY, certificate
from emulators.azure.serving import unknown
from emulators.azure.state import World
from emulators.azure.tokens import kept_key
from emulators.common.lifetime import announce, leave_when_idle, until_told_to_end
from emulators.common.recorder import Recorder
from emulators.common.web import loopback, start_web

_PARTS: Final[tuple[ModuleType, ...]] = (
    controls,
    groups,
    providers,
    identities,
    roles,
    roles_read,
    workspaces,
    storage_accounts,
    shares_arm,
    blobs,
    fileshares,
    vaults,
    vaults_arm,
    environments,
    links,
    profiles,
    apps,
    apps_actions,
    revisions_api,
    streams,
    loganalytics,
    metrics,
    operations,
    fleet,
    dockerhub,
    policies,
)
"""Modules with `routes(world)` for what TLS serves, `http_routes(world)` for the rest, and
`resume(world)` for what goes on when the process is started again."""
_PORTS: Final = "ports.json"


async def serve(folder: Path, idle_exit_seconds: float | None, record: Path | None = None) -> None:
    """Be an Azure until SIGTERM, or until nobody has called for so long."""
    own = certificate(folder)
    secure, plain = _listeners(folder)
    async with anyio.create_task_group() as tasks:
        world = World(folder=folder, tasks=tasks, key=kept_key(folder))
        world.urls = _urls(folder, *(one.getsockname()[1] for one in (secure, plain)))
        secured: ASGIApp = _web(world, "routes")
        if record:
            secured = Recorder(record).web(secured)
        await start_web(tasks, secure, secured, certificate=own)
        await start_web(tasks, plain, _web(world, "http_routes"))
        for part in _PARTS:
            if hasattr(part, "resume"):
                part.resume(world)
        announce(folder, world.urls)
        tasks.start_soon(leave_when_idle, lambda: world.seen, idle_exit_seconds, tasks.cancel_scope)
        await until_told_to_end()
        tasks.cancel_scope.cancel()


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
        ca=str(folder / AUTHORITY),
        pid=os.getpid(),
    )


def _web(world: World, which: str) -> Starlette:
    routes: list[BaseRoute] = [
        route for part in _PARTS if hasattr(part, which) for route in getattr(part, which)(world)
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown})
