"""A piece of the simulated Google Cloud inside the test, with whatever is planted in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import grpc.aio
from google.cloud import run_v2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from backends.base import World
from backends.cloud_run.site import SPEC_ANNOTATION, Clients, IdentityTokens, Site
from backends.google.clients import SPEC_LABEL, TARGET_LABEL
from backends.lease import EXPIRES
from core.records import DeploymentSpec, Target
from core.settings import GooglePlane, Settings
from simulators.common.doors import loopback, start_web
from simulators.google import images, logging, monitoring, run
from simulators.google.state import Entry, Fault, Instance, Project
from simulators.google.state import World as Everything

PROJECT, REGION = "planted", "us-east4"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
TARGET = Target(
    name="cloud-run-l4", backend="cloud_run", description="", accelerator="nvidia-l4", region=REGION
)
SPEC = DeploymentSpec(name="gemma", model="google/gemma-3-4b-it")
_APIS = ("run", "logging", "monitoring", "cloudbuild")
DONE = run_v2.Condition.State.CONDITION_SUCCEEDED


@dataclass
class Planted:
    """The project, who looks at it, and the model behind its services."""

    project: Project
    site: Site
    uri: str
    asked: list[str] = field(default_factory=list)
    """Paths that the model was asked for."""
    healthy: bool = True

    def service(self, name: str = "gemma", *, age_seconds: float = 60, **said: Any) -> Any:
        """Plant a service of ours, ready since it was made, with its first revision."""
        made = datetime.now(UTC) - timedelta(seconds=age_seconds)
        ready = run_v2.Condition(type_="Ready", state=DONE, last_transition_time=made)
        path = f"{PARENT}/services/{name}"
        revision = run_v2.Revision(
            name=f"{path}/revisions/{name}-00001-abc", create_time=made, conditions=[ready]
        )
        values = {
            "name": path,
            "labels": labels(),
            "annotations": {SPEC_ANNOTATION: SPEC.model_dump_json(exclude_defaults=True)},
            "create_time": made,
            "update_time": made,
            "terminal_condition": ready,
            "latest_created_revision": revision.name,
            "latest_ready_revision": revision.name,
            "uri": self.uri,
            "invoker_iam_disabled": True,
            "template": run_v2.RevisionTemplate(containers=[container()]),
        }
        service = run_v2.Service({**values, **said})
        self.project.services[path] = service
        self.project.revisions[revision.name] = revision
        return service

    def instance(self, started: float, ended: float | None = None, name: str = "gemma") -> None:
        """Plant an instance: from so many seconds ago to so many, or until now."""
        now = datetime.now(UTC).timestamp()
        self.project.instances.append(
            Instance(
                service=name,
                revision=f"{name}-00001-abc",
                location=REGION,
                started=now - started,
                ended=None if ended is None else now - ended,
            )
        )

    def log(self, *lines: str, name: str = "gemma", ago: float = 10, log: str = "stderr") -> None:
        """Plant lines of a container's log, a tenth of a second apart, the first so long ago."""
        first = datetime.now(UTC).timestamp() - ago
        names = {"service_name": name, "revision_name": f"{name}-00001-abc", "location": REGION}
        for place, text in enumerate(lines):
            self.project.log.append(
                Entry(
                    timestamp=first + place / 10,
                    severity="DEFAULT",
                    text=text,
                    log_name=f"run.googleapis.com/{log}",
                    resource="cloud_run_revision",
                    labels=names,
                    insert_id=f"{len(self.project.log):08x}",
                )
            )

    def fail(self, method: str, status: str, times: int = -1, message: str = "") -> None:
        """Let calls of a method fail."""
        fault = Fault(method=method, status=status, times=times, message=message)
        self.project.knobs = self.project.knobs.model_copy(update={"faults": (fault,)})


def labels(**more: str) -> dict[str, str]:
    """Give those of a service that was made here."""
    return {
        "managed-by": "vllm-devops-agent",
        TARGET_LABEL: TARGET.name,
        SPEC_LABEL: SPEC.fingerprint,
        EXPIRES: "4102444800",
        **more,
    }


def container() -> run_v2.Container:
    """Give what an L4 runs."""
    limits = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    return run_v2.Container(
        image="vllm/vllm-openai:v0.32.0", resources=run_v2.ResourceRequirements(limits=limits)
    )


@asynccontextmanager
async def planting(folder: Path) -> AsyncIterator[Planted]:
    """Serve Run's reads, Logging and Monitoring for one project, and a model behind one URL."""
    with closing(loopback()) as listener:
        async with anyio.create_task_group() as tasks:
            everything = Everything(folder=folder, tasks=tasks)
            project = everything.project(PROJECT)
            project.apis = {f"{api}.googleapis.com" for api in _APIS}
            server = grpc.aio.server()
            for part in (run, logging, monitoring, images):
                part.mount(server, everything)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            planted = Planted(project=project, site=_site(port, folder), uri="")
            planted.uri = await start_web(tasks, listener, _model(planted))
            yield planted
            await planted.site.clients.aclose()
            await server.stop(None)
            tasks.cancel_scope.cancel()


def _site(port: int, folder: Path) -> Site:
    plane = GooglePlane(grpc=f"127.0.0.1:{port}", http="http://127.0.0.1:9", storage="", pid=1)

    async def google() -> GooglePlane:
        return plane

    settings = Settings(google_cloud_project=PROJECT, rehearsal=True)
    clients = Clients(TARGET, World(settings, folder, (), google))
    identity = IdentityTokens(clients, None)
    return Site(target=TARGET, settings=settings, clients=clients, identity=identity)


def _model(planted: Planted) -> Starlette:
    async def models(request: Request) -> JSONResponse:
        planted.asked.append(request.url.path)
        status = 200 if planted.healthy else 503
        return JSONResponse({"data": [{"id": SPEC.served_model_name}]}, status_code=status)

    return Starlette(routes=[Route("/v1/models", models)])
