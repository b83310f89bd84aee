"""What goes wrong in a deployment's life on Cloud Run, as an agent hears of it."""

from typing import Final

import anyio
import pytest

from tests.backends.cloud_run.sites import foreign_service, opened
from tests.conversation import Agent, agent_of
from tests.soon import soon
from tests.stories.conftest import Cloud
from tests.stories.life import both_deploy

pytestmark = pytest.mark.anyio

ONE: Final = {"target": "cloud-run-l4", "name": "one"}
WISH: Final = {**ONE, "model": "google/gemma-4-E2B-it", "max_model_len": 4096}
CREATE: Final = "google.cloud.run.v2.Services/CreateService"


async def destroyed(agent: Agent, cloud: Cloud) -> None:
    """Take it away and see that nothing is left of it."""
    gone = await agent.call("destroy_vllm", **ONE)
    assert gone.data["gone"], gone
    assert cloud.is_empty()


async def test_two_that_deploy_at_once_make_one_deployment(cloud: Cloud) -> None:
    """Both are told of it, or one that the other was first; there is one service with one key."""
    async with agent_of(cloud.settings) as one, agent_of(cloud.settings) as other:
        await both_deploy(one, other, WISH)
        assert (await other.settled(**ONE)).state == "ready"
        assert not (await other.call("query_vllm", **ONE, prompt="Hello", max_tokens=2)).failed
        seen = cloud.set()
        assert seen["services"] == ["one"]
        assert [row["versions"] for row in seen["secrets"].values()] == [1]
        await destroyed(one, cloud)


@pytest.mark.parametrize("when", ["hang", "hang-after"])
@pytest.mark.parametrize("then", ["deploy_vllm", "destroy_vllm"])
async def test_where_a_server_dies_another_goes_on(cloud: Cloud, when: str, then: str) -> None:
    """Whether or not its last call took effect, nothing is there twice and nothing is left."""
    cloud.set(faults=[{"method": CREATE, "when": when}])
    async with anyio.create_task_group() as tasks:

        async def die_deploying() -> None:
            async with agent_of(cloud.settings) as agent:
                await agent.call("deploy_vllm", **WISH)

        tasks.start_soon(die_deploying)
        await soon(lambda: _called(cloud), waiting_for="the call")
        tasks.cancel_scope.cancel()
    assert cloud.set()["secrets"]
    async with agent_of(cloud.settings) as agent:
        if then == "deploy_vllm":
            deployed = await agent.call(then, **WISH)
            assert not deployed.failed, deployed
            assert (await agent.settled(**ONE)).state == "ready"
            assert cloud.set()["services"] == ["one"]
        await destroyed(agent, cloud)


async def _called(cloud: Cloud) -> bool:
    return CREATE in cloud.set()["calls"]


async def test_a_service_that_is_not_ours_is_left_alone(cloud: Cloud) -> None:
    """Every tool that meets it says so; none of them touches it."""
    async with opened(cloud.controls.plane, cloud.project) as site:
        await foreign_service(site, "one", owner="somebody-else")
    before = cloud.set()
    async with agent_of(cloud.settings) as agent:
        for tool in ("status_vllm", "stop_vllm", "destroy_vllm", "get_endpoint", "get_logs"):
            reply = await agent.call(tool, **ONE)
            assert reply.code == "NOT_OURS", reply
            assert reply.structured["fix"]
        refused = await agent.call("deploy_vllm", **WISH)
        assert refused.code == "NOT_OURS", refused
        assert (await agent.call("list_deployments")).data["deployments"] == []
    after = cloud.set()
    assert (after["services"], after["revisions"]) == (before["services"], before["revisions"])
    assert not after["secrets"]
    changing = ("UpdateService", "DeleteService", "CreateSecret")
    assert not [call for call in after["calls"] if call.endswith(changing)]


async def test_a_revision_whose_probe_fails_says_why(cloud: Cloud) -> None:
    """A code, what Google and the engine said, and what to do; then it goes without a trace."""
    cloud.set(rollout="probe-fails", probe_scale=0.002)
    async with agent_of(cloud.settings) as agent:
        assert not (await agent.call("deploy_vllm", **WISH)).failed
        failed = await agent.settled(**ONE)
        assert failed.state == "failed", failed
        why = failed.data["failure"]
        assert why["code"] == "STARTUP_PROBE_FAILED"
        assert "one-00001" in why["cause"], why
        assert any("application startup" in line for line in why["evidence"]), why
        assert why["fix"] in failed.text
        await destroyed(agent, cloud)


async def test_a_rollout_that_never_ends_says_what_it_waits_for(cloud: Cloud) -> None:
    """Since when stays the same; a look ends when it was told to, and it can be taken away."""
    cloud.set(rollout="never")
    async with agent_of(cloud.settings) as agent:
        await agent.call("deploy_vllm", **WISH)
        looks = [await agent.call("status_vllm", **ONE, wait_s=wait) for wait in (0, 1, 0)]
        for look in looks:
            assert look.state in {"creating", "loading"}, look
            assert look.data["phase"]["name"]
        began = {look.data["since"] for look in looks}
        assert len(began) == 1, began
        listed = await agent.call("list_deployments")
        assert listed.data["deployments"][0]["phase"]["name"]
        await destroyed(agent, cloud)
