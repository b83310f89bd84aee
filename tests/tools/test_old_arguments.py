"""Old arguments, and calls that could mean either of two clouds."""

from pathlib import Path

import pytest

from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.tools.test_profiles import of
from tests.tools.world import assert_envelope, assert_same_facts, operations_of, still_engine

pytestmark = pytest.mark.anyio

MODEL = "google/gemma-4-E2B-it"
PLAN = {"model": MODEL, "target": "cloud-run-l4"}
TOLD = "low_latency is an old name of layout='speed'."


@pytest.mark.parametrize("said", [True, "true", 1])
async def test_low_latency_is_the_layout_for_speed(agent: Agent, said: object) -> None:
    """However a client writes true; the answer says what the word is today."""
    was = await agent.call("plan_deployment", low_latency=said, **PLAN)
    now = await agent.call("plan_deployment", layout="speed", **PLAN)
    assert_envelope(was)
    assert_same_facts(was)
    assert was.data == now.data
    assert TOLD in was.structured["warnings"]
    assert TOLD not in now.structured["warnings"]


async def test_the_journal_has_todays_words(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done can be done again as it is written down."""
    still_engine(monkeypatch)
    async with agent_of(settings) as agent:
        await agent.call("deploy_vllm", target="local", model=MODEL, name="one", low_latency=True)
    (written,) = operations_of(state_dir)
    assert written.arguments["layout"] == "speed"
    assert "low_latency" not in written.arguments


def two_clouds(state_dir: Path, **more: object) -> Settings:
    """Give a server that both clouds are configured for, in a rehearsal."""
    return of(state_dir, "all").model_copy(update={"rehearsal": True, **more})


KEEPS = {"cloud-run-l4", "aca-a100", "tpu-v6e-1"}
AMBIGUOUS: dict[str, tuple[dict[str, str], set[str]]] = {
    "list_bucket_models": ({}, {"cloud-run-l4", "aca-a100"}),
    "save_hf_token": ({"token": f"hf_{'a' * 34}"}, KEEPS),
}
"""Arguments, and one target of each cloud that can."""


@pytest.mark.parametrize("tool", AMBIGUOUS)
async def test_where_either_cloud_could_be_meant_each_is_offered(
    state_dir: Path, tool: str
) -> None:
    """Nothing is guessed where a secret would be kept, or two places be looked through."""
    arguments, targets = AMBIGUOUS[tool]
    async with agent_of(two_clouds(state_dir)) as agent:
        reply = await agent.call(tool, **arguments)
    assert reply.code == "AMBIGUOUS"
    steps = reply.structured["next"]
    assert {step["tool"] for step in steps} == {tool}
    assert {step["arguments"]["target"] for step in steps} == targets


@pytest.mark.parametrize(
    ("bucket", "words"), [("gs://weights", "gcloud storage"), ("files://weights", "aca-a100")]
)
async def test_the_form_of_a_bucket_says_whose_it_is(
    state_dir: Path, bucket: str, words: str
) -> None:
    """No target is needed; what is not there is that cloud's answer."""
    async with agent_of(two_clouds(state_dir)) as agent:
        reply = await agent.call("list_bucket_models", bucket=bucket)
    assert reply.code != "AMBIGUOUS"
    assert words in reply.text


async def test_the_bucket_of_the_settings_is_meant_where_none_is_said(state_dir: Path) -> None:
    """BUCKET_NAME is one of Cloud Storage; VLLM_TARGET, where it is set, says more."""
    own = two_clouds(state_dir, bucket_name="mine")
    async with agent_of(own) as agent:
        reply = await agent.call("list_bucket_models")
    assert "gs://mine" in reply.text
    async with agent_of(own.model_copy(update={"vllm_target": "aca-t4"})) as agent:
        reply = await agent.call("list_bucket_models")
    assert "aca-t4" in reply.text
