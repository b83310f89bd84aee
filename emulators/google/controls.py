"""The rehearsal's own controls: what a project's cloud is to do, and what it was seen to do."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from google.cloud.artifactregistry_v1.types import Repository
from google.cloud.iam_admin_v1.types import ServiceAccount
from google.iam.v1.policy_pb2 import Binding, Policy
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from emulators.google import gcloud
from emulators.google.compute import api as compute
from emulators.google.knobs import Knobs
from emulators.google.log_said import Said, Saying
from emulators.google.run import forget
from emulators.google.state import Project, World
from emulators.google.tpu import queue

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


def routes(world: World) -> Sequence[BaseRoute]:
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
    gcloud.remove(world, project)
    for each in (forget, compute.forget, queue.forget):
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
    gcloud.install(world, project)
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
