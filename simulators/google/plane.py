"""The process: one gRPC server, one web server, Cloud Storage, and the rehearsal's controls."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import grpc.aio
from google.cloud.artifactregistry_v1.types import Repository
from google.cloud.iam_admin_v1.types import Role, ServiceAccount
from google.iam.v1.policy_pb2 import Binding, Policy
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from core.settings import GooglePlane
from simulators.common.doors import loopback, start_web
from simulators.common.lifetime import Answer, Recorder, controls, stay_up
from simulators.google import (
    compute,
    iam,
    images,
    logging,
    monitoring,
    projects,
    run,
    scheduler,
    secrets,
    serving,
    storage,
    tpu,
    vm,
)
from simulators.google.logging import Saying
from simulators.google.run_rules import least_instances
from simulators.google.state import CATALOG, Knobs, Project, World

_PREPARED: Final = CATALOG["prepared"]
_TOLD_LINES: Final = 500
_PREEMPTS: Final[Mapping[str, Callable[[World, Project, str, str], bool]]] = {
    "queued": tpu.preempt,
    "compute": compute.preempt,
}
"""By the zone of a TPU and its id; returns whether there was anything to do."""


def control_routes(world: World) -> Sequence[BaseRoute]:
    """Serve what a test or a rehearsal may set, see and do."""
    more: dict[tuple[str, str], Answer] = {
        ("PUT", "/log"): _say,
        ("PUT", "/clock"): scheduler.set_clock,
        ("GET", "/login"): iam.login,
        ("POST", "/gcloud"): iam.gcloud,
        ("DELETE", "/tpus/{plane}/{zone}/{id}"): _preempt,
    }
    return controls(world, world.project, summary, prepare=_prepare, drop=_drop, more=more)


def _prepare(world: World, project: Project, knobs: Knobs) -> None:
    if knobs.prepared and not project.knobs.prepared:
        prepare(project)
        if knobs.lease_prepared:
            prepare_lease(project)
    iam.install(world, project, knobs.gcloud)


async def _drop(world: World, project: Project) -> None:
    iam.remove(world, project)
    await run.forget(world, project)
    await vm.forget(world, project)


async def _say(world: World, project: Project, request: Request) -> dict[str, Any]:
    """Add many lines at once to the log of a deployment: the body is a `Saying`."""
    saying = Saying.model_validate_json(await request.body())
    return {"lines": logging.plant(world, project, saying)}


async def _preempt(world: World, project: Project, request: Request) -> dict[str, Any]:
    plane, zone, tpu_id = (request.path_params[name] for name in ("plane", "zone", "id"))
    if not _PREEMPTS[plane](world, project, zone, tpu_id):
        raise LookupError("There is nothing to do it to.")
    return {"done": True}


def prepare(project: Project) -> None:
    """Leave a project as a set-up target's is, and as `catalog.toml` has it."""
    project.apis |= projects.APIS
    _make_accounts(project, _PREPARED["accounts"])
    project.policy.bindings.extend(_granted(project, _PREPARED["project"]))
    for region in CATALOG["regions"]["l4"]:
        name = f"projects/{project.id}/locations/{region}/repositories/vllm-devops"
        project.repositories[name] = Repository(
            name=name, format_=Repository.Format.DOCKER, labels={"managed-by": "vllm-devops-agent"}
        )
        project.policies[name] = Policy(bindings=_granted(project, _PREPARED["repository"]))


def prepare_lease(project: Project) -> None:
    """Leave a project with all that a lease of the cloud needs, as a set-up target's has it."""
    lease = _PREPARED["lease"]
    project.apis |= projects.LEASE_APIS
    _make_accounts(project, lease["accounts"])
    for role, said in lease["roles"].items():
        name = f"projects/{project.id}/roles/{role}"
        project.roles[name] = Role(
            name=name,
            title=f"vllm-devops-agent: {said['title']}",
            included_permissions=said["permissions"],
            stage=Role.RoleLaunchStage.GA,
            etag=b"prepared",
        )
    project.policy.bindings.extend(_granted(project, lease["project"]))
    runtime = project.accounts[project.own_account("runtime")].name
    project.policies[runtime] = Policy(bindings=_granted(project, lease["runtime"]))


