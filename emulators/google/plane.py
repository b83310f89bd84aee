"""The process: one gRPC server, one web server and Cloud Storage, until nobody needs them."""

import os
from pathlib import Path
from types import ModuleType
from typing import Final

import anyio
import grpc.aio
from starlette.applications import Starlette
from starlette.types import ASGIApp

from core.rehearsal import GooglePlane
from emulators.common.lifetime import announce, leave_when_idle, until_told_to_end
from emulators.common.recorder import Recorder
from emulators.common.web import loopback, start_web
from emulators.google import (
    accounts,
    builds,
    controls,
    dockerhub,
    gcloud,
    logs,
    metadata,
    monitoring,
    operations,
    projects,
    quotas,
    repositories,
    run,
    secretmanager,
    usage,
    vertex,
)
from emulators.google.compute import api as compute
from emulators.google.state import World
from emulators.google.storage import Storage
from emulators.google.tpu import alpha, catalog, nodes, queue, vm_controls

_PARTS: Final[tuple[ModuleType, ...]] = (
    controls,
    operations,
    run,
    secretmanager,
    logs,
    monitoring,
    quotas,
    accounts,
    projects,
    usage,
    repositories,
    builds,
    vertex,
    metadata,
    gcloud,
    dockerhub,
    compute,
    catalog,
    queue,
    nodes,
    alpha,
    vm_controls,
)
"""Modules with `mount(server, world)` for gRPC, `routes(world)` for HTTP, and `resume(world)` for
what goes on when the process is started again."""


async def serve(folder: Path, idle_exit_seconds: float | None, record: Path | None = None) -> None:
    """Be a Google Cloud until SIGTERM, or until nobody has called for so long."""
    recorder = Recorder(record) if record else None
    async with anyio.create_task_group() as tasks:
        world = World(folder=folder, tasks=tasks)
        storage = Storage(folder / "storage", world)
        server, port = _api(world, recorder)
        await server.start()
        web: ASGIApp = _web(world)
        world.http = await start_web(tasks, loopback(), recorder.web(web) if recorder else web)
        for part in _PARTS:
            if hasattr(part, "resume"):
                part.resume(world)
        announce(
            folder,
            GooglePlane(
                grpc=f"127.0.0.1:{port}",
                http=world.http,
                storage=storage.start(),
                pid=os.getpid(),
                programs=str(gcloud.programs(world)),
            ),
        )
        tasks.start_soon(leave_when_idle, lambda: world.seen, idle_exit_seconds, tasks.cancel_scope)
        await until_told_to_end()
        tasks.cancel_scope.cancel()


def _api(world: World, recorder: Recorder | None) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(interceptors=[recorder.grpc()] if recorder else [])
    for part in _PARTS:
        if hasattr(part, "mount"):
            part.mount(server, world)
    return server, server.add_insecure_port("127.0.0.1:0")


def _web(world: World) -> Starlette:
    return Starlette(
        routes=[route for part in _PARTS if hasattr(part, "routes") for route in part.routes(world)]
    )
