"""Google ends a deployment of Cloud Run by itself: no server, and nobody, has to be there."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import grpc.aio
import httpx2
import pytest
from google.api_core.exceptions import FailedPrecondition, GoogleAPICallError
from google.cloud.artifactregistry_v1 import ArtifactRegistryAsyncClient
from google.cloud.devtools.cloudbuild_v1 import CloudBuildAsyncClient
from google.cloud.iam_admin_v1 import IAMAsyncClient
from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2AsyncClient
from google.cloud.resourcemanager_v3 import ProjectsAsyncClient
from google.cloud.run_v2 import RevisionsAsyncClient, ServicesAsyncClient
from google.cloud.scheduler_v1 import CloudSchedulerAsyncClient
from google.cloud.secretmanager_v1 import SecretManagerServiceAsyncClient
from google.cloud.service_usage_v1 import ServiceUsageAsyncClient
from google.cloud.tpu_v2 import TpuAsyncClient

from simulators.google.grants import AS
from tests.conversation import Agent, Reply, agent_of
from tests.soon import HANGS, until
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.life]

TARGET: Final = "cloud-run-l4"
ONE: Final = {"target": TARGET, "name": "one"}
WISH: Final = {**ONE, "model": MODEL, "max_model_len": 4096}
JOB: Final = "vllm-lease-one"
HOUR: Final = 3600
ROLE: Final = "vllmDevopsLease"


def agent_here(cloud: Cloud) -> Any:
    return agent_of(cloud.settings)


def agent_elsewhere(cloud: Cloud, folder: Path) -> Any:
    """A fresh machine: nothing is known there but what the cloud says."""
    return agent_of(cloud.settings.model_copy(update={"vllm_devops_state_dir": folder}))


def seen(cloud: Cloud) -> dict[str, Any]:
    return cloud.controls.get(cloud.project)


async def deployed(agent: Agent, **more: Any) -> Reply:
    made = await agent.call("deploy_vllm", **{**WISH, **more})
    assert not made.failed, made
    return made


async def status(agent: Agent) -> Reply:
    found = await agent.call("status_vllm", **ONE, wait_s=10)
    assert not found.failed, found
    return found


def ends_in(reply: Reply) -> float:
    """Return in how many minutes."""
    at = datetime.fromisoformat(reply.data["expires_at"])
    return (at - datetime.now(UTC)) / timedelta(minutes=1)


@pytest.mark.parametrize("limit", [{"ttl_minutes": 60}, {"max_usd": 0.5}])
async def test_without_any_server_it_is_stopped_in_time(
    cloud: Cloud, tmp_path: Path, limit: dict[str, Any]
) -> None:
    """What a fresh machine sees then is stopped, and the bill has ended."""
    async with agent_here(cloud) as agent:
        made = await deployed(agent, min_replicas=1, **limit)
        assert made.data["lease"] == "cloud"
        assert ends_in(made) <= 61
    assert seen(cloud)["jobs"][JOB]["tried"] is None
    turned = cloud.controls.clock(cloud.project, 2 * HOUR)
    assert turned["jobs"][JOB]["status"] == "OK", turned["jobs"]
    await until(lambda: not seen(cloud)["instances"])
    async with agent_elsewhere(cloud, tmp_path / "other") as agent:
        assert (await status(agent)).state in {"stopping", "stopped"}


async def test_money_bounds_the_time_of_all_replicas(cloud: Cloud) -> None:
    """Two replicas that always run use it up in half the time; the question says so."""
    async with agent_here(cloud) as agent:
        one = ends_in(await deployed(agent, ttl_minutes=600, max_usd=1.0))
        grown = await agent.call("update_vllm_scaling", **ONE, min_replicas=0, max_replicas=2)
        assert ends_in(grown) == pytest.approx(one / 2, abs=2)
        job = seen(cloud)["jobs"][JOB]
        assert job["due"] >= datetime.fromisoformat(grown.data["expires_at"]).timestamp()
        assert job["due"] < datetime.fromisoformat(grown.data["expires_at"]).timestamp() + 61
        longer = await agent.call("update_vllm_scaling", **ONE, ttl_minutes=6000)
        assert ends_in(longer) == pytest.approx(one / 2, abs=2)
        fewer = await agent.call("update_vllm_scaling", **ONE, min_replicas=0, max_replicas=1)
        assert ends_in(fewer) == pytest.approx(one, abs=2)
        soon = await agent.call("update_vllm_scaling", **ONE, ttl_minutes=40)
        for most in (5, 1):
            soon = await agent.call("update_vllm_scaling", **ONE, min_replicas=0, max_replicas=most)
        assert ends_in(soon) == pytest.approx(min(40, one), abs=2)  # its time is over then
        assert soon.data["lease"] == "cloud"
        assert "max_usd" in longer.text


async def test_what_is_given_more_time_ends_then_and_not_before(cloud: Cloud) -> None:
    """Label and job move together, by update_vllm_scaling and by a new start."""
    async with agent_here(cloud) as agent:
        await deployed(agent, ttl_minutes=30, min_replicas=1)
        longer = await agent.call("update_vllm_scaling", **ONE, ttl_minutes=120)
        assert 118 < ends_in(longer) <= 120
        assert longer.data["lease"] == "cloud", longer.text
        assert cloud.controls.clock(cloud.project, HOUR)["jobs"][JOB]["tried"] is None
        cloud.controls.clock(cloud.project, 0)
        await agent.call("stop_vllm", **ONE)
        started = await agent.call("start_vllm", **ONE)
        assert 118 < ends_in(started) <= 120
        assert started.data["lease"] == "cloud"


async def test_other_limits_start_no_engine_anew(cloud: Cloud) -> None:
    """Label and job move alone; the money that was spent counts, and no limit is no lease."""
    async with agent_here(cloud) as agent:
        first = await deployed(agent, ttl_minutes=30, min_replicas=1)
        revisions = seen(cloud)["revisions"]
        paid = await deployed(agent, ttl_minutes=300, max_usd=0.5, min_replicas=1)
        assert "counts from now" in paid.text
        bought = 60 * 0.5 / first.data["usd_per_hour"]
        assert ends_in(paid) == pytest.approx(bought, abs=2)
        twice = await deployed(agent, ttl_minutes=300, max_usd=1.0, min_replicas=1)
        assert ends_in(twice) == pytest.approx(2 * bought, abs=2)
        assert twice.data["lease"] == "cloud"
        due = seen(cloud)["jobs"][JOB]["due"]
        assert 0 <= due - datetime.fromisoformat(twice.data["expires_at"]).timestamp() < 61
        spent = await agent.call("deploy_vllm", **WISH, max_usd=0.001, min_replicas=1)
        assert spent.code == "INVALID_ARGUMENT"
        mine = await deployed(agent, ttl_minutes=30, min_replicas=1, lease="server")
        assert mine.data["lease"] == "server"
        assert seen(cloud)["jobs"] == {}
        limits = ["ttl_minutes", "max_usd", "lease"]
        assert "expires_at" not in (await deployed(agent, reset=limits)).data
        assert seen(cloud)["revisions"] == revisions
    careful = cloud.settings.model_copy(update={"confirm": "always"})
    async with agent_of(careful) as agent:
        asked = await agent.call("deploy_vllm", **WISH, ttl_minutes=60)
        assert "Change one" in asked.text
        assert "starts anew" not in asked.text


async def test_a_destroyed_one_leaves_no_job(cloud: Cloud) -> None:
    async with agent_here(cloud) as agent:
        await deployed(agent, ttl_minutes=30)
        gone = await agent.call("destroy_vllm", **ONE)
        assert gone.data["gone"]
        assert any(JOB in what for what in gone.data["removed"])
    assert seen(cloud)["jobs"] == {}


async def test_without_an_end_there_is_no_lease(cloud: Cloud) -> None:
    async with agent_here(cloud) as agent:
        made = await deployed(agent)
        assert "lease" not in made.data
        assert seen(cloud)["jobs"] == {}
        again = await deployed(agent, ttl_minutes=30)
        assert again.data["lease"] == "cloud"
        never = await agent.call("deploy_vllm", **WISH, ttl_minutes=0)
        assert "expires_at" not in never.data
    assert seen(cloud)["jobs"] == {}


NO_JOBS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "nothing was set up for it": ({}, "cloudscheduler.googleapis.com"),
    "jobs may not be made": (
        {"denied_permissions": ["cloudscheduler.jobs.create"]},
        "cloudscheduler.jobs.create",
    ),
}
LACKING: Final = {
    **NO_JOBS,
    "services may not be granted": (
        {"denied_permissions": ["run.services.setIamPolicy"]},
        "run.services.setIamPolicy",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
async def test_where_the_login_may_not_a_server_ends_it_and_that_is_said(
    bare_cloud: Cloud, lacking: str
) -> None:
    """With lease=cloud nothing is made; without it, the answer names what is missing."""
    knobs, names = LACKING[lacking]
    bare_cloud.set(prepared=True, lease_prepared=bool(knobs), **knobs)
    async with agent_here(bare_cloud) as agent:
        refused = await agent.call("deploy_vllm", **WISH, ttl_minutes=30, lease="cloud")
        assert refused.failed
        assert names in refused.text
        assert bare_cloud.is_empty()
        made = await deployed(agent, ttl_minutes=30)
        assert made.data["lease"] == "server"
        assert names in made.text
        assert "setup_target" in made.text
        assert seen(bare_cloud)["jobs"] == {}
        bare_cloud.set(denied_permissions=[])
        await agent.call("setup_target", target=TARGET)
        assert (await deployed(agent, ttl_minutes=30)).data["lease"] == "cloud"
        assert JOB in seen(bare_cloud)["jobs"]


async def test_a_run_that_was_refused_is_told_until_it_ends_at_another_time(cloud: Cloud) -> None:
    """What Google said of the last run says nothing of a lease that was renewed."""
    refused = {"method": "run.projects.locations.services.patch", "status": "PERMISSION_DENIED"}
    async with agent_here(cloud) as agent:
        await deployed(agent, ttl_minutes=30, min_replicas=1)
        cloud.set(faults=[{**refused, "times": -1}])
        cloud.controls.clock(cloud.project, HOUR)
        assert f"its job {JOB} ran and was refused" in (await status(agent)).text
        longer = await agent.call("update_vllm_scaling", **ONE, ttl_minutes=120)
        assert longer.data["lease"] == "cloud", longer.text


BROKEN: Final = ("the job", "the grant", "its time", "its time zone")


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_lease_that_is_not_whole_is_warned_of_and_made_anew(
    cloud: Cloud, tmp_path: Path, broken: str
) -> None:
    """A server that dies half way, or somebody who deletes it, leaves nothing that says nothing."""
    method = "google.cloud.run.v2.Services/SetIamPolicy"
    if broken == "the grant":
        cloud.set(faults=[{"method": method, "status": "PERMISSION_DENIED"}])
    async with agent_here(cloud) as agent:
        await deployed(agent, ttl_minutes=30, min_replicas=1)
    if broken != "the grant":
        await _break_job(cloud, broken)
    async with agent_elsewhere(cloud, tmp_path / "other") as agent:
        found = await status(agent)
        assert "Nothing in the cloud ends one" in found.text
        assert found.data["lease"] == "server"
        [step] = [one for one in found.structured["next"] if one["tool"] == "deploy_vllm"]
        assert not (await agent.call(step["tool"], **step["arguments"])).failed
        assert (await status(agent)).data["lease"] == "cloud"


def beyond_a_lease(project: str) -> list[tuple[Any, str, dict[str, Any]]]:
    """Return what a lease's account might try: client, method and request."""
    here = f"projects/{project}/locations/us-east4"
    one, two, zone = f"{here}/services/one", f"{here}/services/two", f"{here}-a"
    job, role = f"{here}/jobs/{JOB}", f"projects/{project}/roles/{ROLE}"
    account = (
        f"projects/{project}/serviceAccounts/vllm-devops-{{}}@{project}.iam.gserviceaccount.com"
    )
    runtime, builder = account.format("runtime"), account.format("builder")
    own, others = ({"name": f"{here}/services/{name}"} for name in ("one", "two"))
    secret = f"projects/{project}/secrets/vllm-devops-one-api-key"
    images = f"{here}/repositories/vllm-devops"
    policy: dict[str, Any] = {"policy": {"bindings": []}}
    template = {"containers": [{"image": "vllm/vllm-openai:latest"}]}
    builders = {"template": {**template, "service_account": builder.rpartition("/")[2]}}
    run, scheduler, iam = ServicesAsyncClient, CloudSchedulerAsyncClient, IAMAsyncClient
    secrets, chips = SecretManagerServiceAsyncClient, TpuAsyncClient
    return [
        (run, "get_service", others),
        (run, "update_service", {"service": {**others, "template": template}}),
        (run, "update_service", {"service": {**own, **builders}}),
        (
            run,
            "update_service",
            {"service": {"name": f"{here}/services/new"}, "allow_missing": True},
        ),
        (
            run,
            "create_service",
            {"parent": here, "service_id": "new", "service": {"template": template}},
        ),
        (run, "delete_service", own),
        (run, "list_services", {"parent": here}),
        (run, "get_iam_policy", {"resource": one}),
        (run, "set_iam_policy", {"resource": one, **policy}),
        (run, "set_iam_policy", {"resource": two, **policy}),
        (RevisionsAsyncClient, "get_revision", {"name": f"{one}/revisions/one-00001"}),
        (scheduler, "create_job", {"parent": here, "job": {}}),
        (scheduler, "get_job", {"name": job}),
        (scheduler, "list_jobs", {"parent": here}),
        (scheduler, "update_job", {"job": {"name": job}}),
        (scheduler, "run_job", {"name": job}),
        (scheduler, "delete_job", {"name": job}),
        (secrets, "access_secret_version", {"name": f"{secret}/versions/latest"}),
        (secrets, "get_secret", {"name": secret}),
        (secrets, "list_secrets", {"parent": f"projects/{project}"}),
        (secrets, "add_secret_version", {"parent": secret, "payload": {"data": b"another"}}),
        (secrets, "set_iam_policy", {"resource": secret, **policy}),
        (secrets, "delete_secret", {"name": secret}),
        (iam, "create_service_account", {"name": f"projects/{project}", "account_id": "another"}),
        (iam, "list_service_accounts", {"name": f"projects/{project}"}),
        (iam, "delete_service_account", {"name": runtime}),
        (iam, "set_iam_policy", {"resource": builder, **policy}),
        (iam, "create_role", {"parent": f"projects/{project}", "role_id": "mine", "role": {}}),
        (iam, "update_role", {"name": role, "role": {"included_permissions": ["run.jobs.run"]}}),
        (iam, "delete_role", {"name": role}),
        (ProjectsAsyncClient, "get_iam_policy", {"resource": f"projects/{project}"}),
        (ProjectsAsyncClient, "set_iam_policy", {"resource": f"projects/{project}", **policy}),
        (
            ServiceUsageAsyncClient,
            "batch_enable_services",
            {"parent": f"projects/{project}", "service_ids": ["compute.googleapis.com"]},
        ),
        (ArtifactRegistryAsyncClient, "get_repository", {"name": images}),
        (ArtifactRegistryAsyncClient, "list_docker_images", {"parent": images}),
        (ArtifactRegistryAsyncClient, "set_iam_policy", {"resource": images, **policy}),
        (CloudBuildAsyncClient, "list_builds", {"project_id": project, "parent": here}),
        (
            LoggingServiceV2AsyncClient,
            "list_log_entries",
            {"resource_names": [f"projects/{project}"]},
        ),
        (chips, "list_nodes", {"parent": zone}),
        (chips, "delete_node", {"name": f"{zone}/nodes/one"}),
        (chips, "create_node", {"parent": zone, "node_id": "new", "node": {}}),
    ]


