"""Servers that die, start anew or work at once on Container Apps: one deployment, and no orphan."""

from pathlib import Path
from typing import Final

import anyio
import pytest

from tests.conversation import agent_of
from tests.soon import soon
from tests.stories.conftest import Azure
from tests.stories.life import both_deploy
from tests.stories.troubles import (
    ONE,
    PUT,
    WISH,
    asked,
    bare_trouble,
    becomes,
    deploys,
    destroyed,
    named,
    orphans,
    refused,
    settled,
    slow_environment,
    trouble,
)

__all__ = ["bare_trouble", "slow_environment", "trouble"]

pytestmark = pytest.mark.anyio

REGISTER: Final = "POST Microsoft.Resources/subscriptions/providers/register"
ENVIRONMENT: Final = "PUT Microsoft.App/managedEnvironments"
IDENTITY: Final = "PUT Microsoft.ManagedIdentity/userAssignedIdentities"
SHARE: Final = "PUT Microsoft.Storage/storageAccounts/fileServices/shares"
KEY: Final = "PUT secrets"
BEFORE: Final = (
    REGISTER,
    "PUT Microsoft.Resources/resourceGroups",
    "PUT Microsoft.OperationalInsights/workspaces",
)
AFTER: Final = (
    "PUT Microsoft.KeyVault/vaults",
    "PUT Microsoft.Storage/storageAccounts",
    "PUT Microsoft.Authorization/roleAssignments",
    SHARE,
    "PUT Microsoft.App/managedEnvironments/storages",
    KEY,
    PUT,
)
CALLS: Final = {
    "hang": (*BEFORE, IDENTITY, ENVIRONMENT, *AFTER),
    "hang-after": (*BEFORE, ENVIRONMENT, IDENTITY, *AFTER),
}
"""Everything that a first deployment changes, in its order: what goes on with a group that is there
makes environment and identity in another than what finds none."""


@pytest.mark.parametrize("when", CALLS)
async def test_where_a_server_dies_the_next_goes_on(bare_trouble: Azure, when: str) -> None:
    """One after the other at every call that changes something, with or without its effect.

    Some seconds: a dozen servers begin and die.
    """
    for method in CALLS[when]:
        await _die_deploying(bare_trouble, method, when)
    async with agent_of(bare_trouble.settings) as agent:
        await deploys(agent, weights="hub:share")
        await becomes(agent, "ready")
        assert not (await agent.call("query_vllm", **ONE, prompt="Hello", max_tokens=2)).failed
        assert len(orphans(bare_trouble)) == 3, "An app, its replica and its key."
        await destroyed(agent, bare_trouble)


@pytest.mark.parametrize("when", ["hang", "hang-after"])
@pytest.mark.parametrize("method", [ENVIRONMENT, SHARE, KEY, PUT])
async def test_where_a_server_dies_a_removal_leaves_nothing_and_names_what_bills(
    bare_trouble: Azure, method: str, when: str
) -> None:
    """A share that was made on the way is billed from then on."""
    await _die_deploying(bare_trouble, method, when)
    async with agent_of(bare_trouble.settings) as agent:
        gone = await destroyed(agent, bare_trouble)
        assert (await agent.call("list_deployments")).data["deployments"] == []
        stays = " ".join(one["what"] for one in gone.data["stays"])
        for kind, word in (("/shares/", "share weights"), ("/managedenvironments/", "environment")):
            assert (word in stays) == bool(named(bare_trouble, kind)), gone


@pytest.mark.parametrize("where", ["one machine", "two machines"])
async def test_two_that_deploy_at_once_make_one_deployment(
    trouble: Azure, tmp_path: Path, where: str
) -> None:
    """Both are told of it, or one that the other was first; there is one app with one key."""
    settings = trouble.settings
    if where == "two machines":
        settings = settings.model_copy(update={"vllm_devops_state_dir": tmp_path / "other"})
    async with agent_of(trouble.settings) as one, agent_of(settings) as other:
        await both_deploy(one, other, WISH)
        assert (await settled(other)).state == "ready"
        assert not (await other.call("query_vllm", **ONE, prompt="Hello", max_tokens=2)).failed
        assert len(orphans(trouble)) == 3, "An app, its replica and its key."
        await destroyed(one, trouble)


