"""The dashboard over all targets, spoken to as an agent does."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from core.records import State
from core.settings import Settings
from operations import dashboard, resolve
from tests.conversation import Agent, Reply, agent_of
from tests.operations.shown import NOW, Hangs, Refuses, Shows, engine, hung_engine, shown, world_of
from tests.tools.world import assert_envelope, assert_same_facts, plant, still_engine
from tests.webserver import listening

pytestmark = pytest.mark.anyio

FAILURE: Final = {"code": "OUT_OF_MEMORY", "cause": "It had no memory left.", "fix": "Ask less."}


def rows_of(reply: Reply) -> dict[str, dict[str, Any]]:
    """The rows by name, in their order."""
    assert not reply.failed, reply
    return {row["name"]: row for row in reply.data["deployments"]}


async def status_of(settings: Settings, **arguments: str) -> Reply:
    async with agent_of(settings) as agent:
        return await agent.call("get_system_status", **arguments)


async def test_what_needs_attention_stands_first(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken and billed, failed, overdue, unknown, slow to boot, then what is as it should be."""
    phase = {"name": "loading weights", "since": NOW - timedelta(hours=1), "percent": 61}
    late = NOW - timedelta(minutes=5)
    idle: dict[str, Any] = {"replicas": 0}
    there = (
        shown("stopped", state=State.STOPPED, **idle),
        shown("asleep", state=State.ASLEEP, **idle),
        shown("booting", state=State.LOADING, phase={**phase, "since": NOW}),
        shown("slow", state=State.LOADING, phase=phase),
        shown("odd", state=State.UNKNOWN, **idle),
        shown("late", state=State.ASLEEP, expires_at=late, **idle),
        shown("dead", state=State.FAILED, failure=FAILURE, **idle),
        shown("loop", state=State.FAILED, failure=FAILURE),
    )
    world_of(monkeypatch, tmp_path, there, sky=Shows)
    reply = await status_of(settings)
    assert [(name, row["health"]) for name, row in rows_of(reply).items()] == [
        ("loop", "billed though broken"),
        ("dead", "failed"),
        ("late", "overdue"),
        ("odd", "unknown"),
        ("slow", "slow to boot"),
        ("booting", "booting"),
        ("asleep", "asleep"),
        ("stopped", "stopped"),
    ]
    summary = reply.structured["summary"]
    assert summary.startswith(
        "3 deployments run: booting (m) on sky, slow (m) on sky, loop (m) on sky"
    )
    assert "5 of 8 need attention, first loop on sky" in summary
    assert rows_of(reply)["loop"]["failure_code"] == "OUT_OF_MEMORY"
    assert rows_of(reply)["slow"]["phase"]["percent"] == 61
    assert_same_facts(reply)


