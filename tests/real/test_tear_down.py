"""The end of the deployment that the other tests on a real vLLM have asked."""

import anyio
import httpx2
import pytest

from backends.local.process import claim
from tests.real.conftest import BOOT_SECONDS, MODEL, NAME, VLLM, Served, engine_of
from tests.survival.world import assert_nothing_left, journal

pytestmark = [pytest.mark.anyio, pytest.mark.vllm, pytest.mark.xdist_group("life")]


async def test_stopped_started_by_hand_started_again_and_destroyed_nothing_is_left(
    life: Served,
) -> None:
    """The printed shell command starts the very same engine; then comes the end of this life."""
    here = {"target": "local", "name": NAME}
    config = (await life.call("get_vllm_deployment_config", **here)).data["config"]
    port, key = engine_of(life)
    assert (await life.call("stop_vllm", **here)).state == "stopped"
    claim(port)
    await same_engine(config["command"], f"http://127.0.0.1:{port}", key)
    assert (await life.call("start_vllm", **here)).state == "loading"
    assert (await life.call("destroy_vllm", **here)).data["gone"] is True
    assert_nothing_left(life.state_dir, port)
    assert {result for _, result in journal(life.state_dir)} == {"ok"}
    assert life.server.children() == []


async def same_engine(command: str, url: str, key: str) -> None:
    """Run a command as a person would, until it answers as the deployment did; then end it."""
    assert str(VLLM) in command
    assert key not in command
    async with (
        await anyio.open_process(["sh", "-c", f"exec env {command}"], stdout=-3, stderr=-3) as hand,
        httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        try:
            with anyio.fail_after(BOOT_SECONDS):
                while not await answers(client):
                    assert hand.returncode is None
                    await anyio.sleep(0.2)
            (row,) = (await client.get("/v1/models")).json()["data"]
            assert (row["id"], row["max_model_len"]) == (MODEL.name, 2048)
            assert 'kv_cache_size_tokens="63550"' in (await client.get("/metrics")).text
        finally:
            hand.terminate()
            await hand.wait()


async def answers(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).is_success
    except httpx2.ConnectError:
        return False
