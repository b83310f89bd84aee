"""The process: one gRPC server, one web server, Cloud Storage, and the rehearsal's controls."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import anyio
import grpc.aio
from google.cloud.artifactregistry_v1.types import Repository
from google.cloud.iam_admin_v1.types import ServiceAccount
from google.iam.v1.policy_pb2 import Binding, Policy
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from core.settings import GooglePlane
from simulators.common.doors import loopback, start_web
from simulators.common.lifetime import Recorder, announce, leave_when_idle, until_told_to_end
from simulators.google import (
    builds,
    compute,
    iam,
    logging,
    monitoring,
    quotas,
    registry,
    run,
    secrets,
    serving,
    storage,
    tpu_nodes,
    tpu_queue,
    tpu_zones,
)
from simulators.google.logging import Said, Saying
from simulators.google.run import forget
from simulators.google.state import Knobs, Project, World
from simulators.google.storage import Storage
from simulators.google.vm import vm_of

_Act = Callable[[World, Project, str, str], bool]
"""On the TPU of a zone by its id; whether there was anything to do."""
_PREEMPTS: Final[Mapping[str, _Act]] = {"queued": tpu_queue.preempt, "compute": compute.preempt}


def vm_routes(world: World) -> Sequence[BaseRoute]:
    """Serve POST /rehearsal/projects/{project}/tpus/{plane}/{zone}/{id}, GET /rehearsal/address.

    A POST says {"do": "preempt"} or {"do": "stop-engine"}; 404 where there is nothing to do it to.
    """

    async def act(request: Request) -> Response:
        world.touch()
        place, asked = request.path_params, await request.json()
        project, plane = world.project(place["project"]), place["plane"]
        if asked == {"do": "preempt"}:
            done = _PREEMPTS[plane](world, project, place["zone"], place["id"])
        elif asked == {"do": "stop-engine"}:
            vm = vm_of(world, project, plane, place["zone"], place["id"])
            done = vm is not None and vm.stop_engine()
        else:
            return JSONResponse({"error": f"Not known: {asked}"}, status_code=400)
        return JSONResponse({"done": done}, status_code=200 if done else 404)

    return (
        Route("/rehearsal/projects/{project}/tpus/{plane}/{zone}/{id}", act, methods=["POST"]),
        Route("/rehearsal/address", _address, methods=["GET"]),
    )


async def _address(request: Request) -> Response:
    """Say where the caller is seen to be."""
    return PlainTextResponse(request.client.host if request.client else "127.0.0.1")


APIS: Final = frozenset(
    f"{name}.googleapis.com"
    for name in (
        "run",
        "secretmanager",
        "artifactregistry",
        "cloudbuild",
        "logging",
        "monitoring",
        "cloudquotas",
        "iam",
        "iamcredentials",
        "cloudresourcemanager",
        "serviceusage",
        "storage",
        "aiplatform",
        "compute",
        "tpu",
    )
)
"""What a prepared project has enabled."""
RUNTIME_ROLES: Final = (
    "roles/logging.logWriter",
    "roles/monitoring.metricWriter",
    "roles/artifactregistry.reader",
)
_BUILDER_ROLE: Final = "roles/logging.logWriter"
_PUSHER_ROLE: Final = "roles/artifactregistry.writer"
_TOLD_LINES: Final = 500
_REGIONS: Final = ("us-central1", "us-east4", "europe-west1", "europe-west4", "asia-southeast1")


def controls_routes(world: World) -> Sequence[BaseRoute]:
    """Serve GET /rehearsal/alive; GET, PUT, DELETE /rehearsal/projects/{project}; PUT its log."""

    async def alive(_request: Request) -> Response:
        return JSONResponse({"alive": True})

    async def change(request: Request) -> Response:
        world.touch()
        project = world.project(request.path_params["project"])
        return _changed(world, project, await request.json())

    async def drop(request: Request) -> Response:
        return await _dropped(world, world.project(request.path_params["project"]))

    async def say(request: Request) -> Response:
        world.touch()
        project = world.project(request.path_params["project"])
        return _said(world, project, await request.body())

    async def look(request: Request) -> Response:
        return JSONResponse(seen(world.project(request.path_params["project"])))

    return (
        Route("/rehearsal/alive", alive, methods=["GET"]),
        Route("/rehearsal/projects/{project}", change, methods=["PUT"]),
        Route("/rehearsal/projects/{project}", look, methods=["GET"]),
        Route("/rehearsal/projects/{project}", drop, methods=["DELETE"]),
        Route("/rehearsal/projects/{project}/log", say, methods=["PUT"]),
    )


async def _dropped(world: World, project: Project) -> Response:
    iam.remove(world, project)
    for each in (forget, compute.forget, tpu_queue.forget):
        await each(world, project)
    return JSONResponse({})


def _said(world: World, project: Project, body: bytes) -> Response:
    """Add many lines at once to the log of a deployment, as if its container or the platform spoke.

    The body is a `Saying`, such as
    {"service": "gemma", "lines": [[1763790000.5, "INFO one"]], "platform": false}. It answers
    400 to what is none, and 404 where there is nobody who could have written them.
    """
    try:
        saying = Saying.model_validate_json(body)
        lines = world.said.setdefault(project.id, Said()).add(project, saying)
    except ValidationError as exc:
        return JSONResponse({"error": str(exc)}, status_code=400)
    except LookupError as exc:
        return JSONResponse({"error": exc.args[0]}, status_code=404)
    return JSONResponse({"lines": lines})


def _changed(world: World, project: Project, asked: dict[str, Any]) -> Response:
    try:
        knobs = Knobs.model_validate({**project.knobs.model_dump(), **asked})
    except ValidationError as exc:
        return JSONResponse({"error": str(exc)}, status_code=400)
    if knobs.prepared and not project.knobs.prepared:
        prepare(project)
    project.knobs = knobs
    iam.install(world, project)
    world.keep(project)
    return JSONResponse(seen(project))


def prepare(project: Project) -> None:
    """Leave a project as a set-up target's is."""
    project.apis |= APIS
    for email in (project.runtime_account, project.builder_account):
        project.accounts[email] = ServiceAccount(
            name=f"projects/{project.id}/serviceAccounts/{email}",
            email=email,
            project_id=project.id,
            display_name="vllm-devops-agent",
        )
    runtime, builder = (
        f"serviceAccount:{email}" for email in (project.runtime_account, project.builder_account)
    )
    for role in RUNTIME_ROLES:
        members = [runtime, builder] if role == _BUILDER_ROLE else [runtime]
        project.policy.bindings.append(Binding(role=role, members=members))
    pusher = Binding(role=_PUSHER_ROLE, members=[builder])
    for region in _REGIONS:
        name = f"projects/{project.id}/locations/{region}/repositories/vllm-devops"
        project.repositories[name] = Repository(
            name=name,
            format_=Repository.Format.DOCKER,
            labels={"managed-by": "vllm-devops-agent"},
        )
        project.repository_policies[name] = Policy(bindings=[pusher])