@asynccontextmanager
async def acting_as(cloud: Cloud, email: str) -> AsyncIterator[Any]:
    """Give what makes a call of the SDK's as an account."""
    async with grpc.aio.insecure_channel(cloud.controls.plane.grpc) as channel:

        async def call(kind: Any, method: str, request: dict[str, Any]) -> Any:
            client = kind(transport=kind.get_transport_class("grpc_asyncio")(channel=channel))
            return await getattr(client, method)(
                request=request, metadata=[(AS, email)], timeout=HANGS
            )

        yield call


async def went_through(
    cloud: Cloud, email: str, calls: Sequence[tuple[Any, str, dict[str, Any]]]
) -> list[str]:
    """Make these calls, and some of REST, as an account; name those that were not refused."""
    through, plane = list[str](), cloud.controls.plane
    async with acting_as(cloud, email) as call:
        for kind, method, request in calls:
            try:
                await call(kind, method, request)
            except GoogleAPICallError as exc:
                if exc.reason != "IAM_PERMISSION_DENIED":
                    through.append(f"{method}: {exc}")
            else:
                through.append(f"{method} {request}")
    vms = f"{plane.http}/compute/v1/projects/{cloud.project}/zones/us-east4-a/instances"
    bucket = f"{plane.storage}/storage/v1/b/kept-{cloud.project}"
    rest = {
        ("GET", vms),
        ("POST", vms),
        ("DELETE", f"{vms}/one"),
        ("GET", f"{plane.storage}/storage/v1/b?project={cloud.project}"),
        ("GET", f"{bucket}/o"),
        ("GET", bucket),
        ("DELETE", bucket),
    }
    async with httpx2.AsyncClient(trust_env=False) as web:
        kept = {"name": f"kept-{cloud.project}"}
        made = await web.post(f"{plane.storage}/storage/v1/b?project={cloud.project}", json=kept)
        assert made.status_code == 200, made.text
        for verb, url in rest:
            reply = await web.request(verb, url, headers={AS: email})
            if reply.status_code != 403:
                through.append(f"{verb} {url}: {reply.status_code} {reply.text}")
    return through


