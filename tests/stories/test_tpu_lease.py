"""A chip ends when its time or its money is over: Google ends it by itself, or a server says so."""

import operator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.conversation import agent_of
from tests.soon import soon
from tests.stories.chips import HERE, left
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = [pytest.mark.anyio, pytest.mark.life]

WISH: Final[dict[str, Any]] = {"model": MODEL, "max_model_len": 4096, "zones": [HERE]}
GOOGLE: Final = (
    ("tpu-v6e-1", "compute"),
    ("tpu-v6e-1-spot", "compute"),
    ("tpu-v6e-1-flex", "compute"),
    ("tpu-v6e-1-flex", "queued"),
)
SERVER: Final = (("tpu-v6e-1", "queued"), ("tpu-v6e-1-spot", "queued"), ("tpu-v6e-1", "auto"))


@pytest.mark.parametrize(("target", "control_plane"), GOOGLE)
async def test_google_ends_a_chip_when_its_money_is_used_up(
    cloud: Cloud, target: str, control_plane: str
) -> None:
    """No server is there then."""
    wish = {**WISH, "control_plane": control_plane, "lease": "cloud", "max_usd": 1.5}
    cloud.set(tpu_clock=600)
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, target, at="https://127.77.")
        await life.call("deploy_vllm", **wish)
        ready = await life.becomes("ready")
        assert ready.data["lease"] == "cloud", ready
        left_over = datetime.fromisoformat(ready.data["expires_at"]) - datetime.now(UTC)
        paid = 1.5 / ready.data["usd_per_hour"]
        assert paid - 0.1 < left_over / timedelta(hours=1) <= paid
    cloud.set(tpu_run_clock=30000)

    async def bills() -> list[str]:
        return [one for one in left(cloud) if one.startswith(("nodes", "vms"))]

    await soon(bills, operator.not_, waiting_for="its end")


@pytest.mark.parametrize(("target", "control_plane"), SERVER)
async def test_what_the_queue_does_not_end_is_a_servers_and_that_is_said(
    cloud: Cloud, target: str, control_plane: str
) -> None:
    """With lease=cloud nothing is made, and the way to Google's own end is named."""
    cloud.set(tpu_clock=600)
    wish = {**WISH, "control_plane": control_plane, "ttl_minutes": 60}
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, target, at="https://127.77.")
        asked = {"target": target, "name": "one", **wish}
        refused = await agent.call("deploy_vllm", **asked, lease="cloud")
        assert refused.code == "INVALID_ARGUMENT", refused
        assert "control_plane=compute" in refused.structured["fix"]
        assert left(cloud) == []
        if control_plane == "auto":  # which may get one of Compute Engine's
            return
        made = await life.call("deploy_vllm", **wish)
        assert "only while this server runs" in made.text
        ready = await life.becomes("ready")
        assert ready.data["lease"] == "server"
        await life.ends()


async def test_what_never_ends_has_no_lease_of_the_cloud(cloud: Cloud) -> None:
    """ttl_minutes=0 is for ever: nobody would end it, whatever is asked for."""
    wish = {**WISH, "control_plane": "compute", "lease": "cloud", "ttl_minutes": 0}
    async with agent_of(cloud.settings) as agent:
        refused = await agent.call("deploy_vllm", target="tpu-v6e-1", name="one", **wish)
        assert refused.code == "INVALID_ARGUMENT", refused
        assert left(cloud) == []
