"""What is paid for on Cloud TPU, and what is deleted there, waits for a human's yes."""

import re
from typing import Any, Final

import pytest

from tests.conversation import Agent, Reply, agent_of
from tests.stories.chips import HERE, calls, changes, left
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life
from tests.tools.asked import mode, token_of

__all__ = ["mode"]

pytestmark = pytest.mark.anyio

SPOT: Final = {"target": "tpu-v6e-1-spot", "name": "one"}
VM: Final = "vllm-devops-one"
WISH: Final = {"model": MODEL, "max_model_len": 4096, "zones": [HERE], "control_plane": "queued"}
ASKED_FOR: Final = {"action": "create", **SPOT, "model": MODEL, "zone": HERE}
MAKING: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("deploy_vllm", {**SPOT, **WISH}),
    ("manage_queued_resource", ASKED_FOR),
)
REMOVING: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("destroy_vllm", SPOT),
    ("manage_queued_resource", {"action": "delete", "name": VM, "zone": HERE}),
    ("destroy_queued_resource", {"name": VM}),
)
PRICE: Final = re.compile(r"\$\d+\.\d\d an hour, deleted 4 h after it has its chip, boot included")
STANDS: Final = f"queued resource {VM} ACTIVE; node {VM} READY; zone {HERE}"


@pytest.fixture
def hurried(cloud: Cloud) -> Cloud:
    """Its chips come at once."""
    cloud.set(tpu_clock=600)
    return cloud


def settings(cloud: Cloud, policy: str) -> Any:
    return cloud.settings.model_copy(update={"confirm": policy})


async def ready(agent: Agent) -> Reply:
    return await Life(agent, SPOT["target"], at="https://127.77.").becomes("ready")


async def deployed(cloud: Cloud, **more: Any) -> None:
    """Have one that is ready, of which nobody was asked."""
    async with agent_of(cloud.settings) as agent:
        made = await agent.call("deploy_vllm", **SPOT, **{**WISH, **more})
        assert not made.failed, made
        await ready(agent)


async def gone(agent: Agent, reply: Reply) -> None:
    """Say yes until it is gone."""
    while reply.failed or not reply.data["gone"]:
        yes = {"confirm": token_of(reply)} if reply.failed else {}
        reply = await agent.call("destroy_vllm", **SPOT, **yes)


async def test_zones_without_such_chips_are_refused_before_anybody_is_asked(cloud: Cloud) -> None:
    """A yes would have paid for nothing; where one of the zones has them the question is put."""
    async with agent_of(settings(cloud, "ask"), human=lambda _question: "decline") as agent:
        for tool, said in (
            ("deploy_vllm", {**SPOT, **WISH, "zones": ["us-central1-a"]}),
            ("manage_queued_resource", {**ASKED_FOR, "zone": "us-central1-a"}),
        ):
            refused = await agent.call(tool, **said)
            assert (refused.code, agent.asked) == ("ZONE_REFUSED", []), tool
            assert HERE in refused.structured["fix"]
        both = {**SPOT, **WISH, "zones": ["us-central1-a", HERE]}
        assert (await agent.call("deploy_vllm", **both)).code == "CANCELLED"
    assert len(agent.asked) == 1


async def test_what_stands_against_every_zone_is_in_the_question(cloud: Cloud) -> None:
    """A quota of 0 is told as a doubt: only Google knows what it counts."""
    cloud.set(tpu_quotas={"tpu-preemptible": 0, "compute-preemptible": 0})
    async with agent_of(settings(cloud, "ask"), human=lambda _question: "decline") as agent:
        assert (await agent.call("deploy_vllm", **SPOT, **WISH)).code == "CANCELLED"
    assert "Not sure: no place gives chips as it looks now" in agent.asked[0]


