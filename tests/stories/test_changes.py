"""A deployment on each cloud changed by naming it; what will be refused is asked of nobody."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from pydantic import SecretStr

from tests.conversation import agent_of
from tests.stories.conftest import Azure, Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

HERE: Final = "us-east5-b"
FIRST: Final[dict[str, dict[str, Any]]] = {
    "cloud-run-l4": {"max_model_len": 4096, "ttl_minutes": 60},
    "aca-a100": {"max_model_len": 4096, "ttl_minutes": 60},
    "tpu-v6e-1": {"max_model_len": 4096, "ttl_minutes": 60, "zones": [HERE]},
}
NOT_THERE: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "cloud-run-l4": ({"port": 8000}, {"access": "internal"}, {"control_plane": "queued"}),
    "aca-a100": ({"port": 8000}, {"network": "a/b"}, {"max_replicas": 5000}, {"zones": [HERE]}),
    "tpu-v6e-1": ({"port": 8001}, {"max_replicas": 2}, {"engine": "ollama"}),
}
"""What a target does not have."""
TOO_MANY: Final = {
    "cloud-run-l4": ((2, 1), "INVALID_ARGUMENT"),
    "aca-a100": ((0, 5000), "INVALID_ARGUMENT"),
    "tpu-v6e-1": ((0, 2), "UNSUPPORTED"),
}
OTHERS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "cloud-run-l4": (),
    "aca-a100": ({"target": "aca-t4", "image": "docker.io/you/vllm-sm75:v0.32.0"},),
    "tpu-v6e-1": ({"target": "tpu-v6e-1-spot"},),
}
"""Targets on which the same name is the same resource; those of Cloud Run differ by region."""


@pytest.fixture(params=FIRST)
async def life(request: pytest.FixtureRequest) -> AsyncIterator[Life]:
    """One deployment that is ready, on each cloud, before a human who agrees to everything."""
    azure = request.param.startswith("aca")
    cloud: Azure | Cloud = request.getfixturevalue("ready_azure" if azure else "cloud")
    if not azure:
        cloud.set(tpu_clock=600)
    settings = cloud.settings.model_copy(update={"confirm": "ask"})
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        life = Life(agent, request.param, at="https://127.77." if "tpu" in request.param else "")
        await life.call("deploy_vllm", model=MODEL, **FIRST[life.target])
        await life.becomes("ready")
        agent.asked.clear()
        yield life


async def test_a_deployment_is_changed_by_what_is_given_alone(life: Life) -> None:
    """The question has the price, the difference and what stays; no difference, no question."""
    agent = life.agent
    before = await life.call("status_vllm")
    same = await life.call("deploy_vllm")
    assert (same.data["revision"], agent.asked) == (before.data["revision"], [])
    changed = await life.call("deploy_vllm", access="public")
    assert changed.data["revision"] != before.data["revision"]
    (question,) = agent.asked
    price, changes, keeps = question.splitlines()
    assert price.startswith(f"Change one on {life.target} ($")
    assert price.endswith(
        "a chip is looked for anew, which may not be had?"
        if life.target.startswith("tpu")
        else "its engine starts anew?"
    )
    assert changes == "Changes: access: private -> public."
    assert "max_model_len 4096" in keeps
    assert "ttl_minutes 60" in keeps
    ready = await life.becomes("ready")
    assert ready.data["expires_at"]
    assert (await life.call("get_model_details")).data["max_model_len"] == 4096


async def test_what_will_be_refused_is_asked_of_nobody(life: Life) -> None:
    """Nobody agrees to the price of what this target cannot do, and nothing is changed."""
    agent, here = life.agent, {"target": life.target, "name": life.name}
    before = await life.call("status_vllm")
    for flags in NOT_THERE[life.target]:
        assert (await agent.call("deploy_vllm", **here, **flags)).code == "INVALID_ARGUMENT", flags
    (least, most), code = TOO_MANY[life.target]
    wanted = {"min_replicas": least, "max_replicas": most}
    refused = await agent.call("update_vllm_scaling", **here, **wanted)
    assert refused.code == code, refused
    for other in OTHERS[life.target]:
        taken = await agent.call("deploy_vllm", name=life.name, model=MODEL, **other)
        assert taken.code == "NOT_OURS", taken
    started = await agent.call("start_vllm", **here)
    assert started.code in {"", "UNSUPPORTED"}, started
    assert agent.asked == []
    after = await life.call("status_vllm")
    assert (after.state, after.data["revision"]) == ("ready", before.data["revision"])


async def test_an_expired_chip_is_deployed_again_not_started(cloud: Cloud) -> None:
    """Starting it is refused before its price is asked; the next step does it as it stands."""
    cloud.set(tpu_clock=600)
    settings = cloud.settings.model_copy(update={"confirm": "ask"})
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        life = Life(agent, "tpu-v6e-1", at="https://127.77.")
        await life.call("deploy_vllm", model=MODEL, **FIRST[life.target], control_plane="queued")
        await life.becomes("ready")
        cloud.controls.preempt(cloud.project, "queued", HERE, "vllm-devops-one")
        await life.becomes("failed")
        agent.asked.clear()
        refused = await agent.call("start_vllm", target=life.target, name=life.name)
        assert (refused.code, agent.asked) == ("FAILED", []), refused
        question = await agent.call("query_gemma4", prompt="Hello")
        assert (question.code, question.structured["retryable"]) == ("FAILED", False)
        await life.call("deploy_vllm")
        assert (await life.becomes("ready")).data["expires_at"]
        assert (await life.call("get_model_details")).data["max_model_len"] == 4096


PREPARED: Final = {
    "cloud-run-l4": ("$0.06 a month", "the secret hf-token with your HF_TOKEN"),
    "aca-a100": ("$25.00 a month", "the share weights"),
    "tpu-v6e-1": ("$0.06 a month", "the secret hf-token with your HF_TOKEN"),
}


@pytest.mark.parametrize("target", PREPARED)
async def test_what_a_set_up_makes_is_listed_below_its_monthly_price(
    target: str, request: pytest.FixtureRequest
) -> None:
    """The first line has the price and what bills; each thing has a line of its own."""
    cloud = request.getfixturevalue("bare_azure" if target.startswith("aca") else "bare_cloud")
    told = {"confirm": "ask", "hf_token": SecretStr(f"hf_{'a' * 34}")}
    settings = cloud.settings.model_copy(update=told)
    async with agent_of(settings, human=lambda _question: "decline") as agent:
        assert (await agent.call("setup_target", target=target)).code == "CANCELLED"
    (question,) = agent.asked
    first, *lines = question.splitlines()
    total, dear = PREPARED[target]
    assert total in first
    assert dear in first
    assert lines
    assert all(line.startswith("- ") for line in lines), question
    assert max(map(len, lines)) < 200, question


async def test_what_is_still_being_made_is_scaled_by_nobody(bare_azure: Azure) -> None:
    """Its environment takes minutes: more replicas are refused before their price is asked."""
    bare_azure.set(environment_seconds=300)
    settings = bare_azure.settings.model_copy(update={"confirm": "ask"})
    here = {"target": "aca-a100", "name": "one"}
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        deployed = await agent.call("deploy_vllm", **here, model=MODEL, max_model_len=4096)
        assert deployed.state == "creating", deployed
        agent.asked.clear()
        scaled = await agent.call("update_vllm_scaling", **here, min_replicas=0, max_replicas=2)
        started = await agent.call("start_vllm", **here)
    assert (scaled.code, started.code, agent.asked) == ("NOT_READY", "NOT_READY", [])
