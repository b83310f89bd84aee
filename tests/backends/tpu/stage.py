"""A piece of the simulated Google Cloud inside the test, with whatever a test puts there."""

import base64
import random
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import grpc.aio
from google.cloud.secretmanager_v1.types import Secret as SecretMessage
from google.iam.v1.policy_pb2 import Binding, Policy
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from backends.base import World
from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY, SPEC_LABEL, TARGET_LABEL
from backends.tpu.backend import opened
from backends.tpu.site import Attempt, Chip, ChipState, Place, Search, Site
from backends.tpu.vm import blueprint
from core.records import DeploymentSpec
from core.settings import GooglePlane, Settings
from planner.model import catalog_shape
from simulators.common import certificates
from simulators.common.doors import loopback, start_web
from simulators.google import compute, logging, secrets
from simulators.google.plane import prepare
from simulators.google.state import Entry, Fault, Project, Secret, Version
from simulators.google.state import World as Everything
from tests.backends.tpu.chips import Chips
from tests.backends.tpu.sites import MODEL, target_of

PROJECT: Final = "planted"
KEY: Final = "a-key-of-the-test"
HERE: Final = Place("us-east5-b", "compute")
NOW: Final = datetime.now(UTC)
_SCRIPT: Final = "vllm-devops"
_OUTPUT: Final = "gcplogs-docker-driver"


@dataclass
class Stage:
    """The project, who looks at it, its chips, and the model behind one of them."""

    project: Project
    site: Site
    queued: Chips
    compute: Chips
    tasks: anyio.abc.TaskGroup
    doors: ExitStack
    """What is closed at the end."""
    folder: Path
    asked: list[str] = field(default_factory=list)
    """Credentials that the model was asked with."""

    def spec(self, **said: Any) -> DeploymentSpec:
        return DeploymentSpec.model_validate({"name": "gemma", "model": MODEL, **said})

    def chip(self, state: ChipState = ChipState.RUNNING, **said: Any) -> Chip:
        """Put a VM of ours there, given two minutes ago; another place or any field can be said."""
        spec = said.pop("spec", None) or self.spec()
        made = blueprint(self.site, spec, catalog_shape(MODEL))
        labels = {
            "managed-by": MANAGED_BY,
            TARGET_LABEL: self.site.target.name,
            DEPLOYMENT_LABEL: spec.name,
            SPEC_LABEL: made.labels[SPEC_LABEL],
            **said.pop("labels", {}),
        }
        waits = state in {ChipState.WAITING, ChipState.PROVISIONING}
        values: dict[str, Any] = {
            "place": HERE,
            "id": f"vllm-devops-{spec.name}",
            "state": state,
            "said": str(state).upper(),
            "node": f"vllm-devops-{spec.name}",
            "accelerator": "v6e-1",
            "chips": 1,
            "provisioning": "on-demand",
            "labels": labels,
            "spec_json": spec.model_dump_json(exclude_defaults=True),
            "created_at": NOW - timedelta(minutes=5),
            "given_at": None if waits else NOW - timedelta(minutes=2),
        }
        return self.shown(Chip.model_validate({**values, **said}))

    def shown(self, chip: Chip) -> Chip:
        """Let its control plane show it."""
        plane = self.queued if chip.place.plane == "queued" else self.compute
        plane.chips[chip.place.zone, chip.id] = chip
        self.site.inventory.forget()
        return chip

    def kept(self, *attempts: Attempt, spec: DeploymentSpec | None = None, **said: Any) -> Search:
        """Let this machine remember a deployment; asked for ten minutes ago."""
        made = blueprint(self.site, spec or self.spec(), catalog_shape(MODEL))
        values = {"since": NOW - timedelta(minutes=10), "attempts": attempts, **said}
        more = {"spec": made.spec, "where": self.site.records.where, "grounded": True}
        kept = Search(blueprint=made, model=catalog_shape(MODEL), **more, **values)
        self.site.records.keep(kept)
        return kept

    def told(self, phase: str, message: str = "", *, ago: float = 100, name: str = "gemma") -> None:
        """Log what a startup script tells."""
        own = {"deployment": name, "phase": phase}
        self._entry(_SCRIPT, message, ago, own, {"phase": phase, "message": message})

    def wrote(self, *lines: str, ago: float = 50, name: str = "gemma") -> None:
        """Log lines of an engine, a tenth of a second apart."""
        box = {"name": f"/vllm-devops-{name}", "metadata": {"deployment": name}}
        for number, line in enumerate(lines):
            payload = {"message": line, "container": box}
            self._entry(_OUTPUT, line, ago - number / 10, {}, payload)

    def happened(
        self, text: str, *, node: str, severity: str = "WARNING", zone: str = "us-east5-b"
    ) -> None:
        """Log what Google tells of a node."""
        self._entry("tpu.googleapis.com/runtime_monitor", text, 40, {}, {"message": text})
        entry = self.project.log[-1]
        entry.resource, entry.severity = "tpu_worker", severity
        entry.labels = {"zone": zone, "node_id": node}

    def opened(self, *ranges: str, name: str = "gemma") -> None:
        """Put its firewall rule there."""
        path = f"projects/{PROJECT}/global/firewalls/vllm-devops-{name}"
        self.project.firewalls[path] = {
            "name": f"vllm-devops-{name}",
            "description": f"managed-by={MANAGED_BY} deployment={name} target=tpu-v6e-1",
            "direction": "INGRESS",
            "sourceRanges": list(ranges),
        }

    def fail(self, method: str, status: str = "UNAVAILABLE", times: int = -1) -> None:
        """Let calls of a method fail."""
        fault = Fault(method=method, status=status, times=times)
        self.project.knobs = self.project.knobs.model_copy(update={"faults": (fault,)})

    async def serves(self, chip: Chip, *, tell: bool = True) -> Chip:
        """Let a model answer at an address of the VM's own, with a certificate that it tells of."""
        address = f"127.77.{random.randint(100, 250)}.{random.randint(1, 250)}"
        files = self.folder / address
        certificate = certificates.make(files, chip.id, (address,))
        both = files / certificates.BOTH
        door = self.doors.enter_context(closing(_at(address)))
        await start_web(self.tasks, door, self._model(), certificate=both)
        if tell:
            self.told("certificate", certificate, ago=90)
        return self.shown(chip.model_copy(update={"external_ip": address}))

    def _model(self) -> Starlette:
        async def models(request: Request) -> JSONResponse:
            self.asked.append(request.headers.get("authorization", ""))
            return JSONResponse({"data": [{"id": MODEL}]})

        return Starlette(routes=[Route("/v1/models", models)])

    def _entry(
        self, log: str, text: str, ago: float, own: dict[str, str], payload: dict[str, Any]
    ) -> None:
        entry = Entry(
            timestamp=NOW.timestamp() - ago,
            severity="INFO",
            text=text,
            log_name=log,
            resource="global",
            labels={},
            own_labels=own,
            payload=payload,
            insert_id=f"{len(self.project.log):08x}",
        )
        self.project.log.append(entry)