@pytest.mark.parametrize("says", ["decline", "cancel"])
async def test_a_no_leaves_all_as_it_is(hurried: Cloud, mode: str, says: str) -> None:
    """Whichever tool asks: price and time limit are said, or what would be deleted."""
    human, told = (lambda _question: says), settings(hurried, "ask")
    async with agent_of(told, human=human, mode=mode) as agent:
        for tool, said in MAKING:
            assert (await agent.call(tool, **said)).code == "CANCELLED", tool
        assert len(agent.asked) == len(MAKING)
        assert all(PRICE.search(question) for question in agent.asked), agent.asked
    assert (left(hurried), changes(calls(hurried))) == ([], [])
    await deployed(hurried)
    before, first = left(hurried), len(calls(hurried))
    async with agent_of(told, human=human, mode=mode) as agent:
        for tool, said in REMOVING:
            assert (await agent.call(tool, **said)).code == "CANCELLED", tool
        assert len(agent.asked) == len(REMOVING)
        assert all(STANDS in question for question in agent.asked), agent.asked
    assert (left(hurried), changes(calls(hurried, since=first))) == (before, [])


@pytest.mark.parametrize(("make", "remove"), [(0, 0), (1, 1), (0, 2)])
async def test_a_yes_is_asked_for_once_and_does_it(
    hurried: Cloud, mode: str, make: int, remove: int
) -> None:
    """Made and removed by any of the tools."""
    told = settings(hurried, "ask")
    async with agent_of(told, human=lambda _question: "accept", mode=mode) as agent:
        tool, said = MAKING[make]
        made = await agent.call(tool, **said)
        assert not made.failed, made
        await ready(agent)
        tool, said = REMOVING[remove]
        await gone(agent, await agent.call(tool, **said))
        assert [question[:6] for question in agent.asked[:2]] == ["Deploy", "Delete"]
    assert left(hurried) == []


@pytest.mark.parametrize(("tool", "said"), MAKING)
async def test_a_token_to_deploy_is_good_once_and_for_that_time_limit_alone(
    hurried: Cloud, tool: str, said: dict[str, Any]
) -> None:
    """What it will cost was shown; after a removal it is no yes to the same again."""
    async with agent_of(settings(hurried, "token")) as agent:
        shown = await agent.call(tool, **said)
        assert PRICE.search(shown.data["what"])
        assert shown.data["usd_per_hour"] > 0
        token = token_of(shown)
        other = {**SPOT, **WISH, "ttl_minutes": 0}
        endless = await agent.call("deploy_vllm", **other, confirm=token)
        assert endless.code == "CONFIRMATION_STALE"
        assert "with no end of its own" in endless.data["what"]
        assert (left(hurried), changes(calls(hurried))) == ([], [])
        made = await agent.call(tool, **said, confirm=token)
        assert not made.failed, made
        await gone(agent, await agent.call("destroy_vllm", **SPOT))
        again = await agent.call(tool, **said, confirm=token)
        assert again.code == "CONFIRMATION_STALE", again
    assert left(hurried) == []


async def test_whoever_changes_a_flag_is_asked_whether_the_chip_may_go(hurried: Cloud) -> None:
    """Another may not be had; a call that only ends it sooner says so too, and can be made."""
    await deployed(hurried, control_plane="compute")
    told = settings(hurried, "ask")
    async with agent_of(told, human=lambda _question: "decline") as agent:
        sooner = await agent.call("update_vllm_scaling", **SPOT, ttl_minutes=30)
        assert sooner.code == "UNSUPPORTED"
        [step] = sooner.structured["next"]
        assert (await agent.call(step["tool"], **step["arguments"])).code == "CANCELLED"
        [question] = agent.asked
        assert all("its chip is given back first" in said for said in (sooner.text, question))
    assert left(hurried) != []


@pytest.mark.parametrize(("tool", "said"), REMOVING)
async def test_a_token_to_delete_ends_when_the_chip_is_taken(
    hurried: Cloud, tool: str, said: dict[str, Any]
) -> None:
    """What is there now is shown anew, and that is deleted."""
    await deployed(hurried)
    async with agent_of(settings(hurried, "token")) as agent:
        shown = await agent.call(tool, **said)
        assert STANDS in shown.data["what"]
        hurried.controls.preempt(hurried.project, "queued", HERE, VM)
        await Life(agent, SPOT["target"]).becomes("failed")
        before, first = left(hurried), len(calls(hurried))
        stale = await agent.call(tool, **said, confirm=token_of(shown))
        assert stale.code == "CONFIRMATION_STALE", stale
        assert "SUSPENDED" in stale.data["what"]
        assert (left(hurried), changes(calls(hurried, since=first))) == (before, [])
        await gone(agent, await agent.call(tool, **said, confirm=token_of(stale)))
    assert left(hurried) == []
