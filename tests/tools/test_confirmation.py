"""Paid and destructive work waits for a human's yes, in both protocol eras."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import pytest

from core import journal
from core.settings import Settings
from tests.conversation import Agent, Human, Reply, agent_of
from tests.tools.world import MODEL, operations_of, plant, snapshot, still_engine, targets

pytestmark = pytest.mark.anyio

Policy = Literal["ask", "token", "deny", "never"]
Open = Callable[..., AbstractAsyncContextManager[Agent]]

ONE: Final = {"target": "local", "name": "one"}


def yes(_question: str) -> str:
    return "accept"


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    """The protocol: up to 2025-11-25 a server asks, from 2026-07-28 it answers with a question."""
    return str(request.param)


@pytest.fixture
def opened(state_dir: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Connect to a server whose human, if it has one, says what the test says."""
    still_engine(monkeypatch)

    @asynccontextmanager
    async def connect(human: Human | None = None, policy: Policy = "ask") -> AsyncIterator[Agent]:
        settings = Settings(
            vllm_devops_state_dir=state_dir,
            engine="simulated",
            toolsets=("all",),
            confirm=policy,
        )
        async with agent_of(settings, human=human, mode=mode) as agent:
            yield agent

    return connect


def token_of(reply: Reply) -> str:
    """The token that a preview carries."""
    assert reply.code in {"CONFIRMATION_REQUIRED", "CONFIRMATION_STALE"}, reply
    return str(reply.data["confirm"])


async def test_a_humans_yes_lets_it_happen(opened: Open, state_dir: Path) -> None:
    """The question names what would go, and is asked once."""
    folder = plant(state_dir)
    async with opened(yes) as agent:
        reply = await agent.call("destroy_vllm")
    assert reply.data["gone"] is True
    assert not folder.path.exists()
    assert len(agent.asked) == 1
    assert "Delete one on local" in agent.asked[0]


@pytest.mark.parametrize("says", ["decline", "cancel"])
async def test_a_humans_no_changes_nothing(opened: Open, state_dir: Path, says: str) -> None:
    """Declined and dismissed are the same: nothing was changed."""
    before = snapshot(plant(state_dir).path)
    async with opened(lambda _question: says) as agent:
        reply = await agent.call("destroy_vllm")
    assert reply.code == "CANCELLED"
    assert snapshot(state_dir / "real" / "local" / "one") == before
    assert operations_of(state_dir)[-1].result == "CANCELLED"


async def test_a_humans_no_beats_a_token(opened: Open, state_dir: Path) -> None:
    """Where a human can be asked, what a model says in their name counts for nothing."""
    folder = plant(state_dir)
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm"))
    async with opened(lambda _question: "decline") as agent:
        reply = await agent.call("destroy_vllm", confirm=token)
    assert reply.code == "CANCELLED"
    assert folder.path.exists()


async def test_a_client_that_cannot_ask_gets_a_preview_and_a_token(
    opened: Open, state_dir: Path
) -> None:
    """Nothing is done yet; the same call with the token does it."""
    folder = plant(state_dir)
    before = snapshot(folder.path)
    async with opened() as agent:
        preview = await agent.call("destroy_vllm")
        assert preview.code == "CONFIRMATION_REQUIRED"
        assert preview.data["what"].startswith("Delete one on local")
        assert snapshot(folder.path) == before
        (step,) = preview.structured["next"]
        assert step["arguments"] == {**ONE, "confirm": token_of(preview)}
        reply = await agent.call(step["tool"], **step["arguments"])
    assert reply.data["gone"] is True
    assert not folder.path.exists()


async def test_a_wrong_token_is_answered_with_a_new_preview(opened: Open, state_dir: Path) -> None:
    """A guessed token changes nothing."""
    folder = plant(state_dir)
    async with opened() as agent:
        reply = await agent.call("destroy_vllm", confirm="0123456789ab")
    assert reply.code == "CONFIRMATION_STALE"
    assert reply.structured["retryable"] is True
    assert folder.path.exists()


async def test_a_token_is_good_once(opened: Open, state_dir: Path) -> None:
    """The very same deployment, made again, is not removed by the yes to the first."""
    plant(state_dir)
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm"))
        assert (await agent.call("destroy_vllm", **ONE, confirm=token)).data["gone"]
        folder = plant(state_dir)
        again = await agent.call("destroy_vllm", **ONE, confirm=token)
    assert again.code == "CONFIRMATION_STALE"
    assert folder.path.exists()


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


async def test_a_token_is_good_for_what_was_shown_only(opened: Open, state_dir: Path) -> None:
    """A yes to a deletion is no yes to a deletion with everything that stays."""
    folder = plant(state_dir)
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm"))
        reply = await agent.call("destroy_vllm", purge=True, confirm=token)
    assert reply.code == "CONFIRMATION_STALE"
    assert folder.path.exists()


async def test_a_token_ends_when_the_state_changes(opened: Open, state_dir: Path) -> None:
    """What was agreed to was a stopped deployment; now it is something else."""
    folder = plant(state_dir)
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm"))
        folder.want("running")
        reply = await agent.call("destroy_vllm", confirm=token)
    assert reply.code == "CONFIRMATION_STALE"
    assert folder.path.exists()


