"""A VM of the queue, which no cloud ends, and whose own machine may be no more."""

import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from backends.tpu.site import ChipState, Site
from core.journal import Journal
from core.settings import GooglePlane, Settings
from operations.runtime import Stage
from tests.backends.tpu.planted import ours, until
from tests.backends.tpu.sites import opened
from tests.conversation import agent_of
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

TARGET: Final = "tpu-v6e-1"
OURS: Final = "vllm-devops-gemma"
TOMORROW: Final = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@pytest.fixture
async def there(plane: GooglePlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """Somebody else's machine, which has made one."""

    async def google(_self: Stage) -> GooglePlane:
        return plane

    monkeypatch.setattr(Stage, "google", google)
    project = f"p-{uuid.uuid4().hex[:12]}"
    Controls(plane).set(project, prepared=True, tpu_clock=600)
    machine: AbstractAsyncContextManager[Site] = opened(plane, project)
    async with machine as site:
        await ours(site, seconds=36000, expires=int(TOMORROW.timestamp()))
        await until(site, OURS, ChipState.RUNNING)
        yield site


@pytest.mark.parametrize("read_only", [False, True])
async def test_whoever_looks_at_it_ends_it_in_time(
    there: Site, tmp_path: Path, *, read_only: bool
) -> None:
    settings = Settings(
        rehearsal=True,
        google_cloud_project=there.clients.project,
        google_allowed_addresses=("127.0.0.1",),
        vllm_devops_state_dir=tmp_path,
        read_only=read_only,
    )
    async with agent_of(settings) as agent:
        reply = await agent.call("status_vllm", target=TARGET, name="gemma")
        assert not reply.failed, reply
        journal = Journal(tmp_path / "rehearsal" / "journal.db", read_only=True)
        kept = [one.at for one in journal.expiries()] if journal.exists else []
    ends = datetime.fromisoformat(reply.data["expires_at"])
    assert ends < TOMORROW  # which allows for its wait: its time to run is less
    assert kept == ([] if read_only else [ends])
