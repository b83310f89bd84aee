"""What goes wrong with a chip, as an agent hears of it; and what nobody may be left paying for."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import anyio
import pytest

from backends.tpu.backend import TpuBackend
from server import main
from tests.conversation import Agent, Reply, agent_of
from tests.soon import HANGS, soon
from tests.stories.chips import HERE, left, planted_by_others, watched
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

SPOT: Final = "tpu-v6e-1-spot"
WISH: Final = {"model": MODEL, "max_model_len": 4096, "zones": [HERE]}
VM: Final = "vllm-devops-one"
PLANES: Final = ("queued", "compute")


@pytest.fixture
async def agent(cloud: Cloud) -> AsyncIterator[Agent]:
    async with agent_of(cloud.settings) as agent:
        yield agent


async def served(agent: Agent, target: str, **more: Any) -> Life:
    """Give a deployment that is ready."""
    life = Life(agent, target, at="https://127.77.")
    await life.call("deploy_vllm", **{**WISH, **more})
    await life.becomes("ready")
    return life


async def until(life: Life, fits: Callable[[Reply], bool]) -> Reply:
    """Look until what is told fits."""
    return await soon(lambda: life.call("status_vllm", wait_s=1), fits, every=0.1)


def failed_with(code: str) -> Callable[[Reply], bool]:
    return lambda reply: (reply.data.get("failure") or {}).get("code") == code


@pytest.mark.parametrize("control_plane", PLANES)
async def test_a_chip_that_is_taken_during_a_benchmark_ends_it_and_is_told(
    agent: Agent, cloud: Cloud, control_plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run says that the endpoint went; the deployment says why; deployed again, it serves."""
    monkeypatch.setenv("PATIENCE_SCALE", "0.05")  # of the sweep, which waits two minutes for it
    life = await served(agent, SPOT, control_plane=control_plane)
    long = {"contexts": [16], "concurrencies": [1], "cell_seconds": 30, "output_tokens": 4}
    run = await life.call("run_benchmark", wait_s=0, **long)
    cloud.controls.preempt(cloud.project, control_plane, HERE, VM)
    lost = await until(life, failed_with("PREEMPTED"))
    assert lost.data["replicas"] == 0
    assert "deploy_vllm" in lost.data["failure"]["fix"]
    assert not {"expires_at", "lease"} & lost.data.keys()  # nothing is there to end
    asked = await agent.call("get_endpoint", target=SPOT, name="one")
    assert (asked.code, asked.structured["retryable"]) == ("FAILED", False)
    with anyio.fail_after(HANGS):
        while True:
            told = await agent.call("get_benchmark", run=run.data["run"], wait_s=10)
            if told.data["state"] != "running":
                break
    assert told.data["state"] in {"done", "failed", "stopped"}, told
    await life.call("deploy_vllm", **WISH, control_plane=control_plane)
    await life.becomes("ready")
    await life.ends()
    assert left(cloud) == []


@pytest.mark.parametrize("control_plane", PLANES)
async def test_a_chip_whose_time_is_over_is_told_as_expired(
    cloud: Cloud, control_plane: str
) -> None:
    """A question that comes too late is refused with that; nothing bills, and nothing is left.

    The server itself looks for what is overdue so seldom that the cloud is first.
    """
    cloud.set(tpu_clock=30, tpu_run_clock=30)
    more = {"control_plane": control_plane, "ttl_minutes": 10}
    async with agent_of(cloud.settings.model_copy(update={"pause_scale": 1.0})) as agent:
        life = await served(agent, "tpu-v6e-1-flex", **more)
        wish = {"target": life.target, "name": life.name, "prompt": "Hello", "max_tokens": 4}
        ask = partial(agent.call, "query_gemma4", **wish)
        answer = await soon(ask, lambda reply: reply.failed, every=0.5)
        assert answer.structured["fix"], answer
        over = await until(life, failed_with("EXPIRED"))
        assert over.state == "expired"
        assert "its time was over" in over.structured["summary"].lower()
        assert [step["tool"] for step in over.structured["next"]] == ["deploy_vllm", "destroy_vllm"]
        assert over.data["replicas"] == 0
        await life.ends()
        assert left(cloud) == []