def seen(project: Project) -> dict[str, Any]:
    """Tell what there is; no secret's value."""
    living = [one for one in project.instances if one.ended is None]
    return {
        "id": project.id,
        "number": project.number,
        "knobs": project.knobs.model_dump(mode="json"),
        "apis": sorted(project.apis),
        "accounts": sorted(project.accounts),
        "bindings": _bindings(project.policy),
        "services": sorted(_ids(project.services)),
        "revisions": sorted(_ids(project.revisions)),
        "secrets": {
            name: {
                "versions": len([one for one in secret.versions if one.state == "ENABLED"]),
                "bindings": _bindings(secret.policy),
            }
            for name, secret in sorted(project.secrets.items())
        },
        "repositories": sorted(project.repositories),
        "repository_bindings": {
            name: _bindings(policy) for name, policy in sorted(project.repository_policies.items())
        },
        "images": dict(project.images),
        "builds": sorted(project.builds),
        **_tpus(project),
        "instances": [one.model_dump(mode="json") for one in living],
        "log": [one.text for one in project.log[-_TOLD_LINES:]],
        "calls": list(project.calls),
        "needed": list(project.needed),
        "tested": list(project.tested),
    }


def _tpus(project: Project) -> dict[str, Any]:
    return {
        "tpus": {key: row.model_dump(mode="json") for key, row in sorted(project.tpus.items())},
        "queued_resources": _states(project.queued_resources, lambda one: one.state.state.name),
        "nodes": _states(project.nodes, lambda one: one.state.name),
        "vms": _states(project.vms, lambda one: one["status"]),
        "firewalls": sorted(project.firewalls),
    }


def _ids(named: dict[str, Any]) -> list[str]:
    return [name.rpartition("/")[2] for name in named]


def _states(named: dict[str, Any], state: Callable[[Any], str]) -> dict[str, str]:
    """Give the state of each, by zone and id."""
    return {
        f"{name.split('/')[3]}/{name.rpartition('/')[2]}": state(one)
        for name, one in sorted(named.items())
    }


def _bindings(policy: Policy) -> dict[str, list[str]]:
    return {one.role: sorted(one.members) for one in policy.bindings if one.members}


_PARTS: Final[tuple[SimpleNamespace, ...]] = (
    SimpleNamespace(routes=controls_routes),
    SimpleNamespace(mount=serving.mount),
    SimpleNamespace(mount=run.mount, resume=run.resume),
    SimpleNamespace(mount=secrets.mount),
    SimpleNamespace(mount=logging.mount),
    SimpleNamespace(mount=monitoring.mount),
    SimpleNamespace(mount=quotas.mount),
    SimpleNamespace(mount=iam.accounts_mount),
    SimpleNamespace(mount=iam.projects_mount),
    SimpleNamespace(mount=quotas.usage_mount),
    SimpleNamespace(mount=registry.mount),
    SimpleNamespace(mount=builds.mount, resume=builds.resume),
    SimpleNamespace(mount=storage.mount),
    SimpleNamespace(routes=iam.metadata_routes),
    SimpleNamespace(routes=iam.gcloud_routes, resume=iam.resume),
    SimpleNamespace(routes=registry.routes),
    SimpleNamespace(routes=compute.compute_routes, resume=compute.compute_resume),
    SimpleNamespace(mount=tpu_zones.mount),
    SimpleNamespace(mount=tpu_queue.mount, resume=tpu_queue.resume),
    SimpleNamespace(mount=tpu_nodes.mount),
    SimpleNamespace(routes=tpu_queue.routes),
    SimpleNamespace(routes=vm_routes),
)
"""Parts with `mount(server, world)` for gRPC, `routes(world)` for HTTP, and `resume(world)` for
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
                programs=str(iam.programs(world)),
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
