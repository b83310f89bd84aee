"""Clouds that cannot be looked at, and what is on the others all the same."""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest

from backends.common.refusals import refused
from backends.google.errors import unknown_caller
from backends.registry import BACKENDS
from core.errors import CloudTimeout
from core.records import BY_PURGE, Remainder, State
from core.settings import Settings
from operations.inventory import not_set_up
from operations.runtime import Stage
from server import main
from tests.conversation import Agent, Reply, agent_of
from tests.tools.calls import MODEL
from tests.tools.recorded import Kept, recorded
from tests.tools.recorded_cloud import RecordedCloud, RecordedQueue

pytestmark = pytest.mark.anyio

denied: Final = partial(refused, "google", "PERMISSION_DENIED")
CLOUDS: Final = {"run": "Cloud Run", "app": "Container Apps", "chip": "Cloud TPU"}
BREAKS: Final[dict[str, Callable[[], Exception | None]]] = {
    "no login": lambda: unknown_caller("Reauthentication is needed.", "Log in."),
    "API off": lambda: denied("SERVICE_DISABLED", "list queued resources"),
    "403": lambda: denied("Permission 'run.services.list' denied", "list services"),
    "time-out": lambda: CloudTimeout("It did not answer within 9 s.", fix="Call again."),
    "silence": lambda: None,
    "a fault of ours": lambda: RecursionError("\x1b[31mno end\n"),
}
SUBSETS: Final = [those for size in (1, 2) for those in combinations(CLOUDS, size)]
NOTHING: Final = "Nothing found on what could be looked at; "


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kept:
    return recorded(monkeypatch, tmp_path / "targets.toml")


def said(reply: Reply) -> str:
    return "\n".join([reply.structured["summary"], *reply.structured["warnings"]])


@pytest.mark.usefixtures("hastened")
@pytest.mark.parametrize("broken", SUBSETS, ids="+".join)
@pytest.mark.parametrize("kind", BREAKS)
async def test_what_is_on_the_other_clouds_is_seen_stopped_and_destroyed(
    kept: Kept, settings: Settings, kind: str, broken: tuple[str, ...]
) -> None:
    """Every tool acts on the only deployment that it sees, and names the clouds it did not see."""
    here = next(cloud for cloud in CLOUDS if cloud not in broken)
    for cloud in (here, *broken):
        kept.put(cloud, State.READY, f"on-{cloud}")
    kept.broken = {cloud: BREAKS[kind]() for cloud in broken}
    calls: dict[str, dict[str, Any]] = {
        "list_deployments": {},
        "get_system_status": {},
        "status_vllm": {},
        "update_vllm_scaling": {"min_replicas": 1, "max_replicas": 1},
        "stop_vllm": {},
        "start_vllm": {},
        "destroy_vllm": {},
    }
    async with agent_of(settings) as agent:
        for tool, arguments in calls.items():
            reply = await agent.call(tool, **arguments)
            assert not reply.failed, (tool, reply)
            assert f"on-{here}" in reply.text
            assert "setup_target" not in reply.text
            (unseen,) = [line for line in said(reply).splitlines() if "not looked at" in line]
            assert [cloud for cloud, title in CLOUDS.items() if title in unseen] == list(broken)
        nothing = await agent.call("list_deployments")
    assert nothing.structured["summary"].startswith(NOTHING) is (kind != "API off")
    assert {target for target, _ in kept.deployments} == set(broken)


@pytest.mark.usefixtures("hastened")
@pytest.mark.parametrize("kind", BREAKS)
async def test_where_no_cloud_can_be_looked_at_nobody_is_told_that_nothing_is_there(
    kept: Kept, settings: Settings, kind: str
) -> None:
    """A list says so and is no error; an API that is off keeps nothing, so that there is none."""
    kept.broken = {cloud: BREAKS[kind]() for cloud in CLOUDS}
    off = kind == "API off"
    async with agent_of(settings) as agent:
        for tool in ("list_deployments", "get_system_status", "status_vllm"):
            reply = await agent.call(tool)
            seen = "Nothing is deployed; $0 an hour." if off else f"{NOTHING}Cloud Run, Container"
            assert reply.structured["summary"].startswith(seen)
            assert "Cloud Run, Container Apps, Cloud TPU not looked at: " in said(reply)
            assert reply.data["complete"] is off
            first = "recommend_deployment" if off else "list_targets"
            assert [step["tool"] for step in reply.structured["next"]] == [first]
        for tool in ("stop_vllm", "destroy_vllm"):
            reply = await agent.call(tool)
            assert (reply.code == "DEPLOYMENT_NOT_FOUND") is off, reply
            assert "setup_target" not in reply.text


