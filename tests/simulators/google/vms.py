"""VMs with chips in a simulated Google Cloud in this process, and scripts for them to boot by."""

import base64
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from google.cloud.secretmanager_v1.types import Secret as SecretMessage
from google.iam.v1.policy_pb2 import Binding, Policy

from backends.container import Certificate, guard_container
from backends.tpu import vm
from simulators.google.plane import prepare
from simulators.google.state import Entry, Project, Secret, Version, World
from simulators.google.vm import Vm, start
from simulators.google.vm_programs import VmSpec

KEY: Final = "a-key-of-the-test"
MODEL: Final = "google/gemma-4-E2B-it"
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
ALL: Final = "0.0.0.0/0"
_SECONDS: Final = 60
"""A first engine needs a process that takes seconds to come up where others work as well."""
_DOCKER: Final = (
    *("--detach", "--name", "vllm-devops-one", "--restart=no"),
    *("--privileged", "--net=host", "--shm-size=16g"),
    *("-v", "/var/lib/vllm-devops/cache:/cache", "-e", "VLLM_API_KEY", "-e", "HF_TOKEN"),
    *("--log-driver=gcplogs", "--log-opt", "gcp-project=p-vm", "--log-opt", "labels=deployment"),
    *("--label", "deployment=one"),
)
_TEMPLATE: Final = Path(vm.__file__).with_name("startup.sh")
_TLS: Final = Certificate(certificate="/tls/cert.pem", key="/tls/key.pem")


def command(*more: str, chips: int = 1) -> tuple[str, ...]:
    """What follows the image: an engine that listens for the VM alone."""
    flags = ("--served-model-name", "m", "--max-model-len", "4096")
    listens = ("--host", "127.0.0.1", "--port", "8001")
    return ("vllm", "serve", MODEL, *flags, *listens, "--tensor-parallel-size", str(chips), *more)


def proxy(*, tls: bool, engine_port: int = 8001, network: str = "host") -> dict[str, Any]:
    """The proxy before it, by TLS or not."""
    made = guard_container("nginx", port=8000, engine_port=engine_port, tls=_TLS if tls else None)
    mounted = ("-v", "/var/lib/vllm-devops/tls:/tls:ro")
    said = (word for pair in made.env.items() for word in ("-e", "=".join(pair)))
    return {
        "TLS": "yes" if tls else "no",
        "GUARD_IMAGE": "docker.io/library/nginx:1.30.0-alpine-slim",
        "GUARD_DOCKER": ("--name", "guard", f"--net={network}", "--read-only", *mounted, *said),
        "GUARD_COMMAND": (*made.command, *made.args),
    }


def script(**more: object) -> str:
    """A startup script that decides so; None leaves a name out."""
    decided: dict[str, Any] = {
        "DEPLOYMENT": "one",
        "PROJECT": "p-vm",
        "IMAGE": "vllm/vllm-tpu:v0.27.0",
        "KEY_SECRET": "key",
        "TOKEN_SECRET": "",
        "PORT": "8000",
        **proxy(tls=True),
        "LOG": "vllm-devops",
        "CACHE": "/var/cache/vllm-devops",
        "DOCKER": _DOCKER,
        "COMMAND": command(),
        **more,
    }
    lines = [
        f"readonly {name}={_quoted(value)}" for name, value in decided.items() if value is not None
    ]
    head, _, rest = _TEMPLATE.read_text("utf-8").partition("# --- decided ---\n")
    _, mark, steps = rest.partition("# --- to do ---")
    return "\n".join((f"{head}# --- decided ---", *lines, f"{mark}{steps}"))


def docker(*but: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """The arguments of docker, without some."""
    return (*(word for word in _DOCKER if word not in but), *more)


def _quoted(value: str | Sequence[str]) -> str:
    return shlex.quote(value) if isinstance(value, str) else f"({shlex.join(value)})"


class Vms:
    """VMs of one project."""

    def __init__(self, world: World, project: Project) -> None:
        self.world = world
        self.project = project

    def start(self, text: str | None = None, **more: Any) -> Vm:
        """Start one; a spec's fields can be said."""
        metadata = {"startup-script": script() if text is None else text}
        return start(self.world, self.project, self.spec(metadata=metadata, **more))

    def spec(self, **more: Any) -> VmSpec:
        """What one is made with."""
        spec = VmSpec(
            plane="compute",
            zone="us-east5-b",
            id="vllm-devops-one",
            accelerator="v6e-1",
            metadata={},
            tags=("vllm-devops-one",),
            network="default",
            service_account=self.project.runtime_account,
            scopes=(SCOPE,),
            external=True,
            disk_gb=200,
            has_docker=False,
        )
        return spec._replace(**more)

    def open(self, *ranges: str, **more: Any) -> None:
        """Let callers in to port 8000 of VMs with the tag."""
        self.project.firewalls["rule"] = {
            "name": "rule",
            "network": "projects/p-vm/global/networks/default",
            "direction": "INGRESS",
            "allowed": [{"IPProtocol": "tcp", "ports": ["8000"]}],
            "sourceRanges": list(ranges),
            "targetTags": ["vllm-devops-one"],
            **more,
        }

    def knobs(self, **more: Any) -> None:
        self.project.knobs = self.project.knobs.model_copy(update=more)

    def phases(self) -> list[str]:
        """What the script has told Cloud Logging."""
        return [one.own_labels["phase"] for one in self._log("vllm-devops")]

    def told(self, phase: str) -> list[str]:
        """What it has told of one phase."""
        return [one.text for one in self._log("vllm-devops") if one.own_labels["phase"] == phase]

    def output(self) -> list[str]:
        """What docker's driver has written to Cloud Logging."""
        return [one.text for one in self._log("gcplogs-docker-driver")]

    async def until(self, phase: str) -> str:
        """Wait for a phase; gives what was told of it."""
        await self.seen(lambda: phase in self.phases())
        return self.told(phase)[-1]

    async def seen(self, condition: Callable[[], bool]) -> None:
        """Wait for something that will be seen soon."""
        with anyio.fail_after(_SECONDS):
            while True:
                if condition():
                    return
                await anyio.sleep(0.01)

    def _log(self, name: str) -> list[Entry]:
        return [one for one in self.project.log if one.log_name == name]


@asynccontextmanager
async def vms_in(folder: Path) -> AsyncIterator[Vms]:
    """A prepared project whose clock is fast, with a key that its VMs may read."""
    async with anyio.create_task_group() as tasks:
        world = World(folder=folder, tasks=tasks)
        project = world.project("p-vm")
        prepare(project)
        project.knobs = project.knobs.model_copy(update={"tpu_clock": 2000.0, "boot_seconds": 0.05})
        keep(project, "key", KEY)
        vms = Vms(world, project)
        yield vms
        tasks.cancel_scope.cancel()


def keep(project: Project, name: str, value: str, *, readable: bool = True) -> None:
    """Keep a secret."""
    member = f"serviceAccount:{project.runtime_account}"
    binding = Binding(role="roles/secretmanager.secretAccessor", members=[member])
    project.secrets[name] = Secret(
        message=SecretMessage(name=f"projects/{project.number}/secrets/{name}"),
        versions=[Version(number=1, data=base64.b64encode(value.encode()).decode())],
        policy=Policy(bindings=[binding] if readable else []),
    )


def bearer(key: str = KEY) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"}
