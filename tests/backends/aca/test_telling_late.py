"""What Azure calls failed and what only took long, with every reading planted."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backends.aca import operations, status
from core.records import Deployment, Failure, State
from core.reply import collecting_notes
from tests.backends.aca.planted import NEWEST, Planted, planting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    """An app that has never been ready."""
    async with planting(tmp_path) as planted:
        planted.app(latestReadyRevisionName="")
        planted.revision(runningState="Processing")
        yield planted


async def seen(there: Planted) -> Deployment:
    return await status.describe(there.site, "gemma")


def answered(there: Planted, cause: str) -> None:
    """Let Azure have said why the last change failed."""
    change = operations.Change(
        kind="create_or_update", what="create gemma", ground=there.site.ground,
        since=datetime.now(UTC), token="",
        failure=Failure(code="CLOUD_REFUSED", cause=cause, fix="x"),
    )  # fmt: skip
    operations._keep(there.site, "gemma", change)


async def test_a_deactivated_revision_is_not_waited_for(there: Planted) -> None:
    """Nothing starts it by itself, whether it was ready before or not; its app is not asleep."""
    there.revisions[0]["properties"]["active"] = False
    there.app(latestReadyRevisionName="", provisioningState="InProgress")
    assert (await seen(there)).state is State.CREATING
    for ready in ("", NEWEST):
        there.app(latestReadyRevisionName=ready)
        now = await seen(there)
        assert now.failure
        assert (now.state, now.failure.code) == (State.FAILED, "REVISION_INACTIVE")
        assert "start_vllm" in now.failure.fix


async def test_what_took_long_is_told_apart_from_what_was_refused(there: Planted) -> None:
    """Azure calls both failed; a replica of the first one boots, and may answer."""
    there.app(latestReadyRevisionName="", provisioningState="Failed")
    name = there.replica(ready=False)
    there.wrote(name, "Starting to load model gemma")
    with collecting_notes() as notes:
        assert (await seen(there)).state is State.LOADING
    assert any("it goes on all the same" in note for note in notes)
    answered(there, "Error details: Operation expired.")
    assert (await seen(there)).state is State.LOADING
    there.replicas[NEWEST][0]["properties"]["containers"][0]["restartCount"] = 1
    assert (await seen(there)).state is State.FAILED
    there.replicas[NEWEST][0]["properties"]["containers"][0]["restartCount"] = 0
    answered(there, "No such key.")
    assert (await seen(there)).state is State.FAILED


async def test_an_app_that_was_given_up_and_answers_is_ready_or_asleep(there: Planted) -> None:
    """It stays what Azure calls failed until its next change."""
    there.app(latestReadyRevisionName=NEWEST, provisioningState="Failed")
    answered(there, "Error details: Operation expired.")
    there.replica()
    assert (await seen(there)).state is State.READY
    there.replicas.clear()
    there.revisions[0]["properties"]["replicas"] = 0
    assert (await seen(there)).state is State.ASLEEP
    answered(there, "No such key.")
    assert (await seen(there)).state is State.FAILED
