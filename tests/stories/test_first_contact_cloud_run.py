"""What a real Cloud Run says to somebody who meets it for the first time."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.cloud_run import status
from tests.conversation import Agent, Reply, agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

L4, RTX = TARGETS = ("cloud-run-l4", "cloud-run-rtx-pro-6000")


@pytest.fixture
async def agent(cloud: Cloud) -> AsyncIterator[Agent]:
    """An agent before a project that is set up and has never used a GPU."""
    cloud.set(quotas={})
    async with agent_of(cloud.settings) as agent:
        yield agent


async def checked(agent: Agent, target: str, **said: object) -> Reply:
    plan = await agent.call(
        "plan_deployment", model=MODEL, target=target, check=True, max_model_len=4096, **said
    )
    assert not plan.failed, plan
    return plan


def outcome(plan: Reply, words: str) -> tuple[str, str]:
    (row,) = [one for one in plan.data["checks"] if words in one["what"]]
    return row["outcome"], row["detail"]


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("unused", ["absent", "no-row", "zero"])
async def test_a_project_without_a_quota_is_told_what_its_first_deployment_is_granted(
    agent: Agent, cloud: Cloud, unused: str, *, validates: bool
) -> None:
    """Whatever Google says of a quota that does not exist yet, that is no refusal."""
    cloud.set(unused_quota=unused, validates_first_grant=validates)
    plan = await checked(agent, L4)
    assert not [row for row in plan.data["checks"] if row["outcome"] == "fail"], plan
    judged, why = outcome(plan, "The quota allows")
    assert judged == "unknown"
    assert "first deployment" in why
    assert "3" in why
    told = await agent.brief("check_gpu_quotas", target=L4)
    assert "first deployment" in told.structured["summary"]
    assert "ask for" not in told.text


@pytest.mark.parametrize("target", TARGETS)
async def test_the_first_deployment_of_a_project_is_granted_its_gpus(
    agent: Agent, target: str
) -> None:
    life = Life(agent, target)
    await life.begins(max_model_len=4096)
    told = await agent.brief("check_gpu_quotas", target=target)
    assert "2 replicas more may run" in told.structured["summary"]
    await life.ends()


async def test_a_gpu_that_is_not_granted_after_all_is_told_with_the_way_to_ask(
    agent: Agent, cloud: Cloud
) -> None:
    """check_gpu_quotas knows no more than before, so it is not what is advised."""
    words = "You do not have quota for using GPUs without zonal redundancy."
    refusal = {"method": "*CreateService", "status": "INVALID_ARGUMENT", "message": words}
    cloud.set(faults=[{**refusal, "times": -1}])
    refused = await agent.call("deploy_vllm", model=MODEL, target=L4, name="one")
    assert refused.code == "QUOTA_EXCEEDED"
    assert "g.co/cloudrun/gpu-quota" in refused.structured["fix"]
    assert "check_gpu_quotas" not in refused.structured["fix"]


async def test_a_quota_of_0_that_was_asked_for_is_a_refusal(agent: Agent, cloud: Cloud) -> None:
    """Google has decided on it: no first deployment changes that."""
    cloud.set(quotas={"l4": 0})
    assert outcome(await checked(agent, L4), "The quota allows")[0] == "fail"
    told = await agent.brief("check_gpu_quotas", target=L4)
    assert "no replicas more may run" in told.structured["summary"]
    async with agent_of(cloud.settings.model_copy(update={"confirm": "token"})) as asks:
        refused = await asks.brief("deploy_vllm", model=MODEL, target=L4)
    assert (refused.code, cloud.is_empty()) == ("QUOTA_EXCEEDED", True), refused


@pytest.mark.parametrize(("grant_seconds", "state"), [(1.0, "ready"), (999.0, "failed")])
async def test_a_key_that_cannot_be_read_yet_is_tried_again_by_itself(
    agent: Agent,
    cloud: Cloud,
    monkeypatch: pytest.MonkeyPatch,
    grant_seconds: float,
    state: str,
) -> None:
    """Google checks the key when it makes a revision, and a grant takes minutes: twice more."""
    monkeypatch.setattr(status, "_TRY_AGAIN_SECONDS", (0.0, 1.1))
    cloud.set(grant_seconds=grant_seconds)
    life = Life(agent, L4)
    deployed = await life.call("deploy_vllm", model=MODEL, max_model_len=4096)
    assert deployed.state in {"creating", "loading"}, deployed
    seen = await life.becomes(state)
    assert len(cloud.set()["revisions"]) <= 3
    if state == "failed":
        assert seen.data["failure"]["code"] == "SECRET_NOT_READABLE"
        assert len(cloud.set()["revisions"]) == 3


async def test_a_server_that_may_change_nothing_tries_nothing_again(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.set(grant_seconds=999)
    async with agent_of(cloud.settings) as agent:
        await Life(agent, L4).call("deploy_vllm", model=MODEL, max_model_len=4096)
    made = len(cloud.set()["revisions"])
    monkeypatch.setattr(status, "_TRY_AGAIN_SECONDS", (0.0, 0.0))
    looking = cloud.settings.model_copy(update={"read_only": True})
    async with agent_of(looking) as reader:
        told = await Life(reader, L4).call("status_vllm", wait_s=2)
    assert told.data["phase"]["name"] == "waiting for a grant to spread"
    assert len(cloud.set()["revisions"]) == made == 1


async def test_an_image_is_built_where_a_new_project_may_build(agent: Agent) -> None:
    """Its region has no quota for the larger machines: the default is taken."""
    life = Life(agent, L4)
    await life.begins("gemma3:4b", engine="ollama")
    written = await life.call("get_vllm_deployment_config")
    assert "builds submit --no-source" in str(written.data)
    assert "--region=us-east4 --config=cloudbuild.yaml" in str(written.data)
    await life.ends()


@pytest.mark.parametrize("refused", ["E2_HIGHCPU_32", "UNSPECIFIED"])
async def test_a_build_machine_that_is_refused_is_no_quota_of_gpus(
    agent: Agent, cloud: Cloud, refused: str
) -> None:
    cloud.set(refused_builders=[refused])
    machine = {"build_machine": refused.lower()} if refused != "UNSPECIFIED" else {}
    what = {"model": "gemma3:4b", "target": L4, "name": "one", "engine": "ollama"}
    told = await agent.call("deploy_vllm", **what, **machine)
    assert told.code == "BUILD_MACHINE_REFUSED"
    assert "build_machine" in told.structured["fix"]
    assert "check_gpu_quotas" not in told.text


@pytest.mark.parametrize(
    "said",
    [
        {"build_machine": "E2_HIGHCPU_8"},
        {"build_machine": "huge", "engine": "ollama", "model": "gemma3:4b"},
    ],
)
async def test_a_build_machine_that_would_mean_nothing_is_refused(
    agent: Agent, said: dict[str, str]
) -> None:
    told = await agent.call("deploy_vllm", **{"model": MODEL, "target": L4, "name": "one", **said})
    assert told.code == "INVALID_ARGUMENT"
    assert "build_machine" in told.structured["fix"]


@pytest.mark.parametrize("region", ["us-east4", "europe-north1"])
async def test_a_region_that_is_not_listed_is_google_s_to_refuse(cloud: Cloud, region: str) -> None:
    """Google adds regions more often than its page is read here."""
    settings = cloud.settings.model_copy(update={"google_cloud_location": region})
    async with agent_of(settings) as agent:
        plan = await checked(agent, RTX)
        assert outcome(plan, f"{region} has")[0] == "unknown"
        told = await agent.call("deploy_vllm", model=MODEL, target=RTX, name="one")
    assert told.code == "CLOUD_REFUSED"
    assert f"not supported in region {region}" in told.structured["cause"]


async def test_memory_and_processors_that_are_asked_for_are_planned_priced_and_given(
    agent: Agent,
) -> None:
    asked: dict[str, Any] = {"cpu": 8, "memory_gib": 24}
    usual, chosen = await checked(agent, L4), await checked(agent, L4, **asked)
    assert usual.data["foreseen"]["host"] == "8 vCPU, 32 GiB"
    assert chosen.data["foreseen"]["host"] == "8 vCPU, 24 GiB"
    assert chosen.data["foreseen"]["usd_per_hour"] < usual.data["foreseen"]["usd_per_hour"]
    life = Life(agent, L4)
    await life.begins(max_model_len=4096, **asked)
    written = await life.call("get_vllm_deployment_config")
    assert "memory: 24Gi" in str(written.data)
    ready = await life.call("status_vllm")
    assert ready.data["usd_per_hour"] == chosen.data["foreseen"]["usd_per_hour"]
    await life.ends()


async def test_a_plan_reckons_with_what_an_instance_can_fetch(agent: Agent) -> None:
    """600 Mbps without Direct VPC: 58 GiB take 14 minutes at best, and the plan says what helps."""
    plan = await agent.call("plan_deployment", model="google/gemma-4-31B-it", target=RTX)
    low = float(
        re.findall(r"\(([\d,]+)-", plan.data["foreseen"]["boot_seconds"])[0].replace(",", "")
    )
    assert low > 58 * 1024 / 71.6
    assert "network=NETWORK/SUBNETWORK" in plan.text


async def test_a_gpu_that_is_in_beta_is_deployed_in_beta(agent: Agent, cloud: Cloud) -> None:
    """Google says so when it refuses; the same is sent again as BETA, and told."""
    cloud.set(beta_gpus=["nvidia-rtx-pro-6000"])
    plan = await checked(agent, RTX)
    assert not [row for row in plan.data["checks"] if row["outcome"] == "fail"], plan
    life = Life(agent, RTX)
    deployed = await life.call("deploy_vllm", model=MODEL, max_model_len=4096)
    assert any("BETA" in warning for warning in deployed.structured["warnings"]), deployed
    await life.becomes("ready")
    written = await life.call("get_vllm_deployment_config")
    assert "launchStage: BETA" in str(written.data)
    changed = await life.call("deploy_vllm", model=MODEL, max_model_len=2048)
    assert any("BETA" in warning for warning in changed.structured["warnings"]), changed
    await life.ends()


async def test_a_launch_stage_that_is_asked_for_is_sent_and_not_changed(
    agent: Agent, cloud: Cloud
) -> None:
    cloud.set(beta_gpus=["nvidia-rtx-pro-6000"])
    what = {"model": MODEL, "target": RTX, "name": "one", "max_model_len": 4096}
    refused = await agent.call("deploy_vllm", **what, launch_stage="ga")
    assert refused.code == "CLOUD_REFUSED"
    assert "launch stage" in refused.structured["cause"]
    taken = await agent.call("deploy_vllm", **what, launch_stage="beta")
    assert not taken.failed, taken
    assert not any("BETA" in warning for warning in taken.structured["warnings"]), taken
    await Life(agent, RTX).ends()
