"""A job of Cloud Scheduler ends what it may end, as the simulated cloud judges its account."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.cloud.iam_admin_v1 import IAMAsyncClient
from google.cloud.run_v2 import ServicesAsyncClient
from google.cloud.scheduler_v1 import CloudSchedulerAsyncClient, HttpMethod, Job

from tests.conversation import agent_of
from tests.soon import until
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.life]

TARGET: Final = "cloud-run-l4"
REGION: Final = "us-east4"
HOUR: Final = 3600


class Google:
    """The SDK's clients of one simulated project."""

    def __init__(self, channel: grpc.aio.Channel, cloud: Cloud) -> None:
        self._channel, self.cloud = channel, cloud
        self.parent: Final = f"projects/{cloud.project}/locations/{REGION}"
        self.service: Final = f"{self.parent}/services/one"
        self.email: Final = f"vllm-devops-lease@{cloud.project}.iam.gserviceaccount.com"
        self.runtime: Final = f"vllm-devops-runtime@{cloud.project}.iam.gserviceaccount.com"
        self.scheduler: Final = self.client(CloudSchedulerAsyncClient)
        self.run: Final = self.client(ServicesAsyncClient)
        self.iam: Final = self.client(IAMAsyncClient)

    def client(self, kind: Any) -> Any:
        transport = kind.get_transport_class("grpc_asyncio")
        return kind(transport=transport(channel=self._channel))

    async def make_job(self, *, retries: int = 0) -> None:
        """Make a job that ends the service in about an hour."""
        due = datetime.fromtimestamp(time.time() + HOUR, UTC)
        job = Job(
            name=f"{self.parent}/jobs/end-one",
            schedule=f"{due.minute} {due.hour} {due.day} {due.month} *",
            time_zone="UTC",
            retry_config={"retry_count": retries},
            http_target={
                "uri": f"https://run.googleapis.com/v2/{self.service}"
                "?updateMask=scaling.scalingMode,scaling.manualInstanceCount",
                "http_method": HttpMethod.PATCH,
                "headers": {"Content-Type": "application/json"},
                "body": b'{"scaling": {"scalingMode": "MANUAL", "manualInstanceCount": 0}}',
                "oauth_token": {"service_account_email": self.email},
            },
        )
        await self.scheduler.create_job(parent=self.parent, job=job)

    async def grant(self) -> None:
        """Let the job's account change the service."""
        policy = await self.run.get_iam_policy(request={"resource": self.service})
        role = f"projects/{self.cloud.project}/roles/vllmDevopsLease"
        policy.bindings.add(role=role, members=[f"serviceAccount:{self.email}"])
        asked = {"resource": self.service, "policy": policy}
        await self.run.set_iam_policy(request=asked)

    def turn(self, seconds: float) -> dict[str, Any]:
        """Turn the clock; return how the job is."""
        told = self.cloud.controls.clock(self.cloud.project, seconds)
        job: dict[str, Any] = told["jobs"]["end-one"]
        return job

    async def stops(self) -> None:
        """Wait until no instance is there that would bill."""
        await until(lambda: not self.cloud.controls.get(self.cloud.project)["instances"])


@pytest.fixture
async def google(cloud: Cloud) -> AsyncIterator[Google]:
    """A project with a deployment that bills."""
    async with agent_of(cloud.settings) as agent:
        made = await agent.brief(
            "deploy_vllm",
            target=TARGET,
            name="one",
            model=MODEL,
            max_model_len=4096,
            min_replicas=1,
        )
        assert not made.failed, made
    async with grpc.aio.insecure_channel(cloud.controls.plane.grpc) as channel:
        billing = Google(channel, cloud)
        await until(lambda: bool(cloud.controls.get(cloud.project)["instances"]))
        yield billing


async def test_a_job_ends_a_service_when_its_time_has_come(google: Google) -> None:
    """Not before; it is tried again after a failure, and billing ends with the instances."""
    await google.make_job(retries=1)
    await google.grant()
    assert google.turn(HOUR - 600)["tried"] is None
    assert google.cloud.controls.get(google.cloud.project)["instances"]
    google.cloud.set(faults=[{"method": "run.projects.locations.services.patch"}])
    assert google.turn(HOUR + 60)["status"] == "UNAVAILABLE"
    now = time.time()
    assert google.turn(HOUR + 70)["status"] == "OK"
    await google.stops()
    service = await google.run.get_service(name=google.service)
    assert (service.scaling.scaling_mode.name, service.scaling.manual_instance_count) == (
        "MANUAL",
        0,
    )
    job = await google.scheduler.get_job(name=f"{google.parent}/jobs/end-one")
    assert job.last_attempt_time.timestamp() == pytest.approx(now + HOUR + 70, abs=30)
    assert job.schedule_time.timestamp() > now + 300 * 24 * HOUR  # it returns each year


@pytest.mark.parametrize("missing", ["role", "grant", "actAs", "account"])
async def test_a_job_without_its_grants_ends_nothing(google: Google, missing: str) -> None:
    """It is refused with 403, and the job says so."""
    await google.make_job()
    if missing != "grant":
        await google.grant()
    if missing == "role":
        await google.iam.delete_role(
            request={"name": f"projects/{google.cloud.project}/roles/vllmDevopsLease"}
        )
    account = f"projects/{google.cloud.project}/serviceAccounts/"
    if missing == "actAs":
        nothing = {"resource": account + google.runtime, "policy": {}}
        await google.iam.set_iam_policy(request=nothing)
    if missing == "account":
        await google.iam.delete_service_account(name=account + google.email)
    job = google.turn(HOUR + 60)
    refused = "UNAUTHENTICATED" if missing == "account" else "PERMISSION_DENIED"
    assert job["status"] == refused, job
    assert google.cloud.controls.get(google.cloud.project)["instances"]
