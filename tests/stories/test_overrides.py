"""A deployment made with constants of its owner's own."""

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.life]

OWN = "docker.io/you/vllm-openai:v0.32.0"


async def test_what_is_deployed_has_the_constants_that_its_owner_chose(cloud: Cloud) -> None:
    """The cloud is asked for them, the answer names them, and removing needs none of them."""
    folder = cloud.settings.vllm_devops_state_dir
    assert folder is not None
    folder.mkdir(parents=True)
    file = folder / "overrides.toml"
    file.write_text(f"[cloud_run.gpus.nvidia-l4]\nimage = {OWN!r}\n", encoding="utf-8")
    where = {"target": "cloud-run-l4", "name": "one"}
    async with agent_of(cloud.settings) as agent:
        refused = await agent.brief("deploy_vllm", **where, model=MODEL, max_model_len=4096)
        file.unlink()
        made = await agent.brief("deploy_vllm", **where, model=MODEL, max_model_len=4096)
        file.write_text("[cloud_run.limits]\ntimeout = 600\n", encoding="utf-8")
        removed = await agent.brief("destroy_vllm", **where)
    assert "no image you/vllm-openai:v0.32.0" in refused.structured["summary"]
    assert f"overrides.toml: cloud_run.gpus.nvidia-l4.image is {OWN}" in refused.text
    assert not made.failed, made
    assert "overrides.toml" not in made.text
    assert not removed.failed, removed
