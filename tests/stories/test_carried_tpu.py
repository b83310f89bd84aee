"""What vLLM compiles on chips is carried in a bucket: the next VM finds it, in whichever zone."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pytest

from tests.backends.cloud_run import sites
from tests.backends.cloud_run.shelf import store
from tests.conversation import agent_of
from tests.soon import soon
from tests.stories.chips import HERE, left
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

SPOT: Final = "tpu-v6e-1-spot"
THERE: Final = "europe-west4-a"
VM: Final = "vllm-devops-one"


async def said(life: Life) -> Sequence[str]:
    """Return what the program before the engine wrote, newest last."""
    found = await life.call("get_logs", lines=200, contains="compile-cache")
    return [line.partition("compile-cache: ")[2] for line in found.data["lines"]]


async def says(life: Life, word: str) -> None:
    """Wait until its newest line begins so."""

    def fits(lines: Sequence[str]) -> bool:
        return bool(lines) and lines[-1].startswith(word)

    await soon(partial(said, life), fits, waiting_for=word)


async def paths(cloud: Cloud, bucket: str) -> list[str]:
    """Return what is in a bucket, as its owner sees it."""
    async with sites.opened(cloud.controls.plane, cloud.project) as site:
        client = await site.clients.storage()
        return [one.name for one in client.list_blobs(bucket)]


@pytest.mark.parametrize("control_plane", ["queued", "compute"])
async def test_a_chip_that_is_taken_away_leaves_what_it_compiled_to_the_next_zone(
    cloud: Cloud, control_plane: str
) -> None:
    """A search that finds no chip leaves it too; a deletion takes it, and the right to it."""
    bucket, more = f"{cloud.project}-weights", {"control_plane": control_plane}
    async with sites.opened(cloud.controls.plane, cloud.project) as site:
        await store(site, bucket, {"gemma/config.json": b"{}"})
    async with agent_of(cloud.settings.model_copy(update={"bucket_name": bucket})) as agent:
        life = Life(agent, SPOT, at="https://127.77.")
        await life.call("deploy_vllm", model=MODEL, max_model_len=4096, zones=[HERE], **more)
        await life.becomes("ready")
        await says(life, "saved")
        cloud.controls.preempt(cloud.project, control_plane, HERE, VM)
        lost = await life.becomes("failed")
        assert lost.data["failure"]["code"] == "PREEMPTED", lost
        cloud.set(tpu_zones={HERE: {"free": 0}, THERE: {"free": 0}}, tpu_clock=600)
        await life.call("deploy_vllm", zones=[HERE, THERE], zone_wait_minutes=1)
        await life.becomes("failed")
        cloud.set(tpu_zones={HERE: {"free": 0}, THERE: {}})
        await life.call("deploy_vllm", zones=[HERE, THERE], zone_wait_minutes=5)
        ready = await life.becomes("ready")
        assert THERE in str(ready.data), ready
        await says(life, "carried")
        gone = await life.call("destroy_vllm")
        assert gone.data["gone"], gone
        assert any("compile cache" in one for one in gone.data["removed"]), gone
    assert await paths(cloud, bucket) == ["gemma/config.json"]
    assert left(cloud) == []


async def test_what_was_carried_in_another_bucket_is_left_over(cloud: Cloud) -> None:
    """A chip lives, and its deployment carries in another bucket now: the first one's is named."""
    first, second = f"{cloud.project}-first", f"{cloud.project}-second"
    async with sites.opened(cloud.controls.plane, cloud.project) as site:
        for bucket in (first, second):
            await store(site, bucket, {"gemma/config.json": b"{}"})
    places: dict[str, Any] = {"max_model_len": 4096, "zones": [HERE], "control_plane": "queued"}
    async with agent_of(cloud.settings.model_copy(update={"bucket_name": first})) as agent:
        life = Life(agent, SPOT, at="https://127.77.")
        await life.call("deploy_vllm", model=MODEL, **places)
        await life.becomes("ready")
        await says(life, "saved")
    async with agent_of(cloud.settings.model_copy(update={"bucket_name": second})) as agent:
        life = Life(agent, SPOT, at="https://127.77.")
        await life.call("deploy_vllm", model=MODEL, **(places | {"max_model_len": 2048}))
        await life.becomes("ready")
        await says(life, "saved")
        look: dict[str, Any] = {"leftovers": True, "target": SPOT}
        found = await agent.call("get_system_status", **look)
        (row,) = [row for row in found.data["leftovers"] if row["deployment"] == "one"]
        assert row["id"].startswith(f"gs://{first}/"), found
        gone = await agent.call("destroy_vllm", target=SPOT, leftover=row["id"])
        assert gone.data["gone"], gone
        assert await paths(cloud, first) == ["gemma/config.json"]
        assert len(await paths(cloud, second)) > 1
        again = await agent.call("get_system_status", **look)
        assert not [row for row in again.data["leftovers"] if row["deployment"] == "one"], again
        await life.ends()
    assert await paths(cloud, second) == ["gemma/config.json"]
    assert left(cloud) == []


async def test_without_a_bucket_a_plan_says_that_every_vm_compiles(cloud: Cloud) -> None:
    async with agent_of(cloud.settings) as agent:
        plan = await agent.call("plan_deployment", model=MODEL, target=SPOT)
    assert "Every VM compiles anew" in str(plan.structured["warnings"]), plan
    assert "BUCKET_NAME" in str(plan.structured["warnings"]), plan
