"""An image that Docker Hub does not give to anybody, and one's own account there."""

from typing import Any, Final

import pytest
from pydantic import SecretStr

from tests.backends.aca.planned import PATCHED, sent, site, small
from tests.conversation import agent_of
from tests.stories.conftest import Azure
from tests.stories.troubles import asked, becomes, deploys, destroyed, trouble

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio

_PASSWORD: Final = "dckr_pat_0123456789abcdef"
_ACCOUNT: Final[dict[str, Any]] = {
    "registry_username": "me",
    "registry_password": SecretStr(_PASSWORD),
}


async def test_docker_hubs_limit_is_no_wrong_image(trouble: Azure) -> None:
    """Azure shows a pull that failed, and no 429; the image is there all the same."""
    trouble.set(docker_hub_limited=True)
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        failed = await becomes(agent, "failed")
        why = failed.data["failure"]
        assert why["code"] == "IMAGE_NOT_PULLED", failed
        for words in ("deploy_vllm again", "az acr import", "AcrPull", "REGISTRY_USERNAME"):
            assert words in why["fix"]
        read = await asked(agent, "diagnose")
        assert "IMAGE_NOT_PULLED" in read.text
        assert "Correct `image`" not in read.text
        await destroyed(agent, trouble)


async def test_an_account_of_ones_own_pulls_and_is_shown_nowhere(trouble: Azure) -> None:
    """Its password lies in the vault alone; the app refers to it."""
    trouble.set(docker_hub_limited=True)
    own = trouble._replace(settings=trouble.settings.model_copy(update=_ACCOUNT))
    async with agent_of(own.settings) as agent:
        plan = await agent.call("plan_deployment", target="aca-a100", model="e2b", check=True)
        made = await deploys(agent)
        ready = await becomes(agent, "ready")
        config = await asked(agent, "get_vllm_deployment_config")
        assert "passwordSecretRef: registry-password" in str(config.data["config"])
        for reply in (plan, made, ready, config):
            assert _PASSWORD not in f"{reply.structured} {reply.text}"
        (vault,) = own.get()["secrets"].values()
        assert "registry-password" in vault
        assert _PASSWORD not in str(own.get())
        await destroyed(agent, own)


def test_the_account_goes_to_its_own_registry_alone() -> None:
    """An image from elsewhere would carry the password there."""
    mine = site(**_ACCOUNT)
    (sent_to,) = sent(mine, **small())["properties"]["configuration"]["registries"]
    assert sent_to == {
        "server": "docker.io",
        "username": "me",
        "passwordSecretRef": "registry-password",
    }
    for image, others in ((PATCHED, []), ("mine.azurecr.io/vllm:1", ["mine.azurecr.io"])):
        there = sent(mine, **small(image=image))["properties"]["configuration"]["registries"]
        assert [one["server"] for one in there] == [*others, "docker.io"]
        assert [one["server"] for one in there if "passwordSecretRef" in one] == ["docker.io"]
    other = site(**_ACCOUNT, registry_server="ghcr.io")
    (sent_to,) = sent(other, **small(image=PATCHED))["properties"]["configuration"]["registries"]
    assert sent_to["server"] == "ghcr.io"
    assert "registries" not in sent(other, **small())["properties"]["configuration"]
