"""Logs of a deployment by time, and reduced to their kinds."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.settings import Settings
from tests.conversation import agent_of
from tests.tools.world import plant

pytestmark = pytest.mark.anyio


def written(state_dir: Path, lines: list[str]) -> Settings:
    """Plant a deployment that was stopped and has written this."""
    folder = plant(state_dir)
    (folder.path / "engine.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Settings(vllm_devops_state_dir=state_dir, engine="simulated", toolsets=("all",))


def stamped(minutes_ago: float, text: str) -> str:
    """Give a line as vLLM writes it, in local time."""
    at = datetime.now(UTC).astimezone() - timedelta(minutes=minutes_ago)
    return f"INFO {at:%m-%d %H:%M:%S} [a.py:1] {text}"


async def test_any_number_of_lines_comes_down_to_its_kinds(state_dir: Path) -> None:
    """Each kind has its count, and the one error among ten thousand lines is not lost."""
    lines = [stamped(9 - n / 2000, f"Finished request number {n}") for n in range(10_000)]
    lines.insert(5_000, stamped(6, "x").replace("INFO", "ERROR").replace("x", "The fan stopped"))
    async with agent_of(written(state_dir, lines)) as agent:
        reply = await agent.call("get_logs", reduce=True)
    assert not reply.failed, reply
    assert (reply.data["total"], reply.data["kinds"]) == (10_001, 2)
    first, second = reply.data["rows"]
    assert first.startswith("[error, rare, ")
    assert first.endswith("The fan stopped")
    assert second.startswith("[info, 10000 times, last ")
    assert reply.data["truncated"] is False


async def test_only_new_lines_are_given_where_minutes_are_said(state_dir: Path) -> None:
    """What is older is left out, by the line's own clock."""
    lines = [stamped(50, "old"), stamped(3, "new"), stamped(2, "newer")]
    async with agent_of(written(state_dir, lines)) as agent:
        reply = await agent.call("get_logs", minutes=10)
        newest = await agent.call("get_logs", minutes=10, lines=1)
    assert [line.rpartition(" ")[2] for line in reply.data["lines"]] == ["new", "newer"]
    assert [line.rpartition(" ")[2] for line in newest.data["lines"]] == ["newer"]
    assert newest.data["truncated"] is True


async def test_what_is_reduced_is_chosen_by_its_text(state_dir: Path) -> None:
    lines = [stamped(5, f"Finished request {n}") for n in range(20)] + [stamped(4, "All is well")]
    async with agent_of(written(state_dir, lines)) as agent:
        reply = await agent.call("get_logs", reduce=True, contains="finished")
    assert reply.data["total"] == 20
    assert "All is well" not in reply.text
