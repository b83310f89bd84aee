"""What no benchmark is begun for, and what is said instead."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from benchmark.records import RunState
from tests.conversation import Agent
from tests.simulators.conftest import Simulate, simulate, tiny_model
from tests.tools.calls import RUNS
from tests.tools.world import agent_at, assert_envelope, plant, plant_run

__all__ = ["simulate", "tiny_model"]

pytestmark = pytest.mark.anyio

SHORT: Final[dict[str, Any]] = {"contexts": [8], "concurrencies": [1], "cell_seconds": 0.1}


async def test_what_does_not_answer_is_not_measured(agent: Agent, state_dir: Path) -> None:
    plant(state_dir)
    reply = await agent.call("run_benchmark")
    assert reply.code == "STOPPED"
    assert not (state_dir / "real" / "benchmarks").exists()


REFUSED: Final = (
    ({"resume": "nobody's"}, "NOT_FOUND", "nobody's"),
    ({"resume": RUNS[0], "contexts": [8]}, "INVALID_ARGUMENT", "leave out contexts"),
    ({"dataset": "/no/such/file"}, "INVALID_ARGUMENT", "/no/such/file"),
    ({"dataset": "/dev/zero"}, "INVALID_ARGUMENT", "/dev/zero"),
    ({"profile": "article", "output_tokens": 64}, "INVALID_ARGUMENT", "output_tokens"),
    ({"profile": "find-capacity"}, "INVALID_ARGUMENT", "TTFT"),
    ({"cell_seconds": -1}, "INVALID_ARGUMENT", "cell_seconds"),
    ({"arrivals": "constant"}, "INVALID_ARGUMENT", "requests_per_second"),
    ({"cluster": "10.0.0.7:6379"}, "INVALID_ARGUMENT", "ray://HOST:10001"),
)


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSED)
async def test_nonsense_is_refused_before_anything_is_made(
    arguments: dict[str, Any], code: str, words: str, served: Agent, served_dir: Path
) -> None:
    before = sorted((served_dir / "real" / "benchmarks").iterdir())
    reply = await served.call("run_benchmark", **arguments, wait_s=0)
    assert reply.code == code, reply
    assert words in reply.text
    assert_envelope(reply)
    assert sorted((served_dir / "real" / "benchmarks").iterdir()) == before


async def test_a_dataset_that_no_api_takes_is_refused_before_anything_is_made(
    served: Agent, served_dir: Path, tmp_path: Path
) -> None:
    """Chats and token ids in one file: it was begun, paid for, and measured no cell."""
    file = tmp_path / "mixed.jsonl"
    lines = ({"messages": [{"role": "user", "content": "Hi"}]}, {"prompt": [1, 2]})
    file.write_text("\n".join(map(json.dumps, lines)))
    before = sorted((served_dir / "real" / "benchmarks").iterdir())
    reply = await served.call("run_benchmark", dataset=str(file), wait_s=0)
    assert reply.code == "INVALID_ARGUMENT", reply
    assert "Line 2" in reply.text
    assert sorted((served_dir / "real" / "benchmarks").iterdir()) == before


async def test_a_budget_without_a_price_is_refused(simulate: Simulate, state_dir: Path) -> None:
    """Nobody knows what an hour of an endpoint of one's own costs."""
    async with (
        simulate() as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir, confirm="token") as agent,
    ):
        reply = await agent.call("run_benchmark", max_cost_usd=1)
        assert (reply.code, "max_minutes" in reply.structured["fix"]) == ("INVALID_ARGUMENT", True)
        asked = await agent.call("run_benchmark", max_minutes=3)
        assert "for up to 3 minutes (price not known)" in asked.data["what"]
        asked = await agent.call("run_benchmark", max_minutes=1)
        assert "for up to 1 minute (price not known)" in asked.data["what"]


async def test_a_plan_without_a_request_that_is_short_enough_is_refused(
    simulate: Simulate, state_dir: Path
) -> None:
    """It was a run without a cell, done and agreed to."""
    async with (
        simulate("--max-model-len", "64") as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir) as agent,
    ):
        reply = await agent.call("run_benchmark", contexts=[64, 512], output_tokens=16)
    assert reply.code == "INVALID_ARGUMENT", reply
    assert "contexts of 48 at most" in reply.structured["fix"]
    assert not list((state_dir / "real" / "benchmarks").glob("*/*"))


async def test_a_password_in_an_address_reaches_no_manifest(
    simulate: Simulate, state_dir: Path
) -> None:
    async with simulate() as engine, engine.on_a_port() as url:
        hidden = url.replace("http://", "http://somebody:hush-hush@")
        async with agent_at(hidden, state_dir) as agent:
            reply = await agent.call("run_benchmark", **SHORT, wait_s=0)
    assert reply.code == "UNSUPPORTED", reply
    assert "hush-hush" not in reply.text
    assert not list((state_dir / "real" / "benchmarks").glob("*/*"))


async def test_a_used_up_budget_is_told_instead_of_gone_on_with(
    served: Agent, served_dir: Path
) -> None:
    run = plant_run(served_dir, "20261120-080000-quick-one", state=RunState.STOPPED)
    plan = run.manifest().plan.model_copy(update={"max_minutes": 0.5})
    run.create(run.manifest().model_copy(update={"plan": plan}))
    reply = await served.call("run_benchmark", resume=run.path.name)
    spent = sum(cell.wall_seconds or 0 for cell in run.cells()) / 60
    plan = plan.model_copy(update={"max_minutes": spent + 0.01})
    run.create(run.manifest().model_copy(update={"plan": plan}))
    little = await served.call("run_benchmark", resume=run.path.name)
    run.manifest_file.unlink()
    assert reply.code == little.code == "INVALID_ARGUMENT"
    assert "0.5 minutes is used up" in reply.structured["summary"]
    assert "would be used up" in little.structured["summary"], "by one more cell"
    assert "max_minutes" in reply.structured["fix"]
