"""Names and arguments that nearly are: the answer says what was meant."""

import pytest

from core.settings import Settings
from tests.conversation import agent_of

pytestmark = pytest.mark.anyio

NEARLY = {
    "a tool": ("get_system_state", {}, "'get_system_status'"),
    "a tool by its verb": ("stop_deployment", {}, "'stop_vllm'"),
    "an argument": ("plan_deployment", {"model": "12b", "targt": "local"}, "'target'"),
    "a target": ("status_vllm", {"target": "cloud-run-l5", "name": "one"}, "'cloud-run-l4'"),
    "a planned target": ("plan_deployment", {"model": "12b", "target": "aca-a10"}, "'aca-a100'"),
    "a model": (
        "plan_deployment",
        {"model": "gema-4-12b", "target": "cloud-run-l4"},
        "gemma-4-12b",
    ),
    "nothing for what is needed": ("query_gemma4", {}, "prompt='What is Gemma?'"),
}


@pytest.mark.parametrize("what", NEARLY)
async def test_what_is_nearly_right_is_answered_with_what_was_meant(
    settings: Settings, what: str
) -> None:
    """An agent corrects itself with the next call, and so does a person."""
    tool, arguments, meant = NEARLY[what]
    async with agent_of(settings) as agent:
        reply = await agent.brief(tool, **arguments)
    assert reply.failed
    assert meant in reply.structured["fix"] + reply.structured["cause"]
    assert len(reply.text) < 700
