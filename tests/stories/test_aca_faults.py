"""What Azure does not do for a deployment on Container Apps, as an agent hears of it."""

from datetime import timedelta

import pytest

from backends.aca import status
from tests.backends.aca.deployed import foreign_app, stands
from tests.backends.aca.sites import opened
from tests.conversation import agent_of
from tests.stories.conftest import Azure
from tests.stories.troubles import (
    APP,
    PUT,
    WISH,
    asked,
    bare_trouble,
    becomes,
    deploys,
    destroyed,
    no_patience,
    orphans,
    refused,
    seen,
    trouble,
)

__all__ = ["bare_trouble", "trouble"]

pytestmark = pytest.mark.anyio


async def test_a_gpu_host_that_never_comes_is_told_with_its_age_and_its_cost(
    trouble: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First as a step that lasts, later as a failure; a stop ends the replica that waits."""
    trouble.set(rollout="no-host")
    monkeypatch.setattr(status, "_WORTH_SAYING", timedelta(0))
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        waits = await seen(
            agent, lambda reply: (reply.data["phase"] or {}).get("name") == status.ASSIGNING
        )
        assert waits.state == "creating"
        assert "if Azure bills the wait" in waits.text
        no_patience(monkeypatch)
        failed = await becomes(agent, "failed")
        why = failed.data["failure"]
        assert why["code"] == "GPU_HOST_NOT_ASSIGNED"
        assert "min ($" in why["cause"]
        assert "stop_vllm" in why["fix"]
        await asked(agent, "stop_vllm")
        await becomes(agent, "stopped")
        assert trouble.get()["replicas"] == []
        await destroyed(agent, trouble)


async def test_what_azure_scaled_to_none_before_it_was_ready_sleeps_and_can_be_woken(
    trouble: Azure,
) -> None:
    """Nothing runs or bills, and a question starts it: it has not failed; why is told all the same.

    Azure itself says "ActivationFailed" then.
    """
    trouble.set(cooldown_scale=0.002, boot_seconds=3600)
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        told = await becomes(agent, "asleep")
        assert told.data["replicas"] == 0
        assert told.data["failure"]["code"] == "BOOT_CUT_OFF", told
        assert "min_replicas=1" in told.data["failure"]["fix"]
        assert [step["tool"] for step in told.structured["next"]] == ["diagnose", "get_logs"]
        why = await asked(agent, "diagnose")
        assert (why.data["code"], why.data["healthy"]) == ("BOOT_CUT_OFF", False), why
        trouble.set(cooldown_scale=1.0, boot_seconds=0.1)
        woken = await asked(agent, "query_gemma4", prompt="Hello", max_tokens=4, wake=True)
        assert woken.data["completion_tokens"] == 4
        ready = await becomes(agent, "ready")
        assert not ready.data.get("failure")
        await destroyed(agent, trouble)


async def test_a_quota_that_is_used_up_is_told_by_azures_own_words(trouble: Azure) -> None:
    """A replica waits for the quota, not for a host; nothing is billed by then."""
    trouble.set(quotas={"a100": 0})
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        failed = await becomes(agent, "failed")
        why = failed.data["failure"]
        assert why["code"] == "QUOTA_EXCEEDED"
        assert "GPUs exceeded" in why["cause"]
        assert "check_gpu_quotas" in why["fix"]
        told = await asked(agent, "diagnose")
        steps = told.structured["next"]
        assert {one["tool"] for one in steps} == {"check_gpu_quotas", "recommend_deployment"}, told
        for one in steps:  # the same again would fail again
            assert not (await agent.call(one["tool"], **one["arguments"])).failed
        await destroyed(agent, trouble)


async def test_nobody_is_asked_for_money_where_every_quota_of_the_gpu_is_0(trouble: Azure) -> None:
    """Nothing is made. Where one of two quotas allows it, the question says that it may fail."""
    asking = trouble.settings.model_copy(update={"confirm": "ask"})
    trouble.set(quotas={"a100": 0}, environment_quotas={"a100": 0})
    async with agent_of(asking, human=lambda _question: "decline") as agent:
        reply = await refused(agent, "deploy_vllm", "QUOTA_EXCEEDED", **WISH)
        assert "ManagedEnvironmentConsumptionNCA100Gpus is 0" in reply.structured["cause"]
        assert reply.structured["next"][0]["tool"] == "check_gpu_quotas"
        assert agent.asked == []
        trouble.set(environment_quotas={"a100": 2})
        await refused(agent, "deploy_vllm", "CANCELLED", **WISH)
        (question,) = agent.asked
        assert "SubscriptionConsumptionNCA100Gpus is 0" in question
        trouble.set(quotas={"a100": 2})
        await refused(agent, "deploy_vllm", "CANCELLED", **WISH)
        assert "Quota" not in agent.asked[-1]
    assert orphans(trouble) == []


async def test_an_old_environment_that_takes_no_gpu_names_the_setting_for_a_new_one(
    bare_trouble: Azure,
) -> None:
    """Nothing of the deployment is made; with that setting it is."""
    bare_trouble.set(old_environment=True)
    async with opened(bare_trouble.controls.plane, bare_trouble.subscription, "aca-t4") as site:
        await stands(site, share=None)
    async with agent_of(bare_trouble.settings) as agent:
        reply = await refused(agent, "deploy_vllm", "CLOUD_REFUSED", **WISH)
        assert "Consumption-GPU-NC24-A100" in reply.text
        assert "AZURE_CONTAINERAPPS_ENVIRONMENT" in reply.structured["fix"]
        await refused(agent, "status_vllm", "DEPLOYMENT_NOT_FOUND")
        assert orphans(bare_trouble) == []
    newer = {"azure_containerapps_environment": "newer"}
    async with agent_of(bare_trouble.settings.model_copy(update=newer)) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
        await destroyed(agent, bare_trouble)


@pytest.mark.parametrize(
    ("rollout", "code", "words"),
    [
        ("probe-fails", "STARTUP_PROBE_FAILED", "probe"),
        ("image-missing", "IMAGE_NOT_FOUND", "manifest_unknown"),
    ],
)
async def test_a_revision_that_fails_says_why(
    trouble: Azure, rollout: str, code: str, words: str
) -> None:
    """A code, Azure's own words and what to do; then it goes without a trace."""
    trouble.set(rollout=rollout, probe_scale=0.0005)
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        failed = await becomes(agent, "failed")
        why = failed.data["failure"]
        assert why["code"] == code, why
        assert words in why["cause"].lower(), why
        assert why["fix"] in failed.text
        await destroyed(agent, trouble)


async def test_a_rollout_that_never_ends_says_what_it_waits_for(trouble: Azure) -> None:
    """Since when stays the same; a look ends when it was told to, and it can be taken away."""
    trouble.set(rollout="never")
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await seen(agent, lambda reply: reply.state == "loading")
        looks = [await asked(agent, "status_vllm", wait_s=wait) for wait in (0, 0.3, 0)]
        for look in looks:
            assert look.state == "loading", look
            assert look.data["phase"]["name"]
        began = {look.data["since"] for look in looks}
        assert len(began) == 1, began
        listed = await agent.call("list_deployments")
        assert listed.data["deployments"][0]["phase"]["name"]
        await destroyed(agent, trouble)


async def test_an_app_that_is_not_ours_is_left_alone(trouble: Azure) -> None:
    """Every tool that meets it says so; none of them touches it."""
    async with opened(trouble.controls.plane, trouble.subscription) as site:
        await foreign_app(site, "one", owner="somebody-else")
    before = trouble.get()
    async with agent_of(trouble.settings) as agent:
        tools = (
            "status_vllm", "stop_vllm", "start_vllm", "destroy_vllm", "get_endpoint", "get_logs",
            "get_metrics", "query_vllm", "verify_model_health", "get_vllm_deployment_config",
        )  # fmt: skip
        for tool in tools:
            more = {"prompt": "Hello"} if tool == "query_vllm" else {}
            await refused(agent, tool, "NOT_OURS", **more)
        await refused(agent, "update_vllm_scaling", "NOT_OURS", min_replicas=0, max_replicas=1)
        await refused(agent, "deploy_vllm", "NOT_OURS", **WISH)
        assert (await agent.call("list_deployments")).data["deployments"] == []
    after = trouble.get()
    assert after["resources"] == before["resources"]
    assert after["secrets"] == before["secrets"]
    changing = [one for one in after["calls"][len(before["calls"]) :] if not one.startswith("GET")]
    assert changing == [], changing


async def test_another_change_that_is_under_way_is_waited_out(trouble: Azure) -> None:
    """Azure says 409 for a while; the agent hears only of what it asked for."""
    busy = {"method": PUT, "status": 409, "code": "ContainerAppOperationInProgress", "times": 3}
    trouble.set(faults=[busy])
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
        assert [one for one in trouble.get()["calls"] if one == PUT] == [PUT] * 4
        busy["method"] = f"POST {APP}/stop"
        trouble.set(faults=[busy])
        await asked(agent, "stop_vllm")
        await becomes(agent, "stopped")
        assert trouble.get()["replicas"] == []
        busy["method"] = f"DELETE {APP}"
        trouble.set(faults=[busy])
        await destroyed(agent, trouble)


async def test_a_throttled_creation_can_be_asked_for_again(trouble: Azure) -> None:
    """A look waits as long as Azure asks; a creation is not repeated blindly, and leaves no key."""
    trouble.set(faults=[{"method": PUT, "status": 429, "retry_after": 0.1}])
    async with agent_of(trouble.settings) as agent:
        reply = await refused(agent, "deploy_vllm", "CLOUD_UNAVAILABLE", **WISH)
        assert reply.structured["retryable"]
        assert orphans(trouble) == []
        await deploys(agent)
        trouble.set(faults=[{"method": f"GET {APP}", "status": 429, "retry_after": 0.1}])
        await becomes(agent, "ready")
        await destroyed(agent, trouble)