def _granted(project: Project, roles: Mapping[str, Sequence[str]]) -> list[Binding]:
    """Return who of our accounts has which role."""
    return [
        Binding(
            role=role.format(id=project.id),
            members=[f"serviceAccount:{project.own_account(one)}" for one in accounts],
        )
        for role, accounts in roles.items()
    ]


def _make_accounts(project: Project, names: Sequence[str]) -> None:
    for email in map(project.own_account, names):
        project.accounts[email] = ServiceAccount(
            name=f"projects/{project.id}/serviceAccounts/{email}",
            email=email,
            project_id=project.id,
            display_name="vllm-devops-agent",
        )


def summary(project: Project) -> dict[str, Any]:
    """Tell what there is; no secret's value."""
    living = [one for one in project.instances if one.ended is None]
    return {
        "accounts": sorted(project.accounts),
        "bindings": _bindings(project.policy),
        "services": sorted(_ids(project.services)),
        "least_instances": {
            name.rpartition("/")[2]: least_instances(one) for name, one in project.services.items()
        },
        "revisions": sorted(_ids(project.revisions)),
        "secrets": {
            name: {"versions": len(secret.versions), "bindings": _bindings(secret.policy)}
            for name, secret in sorted(project.secrets.items())
        },
        "repository_bindings": {
            name: _bindings(policy)
            for name, policy in sorted(project.policies.items())
            if "/repositories/" in name
        },
        "account_bindings": {
            email: _bindings(project.policies.get(one.name, Policy()))
            for email, one in sorted(project.accounts.items())
        },
        "roles": {
            name.rpartition("/")[2]: [] if one.deleted else sorted(one.included_permissions)
            for name, one in sorted(project.roles.items())
        },
        **scheduler.summary(project),
        "images": dict(project.images),
        "builds": sorted(project.builds),
        "tpus": {key: row.model_dump(mode="json") for key, row in sorted(project.tpus.items())},
        "queued_resources": _states(project.queued_resources, lambda one: one.state.state.name),
        "nodes": _states(project.nodes, lambda one: one.state.name),
        "vms": _states(project.vms, lambda one: one["status"]),
        "firewalls": sorted(_ids(project.firewalls)),
        "instances": [one.model_dump(mode="json") for one in living],
        "log": [one.text for one in project.log[-_TOLD_LINES:]],
        "calls": list(project.calls),
        "needed": list(project.needed),
        "tested": list(project.tested),
    }


def _ids(named: dict[str, Any]) -> list[str]:
    return [name.rpartition("/")[2] for name in named]


def _states(named: dict[str, Any], state: Callable[[Any], str]) -> dict[str, str]:
    return {
        f"{name.split('/')[3]}/{name.rpartition('/')[2]}": state(one)
        for name, one in sorted(named.items())
    }


def _bindings(policy: Policy) -> dict[str, list[str]]:
    return {one.role: sorted(one.members) for one in policy.bindings if one.members}


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve everything that is asked by gRPC."""
    parts = (serving, run, scheduler, secrets, logging, monitoring, projects, images, storage, tpu)
    for part in parts:
        part.mount(server, world)


def web(world: World) -> Starlette:
    """Return everything that is asked by HTTP."""
    google = (images.routes, run.routes, compute.compute_routes, tpu.routes)
    every = (control_routes, iam.metadata_routes, *google)
    return Starlette(routes=[route for routes in every for route in routes(world)])


async def serve(
    folder: Path, idle_exit_seconds: float | None, recorder: Recorder | None = None
) -> None:
    """Be a Google Cloud until SIGTERM, or until nobody has called for so long."""
    async with anyio.create_task_group() as tasks:
        world = World(folder=folder, tasks=tasks)
        buckets = storage.Storage(folder / "storage", world)
        server = grpc.aio.server(interceptors=[recorder.grpc()] if recorder else [])
        mount(server, world)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        app: ASGIApp = recorder.web(web(world)) if recorder else web(world)
        world.buckets = buckets.start()
        world.http = await start_web(tasks, loopback(), app)
        for part in (run, images, iam, compute, tpu, scheduler):
            part.resume(world)
        addresses = GooglePlane(
            grpc=f"127.0.0.1:{port}",
            http=world.http,
            storage=world.buckets,
            pid=os.getpid(),
            programs=str(iam.programs(world)),
        )
        await stay_up(world, addresses, idle_exit_seconds)
