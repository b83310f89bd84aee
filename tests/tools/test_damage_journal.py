"""A journal with bad rows, or one that is no journal: what bills is seen, stopped and removed."""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from core.journal import Expiry, Journal, Outcome
from core.settings import Settings
from tests.conversation import Agent, Reply, agent_of
from tests.soon import soon
from tests.tools.asked import ONE, token_of
from tests.tools.calls import LOOKING, MODEL
from tests.tools.world import assert_envelope, hurry, plant, still_engine

pytestmark = pytest.mark.anyio

LONG_AGO: Final = datetime.now(UTC) - timedelta(days=1)
BAD_TIMES: Final[Mapping[str, Any]] = {
    "without a zone": "2026-01-01T00:00:00",
    "of another version": "2026-W01-1 at noon",
    "none": None,
    "bytes": b"\xff\xfe\x00",
    "a number": 7,
}
NAMED: Final = ("list_deployments", "get_system_status")
"""The tools that say that nothing is stopped."""
_ROWS: Final = {
    "operations": "INSERT INTO operations (at, client, tool, arguments, result, about, ended_at)"
    " VALUES ('soon', x'ff', NULL, '{', NULL, 3, '2026-01-01T00:00:00')",
    "operations without a zone": "INSERT INTO operations (at, client, tool, arguments, result,"
    " ended_at) VALUES ('2026-01-01T00:00:00', 'x', 'stop_vllm', '[]', 'ok',"
    " '2026-01-01T00:00:01+00:00')",
    "phases": "INSERT INTO phases VALUES ('local', 'any', 'starting', 'long', NULL)",
    "pairs": "INSERT INTO pairs VALUES ('use', 'local/one', 'x', '{')",
    "pairs of another version": "INSERT INTO pairs VALUES ('use', 'b', 'x',"
    """ '{"target": "local", "name": "one", "at": "2026-01-01T00:00:00", "more": 1}')""",
    "pairs without a zone": "INSERT INTO pairs VALUES ('use', 'c', 'x',"
    """ '{"target": "local", "name": "one", "at": "2026-01-01T00:00:00"}')""",
    "pairs as bytes": "INSERT INTO pairs VALUES ('load', 'local/one', 'x', x'ff00')",
    "confirmations": "INSERT INTO confirmations VALUES (x'ff', 5, 'never')",
    "expiries": "INSERT INTO expiries VALUES (NULL, x'ff', 'never')",
}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSE_SCALE", "0.002")


def file_of(state_dir: Path) -> Path:
    file = state_dir / "real" / "journal.db"
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def put(state_dir: Path, statement: str, *values: Any) -> None:
    """Write a row past everything that would refuse it."""
    Journal(file_of(state_dir)).operations()
    Journal(file_of(state_dir)).end(0, Outcome(result="ok"))  # with every column
    with closing(sqlite3.connect(file_of(state_dir))) as db, db:
        db.execute(statement, values)


async def forgotten(state_dir: Path, name: str) -> None:
    """Wait until the watch has done what it had to with an overdue deployment."""

    async def left() -> bool:
        return any(one.name == name for one in Journal(file_of(state_dir)).expiries())

    await soon(left, lambda so: not so, waiting_for=name)


def warned(reply: Reply) -> str:
    assert not reply.failed, reply
    return "\n".join(reply.structured["warnings"])


@pytest.mark.parametrize("at", BAD_TIMES.values(), ids=BAD_TIMES)
async def test_where_a_time_cannot_be_read_the_deployment_is_asked(
    settings: Settings, state_dir: Path, at: Any
) -> None:
    """One that does not run is not watched any more, and neither are the others."""
    for name in ("aaa", "one"):
        plant(state_dir, name, wanted="running", ttl_minutes=1)
    put(state_dir, "INSERT INTO expiries VALUES ('local', 'one', ?)", at)
    Journal(file_of(state_dir)).keep_expiry(Expiry(target="local", name="aaa", at=LONG_AGO))
    async with agent_of(settings) as agent:
        await forgotten(state_dir, "aaa")
        await forgotten(state_dir, "one")
        assert (await agent.call("list_targets")).structured["ok"]


