"""Paid and destructive work waits for a human's yes, in both protocol eras."""

from pathlib import Path

import pytest

from tests.tools.asked import Open, mode, opened, token_of, yes
from tests.tools.world import operations_of, plant, snapshot

__all__ = ["mode", "opened"]

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("says", ["decline", "cancel"])
async def test_a_humans_no_changes_nothing(opened: Open, state_dir: Path, says: str) -> None:
    """Declined and dismissed are the same: nothing was changed."""
    before = snapshot(plant(state_dir).path)
    async with opened(lambda _question: says) as agent:
        reply = await agent.call("destroy_vllm")
    assert reply.code == "CANCELLED"
    assert snapshot(state_dir / "real" / "local" / "one") == before
    assert operations_of(state_dir)[-1].result == "CANCELLED"


async def test_a_token_is_good_for_one_deployment_only(opened: Open, state_dir: Path) -> None:
    """A yes to one is no yes to two, and stays good for one."""
    plant(state_dir)
    two = plant(state_dir, "two")
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm", name="one"))
        other = await agent.call("destroy_vllm", name="two", confirm=token)
        assert other.code == "CONFIRMATION_STALE"
        assert two.path.exists()
        assert (await agent.call("destroy_vllm", name="one", confirm=token)).data["gone"]


async def test_a_token_ends_when_the_state_changes(opened: Open, state_dir: Path) -> None:
    """What was agreed to was a stopped deployment; now it is something else."""
    folder = plant(state_dir)
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm"))
        folder.want("running")
        reply = await agent.call("destroy_vllm", confirm=token)
    assert reply.code == "CONFIRMATION_STALE"
    assert folder.path.exists()


async def test_a_token_outlives_the_server(opened: Open, state_dir: Path) -> None:
    """Clients start servers anew; the human's yes still counts."""
    plant(state_dir)
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm"))
    async with opened() as agent:
        assert (await agent.call("destroy_vllm", confirm=token)).data["gone"]


async def test_no_token_is_ever_on_disk(opened: Open, state_dir: Path) -> None:
    """Neither the table of tokens nor the journal of calls holds one that could be used."""
    plant(state_dir)
    plant(state_dir, "two")
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm", name="one"))
        await agent.call("destroy_vllm", name="two", confirm=token)
        kept = snapshot(state_dir)
    assert not [name for name, (_, _, text) in kept.items() if token.encode() in text]
    assert operations_of(state_dir)[-1].arguments == {"name": "two", "confirm": "[redacted]"}


async def test_a_question_is_asked_again_when_the_state_changed_meanwhile(
    opened: Open, state_dir: Path
) -> None:
    """A yes to what was shown is no yes to what has come since."""
    folder = plant(state_dir)

    def slow_human(_question: str) -> str:
        folder.want("running")
        return "accept"

    async with opened(slow_human) as agent:
        reply = await agent.call("destroy_vllm")
    assert reply.data["gone"] is True
    assert len(agent.asked) == 2
    assert "stopped" in agent.asked[0]
    assert "failed" in agent.asked[1]


async def test_every_changing_call_is_written_down(opened: Open, state_dir: Path) -> None:
    plant(state_dir)
    async with opened(yes) as agent:
        await agent.call("stop_vllm", name="one")
        await agent.call("start_vllm", name="nobody")
        await agent.call("status_vllm")
    kept = operations_of(state_dir)
    assert [(one.tool, one.arguments, one.result) for one in kept] == [
        ("stop_vllm", {"name": "one"}, "ok"),
        ("start_vllm", {"name": "nobody"}, "DEPLOYMENT_NOT_FOUND"),
    ]
    assert all("mcp " in one.client for one in kept), kept
