"""What bills in a cloud is seen, stopped in time and removed, whatever became of the journal."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from core.settings import Settings
from operations import inventory
from tests.conversation import Reply, agent_of
from tests.stories.conftest import Azure, Cloud
from tests.stories.troubles import trouble
from tests.tools.asked import token_of

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio

WHERE: Final = {"cloud_run": "cloud-run-l4", "aca": "aca-a100"}
MODEL: Final = "google/gemma-4-E2B-it"


@pytest.fixture(params=WHERE)
def place(request: pytest.FixtureRequest) -> tuple[str, Cloud | Azure]:
    """A target, and its cloud that is set up."""
    fixture = {"cloud_run": "cloud", "aca": "trouble"}[request.param]
    return WHERE[request.param], request.getfixturevalue(fixture)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _no_database(file: Path) -> None:
    file.write_bytes(b"this is no database" * 100)


@pytest.mark.parametrize("damage", [_folder, _no_database])
async def test_a_journal_that_cannot_be_used_keeps_nobody_from_removing_what_bills(
    place: tuple[str, Cloud | Azure], state_dir: Path, damage: Callable[[Path], None]
) -> None:
    """It is listed with its price and removed after the same yes."""
    target, cloud = place
    one = {"target": target, "name": "one"}
    await _deployed(cloud.settings, target)
    damage(state_dir / "rehearsal" / "journal.db")
    async with agent_of(cloud.settings.model_copy(update={"confirm": "token"})) as agent:
        for tool in ("list_deployments", "get_system_status"):
            reply = await agent.call(tool, target=target)
            assert [row["name"] for row in reply.data["deployments"]] == ["one"], reply
            assert "Nothing is stopped when its time is over" in reply.text
        token = token_of(await agent.call("destroy_vllm", **one))
        gone = await agent.call("destroy_vllm", **one, confirm=token)
        while not gone.failed and not gone.data["gone"]:
            gone = await agent.call("destroy_vllm", **one)
        assert not gone.failed, gone


async def test_what_is_overdue_is_stopped_though_the_journal_says_no_time_that_can_be_read(
    place: tuple[str, Cloud | Azure], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deployment's own label says it; that is told."""
    target, cloud = place
    one = {"target": target, "name": "one"}
    await _deployed(cloud.settings, target)
    with closing(sqlite3.connect(state_dir / "rehearsal" / "journal.db")) as db, db:
        db.execute("UPDATE expiries SET at = '2026-01-01T00:00:00'")
    monkeypatch.setattr(inventory, "utc_now", lambda: datetime.now(UTC) + timedelta(hours=2))
    said: list[str] = []
    async with agent_of(cloud.settings) as agent:
        while (reply := _heard(await agent.call("status_vllm", **one), said)).state != "stopped":
            assert not reply.failed
        for _ in range(40):  # it is told by the next answer once the stop is read back
            _heard(await agent.call("list_deployments", target=target), said)
            if f"one on {target} expired at" in said[-1]:
                break
        assert f"one on {target} expired at" in "".join(said)
        assert (await agent.call("destroy_vllm", **one, purge=True)).failed is False


def _heard(reply: Reply, said: list[str]) -> Reply:
    said.append(reply.text)
    return reply


async def _deployed(settings: Settings, target: str) -> None:
    async with agent_of(settings) as agent:
        reply = await agent.call(
            "deploy_vllm", target=target, name="one", model=MODEL, ttl_minutes=60, min_replicas=1
        )
        assert not reply.failed, reply
        assert (await agent.settled("one", target=target)).state == "ready"
