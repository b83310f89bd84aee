"""No secret of a deployment on Cloud TPU is said, written or kept where it does not belong."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest

from tests.conversation import Reply, agent_of
from tests.soon import soon
from tests.stories import test_cloud_run_secrets as elsewhere
from tests.stories.chips import HERE, left
from tests.stories.conftest import Cloud
from tests.stories.leaks import KEY_SECRET, VM, Leaks
from tests.tools.calls import LOOKING, OLD
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

ONE: Final = {"target": "tpu-v6e-1", "name": "one"}
SPOT: Final = {"target": "tpu-v6e-1-spot", "name": "one"}
EMPTY: Final = "us-east5-a"
WISH: Final = {"model": "google/gemma-4-E2B-it", "max_model_len": 4096}
KINDS: Final = {"key", "hub", "private key"}
QUEUE: Final = ("get_zones_with_available_quota", "list_queued_resources")


CALLS: Final = {
    **elsewhere.calls_on(ONE["target"]),
    "estimate_cost": {"target": ONE["target"], "model": "12b"},  # its QAT form is for GPUs
}
LIFE: Final = elsewhere.LIFE
"""After each part it is watched until it has settled."""


class Listener(elsewhere.Listener):
    """Watches what goes wrong, too."""

    async def becomes(self, state: str, one: Mapping[str, str]) -> Reply:
        """Watch it until it is in a state."""
        reply = await self.settled(one["name"], target=one["target"])
        assert reply.state == state, reply
        return reply

    async def loses(self, one: Mapping[str, str]) -> None:
        """Watch it until it is told that its chip was taken."""
        look = partial(self.call, "status_vllm", **one, wait_s=1)
        await soon(look, lambda reply: reply.state == "failed", every=0.1)

    async def sees_all(self) -> None:
        """Call whatever only looks, whether it can answer or not."""
        for tool in (*LOOKING, *QUEUE, "check_gpu_quotas"):
            takes = TOOLS[tool].parameters
            meant = {key: value for key, value in SPOT.items() if key in takes}
            said = {**meant, **CALLS[tool], **({"check": True} if "check" in takes else {})}
            await self.call(tool, **said)


@pytest.mark.parametrize("control_plane", ["queued", "compute"])
async def test_no_secret_is_found_anywhere(
    cloud: Cloud,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    control_plane: str,
) -> None:
    """Answers, files, log lines and all that the cloud shows, over a whole life with every tool.

    Some seconds: an engine is started, by the queue twice, and measured once.
    """
    caplog.set_level("DEBUG")
    cloud.set(tpu_clock=600)
    leaks = Leaks(cloud)
    async with agent_of(cloud.settings) as plain:
        agent = Listener(plain.client, ONE, CALLS)
        for part in LIFE:
            for tool in part:
                if tool == "deploy_vllm":
                    chosen = {"control_plane": control_plane, "zones": [HERE]}
                    await agent.call(tool, **ONE, **CALLS[tool], **chosen)
                else:
                    await agent.does(tool)
            await agent.settled("one", target=ONE["target"])
            await leaks.look()
    assert set(CALLS) == set(TOOLS) - set(OLD)
    assert set(CALLS) - agent.answered == _fails()
    leaks.told("an answer", "\n".join(agent.words))
    leaks.told("the server's log", "".join(capfd.readouterr()) + caplog.text)
    leaks.check(kinds=KINDS)
    _looked_in_the_right_places(leaks, ONE["target"])


@pytest.mark.parametrize("control_plane", ["queued", "compute"])
async def test_no_secret_is_found_anywhere_when_all_goes_wrong(
    cloud: Cloud,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    control_plane: str,
) -> None:
    """A search that fails, a chip that is taken, a leftover: a read-only server sees them too."""
    caplog.set_level("DEBUG")
    zones: dict[str, Any] = {EMPTY: {"free": 0}, HERE: {}}
    cloud.set(tpu_clock=600, tpu_zones=zones)
    leaks, words = Leaks(cloud), list[str]()
    async with looks_only(cloud, words) as looker, agent_of(cloud.settings) as plain:
        agent = Listener(plain.client, ONE, CALLS)
        await _all_goes_wrong(cloud, (agent, looker), leaks, control_plane)
        words += agent.words
    assert left(cloud) == ["secrets: hf-token"]
    leaks.told("an answer", "\n".join(words))
    leaks.told("the server's log", "".join(capfd.readouterr()) + caplog.text)
    leaks.check(kinds=KINDS)
    _looked_in_the_right_places(leaks, SPOT["target"])


async def _all_goes_wrong(
    cloud: Cloud, both: tuple["Listener", "Listener"], leaks: Leaks, control_plane: str
) -> None:
    agent, looker = both
    wish = {**SPOT, **WISH, "control_plane": control_plane, "zone_wait_minutes": 5}
    await agent.call("save_hf_token", token=elsewhere.HUB_TOKEN, target=SPOT["target"])
    await agent.call("deploy_vllm", **wish, zones=[EMPTY])
    await leaks.look()
    await looker.sees_all()
    failed = await agent.becomes("failed", SPOT)
    assert failed.data["failure"]["code"] == "NO_CAPACITY"
    await agent.call("deploy_vllm", **wish, zones=[EMPTY, HERE])
    await agent.becomes("ready", SPOT)
    await looker.sees_all()
    await leaks.look()
    cloud.controls.preempt(cloud.project, control_plane, HERE, VM)
    await agent.loses(SPOT)
    for one in both:
        await one.sees_all()
    await leaks.look()
    await agent.call("manage_queued_resource", action="delete", name=VM, zone=HERE)
    await agent.call("destroy_vllm", **SPOT)
    await leaks.look()


@asynccontextmanager
async def looks_only(cloud: Cloud, words: list[str]) -> AsyncIterator["Listener"]:
    """Have a server beside it that may only look; what it says is added in the end."""
    async with agent_of(cloud.settings.model_copy(update={"read_only": True})) as plain:
        looker = Listener(plain.client, ONE, CALLS)
        yield looker
        words += looker.words


def _fails() -> set[str]:
    """Nothing on a TPU is stopped or scaled."""
    models = {"list_bucket_models", "list_vertex_models"}
    changes = {"update_vllm_scaling", "stop_vllm", "start_vllm"}
    return {"stop_benchmark", "compare_benchmarks", *models, *changes}


def _looked_in_the_right_places(leaks: Leaks, target: str) -> None:
    """The names of the secrets are there, of which the values are not."""
    cloud = "".join(leaks.places["the cloud"])
    for secret in (f"KEY_SECRET='{KEY_SECRET}'", "TOKEN_SECRET='hf-token'"):
        assert secret in cloud.replace("\\u0027", "'")
    assert "BEGIN CERTIFICATE" in cloud
    assert any(name.endswith("journal.db") for name in leaks.places)
    assert any(name.endswith(f"/tpu/{target}/one.json") for name in leaks.places)
