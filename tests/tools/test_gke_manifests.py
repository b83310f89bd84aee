"""Manifests for Kubernetes, as a tool gives them."""

import pytest
import yaml

from tests.conversation import Agent

pytestmark = pytest.mark.anyio


async def test_a_manifest_comes_out_as_it_was_written(agent: Agent) -> None:
    """Redaction and bounds leave it alone."""
    reply = await agent.call("get_vllm_gpu_deployment_config", model="26b qat", name="one")
    written = yaml.safe_load_all(reply.data["manifest"])
    assert [each["kind"] for each in written] == ["Deployment", "Service"]


async def test_what_does_not_fit_leads_to_what_does(agent: Agent) -> None:
    """The next step of the refusal is a call that succeeds."""
    refused = await agent.call("get_vllm_gpu_deployment_config", model="31b qat")
    assert refused.code == "DOES_NOT_FIT"
    step = refused.structured["next"][0]
    assert not (await agent.call(step["tool"], **step["arguments"])).failed