async def test_what_ends_it_may_do_nothing_else(cloud: Cloud) -> None:
    """The lease's account sees and scales that one service; every other call is refused."""
    async with agent_here(cloud) as agent:
        await deployed(agent, ttl_minutes=30)
        await deployed(agent, name="two")
    email = f"vllm-devops-lease@{cloud.project}.iam.gserviceaccount.com"
    assert await went_through(cloud, email, beyond_a_lease(cloud.project)) == []
    async with acting_as(cloud, email) as call:
        own = {"name": f"projects/{cloud.project}/locations/us-east4/services/one"}
        service = await call(ServicesAsyncClient, "get_service", own)
        service.scaling = {"scaling_mode": "MANUAL", "manual_instance_count": 0}
        await call(ServicesAsyncClient, "update_service", {"service": service})


async def test_what_ends_a_chip_of_the_queue_may_do_nothing_else(cloud: Cloud) -> None:
    """That account deletes TPUs, which it cannot even see; every other call is refused."""
    cloud.set(tpu_clock=600)
    async with agent_here(cloud) as agent:
        await deployed(agent)
        chip = {"target": "tpu-v6e-1", "zones": ["us-east5-b"], "control_plane": "queued"}
        await deployed(agent, **chip, name="chip")
        await until(lambda: "READY" in seen(cloud)["nodes"].values())
    email = f"vllm-devops-tpu-lease@{cloud.project}.iam.gserviceaccount.com"
    zone = f"projects/{cloud.project}/locations/us-east5-b"
    request = {"name": f"{zone}/queuedResources/vllm-devops-chip"}
    service = {"name": f"projects/{cloud.project}/locations/us-east4/services/one"}
    tries = [one for one in beyond_a_lease(cloud.project) if one[1] != "delete_node"]
    tries += [
        (ServicesAsyncClient, "get_service", service),
        (ServicesAsyncClient, "update_service", {"service": service}),
        (TpuAsyncClient, "get_queued_resource", request),
        (TpuAsyncClient, "list_queued_resources", {"parent": zone}),
        (TpuAsyncClient, "create_queued_resource", {"parent": zone, "queued_resource": {}}),
        (TpuAsyncClient, "get_node", {"name": f"{zone}/nodes/vllm-devops-chip"}),
    ]
    assert await went_through(cloud, email, tries) == []
    async with acting_as(cloud, email) as call:
        with pytest.raises(FailedPrecondition):
            await call(TpuAsyncClient, "delete_queued_resource", request)  # without force
        await call(TpuAsyncClient, "delete_queued_resource", {**request, "force": True})
    await until(lambda: not seen(cloud)["nodes"])