async def test_what_lets_this_machine_not_in_is_never_called_ready(cloud: Cloud) -> None:
    """Google drops what no rule lets in: the model answers others alone."""
    away = {"google_allowed_addresses": ("198.51.100.7",)}
    async with agent_of(cloud.settings.model_copy(update=away)) as agent:
        life = Life(agent, "tpu-v6e-1", at="https://127.77.")
        await life.call("deploy_vllm", **WISH, control_plane="compute")
        told = await until(life, lambda one: one.state == "ready" or bool(one.data.get("failure")))
        assert told.state != "ready"
        assert "gave no answer in time" in told.data["failure"]["cause"]
        await life.ends()
    assert left(cloud) == []


async def test_a_chip_that_is_taken_between_check_and_create_is_searched_elsewhere(
    agent: Agent, cloud: Cloud
) -> None:
    """The check passed; by then the zone is empty, and the next one gives."""
    zones = [HERE, "europe-west4-a"]
    plan = await agent.call(
        "plan_deployment", model=MODEL, target="tpu-v6e-1", check=True, zones=zones
    )
    assert not [row for row in plan.data["checks"] if row["outcome"] == "fail"], plan
    cloud.set(tpu_zones={HERE: {"free": 0}, "europe-west4-a": {}}, tpu_clock=600)
    life = Life(agent, "tpu-v6e-1", at="https://127.77.")
    await life.call("deploy_vllm", **{**WISH, "zones": zones}, zone_wait_minutes=5)
    ready, told = await watched(life)
    assert ready.state == "ready", ready
    assert any("NO_CAPACITY" in said or "TIMED_OUT" in said for said in told), told
    assert len(cloud.controls.get(cloud.project)["tpus"]) == 1
    await life.ends()
    assert left(cloud) == []


