"""Tools around models and tokens on a simulated Azure, and the old names of its machines."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from core.settings import AzurePlane, Settings
from operations.runtime import Stage
from tests.azure_plane import Controls
from tests.backends.aca.sites import opened, store
from tests.backends.shelf import TWO, below, model
from tests.conversation import Agent, agent_of
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

TARGET: Final = "aca-a100"
TOKEN: Final = "hf_" + "t" * 34


@pytest.fixture
def controls(azure: AzurePlane, monkeypatch: pytest.MonkeyPatch) -> Controls:
    """Of the one Azure that every test of this module goes to, each with its own subscription."""

    async def plane(_self: Stage) -> AzurePlane:
        return azure

    monkeypatch.setattr(Stage, "azure", plane)
    return Controls(azure)


@pytest.fixture
def subscription(controls: Controls) -> Iterator[str]:
    """One that was set up."""
    fresh = str(uuid.uuid4())
    controls.set(fresh, prepared=True)
    yield fresh
    controls.drop(fresh)


@pytest.fixture
async def agent(subscription: str, tmp_path: Path) -> AsyncIterator[Agent]:
    settings = Settings(
        rehearsal=True,
        azure_subscription_id=subscription,
        vllm_devops_state_dir=tmp_path / "state",
        toolsets=("all",),
        confirm="never",
    )
    async with agent_of(settings) as agent:
        yield agent


async def test_models_of_the_share_are_listed(
    agent: Agent, azure: AzurePlane, subscription: str
) -> None:
    """Which can be served, how, and what the others lack."""
    whole = model("google/gemma-4-E2B-it")
    half = {name: content for name, content in whole.items() if name != TWO}
    async with opened(azure, subscription) as site:
        await store(site, {**below("whole", whole), **below("half", half)})
    reply = await agent.call("list_bucket_models", target=TARGET)
    assert not reply.failed, reply
    assert_same_facts(reply)
    found = {row["location"]: row["complete"] for row in reply.data["models"]}
    assert found == {"files://weights/whole": True, "files://weights/half": False}
    (step,) = reply.structured["next"]
    assert step["arguments"] == {
        "target": TARGET,
        "model": "google/gemma-4-E2B-it",
        "weights": "files://weights/whole",
    }


async def test_a_share_that_is_not_there_is_an_error(agent: Agent) -> None:
    reply = await agent.call("list_bucket_models", bucket="files://nothing", target=TARGET)
    assert reply.code == "CLOUD_REFUSED", reply
    assert [step["tool"] for step in reply.structured["next"]] == ["setup_target"]
    assert_envelope(reply)


async def test_a_token_is_kept_in_the_vault_and_never_told(
    agent: Agent, controls: Controls, subscription: str, tmp_path: Path
) -> None:
    """Neither in the answer, nor in a file of the server, nor in what the cloud tells of itself."""
    reply = await agent.call("save_hf_token", token=TOKEN, target=TARGET)
    assert not reply.failed, reply
    assert_same_facts(reply)
    assert reply.data["secret"] == "hf-token"
    assert reply.data["readable_by"]
    again = await agent.call("save_hf_token", token=TOKEN, target="aca-t4")
    assert again.data["version"] == reply.data["version"]
    assert TOKEN not in reply.text + str(reply.structured) + str(controls.get(subscription))
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]


async def test_without_a_deployment_there_is_no_machine(agent: Agent) -> None:
    """Nothing is invented: the targets that were looked at are named."""
    reply = await agent.call("status_azure_vm")
    assert reply.code == "DEPLOYMENT_NOT_FOUND"
    assert "aca-a100 or aca-t4" in reply.structured["summary"]
    assert_envelope(reply)