async def test_a_new_server_goes_on_where_the_environment_is_still_being_made(
    slow_environment: Azure,
) -> None:
    """What it waits for is known to every server of the machine; looking is enough."""
    async with agent_of(slow_environment.settings) as agent:
        first = await deploys(agent)
        assert first.state == "creating"
        assert first.data["phase"]["name"] == "creating the environment"
        assert first.data["usd_per_hour"] > 0
    assert orphans(slow_environment) == []
    async with agent_of(slow_environment.settings) as agent:
        listed = (await agent.call("list_deployments")).data["deployments"]
        assert [(one["name"], one["phase"]["name"]) for one in listed] == [
            ("one", "creating the environment")
        ]
        logs = await asked(agent, "get_logs")
        assert "no container yet" in logs.text
        for tool in ("get_endpoint", "stop_vllm", "get_vllm_deployment_config"):
            await refused(agent, tool, "NOT_READY")
        slow_environment.set(environment_seconds=0)
        await becomes(agent, "ready")
        assert slow_environment.get()["calls"].count(ENVIRONMENT) == 1
        await destroyed(agent, slow_environment)


async def test_a_second_deploy_goes_on_where_the_environment_is_still_being_made(
    slow_environment: Azure,
) -> None:
    """It is no second deployment: since when stays as it was."""
    async with agent_of(slow_environment.settings) as agent:
        first = await deploys(agent)
    async with agent_of(slow_environment.settings) as agent:
        again = await deploys(agent)
        assert (again.state, again.data["since"]) == ("creating", first.data["since"])
        slow_environment.set(environment_seconds=0)
        await becomes(agent, "ready")
        assert slow_environment.get()["calls"].count(ENVIRONMENT) == 1
        await destroyed(agent, slow_environment)


async def test_what_is_removed_while_its_environment_is_being_made_never_begins(
    slow_environment: Azure,
) -> None:
    """The environment goes on by itself, is named, and no app comes to be in it."""
    async with agent_of(slow_environment.settings) as agent:
        assert (await deploys(agent)).state == "creating"
        gone = await destroyed(agent, slow_environment)
        assert any("the environment" in one["what"] for one in gone.data["stays"]), gone
        slow_environment.set(environment_seconds=0)
        await _quiet(slow_environment)
        await refused(agent, "status_vllm", "DEPLOYMENT_NOT_FOUND")
        assert (await agent.call("list_deployments")).data["deployments"] == []
    assert orphans(slow_environment) == []
    assert PUT not in slow_environment.get()["calls"]


async def test_what_bills_behind_a_login_that_has_expired_is_named(trouble: Azure) -> None:
    """A server that sees nothing of it knows that it was deployed from here."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
    trouble.set(login="expired")
    async with agent_of(trouble.settings) as agent:
        for tool in ("list_deployments", "status_vllm", "get_system_status"):
            unseen = await agent.call(tool)
            assert "perhaps billed all the same: one on aca-a100" in unseen.structured["summary"]
        trouble.set(login="ok")
        await destroyed(agent, trouble)


async def _die_deploying(azure: Azure, method: str, when: str) -> None:
    """Let a server end while it waits for the answer of a call."""
    azure.set(faults=[{"method": method, "when": when}])

    async def deploy() -> None:
        async with agent_of(azure.settings) as agent:
            await agent.call("deploy_vllm", **WISH, weights="hub:share")
            while True:
                await agent.call("status_vllm", **ONE, wait_s=1)

    async def met() -> bool:
        return not azure.get()["knobs"]["faults"][0]["times"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deploy)
        await soon(met, waiting_for=method)
        tasks.cancel_scope.cancel()


async def _quiet(azure: Azure) -> None:
    """Wait until Azure is at nothing."""

    async def at_work() -> list[str]:
        known = azure.get()["operations"]
        return [one["work"] for one in known if one["status"] == "InProgress"]

    await soon(at_work, lambda works: not works, waiting_for="Azure's work")
