"""What Cloud TPU may say otherwise than was read: the work goes well in either case."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from planner.places import places
from tests.conversation import Agent, agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL

pytestmark = pytest.mark.anyio

HERE = "us-east5-b"


@pytest.fixture
async def agent(cloud: Cloud) -> AsyncIterator[Agent]:
    async with agent_of(cloud.settings) as agent:
        yield agent


async def _ready(agent: Agent, target: str, **chosen: Any) -> dict[str, Any]:
    """Deploy under the target's name, watch it until its state stays, and see that it is ready."""
    deployed = await agent.call(
        "deploy_vllm", target=target, name=target, model=MODEL, max_model_len=4096, **chosen
    )
    assert not deployed.failed, deployed
    ready = await agent.settled(target, target=target)
    assert ready.state == "ready", ready
    return ready.data


async def test_spot_is_asked_of_the_queue_by_the_name_of_its_provisioning_model(
    agent: Agent, cloud: Cloud
) -> None:
    """Some were refused, gcloud's --spot as well, until they named it."""
    cloud.set(tpu_clock=6000)
    target = "tpu-v6e-1-spot"
    ready = await _ready(agent, target, control_plane="queued", zones=[HERE])
    assert ready["resources"]["provisioning"] == "spot"
    listed = await agent.call("list_queued_resources", target=target)
    assert [row["provisioning"] for row in listed.data["resources"]] == ["spot"]
    printed = await agent.call("get_vllm_deployment_config", target=target, name=target)
    assert "provisioningModel: SPOT" in printed.text
    assert "https://tpu.googleapis.com/v2alpha1/" in printed.text


async def test_a_queue_that_takes_spot_in_no_way_leads_to_compute_engine(
    agent: Agent, cloud: Cloud
) -> None:
    """The same request again would be refused again."""
    words = "STANDARD provisioning model is incompatible with spot requests"
    create = {"method": "google.cloud.tpu.*.Tpu/CreateQueuedResource", "times": -1}
    cloud.set(tpu_clock=6000, faults=[{**create, "status": "INVALID_ARGUMENT", "message": words}])
    chosen: dict[str, Any] = {"control_plane": "queued", "zones": [HERE]}
    target = "tpu-v6e-1-spot"
    await agent.call("deploy_vllm", target=target, name="one", model=MODEL, **chosen)
    failed = await agent.settled("one", target=target)
    assert failed.state == "failed"
    assert words in failed.data["failure"]["cause"]
    assert "control_plane=compute" in failed.data["failure"]["fix"]


UPSTREAM: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "passes": ("tpu-v6e-1", MODEL, {}, ""),
    "fails as PyTorch": ("tpu-v6e-1", MODEL, {"env": ["MODEL_IMPL_TYPE=vllm"]}, "never passed"),
    "31B passes": ("tpu-v6e-8", "google/gemma-4-31B-it", {}, ""),
    "26B is left out": ("tpu-v6e-4", "google/gemma-4-26B-A4B-it", {}, "left out on v6e"),
    "another image": ("tpu-v6e-1", MODEL, {"image": "vllm/vllm-tpu:v0.29.0"}, ""),
}


@pytest.mark.parametrize("case", UPSTREAM)
async def test_what_upstream_does_not_vouch_for_is_said_before_it_is_paid(
    agent: Agent, case: str
) -> None:
    """By release and implementation, with its source; nothing is said of what passes."""
    target, model, chosen, words = UPSTREAM[case]
    planned = await agent.brief("plan_deployment", model=model, target=target, **chosen)
    advised = await agent.call("recommend_deployment", model=model, targets=[target])
    deployed = await agent.brief(
        "deploy_vllm", model=model, target=target, name="one", zones=[HERE], **chosen
    )
    said = [planned.text, deployed.text] + ([] if chosen else [advised.text])
    assert [("do not vouch" in text, words in text) for text in said] == [
        (bool(words), True) for _ in said
    ], said


SOUTH: Final = "southamerica-west1-a"
EMPTY: Final = {zone: {"free": 0} for zone in places()["tpu-v6e-1"].regions}


