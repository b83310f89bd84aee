"""What a service, its instances and its log are told as, with every reading planted."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.cloud import run_v2

from core.errors import CloudUnavailable, DeploymentNotFound, NotOurs
from core.records import Deployment, State
from core.reply import collecting_notes
from tests.backends.cloud_run import server
from tests.backends.cloud_run.planted import PARENT, SPEC, Planted, labels, planting

pytestmark = pytest.mark.anyio


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


def condition(state: str, **said: Any) -> run_v2.Condition:
    return run_v2.Condition(
        type_="Ready", state=f"CONDITION_{state}", last_transition_time=datetime.now(UTC), **said
    )


async def test_nothing_of_that_name_is_not_found(there: Planted) -> None:
    """The error says where to look."""
    with pytest.raises(DeploymentNotFound) as caught:
        await seen(there, "nobody")
    assert caught.value.next_steps[0].tool == "list_deployments"


async def test_a_name_that_no_service_can_have_is_not_even_asked_for(there: Planted) -> None:
    """Nor can it climb out of its folder."""
    with pytest.raises(DeploymentNotFound):
        await seen(there, "../../services/gemma")
    assert there.project.calls == []


async def test_somebody_elses_service_is_left_alone(there: Planted) -> None:
    """A name is no proof of whose it is."""
    there.service(labels={})
    with pytest.raises(NotOurs):
        await seen(there)
    assert await server.list_deployments(there.site) == ()


async def test_another_targets_deployment_says_where_it_is(there: Planted) -> None:
    """Both targets may be in one region."""
    there.service(labels=labels(**{"vllm-devops-target": "cloud-run-rtx-pro-6000"}))
    with pytest.raises(DeploymentNotFound, match="it is on cloud-run-rtx-pro-6000"):
        await seen(there)
    assert await server.list_deployments(there.site) == ()


async def test_a_service_that_is_ready_and_answers_is_told_whole(there: Planted) -> None:
    """State, address, what it runs, what it costs."""
    there.service()
    there.instance(started=60)
    now = await seen(there)
    assert (now.state, now.replicas, now.instance) == (State.READY, 1, "gemma-00001-abc")
    assert (now.model, now.url) == (SPEC.model, there.uri)
    assert (now.revision, now.engine) == (SPEC.fingerprint, "simulated vLLM 0.32.0")
    assert now.expires_at == datetime(2100, 1, 1, tzinfo=UTC)
    assert now.usd_per_hour == pytest.approx(0.672 + 4 * 0.0648 + 16 * 0.0072, abs=0.001)
    assert now.usd_so_far == pytest.approx(1.0465 / 60, rel=0.1)


async def test_a_model_that_does_not_answer_yet_is_loading_as_its_log_says(there: Planted) -> None:
    """Ready is only what has answered."""
    there.service()
    there.instance(started=60)
    there.healthy = False
    there.log("INFO 11-21 12:00:00 [x.py:1] Starting to load model gemma...")
    now = await seen(there)
    assert (now.state, now.phase and now.phase.name) == (State.LOADING, "loading weights")
    assert now.failure
    assert now.failure.cause.startswith("Its revision is up but the model has not answered")


async def test_before_its_container_says_anything_it_is_being_created(there: Planted) -> None:
    """The phase is the revision's next step."""
    service = there.service(reconciling=True, latest_ready_revision="", uri="")
    there.project.revisions[service.latest_created_revision].conditions = [
        run_v2.Condition(type_="ContainerReady", state="CONDITION_SUCCEEDED")
    ]
    now = await seen(there)
    assert (now.state, now.phase and now.phase.name) == (State.CREATING, "provisioning")
    assert now.url is None


async def test_without_a_revision_it_waits_for_one(there: Planted) -> None:
    """Google has taken the service and made nothing of it yet."""
    there.service(reconciling=True, latest_created_revision="")
    now = await seen(there)
    assert (now.state, now.phase and now.phase.name) == (State.CREATING, "queued")


async def test_a_revision_that_is_gone_again_is_no_crash(there: Planted) -> None:
    """Between two looks somebody may delete it."""
    there.service(reconciling=True)
    there.project.revisions.clear()
    assert (await seen(there)).state is State.CREATING