async def test_a_token_ends_with_its_time(
    opened: Open, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A yes of yesterday is none."""
    monkeypatch.setattr(journal, "TOKEN_MINUTES", -1)
    folder = plant(state_dir)
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm"))
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


async def test_the_policy_token_never_asks_the_human(opened: Open, state_dir: Path) -> None:
    """An owner who wants every yes on record gets the token even where a human could be asked."""
    plant(state_dir)
    async with opened(yes, "token") as agent:
        token = token_of(await agent.call("destroy_vllm"))
        assert (await agent.call("destroy_vllm", confirm=token)).data["gone"]
    assert agent.asked == []


async def test_the_policy_deny_needs_a_human(opened: Open, state_dir: Path) -> None:
    """No token is given, and one from elsewhere does not help."""
    folder = plant(state_dir)
    async with opened() as agent:
        token = token_of(await agent.call("destroy_vllm"))
    async with opened(None, "deny") as agent:
        for reply in (
            await agent.call("destroy_vllm"),
            await agent.call("destroy_vllm", confirm=token),
        ):
            assert reply.code == "CONFIRMATION_REQUIRED"
            assert "confirm" not in reply.data
    assert folder.path.exists()


async def test_the_policy_deny_takes_a_humans_yes(opened: Open, state_dir: Path) -> None:
    """A human who can be asked may do everything."""
    plant(state_dir)
    async with opened(yes, "deny") as agent:
        assert (await agent.call("destroy_vllm")).data["gone"]


async def test_the_policy_never_asks_nobody(opened: Open, state_dir: Path) -> None:
    """For scripts: what is called is done."""
    plant(state_dir)
    async with opened(yes, "never") as agent:
        assert (await agent.call("destroy_vllm")).data["gone"]
    assert agent.asked == []


async def test_replacing_asks_and_the_same_again_does_not(opened: Open, state_dir: Path) -> None:
    """Deploying what is there is harmless; deploying something else in its place is not."""
    plant(state_dir)
    async with opened(yes) as agent:
        same = await agent.call("deploy_vllm", **ONE, model=MODEL)
        assert same.structured["ok"], same
        assert agent.asked == []
        other = await agent.call("deploy_vllm", **ONE, model=MODEL, max_model_len=512)
        assert other.data["revision"] != same.data["revision"]
    (question,) = agent.asked
    assert "in place of" in question
    assert same.data["revision"] in question


async def test_a_no_to_replacing_keeps_the_old_one(opened: Open, state_dir: Path) -> None:
    """What runs is not ended before the answer."""
    folder = plant(state_dir)
    before = snapshot(folder.path)
    async with opened(lambda _question: "decline") as agent:
        reply = await agent.call("deploy_vllm", **ONE, model=MODEL, max_model_len=512)
    assert reply.code == "CANCELLED"
    assert snapshot(folder.path) == before


async def test_what_costs_nothing_is_not_asked_for(opened: Open, state_dir: Path) -> None:
    """On one's own machine, deploying, stopping, starting and scaling go ahead."""
    async with opened(lambda _question: "decline") as agent:
        for tool, arguments in (
            ("deploy_vllm", {"model": MODEL}),
            ("stop_vllm", {}),
            ("start_vllm", {}),
            ("update_vllm_scaling", {"min_replicas": 0, "max_replicas": 0}),
            ("update_vllm_scaling", {"min_replicas": 1, "max_replicas": 1}),
        ):
            reply = await agent.call(tool, **arguments)
            assert reply.structured["ok"], reply
    assert agent.asked == []


PAID: Final = (
    ("deploy_vllm", {"model": MODEL, "name": "two", "target": "rented"}, "Deploy"),
    ("start_vllm", {"name": "one"}, "Start one on rented"),
    ("update_vllm_scaling", {"min_replicas": 1, "max_replicas": 1}, "Run 1 to 1 replicas"),
)


@pytest.mark.parametrize(("tool", "arguments", "words"), PAID)
async def test_what_costs_is_asked_for_with_its_price(
    opened: Open,
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    arguments: dict[str, object],
    words: str,
) -> None:
    """The human sees dollars an hour, and a no starts nothing."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    before = snapshot(plant(state_dir, target="rented").path)
    async with opened(lambda _question: "decline") as agent:
        reply = await agent.call(tool, **arguments)
    assert reply.code == "CANCELLED"
    (question,) = agent.asked
    assert words in question
    assert "$2.50 an hour" in question
    assert snapshot(state_dir / "real" / "rented" / "one") == before
    assert not (state_dir / "real" / "rented" / "two").exists()


async def test_a_yes_to_the_price_starts_it(
    opened: Open, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By token as by a human: the preview carries the price as a number."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    plant(state_dir, target="rented")
    async with opened() as agent:
        preview = await agent.call("start_vllm")
        assert preview.data["usd_per_hour"] == 2.5
        reply = await agent.call("start_vllm", confirm=token_of(preview))
        assert reply.state == "loading"


async def test_what_saves_money_is_not_asked_for(
    opened: Open, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping and scaling down of something paid go ahead."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    plant(state_dir, target="rented")
    async with opened() as agent:
        assert (await agent.call("stop_vllm")).state == "stopped"
        down = await agent.call("update_vllm_scaling", min_replicas=0, max_replicas=0)
        assert down.state == "stopped"


async def test_nonsense_is_refused_before_anybody_is_asked(
    opened: Open, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A human is not asked to agree to what cannot be done."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    plant(state_dir, target="rented")
    async with opened(yes) as agent:
        reply = await agent.call("update_vllm_scaling", min_replicas=2, max_replicas=1)
        assert reply.code == "INVALID_ARGUMENT"
    assert agent.asked == []


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
    """Who, what, with which arguments, and how it went."""
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
    assert all(one.client.startswith("mcp ") for one in kept), kept
