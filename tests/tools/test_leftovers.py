"""What no deployment needs any more: named with its price, and removed one by one after a yes."""

from pathlib import Path
from typing import Any, Final

import pytest

from backends.base import Leftover
from backends.registry import BACKENDS
from core.errors import CloudTimeout
from core.records import State
from core.settings import Settings
from tests.conversation import agent_of
from tests.tools.recorded import Kept, recorded
from tests.tools.recorded_cloud import RecordedAccount, RecordedCloud

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("hastened")]

LEFT: Final = {"leftovers": True}


def spare(number: int, **said: Any) -> Leftover:
    values = {"kind": "disk", "where": "eastus", "why": "no deployment of that name is there"}
    return Leftover(id=f"/disks/{number}", **{"usd_per_month": float(number), **values, **said})


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kept:
    """Return a world in which two targets share one account that can be looked through."""
    world = recorded(monkeypatch, tmp_path / "targets.toml")
    for name in ("aca", "cloud_run"):
        monkeypatch.setitem(
            BACKENDS, name, lambda: lambda row, there: RecordedAccount(row, there, kept=world)
        )
    world.spare = {one.id: one for one in map(spare, range(1, 4))}
    return world


async def test_an_account_of_several_targets_is_looked_through_once_the_dearest_first(
    kept: Kept, settings: Settings
) -> None:
    """With the sum, what is others', what was not seen, and the call that removes the first."""
    kept.put("app", State.READY, "alive")
    kept.put("run", State.FAILED, "husk")
    async with agent_of(settings) as agent:
        reply = await agent.call("get_system_status", **LEFT)
    assert [write for write in kept.writes if "leftovers" in write] == [
        "look for leftovers run/alive"
    ]
    said = reply.structured
    assert "3 left over in subscription one, $6 a month: disk (3)." in said["summary"]
    assert [row["id"] for row in said["data"]["leftovers"]] == ["/disks/3", "/disks/2", "/disks/1"]
    assert said["data"]["others"] == {"subscription one": {"disk": 3}}
    assert said["warnings"] == ["Vaults were not seen."]
    assert said["next"][0]["tool"] == "destroy_vllm"
    assert said["next"][0]["arguments"]["leftover"] == "/disks/3"


async def test_each_next_step_removes_its_leftover_after_a_yes(
    kept: Kept, settings: Settings
) -> None:
    async with agent_of(settings) as agent:
        found = await agent.call("get_system_status", **LEFT)
        for step in found.structured["next"]:
            gone = await agent.call(step["tool"], **step["arguments"])
            assert gone.structured["data"]["gone"] is True
        last = await agent.call("get_system_status", **LEFT)
    assert kept.spare == {}
    assert "Nothing of ours is left over" in last.structured["summary"]


async def test_nothing_is_removed_without_a_yes_or_beside_a_deployment_of_that_name(
    kept: Kept, settings: Settings
) -> None:
    """What was agreed to is looked at again: by then a deployment may stand on it."""
    kept.spare = {"/disks/9": spare(9, deployment="one")}
    here = {"target": "app", "leftover": "/disks/9"}
    async with agent_of(settings.model_copy(update={"confirm": "token"})) as agent:
        asked = await agent.call("destroy_vllm", **here)
        assert asked.code == "CONFIRMATION_REQUIRED"
        kept.put("run", State.READY, "one")
        (step,) = asked.structured["next"]
        refused = await agent.call(step["tool"], **step["arguments"])
    assert refused.code == "INVALID_ARGUMENT"
    assert list(kept.spare) == ["/disks/9"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"leftover": "/disks/1", "name": "one"}, "INVALID_ARGUMENT"),
        ({"leftover": "/disks/1", "purge": True}, "INVALID_ARGUMENT"),
        ({"leftover": "/disks/77", "target": "app"}, "NOT_FOUND"),
        ({"leftover": "/disks/1", "target": "free"}, "UNSUPPORTED"),
    ],
)
async def test_what_is_no_leftover_is_refused(
    kept: Kept, settings: Settings, arguments: dict[str, Any], code: str
) -> None:
    async with agent_of(settings) as agent:
        reply = await agent.call("destroy_vllm", **arguments)
    assert reply.code == code
    assert len(kept.spare) == 3


async def test_every_leftover_can_be_removed_though_few_are_listed(
    kept: Kept, settings: Settings
) -> None:
    kept.spare = {one.id: one for one in map(spare, range(1, 251))}
    async with agent_of(settings) as agent:
        short = await agent.brief("get_system_status", **LEFT)
        full = await agent.call("get_system_status", **LEFT)
        gone = await agent.call("destroy_vllm", target="app", leftover="/disks/1")
    assert "250 left over" in short.structured["summary"]
    assert short.structured["data"]["not_shown"] == 240
    assert len(full.structured["data"]["leftovers"]) == 100
    assert full.structured["data"]["left_out"] == 150
    assert gone.structured["data"]["gone"] is True


async def test_an_account_that_does_not_answer_is_named_and_others_are_looked_through(
    kept: Kept, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(RecordedAccount):
        account = "project two"

    made = {"aca": RecordedAccount, "cloud_run": Other}
    for name, kind in made.items():
        monkeypatch.setitem(
            BACKENDS, name, lambda kind=kind: lambda row, there: kind(row, there, kept=kept)
        )
    kept.broken = {"run": CloudTimeout("It did not answer.", fix="Call again.")}
    async with agent_of(settings) as agent:
        reply = await agent.call("get_system_status", **LEFT)
        named = await agent.call("get_system_status", **LEFT, target="run")
    assert "3 left over in subscription one" in reply.structured["summary"]
    assert any("project two was not looked through" in one for one in reply.structured["warnings"])
    assert named.code == "CLOUD_TIMEOUT"


async def test_where_no_target_has_an_account_that_is_said(
    kept: Kept, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("aca", "cloud_run"):
        monkeypatch.setitem(
            BACKENDS, name, lambda: lambda row, there: RecordedCloud(row, there, kept=kept)
        )
    async with agent_of(settings) as agent:
        reply = await agent.call("get_system_status", **LEFT)
    assert reply.code == "UNSUPPORTED"