async def test_an_empty_search_names_the_tool_that_lists_other_zones(
    agent: Agent, cloud: Cloud
) -> None:
    """Google's API lists more zones than its documentation: they are listed, and asked if given."""
    cloud.set(tpu_zones={**EMPTY, SOUTH: {}, "us-south1-a": {"accelerators": []}}, tpu_clock=6000)
    chosen: dict[str, Any] = {"control_plane": "compute", "max_model_len": 4096}
    target = "tpu-v6e-1"
    await agent.call("deploy_vllm", target=target, name="one", model=MODEL, **chosen)
    failed = await agent.settled("one", target=target)
    assert (failed.state, failed.data["failure"]["code"]) == ("failed", "NO_CAPACITY"), failed
    assert "get_logs" not in {step["tool"] for step in failed.structured["next"]}
    assert "get_zones_with_available_quota" in failed.data["failure"]["fix"]
    assert "us-south1-a" not in failed.text
    again = await agent.call(
        "deploy_vllm", target=target, name="one", model=MODEL, zones=[SOUTH], **chosen
    )
    assert not again.failed, again
    ready = await agent.settled("one", target=target)
    assert (ready.state, ready.data["resources"]["zone"]) == ("ready", SOUTH), ready


async def test_an_empty_search_ends_where_zones_cannot_be_listed(
    agent: Agent, cloud: Cloud
) -> None:
    """It is a help alone: without the permission it is left out."""
    cloud.set(tpu_zones=EMPTY, tpu_clock=6000, denied_permissions=["compute.machineTypes.list"])
    await agent.call(
        "deploy_vllm", target="tpu-v6e-1", name="one", model=MODEL, control_plane="compute"
    )
    failed = await agent.settled("one", target="tpu-v6e-1")
    assert (failed.state, failed.data["failure"]["code"]) == ("failed", "NO_CAPACITY"), failed
    assert "get_zones_with_available_quota" in failed.data["failure"]["fix"]


async def test_zones_that_nobody_has_reported_are_named_where_no_other_can_be_used(
    agent: Agent, cloud: Cloud
) -> None:
    """They have the hardware, and whether they give it shows only when they are asked."""
    none: dict[str, Any] = {zone: {"accelerators": []} for zone in EMPTY}
    cloud.set(tpu_zones={**none, SOUTH: {}})
    seen = await agent.brief("get_zones_with_available_quota", target="tpu-v6e-1")
    assert f"deploy_vllm with zones=['{SOUTH}']" in seen.structured["summary"], seen


async def test_a_price_is_that_of_the_region_or_both_that_are_known(
    agent: Agent, cloud: Cloud
) -> None:
    """Before it is paid, and while it runs."""
    cloud.set(tpu_clock=6000)
    target, europe = "tpu-v6e-1-spot", "europe-west4-a"
    planned = await agent.brief("plan_deployment", model=MODEL, target=target)
    assert "$1.43 to $1.80 an hour" in planned.structured["summary"], planned
    wish: dict[str, Any] = {"target": target, "name": "one", "model": MODEL}
    async with agent_of(cloud.settings.model_copy(update={"confirm": "token"})) as asks:
        for zones, words in (([], "($1.43 to $1.80 an hour"), ([europe], "($1.80 an hour")):
            said = await asks.brief("deploy_vllm", **wish, zones=zones)
            assert words in said.text, said
    ready = await _ready(agent, target, control_plane="compute", zones=[europe])
    assert ready["usd_per_hour"] == 1.803


async def test_a_boot_disk_is_as_large_as_it_is_asked_for(agent: Agent, cloud: Cloud) -> None:
    """Of either control plane that can make one so; the other is left out, or refused alone."""
    cloud.set(tpu_clock=6000)
    small = await agent.brief("plan_deployment", model=MODEL, target="tpu-v6e-1", boot_disk_gb=30)
    assert "boot_disk_gb=30 is less than the" in small.text
    refused = await agent.call(
        "deploy_vllm",
        model=MODEL,
        target="tpu-v6e-1-spot",
        control_plane="queued",
        boot_disk_gb=333,
    )
    assert refused.failed
    assert "control_plane=compute" in refused.text
    chosen: dict[str, Any] = {"zones": [HERE], "boot_disk_gb": 333}
    for target, more, words in (
        ("tpu-v6e-1", {}, "diskSizeGb: '333'"),
        ("tpu-v6e-1-flex", {"control_plane": "queued"}, "diskSizeGb: '333'"),
    ):
        await _ready(agent, target, **chosen, **more)
        printed = await agent.call("get_vllm_deployment_config", target=target, name=target)
        assert words in printed.text, printed