@pytest.mark.usefixtures("hastened")
async def test_what_was_deployed_where_nobody_can_look_now_is_not_taken_for_the_other(
    kept: Kept, settings: Settings
) -> None:
    """Which one is asked, with the exact call for each; one of them works as it stands."""
    kept.put("app", State.READY, "seen")
    async with agent_of(settings) as agent:
        await agent.call("deploy_vllm", target="run", name="hidden", model=MODEL)
        kept.broken = {"run": BREAKS["no login"]()}
        for tool in ("stop_vllm", "destroy_vllm"):
            reply = await agent.call(tool)
            assert reply.code == "AMBIGUOUS"
            assert [(step["tool"], step["arguments"]) for step in reply.structured["next"]] == [
                (tool, {"target": "app", "name": "seen"}),
                (tool, {"target": "run", "name": "hidden"}),
            ]
        assert "hidden on run was deployed from here" in reply.structured["summary"]
        stopped = await agent.call("stop_vllm", name="seen")
    assert stopped.state == "stopped"
    assert kept.writes == ["apply run/hidden", "stop app/seen"]


async def test_clouds_that_are_not_set_up_are_one_line(settings: Settings) -> None:
    async with agent_of(settings) as agent:
        reply = await agent.call("list_deployments")
    assert reply.structured["summary"] == "Nothing is deployed; $0 an hour."
    assert reply.structured["warnings"] == []
    assert reply.data["not_set_up"] == (
        "Cloud Run, Cloud TPU (set GOOGLE_CLOUD_PROJECT);"
        " Container Apps (set AZURE_SUBSCRIPTION_ID)"
    )


def test_a_cloud_whose_setting_is_there_is_not_among_them(state_dir: Path) -> None:
    stage = Stage(Settings(vllm_devops_state_dir=state_dir, google_cloud_project="a-project"))
    assert not_set_up(stage) == "Container Apps (set AZURE_SUBSCRIPTION_ID)"


@pytest.mark.parametrize(
    ("there", "kind", "status"),
    [((), "no login", 1), (("app",), "no login", 0), ((), "API off", 0), ((), "", 0)],
)
@pytest.mark.parametrize("tool", ["list_deployments", "status_vllm"])
def test_a_shell_knows_an_empty_list_from_one_that_was_not_seen(
    kept: Kept,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    there: tuple[str, ...],
    kind: str,
    status: int,
) -> None:
    """Nothing deployed is success; nothing seen because of a login is not."""
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(state_dir))
    for cloud in there:
        kept.put(cloud, State.READY)
    kept.broken = {"run": BREAKS[kind]()} if kind else {}
    assert main(["call", tool]) == status


@pytest.mark.usefixtures("hastened")
async def test_a_name_that_is_gone_is_answered_with_who_destroyed_it(
    kept: Kept, settings: Settings
) -> None:
    kept.put("app", State.READY)
    async with agent_of(settings) as agent:
        await agent.call("destroy_vllm", name="one")
        reply = await agent.call("status_vllm", name="one")
    assert reply.code == "DEPLOYMENT_NOT_FOUND"
    assert "No deployment named 'one': fastmcp" in reply.structured["summary"]
    assert "destroyed it on app at" in reply.structured["summary"]


SHARE: Final = Remainder(what="the share weights", usd_per_month=25.0, how_to_remove=BY_PURGE)


@pytest.mark.usefixtures("hastened")
async def test_what_stays_and_bills_is_in_every_headline_until_it_is_gone(
    kept: Kept, settings: Settings
) -> None:
    """The deletion says so with the call that removes it, and so does every list after it."""
    kept.paid = {"app": SHARE}
    kept.put("app", State.READY)
    headline = "$25 a month"
    async with agent_of(settings) as agent:
        assert headline in (await agent.call("list_deployments")).structured["summary"]
        gone = await agent.call("destroy_vllm")
        assert headline in gone.structured["summary"]
        assert "destroy_vllm(target='app', name='one', purge=True)" in gone.structured["summary"]
        for tool in ("list_deployments", "get_system_status", "status_vllm"):
            listed = await agent.call(tool)
            assert headline in listed.structured["summary"]
            assert "destroy_vllm(target='app', purge=True)" in listed.structured["summary"]
        (step,) = listed.structured["next"]
        assert not (await agent.call(step["tool"], **step["arguments"])).failed
        last = await agent.call("list_deployments")
    assert last.structured["summary"] == "Nothing is deployed; $0 an hour."