@asynccontextmanager
async def staged(folder: Path, target: str = "tpu-v6e-1", **said: Any) -> AsyncIterator[Stage]:
    """Serve Logging, Secret Manager and firewall rules for one project with a deployment's key."""
    async with anyio.create_task_group() as tasks:
        with closing(loopback()) as listener, ExitStack() as doors:
            everything = Everything(folder=folder / "cloud", tasks=tasks)
            project = everything.project(PROJECT)
            prepare(project)
            keep(project, "vllm-devops-tpu-gemma-api-key", KEY)
            server = grpc.aio.server()
            for part in (logging, secrets):
                part.mount(server, everything)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            web = await start_web(
                tasks, listener, Starlette(routes=compute.compute_routes(everything))
            )
            queued, instances = Chips("queued"), Chips("compute")
            site = _site(f"127.0.0.1:{port}", web, folder, target, said)
            site = replace(site, planes={"queued": queued, "compute": instances})
            yield Stage(project, site, queued, instances, tasks, doors, folder)
            await site.clients.aclose()
            await server.stop(None)
            tasks.cancel_scope.cancel()


def keep(project: Project, name: str, value: str) -> None:
    """Keep a secret that its VMs may read."""
    member = f"serviceAccount:{project.own_account('runtime')}"
    binding = Binding(role="roles/secretmanager.secretAccessor", members=[member])
    project.secrets[name] = Secret(
        message=SecretMessage(name=f"projects/{project.number}/secrets/{name}"),
        versions=[Version(number=1, data=base64.b64encode(value.encode()).decode())],
        policy=Policy(bindings=[binding]),
    )


def _site(port: str, web: str, folder: Path, target: str, said: dict[str, Any]) -> Site:
    plane = GooglePlane(grpc=port, http=web, storage="", pid=1)

    async def google() -> GooglePlane:
        return plane

    values = {"google_allowed_addresses": ("127.0.0.1/32",), **said}
    settings = Settings(google_cloud_project=PROJECT, rehearsal=True, **values)
    return opened(target_of(target), World(settings, folder / "state", (), google))


def _at(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, 8000))
    return listener


def attempt(outcome: str = "GIVEN", place: Place = HERE, **said: Any) -> Attempt:
    """One place that was asked eight minutes ago."""
    values: dict[str, Any] = {"place": place, "since": NOW - timedelta(minutes=8), **said}
    return Attempt(outcome=outcome, **values)
