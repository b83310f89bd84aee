"""What is paid for and forgotten is stopped, and the next answer says so."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.journal import Expiry, Journal
from core.records import State
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.soon import soon
from tests.tools.recorded import every_cloud
from tests.tools.world import plant

pytestmark = pytest.mark.anyio

LONG_AGO = datetime.now(UTC) - timedelta(days=1)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSE_SCALE", "0.002")


def journal(state_dir: Path) -> Journal:
    return Journal(state_dir / "real" / "journal.db")


def forget_nothing(state_dir: Path, name: str = "one") -> Expiry:
    expiry = Expiry(target="local", name=name, at=LONG_AGO)
    journal(state_dir).keep_expiry(expiry)
    return expiry


async def forgotten(state_dir: Path) -> None:
    """Wait until nothing is left to be stopped."""

    async def left() -> tuple[Expiry, ...]:
        return journal(state_dir).expiries()

    await soon(left, lambda those: not those, waiting_for="what is overdue")


async def told(agent: Agent) -> str:
    return "\n".join((await agent.call("list_targets")).structured["warnings"])


async def test_a_deployment_that_was_given_more_time_is_left_alone(
    settings: Settings, state_dir: Path
) -> None:
    plant(state_dir, wanted="running")
    forget_nothing(state_dir)
    async with agent_of(settings) as agent:
        await forgotten(state_dir)
        assert "overdue" not in await told(agent)
        assert (await agent.call("status_vllm", name="one")).state != "stopped"


@pytest.mark.parametrize("over", [True, False])
async def test_what_is_over_is_stopped_and_nothing_else(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch, *, over: bool
) -> None:
    """The deployment itself says when that is; a later time is written down."""
    kept = every_cloud(monkeypatch, "http://127.0.0.1:9")
    later = datetime.now(UTC) + timedelta(hours=1)
    kept.put("local", State.READY, expires_at=LONG_AGO if over else later)
    forget_nothing(state_dir)

    async def rewritten() -> list[datetime]:
        return [one.at for one in journal(state_dir).expiries()]

    async with agent_of(settings):
        times = [] if over else [later]
        await soon(rewritten, lambda at: at == times, waiting_for="the watch")
    assert kept.writes == (["stop local/one"] if over else [])


async def test_what_is_being_deleted_keeps_the_time_that_it_had(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it goes then, whatever a label says of what is still there."""
    kept, now = every_cloud(monkeypatch, "http://127.0.0.1:9"), datetime.now(UTC)
    kept.put("local", State.DELETING, expires_at=now + timedelta(hours=2))
    had = Expiry(target="local", name="one", at=now + timedelta(hours=1))
    journal(state_dir).keep_expiry(had)
    async with agent_of(settings) as agent:
        assert (await agent.call("status_vllm", name="one", wait_s=0)).state == "deleting"
    assert journal(state_dir).expiries() == (had,)


async def test_what_is_gone_already_is_forgotten(settings: Settings, state_dir: Path) -> None:
    forget_nothing(state_dir, "gone")
    async with agent_of(settings) as agent:
        await forgotten(state_dir)
        assert "gone" not in await told(agent)


async def test_who_destroys_what_was_stopped_for_its_time_is_not_told_that_its_time_did(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is deleted for its time is gone because of it."""
    kept = every_cloud(monkeypatch, "http://127.0.0.1:9")
    kept.put("local", State.READY, expires_at=LONG_AGO)
    forget_nothing(state_dir)
    async with agent_of(settings) as agent:
        await forgotten(state_dir)
        assert "it was stopped for that" in await told(agent)
        kept.deployments.clear()
        forget_nothing(state_dir)  # as another server may have remembered it
        await forgotten(state_dir)
        assert "it is gone" not in await told(agent)


async def test_a_journal_that_is_mended_is_looked_at_again(
    settings: Settings, state_dir: Path
) -> None:
    """Until then every server says once that nothing is stopped, and which file to move."""
    file = state_dir / "real" / "journal.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"this is no database" * 100)
    async with agent_of(settings) as agent:
        said = ""

        async def heard() -> str:
            nonlocal said
            said += await told(agent)
            return said

        await soon(heard, lambda all_: str(file) in all_, waiting_for="a word")
        await heard()
        assert said.count("Nothing is stopped when its time is over") == 1, said
        file.rename(file.with_suffix(".old"))
        plant(state_dir, wanted="running", ttl_minutes=1)
        forget_nothing(state_dir)
        await forgotten(state_dir)


async def test_a_server_that_only_looks_stops_nothing(settings: Settings, state_dir: Path) -> None:
    plant(state_dir, wanted="running", ttl_minutes=1)
    expiry = forget_nothing(state_dir)
    looking = settings.model_copy(update={"read_only": True})
    async with agent_of(looking) as agent:
        await agent.call("list_targets")
        assert journal(state_dir).expiries() == (expiry,)


def test_a_later_expiry_takes_the_place_of_an_earlier_one(state_dir: Path) -> None:
    first = forget_nothing(state_dir)
    later = first.model_copy(update={"at": first.at + timedelta(hours=1)})
    kept = journal(state_dir)
    kept.keep_expiry(later)
    kept.forget_expiry(first)
    assert kept.expiries() == (later,)