async def test_what_has_no_end_has_nobody_who_ends_it(cloud: Cloud) -> None:
    async with agent_here(cloud) as agent:
        for lease in ("cloud", "server"):
            refused = await agent.call("deploy_vllm", **WISH, lease=lease)
            assert refused.code == "INVALID_ARGUMENT", refused
    assert cloud.is_empty()


async def test_idle_is_what_cloud_run_can_keep(cloud: Cloud) -> None:
    """About 15 minutes, and only where it may sleep at all."""
    async with agent_here(cloud) as agent:
        for wrong in ({"max_idle_minutes": 5}, {"max_idle_minutes": 20, "min_replicas": 1}):
            assert (await agent.call("deploy_vllm", **WISH, **wrong)).code == "INVALID_ARGUMENT"
        made = await deployed(agent, max_idle_minutes=20)
        assert "about 15 minutes" in made.text
        awake = await agent.call("update_vllm_scaling", **ONE, min_replicas=1, max_replicas=1)
        assert awake.code == "INVALID_ARGUMENT"


async def _break_job(cloud: Cloud, broken: str) -> None:
    kind: Any = CloudSchedulerAsyncClient
    async with grpc.aio.insecure_channel(cloud.controls.plane.grpc) as channel:
        client = kind(transport=kind.get_transport_class("grpc_asyncio")(channel=channel))
        name = f"projects/{cloud.project}/locations/us-east4/jobs/{JOB}"
        if broken == "the job":
            await client.delete_job(name=name)
            return
        changes = {
            "its time": {"schedule": "0 0 29 2 *"},
            "its time zone": {"time_zone": "Asia/Tokyo"},
        }
        mask = {"paths": list(changes[broken])}
        changed = {"job": {"name": name, **changes[broken]}, "update_mask": mask}
        await client.update_job(request=changed)
