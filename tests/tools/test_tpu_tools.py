"""Tools around zones and the queue of Cloud TPU, on a simulated Google Cloud."""

import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from backends.tpu.site import ChipState, Site
from core.settings import GooglePlane, Settings
from operations.runtime import Stage
from tests.backends.tpu.planted import NO_CHIP, ZONE, foreign, ours, until
from tests.backends.tpu.sites import MODEL, opened
from tests.conversation import Agent, Reply, agent_of
from tests.google_plane import Controls
from tests.soon import soon
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

TARGET: Final = "tpu-v6e-1"
OURS: Final = "vllm-devops-gemma"
_CHANGES: Final = 4
"""How often what is shown may change while somebody agrees to it."""


@pytest.fixture
def controls(plane: GooglePlane, monkeypatch: pytest.MonkeyPatch) -> Controls:
    """Of the one cloud that every test goes to, each with a project of its own."""

    async def google(_self: Stage) -> GooglePlane:
        return plane

    monkeypatch.setattr(Stage, "google", google)
    return Controls(plane)


@pytest.fixture
def prepared(controls: Controls, tmp_path: Path) -> Settings:
    """A project that was set up, in a hurry."""
    settings = Settings(
        rehearsal=True,
        google_cloud_project=f"p-{uuid.uuid4().hex[:12]}",
        google_allowed_addresses=("127.0.0.1",),
        vllm_devops_state_dir=tmp_path / "state",
        toolsets=("all",),
        confirm="token",
    )
    controls.set(project_of(settings), prepared=True, tpu_clock=6000)
    return settings


@pytest.fixture
async def agent(prepared: Settings) -> AsyncIterator[Agent]:
    async with agent_of(prepared) as agent:
        yield agent


@pytest.fixture
def site(plane: GooglePlane, prepared: Settings) -> AbstractAsyncContextManager[Site]:
    """Somebody else's machine, with the same project."""
    return opened(plane, project_of(prepared))


def project_of(settings: Settings) -> str:
    assert settings.google_cloud_project
    return settings.google_cloud_project


async def agreed(agent: Agent, tool: str, **said: Any) -> Reply:
    """Call, show the preview, and go on as the refusal says, word for word.

    It is shown anew where it has changed meanwhile: an engine that was booting is ready.
    """
    reply = await agent.call(tool, **said)
    assert reply.code == "CONFIRMATION_REQUIRED", reply
    for _ in range(_CHANGES):
        if reply.code not in {"CONFIRMATION_REQUIRED", "CONFIRMATION_STALE"}:
            break
        (step,) = reply.structured["next"]
        reply = await agent.call(step["tool"], **step["arguments"])
    return reply


async def test_zones_of_a_target_are_told_with_what_stands_against_them(
    agent: Agent, prepared: Settings, controls: Controls
) -> None:
    zones: dict[str, Any] = {ZONE: {"accelerators": []}, "us-east5-a": {}, "europe-west4-a": {}}
    controls.set(project_of(prepared), tpu_zones=zones)
    reply = await agent.call("get_zones_with_available_quota", target=TARGET)
    assert not reply.failed, reply
    assert_envelope(reply)
    assert_same_facts(reply)
    usable = [row["zone"] for row in reply.data["zones"] if row.get("usable")]
    assert usable == ["us-east5-a", "europe-west4-a"]
    (step,) = reply.structured["next"]
    assert step == {"tool": "recommend_deployment", "arguments": {"targets": [TARGET]}}
    assert not (await agent.call(step["tool"], **step["arguments"])).failed


async def test_zones_of_all_targets_are_rows_of_what_is_the_same(agent: Agent) -> None:
    """One, four and eight chips of one kind make one row, within bounds."""
    reply = await agent.call("get_zones_with_available_quota")
    assert not reply.failed, reply
    assert_envelope(reply)
    assert "truncated" not in reply.structured
    first = reply.data["zones"][0]
    assert {"tpu-v6e-1", "tpu-v6e-4", "tpu-v6e-8"} <= set(first["targets"])
    assert reply.structured["summary"].count("tpu-v6e-") == 9


