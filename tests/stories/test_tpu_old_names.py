"""Old names of a server for queued resources, said for a deployment on Cloud TPU."""

import pytest

from tests.conversation import agent_of
from tests.stories.chips import HERE, left
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio


async def test_a_deployment_is_asked_shown_and_destroyed_by_old_names(cloud: Cloud) -> None:
    """Each says what it is called today; what was destroyed is gone with all that was its own."""
    settings = cloud.settings.model_copy(update={"toolsets": ("all", "compat")})
    async with agent_of(settings) as agent:
        life = Life(agent, "tpu-v6e-1", at="https://127.77.")
        wish = {"model": MODEL, "max_model_len": 4096, "zones": [HERE], "control_plane": "queued"}
        await life.call("deploy_vllm", **wish)
        await life.becomes("ready")
        shown = await agent.call("describe_queued_resource", name="one")
        assert shown.data["resources"][0]["state"] == "ACTIVE", shown
        for old in ("query_queued_gemma4", "query_queued_gemma4_with_stats"):
            answer = await agent.call(old, prompt="Hello", max_tokens=4)
            assert answer.data["completion_tokens"] == 4, answer
            assert [said for said in answer.structured["warnings"] if "old name" in said]
        gone = await agent.call("destroy_queued_resource", name="one")
        assert gone.data["gone"], gone
        assert left(cloud) == []
