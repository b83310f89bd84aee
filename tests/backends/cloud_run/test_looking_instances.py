"""Awake, asleep or stopped: judged by readings that are minutes old, and never by waking it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.cloud import run_v2

from core.records import Deployment, State
from core.reply import collecting_notes
from tests.backends.cloud_run import server
from tests.backends.cloud_run.planted import Planted, planting

pytestmark = pytest.mark.anyio

MANUAL = run_v2.ServiceScaling.ScalingMode.MANUAL
NO_INSTANCE = run_v2.ServiceScaling(scaling_mode=MANUAL, manual_instance_count=0)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


async def seen(there: Planted, name: str = "gemma") -> Deployment:
    return await server.describe(there.site, name)


async def noted(there: Planted) -> tuple[Deployment, str]:
    """Look, and give what was noted as well."""
    with collecting_notes() as notes:
        return await seen(there), "\n".join(notes)


async def test_a_model_is_asked_once_however_often_one_looks(there: Planted) -> None:
    """Asking keeps an instance awake, and so it bills."""
    there.service()
    there.instance(started=60)
    states = [(await seen(there)).state for _ in range(3)]
    assert states == [State.READY] * 3
    assert there.asked == ["/v1/models"]


async def test_asking_is_admitted_with_its_consequence(there: Planted) -> None:
    """Whoever looks learns until when the look keeps an instance."""
    there.service()
    there.instance(started=60)
    now, notes = await noted(there)
    assert now.awake_until
    assert now.awake_until > datetime.now(UTC)
    assert notes == ""


async def test_one_that_is_kept_awake_anyway_needs_no_such_note(there: Planted) -> None:
    """Nothing is postponed where there is always an instance."""
    there.service(scaling=run_v2.ServiceScaling(min_instance_count=1))
    there.instance(started=60)
    now, notes = await noted(there)
    assert (now.state, now.awake_until, notes) == (State.READY, None, "")


async def test_one_that_sleeps_is_never_asked(there: Planted) -> None:
    """A reading of none, newer than its readiness, is sleep."""
    there.service(age_seconds=3600)
    there.instance(started=3600, ended=1800)
    now = await seen(there)
    assert (now.state, now.replicas, there.asked) == (State.ASLEEP, 0, [])


async def test_in_doubt_it_is_taken_to_sleep(there: Planted) -> None:
    """Without any reading of half an hour, asking might start a GPU."""
    there.service(age_seconds=7200)
    now, notes = await noted(there)
    assert (now.state, there.asked) == (State.ASLEEP, [])
    assert "is taken to sleep" in notes


async def test_what_became_ready_just_now_is_awake_without_a_reading(there: Planted) -> None:
    """Cloud Monitoring is minutes late; the rollout's own instance is there."""
    there.service(age_seconds=30)
    assert (await seen(there)).state is State.READY
    assert there.asked == ["/v1/models"]


async def test_what_answered_us_just_now_is_awake_whatever_an_older_reading_says(
    there: Planted,
) -> None:
    """A reading from before it was woken proves nothing."""
    there.service(age_seconds=3600)
    there.instance(started=3600, ended=1800)
    there.site.woken["gemma"] = datetime.now(UTC) + timedelta(seconds=5)
    assert (await seen(there)).state is State.READY


async def test_one_that_is_always_kept_is_asked_again_after_it_had_none(there: Planted) -> None:
    """Started after a stop, it loads anew; it is not called asleep."""
    service = there.service(scaling=run_v2.ServiceScaling(min_instance_count=1))
    there.instance(started=50, ended=10)
    there.site.answered.add(service.latest_ready_revision)
    there.healthy = False
    assert (await seen(there)).state is State.LOADING


async def test_an_instance_that_boots_anew_is_told_by_its_own_log(there: Planted) -> None:
    """The log of the one before it is over."""
    there.service()
    there.instance(started=60)
    there.healthy = False
    there.log("Application startup complete.", ago=50)
    there.log("Starting new instance. Reason: AUTOSCALING", ago=20, log="varlog/system")
    there.log("Starting to load model gemma...", ago=10)
    now = await seen(there)
    assert now.phase
    assert now.phase.name == "loading weights"


async def test_after_a_sleep_it_is_asked_again(there: Planted) -> None:
    """Another instance has to load the model anew."""
    service = there.service(age_seconds=3600)
    there.instance(started=3600, ended=1800)
    there.site.answered.add(service.latest_ready_revision)
    await seen(there)
    there.instance(started=10)
    assert (await seen(there)).state is State.READY
    assert there.asked == ["/v1/models"]


async def test_stopped_is_only_what_was_read_to_have_no_instance(there: Planted) -> None:
    """What was set to none still bills until it is gone."""
    there.service(scaling=NO_INSTANCE)
    there.instance(started=60)
    now = await seen(there)
    assert (now.state, now.replicas) == (State.STOPPING, 1)
    there.project.instances[0].ended = datetime.now(UTC).timestamp()
    assert (await seen(there)).state is State.STOPPED
    assert there.asked == []


async def test_a_reading_from_before_the_stop_proves_nothing(there: Planted) -> None:
    """Cloud Monitoring is minutes late."""
    there.project.knobs = there.project.knobs.model_copy(update={"metric_delay_seconds": 120})
    there.service(age_seconds=60, scaling=NO_INSTANCE)
    there.instance(started=3600, ended=600)
    now = await seen(there)
    assert now.state is State.STOPPING
    assert now.phase
    assert "reading" in now.phase.name


async def test_a_stop_that_is_not_seen_for_long_says_how_old_the_reading_is(
    there: Planted,
) -> None:
    """Whoever pays can judge it."""
    there.project.knobs = there.project.knobs.model_copy(update={"metric_delay_seconds": 430})
    there.service(age_seconds=3600, scaling=NO_INSTANCE)
    there.instance(started=3600)
    now, notes = await noted(there)
    assert now.state is State.STOPPING
    assert "instances is 4" in notes


async def test_a_number_set_by_hand_is_kept_awake(there: Planted) -> None:
    """Manual scaling does not sleep."""
    by_hand = run_v2.ServiceScaling(scaling_mode=MANUAL, manual_instance_count=1)
    there.service(age_seconds=7200, scaling=by_hand)
    assert (await seen(there)).state is State.READY


async def test_a_stop_that_monitoring_never_confirms_ends_with_a_note(there: Planted) -> None:
    """A service that never ran has no series at all."""
    there.service(age_seconds=3600, scaling=NO_INSTANCE)
    now, notes = await noted(there)
    assert now.state is State.STOPPED
    assert "was not read" in notes


async def test_a_stop_is_not_believed_without_monitoring(there: Planted) -> None:
    """It says that it stops, not that it has."""
    there.service(age_seconds=3600, scaling=NO_INSTANCE)
    there.fail("google.monitoring.*", "PERMISSION_DENIED")
    assert (await seen(there)).state is State.STOPPING
