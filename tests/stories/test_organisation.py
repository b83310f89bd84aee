"""An organisation's policies: what they forbid is said before anything bills."""

from typing import Any

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.life]

CASES = {
    "run.allowedIngress": ("cloud-run-l4", {}, "exception", None),
    "run.managed.requireInvokerIam": (
        "cloud-run-l4",
        {"access": "public"},
        "leave access=public out",
        {"access": "private"},
    ),
    "compute.vmExternalIpAccess": (
        "tpu-v6e-1",
        {"control_plane": "compute"},
        "access=internal",
        {"access": "internal", "network": "default/default", "control_plane": "compute"},
    ),
}
"""Constraint: a wish that it forbids, what the fix says, and a wish that it allows."""


@pytest.mark.parametrize("constraint", CASES)
async def test_what_an_organisation_forbids_is_named_and_bills_nothing(
    cloud: Cloud, constraint: str
) -> None:
    """With what to do; what the fix advises is taken."""
    target, wish, advice, allowed = CASES[constraint]
    cloud.set(constraints=[constraint])
    where: dict[str, Any] = {"target": target, "name": "one", "model": MODEL}
    async with agent_of(cloud.settings) as agent:
        refused = await agent.brief("deploy_vllm", **where, max_model_len=4096, **wish)
        there = await agent.call("list_deployments")
        assert refused.failed
        assert constraint in refused.text
        assert advice in refused.structured["fix"]
        assert there.data["usd_per_hour_now"] == 0
        assert not cloud.controls.get(cloud.project)["instances"]
        if allowed:
            made = await agent.brief("deploy_vllm", **where, max_model_len=4096, **allowed)
            assert not made.failed, made
            await agent.brief("destroy_vllm", target=target, name="one")


async def test_a_plan_that_is_checked_sees_what_cloud_run_would_refuse(cloud: Cloud) -> None:
    """Google validates the service without making it."""
    cloud.set(constraints=["run.allowedIngress"])
    async with agent_of(cloud.settings) as agent:
        plan = await agent.call("plan_deployment", model=MODEL, target="cloud-run-l4", check=True)
    (seen,) = [
        one for one in plan.data["checks"] if one["what"] == "Google would take this service"
    ]
    assert seen["outcome"] == "fail"
    assert "run.allowedIngress" in seen["detail"]
