"""What outlives its time in the queue of Cloud TPU, which ends no VM but of flex-start."""

import operator
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import pytest

from backends.tpu.backend import TpuBackend
from core.journal import Journal
from operations import inventory
from tests.conversation import Agent, agent_of
from tests.soon import HANGS, soon
from tests.stories.chips import HERE, left
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("every_cloud")]

ONE: Final = {"target": "tpu-v6e-1", "name": "one"}
WISH: Final = {"model": MODEL, "max_model_len": 4096, "zones": [HERE], "control_plane": "queued"}
OVERDUE: Final = "one on tpu-v6e-1 expired at"
GOING: Final = "it is being deleted"
GONE: Final = ("nothing of it bills any more", "it is gone")
_DELETE: Final = "google.cloud.tpu.v2.Tpu/DeleteQueuedResource"


@pytest.fixture
def impatient(cloud: Cloud) -> Cloud:
    """Its servers look often for what is overdue."""
    cloud.set(tpu_clock=600)
    return cloud._replace(settings=cloud.settings.model_copy(update={"pause_scale": 0.004}))


async def served(agent: Agent) -> None:
    """Deploy what has an hour, and see it ready."""
    life = Life(agent, ONE["target"], at="https://127.77.")
    await life.call("deploy_vllm", **WISH, ttl_minutes=60)
    ready = await life.becomes("ready")
    assert ready.data["expires_at"]


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two hours have gone by."""
    monkeypatch.setattr(inventory, "utc_now", lambda: datetime.now(UTC) + timedelta(hours=2))


async def emptied(cloud: Cloud) -> None:
    """Wait until nothing is left in the cloud, without a call of any tool."""

    async def rest() -> list[str]:
        return left(cloud)

    await soon(rest, operator.not_, waiting_for="it to go")


async def forgotten(cloud: Cloud) -> None:
    """Wait until nothing is to be ended any more."""
    folder = cloud.settings.vllm_devops_state_dir
    assert folder
    journal = Journal(folder / "rehearsal" / "journal.db", read_only=True)

    async def kept() -> bool:
        return bool(journal.expiries())

    await soon(kept, operator.not_, waiting_for="the end")


async def heard(agent: Agent, *wanted: str) -> str:
    """Ask for something else until one of these is told; gives all that was said."""
    said: list[str] = []
    with anyio.fail_after(HANGS):
        while not any(words in "".join(said) for words in wanted):
            said.append("\n".join((await agent.call("get_help")).structured["warnings"]))
            await anyio.sleep(0.05)
    said += ["\n".join((await agent.call("get_help")).structured["warnings"]) for _ in range(3)]
    return "\n".join(said)


async def test_the_server_deletes_it_and_tells_it_once(
    impatient: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chip, key and firewall rule, without a call of anybody."""
    async with agent_of(impatient.settings) as agent:
        await served(agent)
        later(monkeypatch)
        await emptied(impatient)
        told = await heard(agent, *GONE)
        assert told.count(OVERDUE) == 1, told
        assert (await agent.call("list_deployments")).data["deployments"] == []
        await forgotten(impatient)


async def test_the_next_server_deletes_it_though_that_takes_ten_minutes(
    impatient: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server lived when its time was over; that it is being deleted is told once as well."""
    async with agent_of(impatient.settings) as agent:
        await served(agent)
    later(monkeypatch)
    monkeypatch.setattr(TpuBackend, "delete_seconds", 0.3)
    impatient.set(tpu_delete_seconds=1e9)
    async with agent_of(impatient.settings) as agent:
        told = await heard(agent, GOING)
        assert left(impatient)
        impatient.set(tpu_delete_seconds=0)
        await emptied(impatient)
        told += await heard(agent, *GONE)
        await forgotten(impatient)
    assert told.count(GOING) == 1, told
    assert told.count(OVERDUE) == 2, told


async def test_a_server_that_dies_meanwhile_leaves_the_rest_to_the_next(
    impatient: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays that bills, and nobody has to call anything."""
    async with agent_of(impatient.settings) as agent:
        await served(agent)
        monkeypatch.setattr(TpuBackend, "delete_seconds", 0.3)
        impatient.set(tpu_delete_seconds=1e9)
        later(monkeypatch)
        await heard(agent, GOING)
    assert left(impatient)
    impatient.set(tpu_delete_seconds=0)
    async with agent_of(impatient.settings) as agent:
        await emptied(impatient)
        await forgotten(impatient)
        assert (await agent.call("list_deployments")).data["deployments"] == []


async def test_a_server_that_may_only_look_ends_nothing(
    impatient: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one that may write does."""
    async with agent_of(impatient.settings) as agent:
        await served(agent)
    later(monkeypatch)
    async with agent_of(impatient.settings.model_copy(update={"read_only": True})) as agent:
        now = await agent.call("status_vllm", **ONE, wait_s=1)
        assert now.state == "ready", now
        await anyio.sleep(1)  # in which it would look often
    assert _DELETE not in impatient.controls.get(impatient.project)["calls"]
    async with agent_of(impatient.settings):
        await emptied(impatient)