async def test_nothing_that_sleeps_or_boots_is_asked(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a model that is awake is asked for its load, and it is said what that costs."""
    there = tuple(shown(state.value, state=state, replicas=0) for state in State)
    opened = world_of(monkeypatch, tmp_path, there, sky=Shows)
    async with listening(engine()) as url:
        opened = world_of(monkeypatch, tmp_path, there, url=url, sky=Shows)
        reply = await status_of(settings)
    assert opened == ["ready"]
    assert reply.data["asked_though_it_may_sleep"] == ["ready"]
    assert any("postpones" in warning for warning in reply.structured["warnings"])


@pytest.mark.parametrize(
    ("load", "health"),
    [
        ({"waiting": 0, "kv_usage": 0.85}, "ready"),
        ({"waiting": 2, "kv_usage": 0.1}, "saturated"),
        ({"waiting": 0, "kv_usage": 0.86}, "saturated"),
    ],
)
async def test_a_full_engine_is_told_with_its_load(
    load: dict[str, Any],
    health: str,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests that wait or a KV cache beyond 85 % need attention."""
    async with listening(engine(**load)) as url:
        world_of(monkeypatch, tmp_path, (shown("one"),), url=url, sky=Shows)
        row = rows_of(await status_of(settings))["one"]
    assert (row["health"], row["requests_running"]) == (health, 3)
    assert (row["requests_waiting"], row["kv_cache_usage"]) == tuple(load.values())


@pytest.mark.parametrize("state", ["stopped", "loading", "asleep"])
async def test_what_does_not_serve_is_not_called_healthy(
    state: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world_of(monkeypatch, tmp_path, (shown("one", state=State(state), replicas=0),), sky=Shows)
    summary = (await status_of(settings)).structured["summary"]
    assert summary.endswith(f" 1 {'booting' if state == 'loading' else state}.")
    assert "healthy" not in summary


async def test_the_money_is_added_up(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs now counts by its replicas; what nobody has a price for is counted apart."""
    there = (
        shown("pair", state=State.LOADING, replicas=2),
        shown("idle", state=State.ASLEEP, replicas=0),
        shown("gift", state=State.LOADING, usd_per_hour=None, usd_so_far=None),
    )
    world_of(monkeypatch, tmp_path, there, sky=Shows)
    totals = (await status_of(settings)).data["totals"]
    assert (totals["usd_per_hour_now"], totals["usd_so_far"]) == (1.4, 2.8)
    assert (totals["price_not_known"], totals["cost_not_known"]) == (1, 1)


async def test_a_hundred_deployments_stay_within_bounds(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endless words are cut, nobody is dropped, and the one that is ill is first all the same."""
    endless: dict[str, Any] = {
        "served_model_name": "m" * 50_000,
        "engine": "e" * 50_000,
        "instance": "i" * 50_000,
        "failure": {**FAILURE, "cause": "c" * 50_000, "fix": "f" * 50_000},
    }
    there = [
        shown(f"{number:03}".rjust(40, "a"), state=State.STOPPED, replicas=0, **endless)
        for number in range(100)
    ]
    there.append(shown("z" * 40, state=State.FAILED, **endless))
    world_of(monkeypatch, tmp_path, there, sky=Shows)
    reply = await status_of(settings)
    assert_envelope(reply)
    assert "truncated" not in reply.structured
    assert next(iter(rows_of(reply))) == "z" * 40
    assert all(one.name in reply.text for one in there)
    assert reply.data["totals"]["deployments"] == 101


@pytest.mark.usefixtures("hastened")
async def test_a_target_that_hangs_hides_no_other(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with the time it was given, in the answer and in its warnings."""
    there = (shown("one", state=State.ASLEEP, replicas=0),)
    world_of(monkeypatch, tmp_path, there, fog=Hangs, sky=Shows, sea=Refuses)
    reply = await status_of(settings)
    assert list(rows_of(reply)) == ["one"]
    assert reply.data["complete"] is False
    told = "\n".join(reply.data["not_seen"])
    assert "fog not looked at: no answer in time" in told
    assert "The cloud is closed. Come back tomorrow." in told
    assert set(reply.data["not_seen"]) <= set(reply.structured["warnings"])


def test_the_end_of_all_looks_comes_before_a_clients() -> None:
    """The list or the one, then hosts, then usage and metrics."""
    assert resolve.EACH_SECONDS + dashboard.ENDPOINT_SECONDS * 3 < 45
    assert dashboard._FIND_SECONDS + dashboard.ENDPOINT_SECONDS * 3 < 45


async def test_an_engine_that_hangs_is_a_row_without_load(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row says what is missing, and needs attention: its platform takes it for well."""
    monkeypatch.setattr(dashboard, "ENDPOINT_SECONDS", 0.05)
    async with listening(hung_engine()) as url:
        world_of(monkeypatch, tmp_path, (shown("one"),), url=url, sky=Shows)
        reply = await status_of(settings)
    row = rows_of(reply)["one"]
    assert row["health"] == "ready, but without metrics"
    assert "did not come" in row["missing"]
    assert reply.data["complete"] is False
    assert "1 of 1 needs attention" in reply.structured["summary"]


async def test_deployments_of_this_machine_in_several_states_are_told_apart(
    agent: Agent, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One serves, one has died, one boots, one was stopped: each with what to do next."""
    await agent.serve("serves")
    plant(state_dir, "rests")
    died = plant(state_dir, "died", wanted="running")
    died.log.write_text("ValueError: no such model\n", encoding="utf-8")
    still_engine(monkeypatch)
    agent_reply = await agent.call("get_system_status")
    rows = rows_of(agent_reply)
    assert {name: row["health"] for name, row in rows.items()} == {
        "died": "failed",
        "serves": "ready",
        "rests": "stopped",
    }
    assert rows["serves"]["requests_running"] == 0
    assert rows["serves"]["usage"]["processes"] >= 1
    assert "destroy_vllm" in rows["rests"]["tools"]
    assert agent_reply.data["totals"]["usd_per_hour_now"] == 0
    assert agent_reply.data["hosts"]["local"]["memory_total_gib"] > 0