async def test_where_no_zone_can_be_used_it_says_why(
    agent: Agent, prepared: Settings, controls: Controls
) -> None:
    controls.set(project_of(prepared), tpu_quotas={"tpu": 0, "compute": 0})
    reply = await agent.call("get_zones_with_available_quota", target=TARGET)
    assert any("TPUS-PER-TPU-FAMILY" in said for said in reply.structured["warnings"]), reply
    assert [step["tool"] for step in reply.structured["next"]] == ["check_gpu_quotas"]


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("get_zones_with_available_quota", {}),
        ("list_queued_resources", {}),
        ("manage_queued_resource", {"action": "create", "name": "gemma"}),
        ("manage_queued_resource", {"action": "delete", "name": "gemma"}),
    ],
)
async def test_a_target_that_cannot_is_told_which_can(
    agent: Agent, tool: str, said: dict[str, Any]
) -> None:
    other = await agent.call(tool, target="local", **said)
    assert (other.code, TARGET in other.structured["fix"]) == ("UNSUPPORTED", True)
    assert (await agent.call(tool, target="nowhere", **said)).code == "TARGET_NOT_FOUND"


async def test_leftovers_go_first_with_the_call_that_removes_them(
    agent: Agent, prepared: Settings, controls: Controls, site: AbstractAsyncContextManager[Site]
) -> None:
    """Word for word, after a yes; those of others are warned of, and never offered."""
    controls.set(project_of(prepared), tpu_zones={ZONE: NO_CHIP})
    async with site as other:
        await foreign(other, "theirs")
        await ours(other)
        await until(other, OURS, ChipState.FAILED)
        await until(other, "theirs", ChipState.FAILED)
    reply = await agent.call("list_queued_resources")
    assert_envelope(reply)
    assert_same_facts(reply)
    assert [row["id"] for row in reply.data["resources"]] == [OURS, "theirs"]
    warned = [said for said in reply.structured["warnings"] if "leftover" in said]
    assert len(warned) == 2
    assert f"manage_queued_resource(action='delete', name='{OURS}', zone='{ZONE}')" in warned[0]
    assert "not made here" in warned[1]
    (step,) = reply.structured["next"]
    done = await agreed(agent, step["tool"], **step["arguments"])
    assert done.structured["ok"], done
    left = await agent.call("list_queued_resources")
    assert [row["id"] for row in left.data["resources"]] == ["theirs"]


async def test_a_taken_name_is_said_before_a_model_is_asked_for(
    agent: Agent, site: AbstractAsyncContextManager[Site]
) -> None:
    """Of another target: whichever model is given then, it would be refused."""
    async with site as other:
        await ours(other)
    taken = await agent.call("deploy_vllm", target="tpu-v6e-4", name="gemma")
    assert (taken.code, "tpu-v6e-1" in taken.text) == ("NOT_OURS", True)
    free = await agent.call("deploy_vllm", target="tpu-v6e-4", name="free")
    assert free.code == "INVALID_ARGUMENT"


async def test_what_others_made_is_shown_and_never_deleted(
    agent: Agent, site: AbstractAsyncContextManager[Site]
) -> None:
    async with site as other:
        await foreign(other, OURS)
    shown = await agent.call("manage_queued_resource", action="describe", name=OURS)
    assert_same_facts(shown)
    assert "not made here" in shown.structured["summary"]
    for name, code in ((OURS, "NOT_OURS"), ("gemma", "NOT_FOUND")):
        refused = await agent.call("manage_queued_resource", action="delete", name=name)
        assert refused.code == code, refused
    left = await agent.call("list_queued_resources")
    assert [row["id"] for row in left.data["resources"]] == [OURS]