async def test_a_time_that_the_deployment_itself_says_is_written_anew(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still_engine(monkeypatch)
    async with agent_of(settings) as agent:
        await agent.call("deploy_vllm", **ONE, model=MODEL, ttl_minutes=60)
        kept = Journal(file_of(state_dir))
        ends = kept.expiries()
        put(state_dir, "UPDATE expiries SET at = '2026-01-01T00:00:00'")

        async def written() -> bool:
            return kept.expiries() == ends

        await soon(written, waiting_for="the time")
        await agent.call("destroy_vllm", **ONE)


async def test_a_server_that_only_looks_leaves_a_bad_time(
    settings: Settings, state_dir: Path
) -> None:
    plant(state_dir)
    put(state_dir, "INSERT INTO expiries VALUES ('local', 'one', 'never')")
    before = file_of(state_dir).read_bytes()
    async with agent_of(settings.model_copy(update={"read_only": True})) as agent:
        for tool in (*NAMED, "status_vllm"):
            assert not (await agent.call(tool)).failed
    assert file_of(state_dir).read_bytes() == before


async def test_no_tool_fails_on_a_bad_row(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any table; what changes is written down, and the bad row of a call is told as that."""
    hurry(monkeypatch)
    for statement in _ROWS.values():
        put(state_dir, statement)
    async with agent_of(settings) as agent:
        await agent.serve("one")
        for tool, arguments in LOOKING.items():
            reply = await agent.call(tool, **arguments)
            assert_envelope(reply)
            assert reply.code != "INTERNAL_ERROR", (tool, reply)
        told = await agent.call("list_operations")
        results = [change["result"] for change in told.data["changes"]]
        assert results.count("cannot be read") == 2, results
        assert results[-1] == "ok"
        assert (await agent.call("destroy_vllm", **ONE)).data["gone"] is True


def _folder(file: Path) -> None:
    file.mkdir()
    (file / "more").touch()


def _link(file: Path) -> None:
    file.symlink_to(file.with_name("moved-away.db"))


def _no_database(file: Path) -> None:
    file.write_bytes(b"this is no database" * 100)


def _short(file: Path) -> None:
    Journal(file).begin("x", "stop_vllm", {})
    file.write_bytes(file.read_bytes()[:5000])


def _other_version(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        for table in ("operations", "phases", "confirmations", "pairs", "expiries"):
            db.execute(f"CREATE TABLE {table} (other TEXT)")


DAMAGES: Final[Mapping[str, tuple[Callable[[Path], None], str]]] = {
    "a folder": (_folder, "journal.db is a folder"),
    "a link to nothing": (_link, "journal.db is a link to"),
    "no database": (_no_database, "is damaged"),
    "cut short": (_short, "is damaged"),
    "of another version": (_other_version, "is damaged"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES)
async def test_what_bills_is_seen_and_removed_whatever_is_wrong_with_the_journal(
    settings: Settings,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    words: str,
) -> None:
    """What it is is said, never that room is lacking; only what costs is refused."""
    still_engine(monkeypatch)
    asking = settings.model_copy(update={"confirm": "token"})
    async with agent_of(settings) as agent:
        await agent.call("deploy_vllm", **ONE, model=MODEL)
    file = file_of(state_dir)
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    damage(file)
    async with agent_of(asking) as agent:
        await _looks_on(agent, words)
        refused = await agent.call("deploy_vllm", target="local", name="two", model=MODEL)
        assert refused.code == "HOST_ERROR"
        assert words in refused.structured["summary"]
        assert str(file) in refused.text
        assert "oom on the disk" not in refused.text
        token = token_of(await agent.call("destroy_vllm", **ONE))
        assert (await agent.call("destroy_vllm", **ONE, confirm=token)).data["gone"] is True
    looking = asking.model_copy(update={"read_only": True})
    async with agent_of(looking) as agent:
        await _looks_on(agent, words)


async def test_no_tool_that_looks_fails_without_its_journal(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the one that reads it; plans, prices and answers need nothing of it."""
    hurry(monkeypatch)
    async with agent_of(settings) as agent:
        await agent.serve("one", ttl_minutes=60)
        for old in file_of(state_dir).parent.glob("journal.db*"):
            old.unlink()
        file_of(state_dir).mkdir()
        for tool, arguments in LOOKING.items():
            reply = await agent.call(tool, **arguments)
            refused = reply.code == "HOST_ERROR" and "journal.db is a folder" in reply.text
            assert refused is (tool == "list_operations"), (tool, reply)
            assert reply.code != "INTERNAL_ERROR"
        assert (await agent.call("destroy_vllm", **ONE)).data["gone"] is True


async def _looks_on(agent: Agent, words: str) -> None:
    for tool in (*NAMED, "status_vllm", "diagnose", "list_targets"):
        reply = await agent.call(tool)
        assert not reply.failed or reply.code == "DEPLOYMENT_NOT_FOUND", (tool, reply)
        assert tool not in NAMED or words in warned(reply), (tool, reply)
        assert "oom on the disk" not in reply.text
