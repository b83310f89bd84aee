"""Services as the simulated Cloud Run is asked for them, and their instances."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import grpc.aio
import httpx2
import pytest
from google.api_core import exceptions
from google.cloud.run_v2.services.services.async_client import ServicesAsyncClient
from google.cloud.run_v2.services.services.transports.grpc_asyncio import (
    ServicesGrpcAsyncIOTransport,
)
from google.cloud.run_v2.types import Condition, Container, EnvVar, RevisionTemplate, Service

from core.settings import GooglePlane
from tests.google_plane import Controls

REGION: Final = "us-central1"
KEY: Final = "a-key-of-the-test"


@asynccontextmanager
async def services_of(plane: GooglePlane, project: str) -> AsyncIterator["Services"]:
    """Prepare a project of a plane that is the test's own, and speak to its Cloud Run."""
    async with grpc.aio.insecure_channel(plane.grpc) as channel:
        transport = ServicesGrpcAsyncIOTransport(channel=channel)
        controls = Controls(plane)
        controls.set(project, prepared=True)
        yield Services(ServicesAsyncClient(transport=transport), controls, project)


def parent_of(project: str, region: str = REGION) -> str:
    return f"projects/{project}/locations/{region}"


def account_of(project: str) -> str:
    return f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"


def wanted(project: str, *more: str, env: tuple[EnvVar, ...] = ()) -> Service:
    """A service that Cloud Run takes: vLLM on one L4."""
    args = ("google/gemma-4-E2B-it", "--served-model-name", "m", "--max-model-len", "4096")
    limits = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
    container = Container(
        image="vllm/vllm-openai:v0.32.0",
        args=[*args, "--host", "0.0.0.0", "--port", "8000", *more],  # noqa: S104  as in a container
        env=env,
        ports=[{"container_port": 8000}],
        resources={"limits": limits, "cpu_idle": False, "startup_cpu_boost": True},
        startup_probe={
            "http_get": {"path": "/health", "port": 8000},
            "period_seconds": 5,
            "timeout_seconds": 5,
            "failure_threshold": 360,
        },
    )
    return Service(
        labels={"managed-by": "vllm-devops-agent"},
        template=RevisionTemplate(
            scaling={"max_instance_count": 1},
            service_account=account_of(project),
            node_selector={"accelerator": "nvidia-l4"},
            gpu_zonal_redundancy_disabled=True,
            timeout={"seconds": 60},
            max_instance_request_concurrency=8,
            containers=[container],
        ),
    )


async def finished(operation: Any) -> Any:
    """Wait for an operation's end; the SDK's own waiting looks once in a second."""
    with anyio.fail_after(30):
        while True:
            if await operation.done():
                break
            await anyio.sleep(0.02)
    return await operation.result(timeout=1)


class Services:
    """Cloud Run of one project."""

    def __init__(self, client: ServicesAsyncClient, controls: Controls, project: str) -> None:
        self.client: Any = client
        self.controls = controls
        self.project = project
        controls.set(project, boot_seconds=0.05)

    def name(self, service_id: str = "one") -> str:
        return f"{parent_of(self.project)}/services/{service_id}"

    async def create(self, service: Service | None = None, service_id: str = "one") -> Any:
        """Begin; the operation is given."""
        return await self.client.create_service(
            parent=parent_of(self.project),
            service=service or wanted(self.project),
            service_id=service_id,
        )

    async def created(self, service: Service | None = None, service_id: str = "one") -> Any:
        """Wait for its end; the service is given."""
        return await finished(await self.create(service, service_id))

    async def fails(self, service: Service) -> tuple[Any, int]:
        """Let a first rollout fail; gives the service then, and the code of its operation."""
        operation = await self.create(service)
        with pytest.raises(exceptions.GoogleAPICallError) as caught:
            await finished(operation)
        failed = await self.get()
        assert failed.terminal_condition.state == Condition.State.CONDITION_FAILED
        assert failed.terminal_condition.message in str(caught.value)
        assert not failed.reconciling
        assert not failed.latest_ready_revision
        return failed, caught.value.errors[0].code

    async def get(self, service_id: str = "one") -> Any:
        return await self.client.get_service(name=self.name(service_id))

    async def until_instances(self, count: int) -> None:
        """Wait until so many are there."""
        with anyio.fail_after(20):
            while True:
                if len(self.controls.get(self.project)["instances"]) == count:
                    return
                await anyio.sleep(0.02)

    def token(self, audience: str) -> dict[str, str]:
        """Give the header of the project's caller."""
        base = f"{self.controls.plane.http}/p/{self.project}/computeMetadata/v1/instance"
        reply = httpx2.get(
            f"{base}/service-accounts/default/identity",
            params={"audience": audience},
            headers={"Metadata-Flavor": "Google"},
            trust_env=False,
        )
        assert reply.is_success, reply.text
        return {"X-Serverless-Authorization": f"Bearer {reply.text}"}