@pytest.mark.usefixtures("hastened")
async def test_everything_that_runs_is_stopped_after_one_confirmation(
    kept: Kept, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the bill, reads each back, names what fails, what only a deletion ends and what
    was not looked at.
    """

    class Chip(RecordedQueue):
        async def end(self, name: str) -> str:
            raise AssertionError(self)

        async def spec(self, name: str) -> None:
            return None

    monkeypatch.setitem(BACKENDS, "tpu", lambda: lambda row, world: Chip(row, world, kept=kept))
    kept.put("free", State.READY, "here")
    kept.put("app", State.READY, "paid")
    kept.put("app", State.STOPPED, "still")
    kept.put("chip", State.QUEUED, "hot")
    kept.broken = {"run": BREAKS["no login"]()}
    async with agent_of(settings.model_copy(update={"confirm": "token"})) as agent:
        asked = await agent.call("stop_vllm", all=True)
        assert asked.code == "CONFIRMATION_REQUIRED"
        assert "here on free ($0 an hour), paid on app ($2.50 an hour); $2.50" in asked.text
        assert "hot on chip (queued, $2.50 an hour once it runs), which destroy" in asked.text
        assert "Cloud Run not looked at" in asked.text
        assert kept.writes == []
        (step,) = asked.structured["next"]
        done = await agent.call(step["tool"], **step["arguments"])
    assert not done.failed, done
    assert kept.writes == ["stop free/here", "stop app/paid"]
    assert done.structured["summary"].startswith(
        "Stopped 2 of 3: here on free, paid on app; $2.50 an hour less. hot on chip runs on"
    )
    assert done.structured["next"] == [
        {"tool": "destroy_vllm", "arguments": {"target": "chip", "name": "hot"}}
    ]
    assert "Cloud Run not looked at" in said(done)


@pytest.mark.usefixtures("hastened")
async def test_one_that_cannot_be_stopped_now_keeps_no_other_from_it(
    kept: Kept, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with what it costs; where nothing runs, nobody is asked."""

    class Refuses(RecordedCloud):
        async def stop(self, name: str) -> Any:
            raise denied("Permission denied", "stop it")

    monkeypatch.setitem(BACKENDS, "aca", lambda: lambda row, world: Refuses(row, world, kept=kept))
    kept.put("app", State.READY, "stuck")
    kept.put("run", State.READY, "fine")
    async with agent_of(settings) as agent:
        done = await agent.call("stop_vllm", all=True)
    summary = done.structured["summary"]
    assert summary.startswith("Stopped 1 of 2: fine on run; $2.50 an hour less. stuck on app runs")
    assert "Google does not let you: stop it" in summary


async def test_one_that_runs_on_after_all_is_named(
    kept: Kept, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read back counts, not that its cloud took the call."""

    class Ignores(RecordedCloud):
        async def stop(self, name: str) -> Any:
            return await self.describe(name)

    monkeypatch.setitem(BACKENDS, "aca", lambda: lambda row, world: Ignores(row, world, kept=kept))
    kept.put("app", State.READY, "stuck")
    async with agent_of(settings) as agent:
        done = await agent.call("stop_vllm", all=True)
    assert "stuck on app runs on ($2.50 an hour), it is ready:" in done.structured["summary"]


async def test_nothing_that_runs_needs_no_confirmation(kept: Kept, agent_asks: Agent) -> None:
    kept.put("run", State.STOPPED)
    reply = await agent_asks.call("stop_vllm", all=True)
    assert reply.structured["summary"] == "Nothing runs, $0 an hour: one on run is stopped."


@pytest.fixture
async def agent_asks(kept: Kept, settings: Settings) -> Any:
    async with agent_of(settings.model_copy(update={"confirm": "token"})) as agent:
        yield agent
