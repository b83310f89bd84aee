"""An organisation whose policies deny shared keys, or apps that the internet reaches."""

from typing import Any, Final

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Azure
from tests.stories.troubles import (
    APP,
    WISH,
    asked,
    bare_trouble,
    becomes,
    deploys,
    destroyed,
    named,
    orphans,
    refused,
    trouble,
)

__all__ = ["bare_trouble", "trouble"]

pytestmark = pytest.mark.anyio

STRICT: Final = {"organisation_forbids": ["shared-keys", "public-ingress"]}
_SHARED: Final = {**WISH, "weights": "hub:share"}
ASKED: Final[dict[str, Any]] = {
    "told by Azure": {},
    "told by nobody": {"denied_actions": ["Microsoft.PolicyInsights/*"]},
}


@pytest.mark.parametrize("told", ASKED)
async def test_what_is_forbidden_is_said_before_anything_bills(
    bare_trouble: Azure, told: str
) -> None:
    """Neither share nor app is made; what the fix names then serves."""
    bare_trouble.set(**STRICT, **ASKED[told])
    async with agent_of(bare_trouble.settings) as agent:
        keys = await refused(
            agent, "deploy_vllm", "CLOUD_REFUSED", **{**_SHARED, "access": "internal"}
        )
        assert "weights=hub:disk" in keys.structured["fix"]
        public = await refused(agent, "deploy_vllm", "CLOUD_REFUSED", **WISH)
        assert "access=internal" in public.structured["fix"]
        assert orphans(bare_trouble) == []
        assert not named(bare_trouble, "/shares/")
        await deploys(agent, access="internal", weights="hub:disk")
        await becomes(agent, "ready")
        await destroyed(agent, bare_trouble)


async def test_a_checked_plan_names_the_policy(bare_trouble: Azure) -> None:
    bare_trouble.set(**STRICT)
    wish = {"target": "aca-a100", "model": "e2b", "check": True}
    async with agent_of(bare_trouble.settings) as agent:
        plan = await agent.call("plan_deployment", **wish)
        rows = {row["what"]: row for row in plan.data["checks"]}
        policy = rows["No policy forbids it"]
        assert (policy["outcome"], "public-ingress" in policy["detail"]) == ("fail", True)
        assert "access=internal" in policy["fix"]
        bare_trouble.set(organisation_forbids=[])
        free = await agent.call("plan_deployment", **wish)
        assert not [row for row in free.data["checks"] if row["outcome"] == "fail"], free


async def test_the_set_up_makes_the_rest_where_a_share_is_forbidden(bare_trouble: Azure) -> None:
    """It says so, and a model whose files fit on the disk is deployed."""
    bare_trouble.set(organisation_forbids=["shared-keys"])
    async with agent_of(bare_trouble.settings) as agent:
        done = await agent.call("setup_target", target="aca-a100")
        assert not done.failed, done
        assert "There will be no file share" in " ".join(done.structured["warnings"])
        assert named(bare_trouble, "managedenvironments/")
        await deploys(agent)
        await becomes(agent, "ready")
        assert await asked(agent, "query_gemma4", prompt="Hello", max_tokens=4)
        await destroyed(agent, bare_trouble)
    assert f"PUT {APP}" in bare_trouble.get()["calls"]
