"""What published vLLM cannot serve, as it is told to whoever asks for advice."""

import pytest

from tests.conversation import Agent
from tests.tools.test_advice import ask, recommend

pytestmark = pytest.mark.anyio


async def test_what_published_vllm_cannot_serve_is_told_in_a_right_order(agent: Agent) -> None:
    """A refusal has no figures and speaks of none; where there are some, it is said whose."""
    whose = "smaller tiles may serve it there. The figures are what such an image would come to."
    reply = await recommend(agent, model="e2b", targets=["aca-t4"])
    assert "figures" not in reply.structured["summary"]
    assert "aca-t4: Published vLLM cannot serve it there" in reply.structured["summary"]
    assert "figures" not in reply.data["refused"][0]["reason"]
    for tool, said in (
        ("compare_targets", {"models": ["e2b"], "targets": ["aca-t4"]}),
        ("estimate_cost", {"target": "aca-t4", "model": "e2b"}),
    ):
        warned = (await ask(agent, tool, **said)).structured["warnings"]
        assert [one for one in warned if one.endswith(whose)], tool
