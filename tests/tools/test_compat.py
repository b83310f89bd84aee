"""Old names: whoever types one gets what its successor gives, and learns what that is called."""

from pathlib import Path
from typing import Final

import pytest

from core.errors import OpsError
from core.journal import Journal
from core.settings import Settings
from tests.conversation import agent_of
from tests.tools.calls import OLD, OLD_LOOKING
from tests.tools.test_profiles import DEFAULT, of
from tests.tools.world import assert_envelope, assert_same_facts
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

SUCCESSORS: Final = {
    "check_vllm": "verify_model_health",
    "get_vllm_endpoint": "get_endpoint",
    "status_azure_vm": "status_vllm",
    "stop_azure_vm": "stop_vllm",
    "start_azure_vm": "start_vllm",
    "query_queued_gemma4": "query_gemma4",
    "query_queued_gemma4_with_stats": "query_gemma4_with_stats",
    "estimate_deployment_cost": "estimate_cost",
    "get_active_models": "list_deployments",
    "get_system_details": "get_system_status",
    "run_vllm_benchmark": "run_benchmark",
    "describe_queued_resource": "manage_queued_resource",
    "destroy_queued_resource": "manage_queued_resource",
}
ONE_ACTION: Final = ("describe_queued_resource", "destroy_queued_resource")
"""Each is one of several things that its successor does."""
OF_MANY: Final = {"stop_azure_vm": {"all", "confirm"}}
"""What a name of one machine does not take: its successor stops several with it."""
ANYWHERE: Final = ("check_vllm", "get_vllm_endpoint", "estimate_deployment_cost")
AZURE: Final = ("status_azure_vm", "stop_azure_vm", "start_azure_vm")
QUEUED: Final = ("query_queued_gemma4", "query_queued_gemma4_with_stats")


def test_every_old_name_has_a_successor() -> None:
    assert set(SUCCESSORS) == set(OLD) == {n for n, one in TOOLS.items() if one.group == "compat"}


@pytest.mark.parametrize("old", [old for old in SUCCESSORS if old not in ONE_ACTION])
def test_an_old_name_promises_and_takes_what_its_successor_does(old: str) -> None:
    """The same hints for a client's policies, and the same parameters."""
    was, now = TOOLS[old], TOOLS[SUCCESSORS[old]]
    assert was.tool.annotations == now.tool.annotations
    others = OF_MANY.get(old, set())
    assert was.parameters == {k: row for k, row in now.parameters.items() if k not in others}
    assert SUCCESSORS[old] in (was.tool.description or "")


@pytest.mark.parametrize("old", ANYWHERE)
async def test_an_old_name_can_be_called_without_being_listed(
    served_settings: Settings, old: str
) -> None:
    """In the default profile, with both halves the same, and with the new name said."""
    async with agent_of(served_settings.model_copy(update={"toolsets": ()})) as agent:
        assert await agent.names() == DEFAULT
        reply = await agent.call(old, **OLD[old])
    assert reply.structured["ok"], reply
    assert_envelope(reply)
    assert_same_facts(reply)
    assert [said for said in reply.structured["warnings"] if SUCCESSORS[old] in said]


async def test_old_names_are_listed_where_they_are_asked_for(state_dir: Path) -> None:
    """Beside the default ones; read-only leaves out those that write."""
    async with agent_of(of(state_dir, "compat")) as agent:
        assert await agent.names() == DEFAULT | set(OLD)
    async with agent_of(of(state_dir, "compat", read_only=True)) as agent:
        assert await agent.names() & set(OLD) == set(OLD_LOOKING)


@pytest.mark.parametrize("old", [*AZURE, *QUEUED])
async def test_without_its_cloud_an_old_name_means_nothing(state_dir: Path, old: str) -> None:
    """Nothing is invented: the error names the setting that makes the targets usable."""
    async with agent_of(of(state_dir)) as agent:
        reply = await agent.call(old, **OLD[old])
    assert reply.code == "NOT_FOUND"
    setting = "AZURE_SUBSCRIPTION_ID" if old in AZURE else "GOOGLE_CLOUD_PROJECT"
    assert setting in reply.structured["fix"]
    words = "no virtual machine" if old in AZURE else "on Cloud TPU"
    assert [said for said in reply.structured["warnings"] if words in said]


@pytest.mark.parametrize("old", [*AZURE, *QUEUED])
async def test_a_target_of_another_cloud_is_not_meant(state_dir: Path, old: str) -> None:
    """Nothing is done elsewhere; the fix names the tool of today."""
    async with agent_of(of(state_dir)) as agent:
        reply = await agent.call(old, target="local", **OLD[old])
    assert reply.code == "INVALID_ARGUMENT"
    assert SUCCESSORS[old] in reply.structured["fix"]


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
