"""Who agreed to what: every paid or destructive way, in both protocols, by every kind of yes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from core import journal
from core.records import State
from core.settings import Settings
from operations import measurement
from tests.conversation import Agent, Human, agent_of
from tests.tools.asked import mode, token_of
from tests.tools.calls import MODEL
from tests.tools.recorded import Kept, recorded
from tests.tools.world import plant_run
from tools.surface import TOOLS

__all__ = ["mode"]

pytestmark = pytest.mark.anyio

ONE: Final = {"target": "run", "name": "one"}
CHIP: Final = {"target": "chip", "name": "one"}
LEFTOVER: Final = {"name": "vllm-devops-leftover"}
ASKED: Final = {"prompt": "Hello", "max_tokens": 4, "wake": True}
WRONG: Final = "0123456789ab"


class Way(NamedTuple):
    """One way to spend money or to take something away."""

    tool: str
    said: dict[str, Any]
    writes: list[str]
    """What a yes does to the world."""
    before: Callable[[Kept], None] = lambda _kept: None
    shows: str = ""
    """What the question names."""


def is_(state: State, target: str = "run", **more: Any) -> Callable[[Kept], None]:
    return lambda kept: kept.put(target, state, **more)


WAYS: Final[dict[str, Way]] = {
    "deploy": Way("deploy_vllm", {**ONE, "model": MODEL}, ["apply run/one"], shows="$2.50 an hour"),
    "deploy several": Way(
        "deploy_vllm",
        {**ONE, "model": MODEL, "min_replicas": 2, "max_replicas": 3},
        ["apply run/one"],
        shows="($2.50 an hour each, up to 3 replicas at $7.50 an hour, of which 2 never sleep:"
        " $3,650 a month)",
    ),
    "replace": Way(
        "deploy_vllm",
        {"target": "free", "name": "one", "model": MODEL},
        ["apply free/one"],
        is_(State.READY, "free"),
        "in place of",
    ),
    "change": Way(
        "deploy_vllm",
        {**ONE, "access": "public"},
        ["apply run/one"],
        is_(State.READY),
        "which is ready, from private to public access",
    ),
    "deploy what does not fit": Way(
        "deploy_vllm",
        {"target": "free", "name": "one", "model": "google/gemma-4-31B-it", "force": True},
        ["apply free/one"],
        shows="does not fit",
    ),
    "destroy": Way("destroy_vllm", ONE, ["delete run/one"], is_(State.STOPPED), "the service one"),
    "destroy and purge": Way(
        "destroy_vllm",
        {**ONE, "purge": True},
        ["delete run/one", "purge run/one"],
        is_(State.STOPPED),
        "the image one",
    ),
    "purge what was left": Way(
        "destroy_vllm", {**ONE, "purge": True}, ["purge run/one"], shows="its image"
    ),
    "stop everything": Way(
        "stop_vllm", {"all": True}, ["stop run/one"], is_(State.READY), "$2.50 an hour"
    ),
    "start": Way("start_vllm", ONE, ["start run/one"], is_(State.STOPPED), "$2.50 an hour"),
    "start what sleeps": Way(
        "start_vllm",
        ONE,
        ["start run/one"],
        is_(State.STOPPED, min_replicas=0, max_replicas=1),
        "which sleeps until it is asked",
    ),
    "start several": Way(
        "start_vllm",
        ONE,
        ["start run/one"],
        is_(State.STOPPED, min_replicas=1, max_replicas=2),
        "($2.50 an hour each, up to 2 replicas at $5.00 an hour, of which 1 never sleeps:"
        " $1,825 a month)",
    ),
    "destroy several": Way(
        "destroy_vllm",
        ONE,
        ["delete run/one"],
        is_(State.READY, replicas=3),
        "$7.50 an hour)",
    ),
    "scale up": Way(
        "update_vllm_scaling",
        {**ONE, "min_replicas": 0, "max_replicas": 3},
        ["scale 0-3 run/one"],
        is_(State.READY),
        "$2.50 an hour each",
    ),
    "sleep no more": Way(
        "update_vllm_scaling",
        {**ONE, "min_replicas": 1, "max_replicas": 1},
        ["scale 1-1 run/one"],
        is_(State.READY),
        "of which 1 never sleeps: $1,825 a month",
    ),
    "measure": Way(
        "run_benchmark", {**ONE, "wait_s": 0}, ["measure run/one"], is_(State.READY), "at most"
    ),
    "measure by an old name": Way(
        "run_vllm_benchmark", {**ONE, "wait_s": 0}, ["measure run/one"], is_(State.READY), "at most"
    ),
    "set up": Way("setup_target", {"target": "run"}, ["set up run/"], shows="a vault"),
    "queue": Way(
        "manage_queued_resource",
        {**CHIP, "action": "create", "model": MODEL},
        ["apply chip/one"],
        shows="$2.50 an hour",
    ),
    "delete from the queue": Way(
        "manage_queued_resource",
        {**CHIP, "action": "delete"},
        ["delete chip/one"],
        is_(State.STOPPED, "chip"),
        "the service one",
    ),
    "delete a leftover": Way(
        "manage_queued_resource",
        {**LEFTOVER, "action": "delete"},
        ["remove leftover"],
        Kept.leftover,
        "vllm-devops-leftover",
    ),
    "delete by an old name": Way(
        "destroy_queued_resource",
        CHIP,
        ["delete chip/one"],
        is_(State.STOPPED, "chip"),
        "the service one",
    ),
    "start by an old name": Way(
        "start_azure_vm",
        {"name": "one"},
        ["start app/one"],
        is_(State.STOPPED, "app"),
        "$2.50 an hour",
    ),
    **{
        f"wake by {tool}": Way(
            tool,
            {**where, **said, "wake": True},
            [f"wake {where['target']}/one"],
            is_(State.ASLEEP, where["target"]),
            "$2.50 an hour until it sleeps",
        )
        for tool, where, said in (
            ("query_gemma4", ONE, ASKED),
            ("query_gemma4_with_stats", ONE, ASKED),
            ("query_vllm", ONE, ASKED),
            ("verify_model_health", ONE, {}),
            ("check_vllm", ONE, {}),
            ("query_queued_gemma4", CHIP, ASKED),
            ("query_queued_gemma4_with_stats", CHIP, ASKED),
        )
    },
}
UNASKED: Final = {
    "stop_vllm": "it ends the bill, and start_vllm undoes it",
    "stop_azure_vm": "the same",
}
"""What is destructive and goes ahead at once, and why."""


@dataclass
class Stage:
    """A server whose world is put as a way needs it, again and again."""

    settings: Settings
    mode: str
    kept: Kept
    says: list[str] = field(default_factory=lambda: ["accept"])

    def again(self, way: Way) -> Kept:
        """Begin anew with nothing done."""
        kept = self.kept
        kept.writes.clear()
        kept.deployments.clear()
        kept.leftovers.clear()
        kept.is_set_up = False
        way.before(kept)
        return kept

    def server(self, policy: str = "ask", human: Human | None = None) -> Any:
        settings = self.settings.model_copy(update={"confirm": policy})
        return agent_of(settings, human=human, mode=self.mode)

    def human(self, _question: str) -> str:
        return self.says[0]


@pytest.fixture
def world(state_dir: Path, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> Stage:
    settings = Settings(vllm_devops_state_dir=state_dir, toolsets=("all",))
    kept = recorded(monkeypatch, tmp_path / "targets.toml")

    async def begin(_runtime: Any, wanted: Any) -> Any:
        where = wanted.found.deployment
        kept.writes.append(f"measure {where.target}/{where.name}")
        return plant_run(state_dir)

    monkeypatch.setattr(measurement, "begin", begin)
    return Stage(settings, mode, kept)


def done(way: Way, kept: Kept) -> bool:
    """Whether the world is as after a yes: each write once, in this order, and no other."""
    return len(kept.writes) == len(way.writes) and all(
        made.startswith(wanted) for made, wanted in zip(kept.writes, way.writes, strict=True)
    )


def test_every_tool_that_asks_or_destroys_is_in_the_table() -> None:
    """Whoever adds one says here by which ways it costs or takes away."""
    asks = {n for n, one in TOOLS.items() if "confirm" in one.parameters}
    hints = {n: one.tool.annotations for n, one in TOOLS.items()}
    destroys = {n for n, hint in hints.items() if hint and hint.destructive_hint}
    wakes = {n for n, one in TOOLS.items() if "wake" in one.parameters}
    assert {way.tool for way in WAYS.values()} | set(UNASKED) == asks | destroys | wakes
    assert {way.tool for way in WAYS.values()} == asks


@pytest.mark.parametrize("named", WAYS)
async def test_a_human_who_can_be_asked_decides(world: Stage, named: str) -> None:
    """Their yes does it; their no or silence does not, nor what a model says in their name."""
    way = WAYS[named]
    async with world.server(human=world.human) as agent:
        for says in ("decline", "cancel"):
            world.says, kept = [says], world.again(way)
            assert (await agent.call(way.tool, **way.said)).code == "CANCELLED", says
            assert kept.writes == [], says
        token = await _token(world, way)
        refused = await agent.call(way.tool, **way.said, confirm=token)
        assert (refused.code, world.kept.writes) == ("CANCELLED", [])
        world.says, kept = ["accept"], world.again(way)
        agent.asked.clear()
        reply = await agent.call(way.tool, **way.said)
        assert done(way, kept), (reply, kept.writes)
        (question,) = agent.asked
        assert way.shows in question


async def _token(world: Stage, way: Way) -> str:
    """Give a token that is good for this, of a server that asks nobody."""
    world.again(way)
    async with world.server("token") as agent:
        return token_of(await agent.call(way.tool, **way.said))


@pytest.mark.parametrize("named", WAYS)
async def test_a_token_decides_where_nobody_can_be_asked(world: Stage, named: str) -> None:
    """None, a wrong, an old and a used one do nothing; the right one does it, once.

    The next step of the preview is that call as it stands.
    """
    way = WAYS[named]
    async with world.server() as agent:
        kept = world.again(way)
        shown = await agent.call(way.tool, **way.said)
        assert (shown.code, kept.writes) == ("CONFIRMATION_REQUIRED", [])
        assert way.shows in f"{shown.data}"
        guessed = await agent.call(way.tool, **way.said, confirm=WRONG)
        assert (guessed.code, kept.writes) == ("CONFIRMATION_STALE", [])
        old = await _old_token(agent, way)
        late = await agent.call(way.tool, **way.said, confirm=old)
        assert (late.code, kept.writes) == ("CONFIRMATION_STALE", [])
        (step,) = shown.structured["next"]
        reply = await agent.call(step["tool"], **step["arguments"])
        assert done(way, kept), (reply, kept.writes)
        kept = world.again(way)
        replayed = await agent.call(way.tool, **way.said, confirm=token_of(shown))
        assert (replayed.code, kept.writes) == ("CONFIRMATION_STALE", [])


async def _old_token(agent: Agent, way: Way) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "TOKEN_MINUTES", -1)
        return token_of(await agent.call(way.tool, **way.said))


@pytest.mark.parametrize(
    ("mode", "named"), [*(("auto", named) for named in WAYS), ("legacy", "destroy")]
)
async def test_the_policy_decides_before_anybody(world: Stage, named: str) -> None:
    """Deny needs a human, token never asks one, and never asks nobody."""
    way = WAYS[named]
    async with world.server("deny") as agent:
        kept = world.again(way)
        reply = await agent.call(way.tool, **way.said, confirm=await _token(world, way))
        assert (reply.code, kept.writes) == ("CONFIRMATION_REQUIRED", [])
        assert "confirm" not in reply.data
    async with world.server("deny", world.human) as agent:
        kept = world.again(way)
        await agent.call(way.tool, **way.said)
        assert done(way, kept)
    async with world.server("token", world.human) as agent:
        kept = world.again(way)
        shown = await agent.call(way.tool, **way.said)
        assert (shown.code, kept.writes, agent.asked) == ("CONFIRMATION_REQUIRED", [], [])
    async with world.server("never", world.human) as agent:
        kept = world.again(way)
        await agent.call(way.tool, **way.said)
        assert done(way, kept)
        assert agent.asked == []