async def test_while_its_container_boots_the_log_tells_how_far_it_is(there: Planted) -> None:
    """The phase began when its line came, whatever clock the container has."""
    there.service(reconciling=True)
    there.log(
        "INFO 01-01 00:00:00 [x.py:1] Starting to load model gemma...",
        "Loading safetensors checkpoint shards:  61% Completed | 11/18 [00:20<00:12]",
        ago=10,
    )
    now = await seen(there)
    assert now.state is State.LOADING
    assert now.phase
    assert (now.phase.name, now.phase.percent) == ("loading weights", 61)
    assert 9 < (datetime.now(UTC) - now.phase.since).total_seconds() < 20


async def test_a_rollout_that_failed_says_why_and_what_it_wrote(there: Planted) -> None:
    """The engine's reason goes before Google's."""
    words = "The container failed to start and listen on the port."
    there.service(
        terminal_condition=condition("FAILED", message=words, reason="REVISION_FAILED"),
        latest_ready_revision="",
    )
    now = await seen(there)
    assert now.failure
    assert (now.state, now.failure.code) == (State.FAILED, "STARTUP_PROBE_FAILED")
    there.log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    now = await seen(there)
    assert now.failure
    assert now.failure.code == "DOES_NOT_FIT"
    assert now.failure.evidence


async def test_a_failed_replacement_says_that_the_former_one_bills_on(there: Planted) -> None:
    """Cloud Run keeps traffic where it was."""
    there.service(
        terminal_condition=condition("FAILED", message="No.", reason="CONTAINER_MISSING"),
        latest_ready_revision=f"{PARENT}/services/gemma/revisions/gemma-00000-old",
    )
    now, notes = await noted(there)
    assert now.state is State.FAILED
    assert "gemma-00000-old, which bills on" in notes


async def test_a_service_that_is_being_deleted_says_so(there: Planted) -> None:
    """It may still be seen for a while."""
    there.service(delete_time=datetime.now(UTC))
    assert (await seen(there)).state is State.DELETING


@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "INTERNAL"])
async def test_without_monitoring_the_state_is_told_all_the_same(
    there: Planted, status: str
) -> None:
    """What is missing is said."""
    there.service(age_seconds=30)
    there.fail("google.monitoring.*", status)
    now, notes = await noted(there)
    assert (now.state, now.usd_so_far) == (State.READY, None)
    assert status in notes or "does not let you" in notes


async def test_without_logs_a_boot_is_told_all_the_same(there: Planted) -> None:
    """The revision's own conditions are left."""
    there.service(reconciling=True)
    there.fail("google.logging.*", "PERMISSION_DENIED")
    now, notes = await noted(there)
    assert now.state is State.CREATING
    assert "read the log" in notes


async def test_a_list_that_google_refuses_is_a_coded_error(there: Planted) -> None:
    """Not a group of errors, nor an empty list."""
    there.fail("*ListServices", "INTERNAL")
    with pytest.raises(CloudUnavailable):
        await server.list_deployments(there.site)


async def test_without_run_there_is_nothing_to_tell(there: Planted) -> None:
    """That is an error, and one to try again after."""
    there.service()
    there.fail("*GetService", "INTERNAL")
    with pytest.raises(CloudUnavailable):
        await seen(there)


async def test_a_short_failure_of_google_is_not_noticed(there: Planted) -> None:
    """Looking may be repeated."""
    there.service(age_seconds=30)
    there.fail("*GetService", "UNAVAILABLE", times=1)
    assert (await seen(there)).state is State.READY


async def test_every_deployment_of_the_target_is_listed_by_name(there: Planted) -> None:
    """And nothing else."""
    for name in ("second", "first"):
        there.service(name, delete_time=datetime.now(UTC))
    there.service("foreign", labels={})
    names = [(each.name, each.state) for each in await server.list_deployments(there.site)]
    assert names == [("first", State.DELETING), ("second", State.DELETING)]


async def test_a_service_whose_spec_was_lost_is_still_told(there: Planted) -> None:
    """Annotations can be removed by hand."""
    there.service(annotations={"vllm-devops/spec": "{broken"}, delete_time=datetime.now(UTC))
    assert (await seen(there)).model == "not known"
    assert await server.spec(there.site, "gemma") is None