@pytest.mark.parametrize("control_plane", PLANES)
async def test_a_delete_that_takes_ten_minutes_is_told_until_it_is_over(
    agent: Agent, cloud: Cloud, control_plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call says that it is being deleted, and none that it is gone before it is."""
    monkeypatch.setattr(TpuBackend, "delete_seconds", 0.3)
    life = await served(agent, "tpu-v6e-1", control_plane=control_plane)
    cloud.set(tpu_delete_seconds=1e9)  # until the test lets it end
    for _ in range(3):
        told = await life.call("destroy_vllm")
        assert not told.data["gone"]
        assert left(cloud) != []
        assert "being deleted" in told.structured["summary"]
    cloud.set(tpu_delete_seconds=0)

    async def destroyed() -> bool:
        return bool((await life.call("destroy_vllm")).data["gone"])

    await soon(destroyed)
    assert left(cloud) == []


def test_a_command_that_waits_ends_when_what_it_removes_is_gone(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make destroy` stays while it is being deleted, and says at last what is read back."""
    told = {"REHEARSAL": "1", "CONFIRM": "never", "PAUSE_SCALE": "0.05"}
    told |= {"GOOGLE_CLOUD_PROJECT": cloud.project}
    told |= {"VLLM_DEVOPS_STATE_DIR": str(cloud.settings.vllm_devops_state_dir)}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    one = ("target=tpu-v6e-1", "name=one")
    wish = (f"model={MODEL}", "max_model_len=4096", f"zones={HERE}", "control_plane=compute")
    assert main(["call", "deploy_vllm", *one, *wish, "--wait"]) == 0
    monkeypatch.setattr(TpuBackend, "delete_seconds", 0)
    cloud.set(tpu_delete_seconds=120)
    assert main(["call", "destroy_vllm", *one, "--wait"]) == 0
    said = capsys.readouterr()
    assert "one on tpu-v6e-1 is being deleted" in said.err
    assert "one on tpu-v6e-1 " in said.out
    assert "gone" in said.out
    assert left(cloud) == []


@pytest.mark.parametrize("control_plane", PLANES)
async def test_nothing_of_others_is_ever_changed(
    agent: Agent, cloud: Cloud, control_plane: str
) -> None:
    """A whole life, a search that fails and a sweep over leftovers leave it as it was."""
    before = await planted_by_others(cloud)
    life = await served(agent, "tpu-v6e-1", control_plane=control_plane)
    listed = await agent.call("list_queued_resources")
    others = [row for row in listed.data["resources"] if not row["ours"]]
    assert others
    for row in others:
        refused = await agent.call(
            "manage_queued_resource", action="delete", name=row["id"], zone=row["zone"]
        )
        assert refused.code == "NOT_OURS", refused
    await life.ends()
    assert await planted_by_others(cloud, look=True) == before


async def test_a_leftover_is_found_and_deleted_when_it_is_asked_for(
    agent: Agent, cloud: Cloud
) -> None:
    """It is named with what it holds; afterwards it is gone."""
    life = await served(agent, SPOT, control_plane="queued")
    cloud.controls.preempt(cloud.project, "queued", HERE, VM)
    await until(life, failed_with("PREEMPTED"))
    listed = await agent.call("list_queued_resources", target=SPOT)
    assert [row for row in listed.data["resources"] if row["leftover"] and row["id"] == VM], listed
    assert any("leftover" in said for said in listed.structured["warnings"]), listed
    gone = await agent.call("manage_queued_resource", action="delete", name=VM, zone=HERE)
    assert not gone.failed, gone
    await life.call("destroy_vllm")
    assert left(cloud) == []


async def test_what_a_lost_chip_left_is_removed_with_its_deployment(
    agent: Agent, cloud: Cloud
) -> None:
    """One call for all of it; a part by its id is looked for where its id says, and goes too."""
    life = await served(agent, SPOT, control_plane="queued")
    cloud.controls.preempt(cloud.project, "queued", HERE, VM)
    await until(life, failed_with("PREEMPTED"))
    found = await agent.call("get_system_status", leftovers=True, target=SPOT)
    kinds = [row["kind"] for row in found.data["leftovers"]]
    assert {"queued resource", "secret"} <= set(kinds), found
    step: Any = {"tool": "destroy_vllm", "arguments": {"target": SPOT, "name": "one"}}
    offered = found.structured["next"]
    own = {row["id"] for row in found.data["leftovers"] if row["deployment"] == "one"}
    assert step in offered
    assert not own & {one["arguments"].get("leftover") for one in offered}, offered
    part = next(row for row in found.data["leftovers"] if row["kind"] == "queued resource")
    gone = await agent.call("destroy_vllm", target=SPOT, leftover=part["id"])
    assert gone.data["gone"] is True, gone
    await life.call("destroy_vllm")
    assert left(cloud) == []


async def test_what_set_up_has_enabled_is_seen_at_once(bare_cloud: Cloud) -> None:
    """What could not be read a moment before is read anew."""
    async with agent_of(bare_cloud.settings) as agent:
        before = await agent.call("check_gpu_quotas", target="tpu-v6e-1")
        assert "not enabled" in before.text, before
        assert not (await agent.call("setup_target", target="tpu-v6e-1")).failed
        after = await agent.call("check_gpu_quotas", target="tpu-v6e-1")
        assert "not enabled" not in after.text, after


async def test_a_zone_that_there_is_not_ends_the_search_and_keeps_no_name(
    agent: Agent, cloud: Cloud
) -> None:
    """It is told as the zone's refusal; it can be looked at, deployed elsewhere, and removed."""
    life = Life(agent, "tpu-v6e-1", at="https://127.77.")
    code, fix = await _ended(life, zones=["us-east1-q"])
    assert (code, "changes by the minute" in fix) == ("ZONE_REFUSED", False)
    assert left(cloud) == []
    await life.call("deploy_vllm", **WISH)
    await life.becomes("ready")
    await life.ends()
    assert left(cloud) == []


async def test_a_project_without_quota_is_not_told_to_search_again(
    agent: Agent, cloud: Cloud
) -> None:
    """Where every place says so, more quota helps and another search does not."""
    none = ("tpu", "tpu-preemptible", "compute", "compute-preemptible")
    cloud.set(tpu_quotas=dict.fromkeys(none, 0))
    code, fix = await _ended(Life(agent, "tpu-v6e-1"))
    assert (code, "changes by the minute" in fix) == ("QUOTA_EXCEEDED", False)
    assert "ask for more" in fix
    assert left(cloud) == []


async def _ended(life: Life, **more: Any) -> tuple[str, str]:
    """Deploy what no place gives; the code and the fix, whether that is known at once or later."""
    here = {"target": life.target, "name": life.name}
    asked = await life.agent.call("deploy_vllm", **{**here, **WISH, **more})
    told = asked.structured
    if not asked.failed:
        told = (await life.becomes("failed")).data["failure"]
        await life.call("destroy_vllm")
    return told["code"], told["fix"]
