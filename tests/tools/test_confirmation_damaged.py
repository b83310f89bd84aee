"""A damaged journal keeps nobody from ending what bills, and makes nothing else easier."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from core.journal import Journal
from core.settings import Settings
from tests.conversation import Agent, Reply, agent_of
from tests.tools.asked import ONE, Open, mode, opened, token_of, yes
from tests.tools.world import plant, targets

__all__ = ["mode", "opened"]

pytestmark = pytest.mark.anyio

_NO_DATABASE: Final = b"this is no database" * 100
_WRONG: Final = "0123456789ab"


@pytest.fixture
def damaged(state_dir: Path) -> Path:
    """The journal, in which somebody has written."""
    file = state_dir / "real" / "journal.db"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_NO_DATABASE)
    return file


def _is_left(damaged: Path) -> bool:
    """It is the audit log: nobody makes it anew."""
    return damaged.read_bytes() == _NO_DATABASE


async def _preview(agent: Agent, **said: Any) -> Reply:
    reply = await agent.call("destroy_vllm", **{**ONE, **said})
    assert reply.code == "CONFIRMATION_REQUIRED", reply
    return reply


async def test_what_bills_can_be_removed_by_a_client_that_cannot_ask(
    opened: Open, state_dir: Path, damaged: Path
) -> None:
    """A preview, a token and a warning that names the file; then the next step does it."""
    folder = plant(state_dir)
    async with opened() as agent:
        shown = await _preview(agent)
        assert folder.path.exists()
        (warning,) = (one for one in shown.structured["warnings"] if "memory" in one)
        assert "damaged" in warning
        assert str(damaged) in warning
        (step,) = shown.structured["next"]
        reply = await agent.call(step["tool"], **step["arguments"])
    assert reply.data["gone"] is True
    assert not folder.path.exists()
    assert _is_left(damaged)


async def test_a_humans_yes_does_it_as_before(opened: Open, state_dir: Path, damaged: Path) -> None:
    folder = plant(state_dir)
    async with opened(yes) as agent:
        assert (await agent.call("destroy_vllm")).data["gone"] is True
    assert not folder.path.exists()
    assert _is_left(damaged)


@pytest.mark.usefixtures("damaged")
async def test_such_a_token_is_good_for_what_was_shown_only(opened: Open, state_dir: Path) -> None:
    """Not for another deployment, not for more, not in another state; a guess is good for none."""
    folder, two = plant(state_dir), plant(state_dir, "two")
    async with opened() as agent:
        token = token_of(await _preview(agent))
        for said in ({"name": "two"}, {"purge": True}, {"confirm": _WRONG}):
            reply = await agent.call("destroy_vllm", **{**ONE, "confirm": token, **said})
            assert reply.code == "CONFIRMATION_STALE", said
        folder.want("running")
        reply = await agent.call("destroy_vllm", **ONE, confirm=token)
    assert reply.code == "CONFIRMATION_STALE"
    assert folder.path.exists()
    assert two.path.exists()


@pytest.mark.usefixtures("damaged")
async def test_the_policy_deny_gives_no_token_for_a_damaged_journal_either(
    opened: Open, state_dir: Path
) -> None:
    folder = plant(state_dir)
    async with opened(None, "deny") as agent:
        reply = await _preview(agent)
    assert "confirm" not in reply.data
    assert folder.path.exists()


@pytest.mark.usefixtures("damaged")
async def test_a_server_that_only_looks_gives_no_token(state_dir: Path, mode: str) -> None:
    folder = plant(state_dir)
    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated", read_only=True)
    async with agent_of(settings, mode=mode) as agent:
        reply = await agent.call("destroy_vllm", **ONE)
    assert reply.code == "READ_ONLY"
    assert folder.path.exists()


def _without_tokens(file: Path) -> None:
    """Spoil the one table of a whole journal that keeps tokens."""
    Journal(file).operations()
    with closing(sqlite3.connect(file)) as db:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'confirmations'"
        (page,) = db.execute(query).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with file.open("r+b") as spoilt:
        spoilt.seek((page - 1) * size)
        spoilt.write(b"\xff" * size)


async def test_nothing_that_costs_is_agreed_to_by_such_a_token(
    opened: Open, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only tokens cannot be kept: a start is refused, a deletion is not, and written down."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    folder, file = plant(state_dir, target="rented"), state_dir / "real/journal.db"
    _without_tokens(file)
    where = {"target": "rented", "name": "one"}
    async with opened() as agent:
        for said in ({}, {"confirm": _WRONG}):
            refused = await agent.call("start_vllm", **where, **said)
            assert (refused.code, str(file) in refused.text) == ("HOST_ERROR", True)
        token = token_of(await agent.call("destroy_vllm", **where))
        assert (await agent.call("start_vllm", **where, confirm=token)).code == "HOST_ERROR"
        assert folder.path.exists()
        assert (await agent.call("destroy_vllm", **where, confirm=token)).data["gone"]
    assert [one.result for one in Journal(file).operations()][-1] == "ok"


@pytest.mark.usefixtures("damaged")
async def test_what_cannot_be_written_down_and_costs_is_not_done(opened: Open) -> None:
    """A deployment is refused with the file, and no token is offered."""
    async with opened() as agent:
        reply = await agent.call("deploy_vllm", **ONE, model="google/gemma-4-E2B-it")
    assert reply.code == "HOST_ERROR"
    assert "confirm" not in reply.structured.get("data", {})
