"""kill -9 in the middle of a search for a chip: the next server goes on, before anybody asks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from core.settings import GooglePlane, Settings
from operations.runtime import Stage
from tests.google_plane import Controls
from tests.soon import soon
from tests.survival.servers import MODEL, server

pytestmark = pytest.mark.anyio

PROJECT: Final = "searching"
EMPTY, FULL = "us-east5-a", "us-east5-b"
ONE: Final = {"target": "tpu-v6e-1", "name": "one"}
WISH: Final[dict[str, Any]] = {
    **ONE,
    "model": MODEL,
    "max_model_len": 4096,
    "zones": [EMPTY, FULL],
    "control_plane": "queued",
    "zone_wait_minutes": 30,
}
CLOUDS: Final = {"REHEARSAL": "1", "GOOGLE_CLOUD_PROJECT": PROJECT}


@pytest.fixture
def clouds(state_dir: Path) -> Iterator[Callable[[], Controls]]:
    """The simulated Google Cloud that a server has started; it ends with the test."""
    file = state_dir / "rehearsal" / "google" / "plane.json"
    yield lambda: Controls(GooglePlane.model_validate_json(file.read_bytes()))
    Stage(Settings(vllm_devops_state_dir=state_dir, rehearsal=True)).forget_rehearsal()


async def test_a_search_goes_on_by_itself_after_its_server_was_killed(
    state_dir: Path, clouds: Callable[[], Controls]
) -> None:
    """One request at a time, one chip in the end, and nothing in the zone that had none."""
    async with server(state_dir, **CLOUDS) as first:
        assert not (await first.call("setup_target", target=ONE["target"])).failed
        controls = clouds()
        zones = {EMPTY: {"free": 0}, FULL: {}}
        controls.set(PROJECT, prepared=True, tpu_zones=zones, tpu_clock=600, boot_seconds=0.1)
        told = await first.call("deploy_vllm", **WISH)
        assert told.state == "queued", told
        await first.kill()

    async def given() -> bool:
        seen = controls.get(PROJECT)["tpus"].values()
        assert len(seen) <= 1, seen
        return any(one["zone"] == FULL and one["given"] for one in seen)

    async with server(state_dir, **CLOUDS) as second:
        await soon(given, waiting_for="a chip")
        assert not (await second.call("status_vllm", **ONE)).failed
        gone = await second.call("destroy_vllm", **ONE)
        assert gone.data["gone"], gone
    assert not controls.get(PROJECT)["tpus"]
