"""How far a boot is and why it went no further, with every reading planted."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backends.aca import operations, status
from core.records import Deployment, Failure, State
from core.reply import collecting_notes
from tests.backends.aca.planted import FORMER, NEWEST, Planted, planting

pytestmark = pytest.mark.anyio

WAITING: dict[str, Any] = {"ready": False, "started": False, "runningState": "Waiting"}
BOOTING: dict[str, Any] = {"ready": False}


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    """An app that has never been ready."""
    async with planting(tmp_path) as planted:
        planted.app(latestReadyRevisionName="")
        planted.revision(runningState="Processing")
        yield planted


async def seen(there: Planted) -> Deployment:
    return await status.describe(there.site, "gemma")


async def noted(there: Planted) -> tuple[Deployment, str]:
    """Look, and give what was noted as well."""
    with collecting_notes() as notes:
        return await seen(there), "\n".join(notes)


def phase(now: Deployment) -> tuple[State, str | None]:
    return now.state, now.phase.name if now.phase else None


async def test_before_a_replica_is_made_it_is_queued(there: Planted) -> None:
    """Its revision is there and holds nothing."""
    assert phase(await seen(there)) == (State.CREATING, "queued")


async def test_a_replica_without_any_event_waits_for_a_gpu_host(there: Planted) -> None:
    """Azure tells events some seconds late."""
    there.replica(**WAITING, age=5)
    assert phase(await seen(there)) == (State.CREATING, "assigning a GPU host")


async def test_the_newest_event_of_its_replica_tells_the_step(there: Planted) -> None:
    """Those of other replicas do not count."""
    name = there.replica(**WAITING, age=300)
    there.event("AssigningReplica", replica=name, age=299)
    assert phase(await seen(there)) == (State.CREATING, "assigning a GPU host")
    there.event("PullingImage", "Pulling image 'vllm'", replica=name, age=200)
    now = await seen(there)
    assert phase(now) == (State.CREATING, "pulling the image")
    assert now.phase
    assert 195 < (datetime.now(UTC) - now.phase.since).total_seconds() < 210
    there.event("PulledImage", replica="another", age=150)
    assert phase(await seen(there)) == (State.CREATING, "pulling the image")
    there.event("ContainerStarted", replica=name, age=100)
    assert phase(await seen(there)) == (State.CREATING, "starting")


async def test_a_wait_for_a_host_is_told_with_its_age_and_cost(there: Planted) -> None:
    """A replica may be billed while it waits."""
    name = there.replica(**WAITING, age=300)
    there.event("AssigningReplica", replica=name, age=299)
    _, notes = await noted(there)
    assert "waited for a GPU host for 5 min ($0.53 if Azure bills the wait)" in notes


async def test_a_gpu_host_that_never_comes_is_a_failure_with_a_way_out(there: Planted) -> None:
    """After ten minutes somebody has to decide, for it may be billed."""
    name = there.replica(**WAITING, age=660)
    there.event("AssigningReplica", replica=name, age=659)
    now = await seen(there)
    assert now.state is State.FAILED
    assert now.failure
    assert now.failure.code == "GPU_HOST_NOT_ASSIGNED"
    assert "11 min ($1.16" in now.failure.cause
    assert "stop_vllm" in now.failure.fix
    assert "AZURE_LOCATION" in now.failure.fix


async def test_a_slow_image_is_no_missing_host(there: Planted) -> None:
    """Only the wait for the host counts."""
    name = there.replica(**WAITING, age=1500)
    there.event("AssigningReplica", replica=name, age=1499)
    there.event("PullingImage", replica=name, age=1200)
    assert phase(await seen(there)) == (State.CREATING, "pulling the image")


async def test_while_its_container_boots_the_log_tells_how_far_it_is(there: Planted) -> None:
    """The phase began when its line came, whatever clock the container has."""
    name = there.replica(**BOOTING, age=300)
    there.wrote(
        name,
        "INFO 01-01 00:00:00 [x.py:1] Starting to load model gemma...",
        "Loading safetensors checkpoint shards: 50%\rLoading safetensors checkpoint shards: 61%",
        age=10,
    )
    now = await seen(there)
    assert phase(now) == (State.LOADING, "loading weights")
    assert now.phase
    assert now.phase.percent == 61
    assert 9 < (datetime.now(UTC) - now.phase.since).total_seconds() < 20
    assert there.asked == 0


async def test_an_engine_that_serves_before_its_probe_passed_is_warming(there: Planted) -> None:
    """Azure asks only every ten seconds."""
    name = there.replica(**BOOTING)
    there.wrote(name, "INFO:     Application startup complete.")
    assert phase(await seen(there)) == (State.LOADING, "warming")


async def test_without_streams_a_boot_is_told_all_the_same(there: Planted) -> None:
    """What is missing is said."""
    there.replica(**BOOTING)
    there.stream_status = 500
    now, notes = await noted(there)
    assert phase(now) == (State.CREATING, "starting")
    assert "log stream" in notes


async def test_who_may_not_read_streams_still_sees_the_boot(there: Planted) -> None:
    """The token for them is a permission of its own."""
    there.replica(**BOOTING)
    there.arm.refuse("POST .*/getAuthtoken", 403, "AuthorizationFailed")
    now, notes = await noted(there)
    assert phase(now) == (State.CREATING, "starting")
    assert "open the log streams" in notes


async def test_a_container_that_ended_says_why_in_its_own_words(there: Planted) -> None:
    """The engine's reason goes before Azure's."""
    name = there.replica(**BOOTING, restartCount=1)
    there.event("ContainerTerminated", "Container 'vllm' was terminated with exit code '1'",
                replica=name, age=30)  # fmt: skip
    now, notes = await noted(there)
    assert now.failure
    assert (now.state, now.failure.code) == (State.FAILED, "ENGINE_EXITED")
    assert "again and again, each of which bills" in notes
    there.wrote(name, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    now = await seen(there)
    assert now.failure
    assert now.failure.code == "DOES_NOT_FIT"
    assert now.failure.evidence


async def test_last_words_that_no_stream_has_any_more_come_from_log_analytics(
    there: Planted,
) -> None:
    """A replica that ended has no stream."""
    there.revisions[0]["properties"]["runningState"] = "Failed"
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    there.kept("ContainerAppConsoleLogs_CL", ["2026-11-21T10:00:00Z", line])
    now = await seen(there)
    assert now.failure
    assert now.failure.code == "DOES_NOT_FIT"


async def test_a_cooldown_that_is_shorter_than_the_boot_is_recognized(there: Planted) -> None:
    """Autoscaling ended the replica before it was ever ready."""
    there.event("ContainerStarted", replica="gone", age=200)
    text = f"Deactivated apps/v1.Deployment k8se-apps/{NEWEST} from 1 to 0"
    there.event("KEDAScaleTargetDeactivated", text, age=100)
    now = await seen(there)
    assert now.failure
    assert (now.state, now.failure.code) == (State.FAILED, "BOOT_CUT_OFF")


async def test_one_that_was_ended_as_it_waited_for_a_host_lacked_the_host(there: Planted) -> None:
    """A longer cooldown would not help it."""
    there.event("AssigningReplica", replica="gone", age=1000)
    there.event("KEDAScaleTargetDeactivated", f"Deactivated {NEWEST} from 1 to 0", age=100)
    now = await seen(there)
    assert now.failure
    assert now.failure.code == "GPU_HOST_NOT_ASSIGNED"


async def test_a_long_boot_goes_on_although_azure_calls_it_failed(there: Planted) -> None:
    """Its deadline is ten minutes, whatever the startup probe allows."""
    there.revisions[0]["properties"]["runningState"] = "ActivationFailed"
    name = there.replica(**BOOTING)
    there.wrote(name, "Starting to load model gemma")
    now, notes = await noted(there)
    assert phase(now) == (State.LOADING, "loading weights")
    assert "though its replica still boots" in notes


async def test_a_slow_image_goes_on_although_azures_time_is_over(there: Planted) -> None:
    """It was seen to take 25 minutes."""
    there.revisions[0]["properties"] |= {
        "runningState": "Degraded", "provisioningError": "Deployment Progress Deadline Exceeded.",
    }  # fmt: skip
    name = there.replica(**WAITING, age=1300)
    there.event("PullingImage", replica=name, age=1200)
    assert phase(await seen(there)) == (State.CREATING, "pulling the image")


async def test_an_image_that_cannot_be_pulled_is_not_waited_for(there: Planted) -> None:
    """Azure tries again for ever."""
    there.replica(**WAITING, runningStateDetails="waiting with reason: ImagePullBackOff")
    now = await seen(there)
    assert now.failure
    assert (now.state, now.failure.code) == (State.FAILED, "IMAGE_NOT_PULLED")


async def test_a_failed_replacement_says_that_the_former_one_serves(there: Planted) -> None:
    """Azure keeps traffic where it was, and both may bill."""
    there.app(latestReadyRevisionName=FORMER)
    there.revision(FORMER, age=7200)
    there.replica(FORMER)
    there.revisions[0]["properties"] |= {
        "runningState": "Failed",
        "provisioningError": "Failed to pull image: manifest unknown",
    }
    now, notes = await noted(there)
    assert now.failure
    assert (now.state, now.failure.code) == (State.FAILED, "IMAGE_NOT_FOUND")
    assert f"{FORMER} still serves and holds 1 replica(s)" in notes


async def test_a_first_creation_that_failed_says_why(there: Planted) -> None:
    """Whatever its running status is."""
    there.app(latestReadyRevisionName="", provisioningState="Failed", runningStatus="Stopped")
    there.revisions[0]["properties"]["provisioningError"] = (
        "Unable to get value using Managed identity x for secret hf-token"
    )
    now = await seen(there)
    assert now.failure
    assert (now.state, now.failure.code) == (State.FAILED, "SECRET_NOT_READABLE")


async def test_a_failure_without_a_word_is_said_to_be_one(there: Planted) -> None:
    """Nothing is invented."""
    there.app(latestReadyRevisionName="", latestRevisionName="", provisioningState="Failed")
    there.revisions.clear()
    now = await seen(there)
    assert now.failure
    assert (now.failure.code, now.failure.cause) == ("ROLLOUT_FAILED", "Azure gives no reason.")


async def test_a_replica_that_boots_again_is_not_judged_by_what_was_before(there: Planted) -> None:
    """It was ended as it waited for a host; woken, it fails for another reason."""
    there.app()
    there.event("AssigningReplica", replica="gone", age=5000)
    there.event("KEDAScaleTargetDeactivated", f"Deactivated {NEWEST} from 1 to 0", age=4000)
    name = there.replica(**BOOTING, restartCount=1, age=30)
    there.event("ContainerTerminated", "terminated with exit code '1'", replica=name, age=9)
    now = await seen(there)
    assert now.failure
    assert now.failure.code == "ENGINE_EXITED"


async def test_a_degraded_revision_that_serves_is_ready_and_says_so(there: Planted) -> None:
    """One of its replicas is well, another is not."""
    there.replica()
    there.replica(**BOOTING, restartCount=3)
    there.revisions[0]["properties"] |= {
        "runningState": "Degraded", "runningStateDetails": "1/2 replicas ready.",
    }  # fmt: skip
    now, notes = await noted(there)
    assert (now.state, now.replicas) == (State.READY, 2)
    assert f"Azure calls {NEWEST} Degraded 1/2 replicas ready." in notes


async def test_without_a_word_of_its_own_the_operation_says_why(there: Planted) -> None:
    """What refused a change is only in its own answer, which is kept."""
    there.app(latestReadyRevisionName="", latestRevisionName="", provisioningState="Failed")
    there.revisions.clear()
    why = Failure(code="CLOUD_REFUSED", cause="Maximum Allowed Cores exceeded", fix="x")
    refused = operations.Change(
        kind="create_or_update", what="create gemma", ground=there.site.ground,
        since=datetime.now(UTC), token="", failure=why,
    )  # fmt: skip
    operations._keep(there.site, "gemma", refused)
    now = await seen(there)
    assert now.failure
    assert (now.failure.code, now.failure.cause) == ("QUOTA_EXCEEDED", why.cause)
    other = why.model_copy(update={"code": "PERMISSION_DENIED", "cause": "No.", "fix": "Ask."})
    operations._keep(there.site, "gemma", refused.model_copy(update={"failure": other}))
    assert (await seen(there)).failure == other


async def test_one_replica_at_least_is_waited_for_where_none_may_sleep(there: Planted) -> None:
    """It is no sleep, for no request is needed."""
    there.app(scale={"minReplicas": 1})
    there.revisions[0]["properties"]["template"]["scale"]["minReplicas"] = 1
    assert phase(await seen(there)) == (State.CREATING, "queued")