async def test_rows_are_those_of_a_target_or_a_zone_if_asked_for(
    agent: Agent, site: AbstractAsyncContextManager[Site]
) -> None:
    async with site as other:
        await ours(other)
        await foreign(other, "theirs", zone="us-east5-a")

    async def ids(**said: str) -> list[str]:
        reply = await agent.call("list_queued_resources", **said)
        return [row["id"] for row in reply.data.get("resources", [])]

    assert await ids() == [OURS, "theirs"]
    assert await ids(target=TARGET) == [OURS]
    assert await ids(target="tpu-v6e-8") == []
    assert await ids(zone="us-east5-a") == ["theirs"]


@pytest.mark.parametrize("action", ["describe", "delete"])
async def test_what_is_not_there_is_not_found(agent: Agent, action: str) -> None:
    """A name that no deployment could have is not found either."""
    for name in ("nobody", "No.Such_Thing"):
        reply = await agent.call("manage_queued_resource", action=action, name=name)
        assert reply.code == "NOT_FOUND", reply
        assert [step["tool"] for step in reply.structured["next"]] == ["list_queued_resources"]


async def test_a_request_is_made_described_and_deleted_by_one_tool(
    agent: Agent, prepared: Settings, controls: Controls
) -> None:
    """It is a deployment like any other, whose chip is asked for in the queue alone."""
    wish = {"action": "create", "name": "gemma", "model": MODEL, "target": TARGET, "zone": ZONE}
    made = await agreed(agent, "manage_queued_resource", **wish)
    assert not made.failed, made
    assert (made.data["name"], made.data["target"]) == ("gemma", TARGET)
    # On a busy machine the call may end before the chip is asked for.
    listed = await soon(
        partial(agent.call, "list_queued_resources"),
        lambda reply: reply.data["resources"],
        waiting_for="its request",
    )
    (row,) = listed.data["resources"]
    assert (row["id"], row["zone"], row["control_plane"]) == (OURS, ZONE, "queued resource")
    for name in (OURS, "gemma"):
        shown = await agent.call("manage_queued_resource", action="describe", name=name)
        assert_same_facts(shown)
        assert shown.data["resources"][0]["id"] == OURS
        (step,) = shown.structured["next"]
        status = await agent.call(step["tool"], **step["arguments"])
        assert (status.data["name"], status.data["target"]) == ("gemma", TARGET)
    again = await agent.call("manage_queued_resource", **wish)
    assert again.structured["ok"], again  # it stands, so that nobody is asked
    deleted = await agreed(agent, "manage_queued_resource", action="delete", name=OURS)
    assert deleted.structured["ok"], deleted
    await gone(agent)
    assert controls.get(project_of(prepared))["secrets"] == {}


async def test_a_leftover_beside_its_deployment_goes_alone(
    agent: Agent, prepared: Settings, controls: Controls, site: AbstractAsyncContextManager[Site]
) -> None:
    """The same deployment lives in another zone: it is not ended."""
    controls.set(project_of(prepared), tpu_zones={ZONE: NO_CHIP, "us-east5-a": {}})
    async with site as other:
        await ours(other)
        await until(other, OURS, ChipState.FAILED)
        await ours(other, zone="us-east5-a", seconds=7200)
        await until(other, OURS, ChipState.RUNNING, zone="us-east5-a")
    which = await agent.call("manage_queued_resource", action="delete", name=OURS)
    assert which.code == "AMBIGUOUS", which
    done = await agreed(agent, "manage_queued_resource", action="delete", name=OURS, zone=ZONE)
    assert done.data["gone"], done
    (row,) = (await agent.call("list_queued_resources")).data["resources"]
    assert (row["zone"], row["leftover"]) == ("us-east5-a", False)


async def gone(agent: Agent) -> None:
    """Ask until nothing of it is left."""
    for _ in range(40):
        reply = await agent.call("destroy_vllm", target=TARGET, name="gemma")
        if reply.structured["ok"] and reply.data["gone"]:
            return
    raise AssertionError(reply)
