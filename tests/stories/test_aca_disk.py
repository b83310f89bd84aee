"""Where the Hub's files lie on Container Apps: the container's own disk, or a file share."""

from typing import Any, Final

import pytest

from tests.conversation import Agent, agent_of
from tests.stories.conftest import Azure
from tests.stories.troubles import WISH, asked, becomes, deploys, destroyed, named, seen, trouble

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio

_SHARED: Final = {**WISH, "weights": "hub:share"}


async def _volumes(agent: Agent) -> bool:
    """Whether what runs has a file share mounted."""
    config = await asked(agent, "get_vllm_deployment_config")
    return "AzureFile" in str(config.data["config"])


async def test_what_was_seen_to_fit_needs_no_share(bare_azure: Azure) -> None:
    """9.54 GiB lie on the container's disk: nothing is made or billed for them."""
    async with agent_of(bare_azure.settings) as agent:
        plan = await agent.call("plan_deployment", **{k: WISH[k] for k in ("target", "model")})
        assert plan.data["foreseen"]["weights_from"] == "hub"
        told = " ".join(plan.structured["warnings"])
        assert "weights=hub:share" in told
        await deploys(agent)
        await becomes(agent, "ready")
        assert not await _volumes(agent)
        assert not [one for one in bare_azure.get()["resources"] if "microsoft.storage" in one]
        await destroyed(agent, bare_azure)


@pytest.mark.parametrize(
    ("said", "source", "shared"),
    [
        ({"model": "31b"}, "azure-files", True),
        ({"model": "31b", "weights": "hub:disk"}, "hub", False),
        ({"model": "12b qat"}, "hub", False),
        ({"model": "12b qat", "weights": "hub:share"}, "azure-files", True),
    ],
)
async def test_the_plan_says_where_the_files_would_lie(
    bare_azure: Azure, said: dict[str, Any], source: str, *, shared: bool
) -> None:
    """Above what was seen the limit is not known: the share is the default, the disk a choice."""
    async with agent_of(bare_azure.settings) as agent:
        plan = await agent.call("plan_deployment", target="aca-a100", **said)
    assert plan.data["foreseen"]["weights_from"] == source
    told = " ".join(plan.structured["warnings"])
    assert ("to the share weights" in told) == shared
    if said["model"] == "31b":
        assert "not known" in told
        assert ("weights=hub:disk" if shared else "weights=hub:share") in told


async def test_a_full_disk_names_the_share_which_then_serves(trouble: Azure) -> None:
    """Its next step can be called as it stands."""
    trouble.set(disk_gib=8)
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        full = await seen(agent, lambda told: "DISK_FULL" in str(told.data.get("failure")))
        assert "weights=hub:share" in full.data["failure"]["fix"]
        read = await asked(agent, "diagnose")
        assert "weights=hub:share" in read.text
        await deploys(agent, weights="hub:share")
        await becomes(agent, "ready")
        assert await _volumes(agent)
        await destroyed(agent, trouble)


async def test_a_deployment_on_a_share_goes_on_when_it_is_changed(trouble: Azure) -> None:
    """Scaled, told as it runs, and deployed again with other flags."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, **_SHARED)
        await becomes(agent, "ready")
        await asked(agent, "update_vllm_scaling", min_replicas=1, max_replicas=2)
        await becomes(agent, "ready")
        assert await _volumes(agent)
        await deploys(agent, **{**_SHARED, "max_model_len": 2048})
        await becomes(agent, "ready")
        assert await _volumes(agent)
        await deploys(agent, **{**WISH, "max_model_len": 2048, "weights": "hub:disk"})
        await becomes(agent, "ready")
        assert not await _volumes(agent)
        await destroyed(agent, trouble)
    assert named(trouble, "storageAccounts")


@pytest.mark.parametrize("target", ["cloud-run-l4", "tpu-v6e-1", "local"])
async def test_other_targets_have_no_such_choice(bare_azure: Azure, target: str) -> None:
    async with agent_of(bare_azure.settings) as agent:
        plan = await agent.call(
            "plan_deployment", target=target, model=WISH["model"], weights="hub:share"
        )
    assert "weights=hub:share is for Container Apps alone" in plan.text
