"""Old names: whoever types one gets what its successor gives, and learns what that is called."""

from pathlib import Path
from typing import Final

import pytest

from core.errors import OpsError
from core.journal import Journal
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.tools.test_profiles import DEFAULT, names, of
from tests.tools.world import OLD, OLD_LOOKING, assert_envelope, assert_same_facts
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

SUCCESSORS: Final = {
    "check_vllm": "verify_model_health",
    "get_vllm_endpoint": "get_endpoint",
    "status_azure_vm": "status_vllm",
    "stop_azure_vm": "stop_vllm",
    "start_azure_vm": "start_vllm",
}
ANYWHERE: Final = ("check_vllm", "get_vllm_endpoint")


def test_every_old_name_has_a_successor() -> None:
    """And none is left out here."""
    assert set(SUCCESSORS) == set(OLD) == {n for n, one in TOOLS.items() if one.group == "compat"}


@pytest.mark.parametrize("old", SUCCESSORS)
def test_an_old_name_promises_and_takes_what_its_successor_does(old: str) -> None:
    """The same hints for a client's policies, and the same parameters."""
    was, now = TOOLS[old].tool, TOOLS[SUCCESSORS[old]].tool
    assert was.annotations == now.annotations
    assert was.parameters["properties"] == now.parameters["properties"]
    assert SUCCESSORS[old] in (was.description or "")


@pytest.mark.parametrize("old", ANYWHERE)
async def test_an_old_name_can_be_called_without_being_listed(
    served_settings: Settings, old: str
) -> None:
    """In the default profile, with both halves the same, and with the new name said."""
    async with agent_of(served_settings.model_copy(update={"toolsets": ()})) as agent:
        assert await names(agent) == DEFAULT
        reply = await agent.call(old)
    assert reply.structured["ok"], reply
    assert_envelope(reply)
    assert_same_facts(reply)
    assert [said for said in reply.structured["warnings"] if SUCCESSORS[old] in said]


@pytest.mark.parametrize("old", ANYWHERE)
async def test_an_old_name_gives_what_its_successor_gives(served: Agent, old: str) -> None:
    """Field by field."""
    was, now = await served.call(old), await served.call(SUCCESSORS[old])
    same = {key for key in now.data if key != "latency_seconds"}
    assert {key: was.data[key] for key in same} == {key: now.data[key] for key in same}


async def test_old_names_are_listed_where_they_are_asked_for(state_dir: Path) -> None:
    """Beside the default ones; read-only leaves out those that write."""
    async with agent_of(of(state_dir, "compat")) as agent:
        assert await names(agent) == DEFAULT | set(OLD)
    async with agent_of(of(state_dir, "compat", read_only=True)) as agent:
        assert await names(agent) & set(OLD) == set(OLD_LOOKING)


@pytest.mark.parametrize("old", sorted(OLD.keys() - set(ANYWHERE)))
async def test_without_azure_the_virtual_machines_are_said_to_be_none(
    state_dir: Path, old: str
) -> None:
    """Nothing is invented: the error names the setting that makes the targets usable."""
    async with agent_of(of(state_dir)) as agent:
        reply = await agent.call(old)
    assert reply.code == "NOT_FOUND"
    assert "AZURE_SUBSCRIPTION_ID" in reply.structured["fix"]
    assert [said for said in reply.structured["warnings"] if "no virtual machine" in said]


@pytest.mark.parametrize("old", sorted(OLD.keys() - set(ANYWHERE)))
async def test_a_target_elsewhere_is_no_virtual_machine_on_azure(state_dir: Path, old: str) -> None:
    """It sends on to the tool that does it there."""
    async with agent_of(of(state_dir)) as agent:
        reply = await agent.call(old, target="local")
    assert reply.code == "INVALID_ARGUMENT"
    (step,) = reply.structured["next"]
    assert (step["tool"], step["arguments"]) == (SUCCESSORS[old], {"target": "local"})


async def test_what_costs_money_is_ended_by_its_old_name_too(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the journal cannot be written; what begins to cost is refused then."""

    def full(*_arguments: object) -> int:
        raise OpsError("The disk is full.", fix="Make room.")

    monkeypatch.setattr(Journal, "begin", full)
    async with agent_of(of(state_dir)) as agent:
        assert (await agent.call("start_azure_vm")).structured["summary"] == "The disk is full."
        assert (await agent.call("stop_azure_vm")).code == "NOT_FOUND"
