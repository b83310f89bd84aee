"""What an app, its revisions, replicas, events and log are told as, with every reading planted."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backends.aca import app, status
from core.errors import CloudUnavailable, DeploymentNotFound, NotAuthenticated, NotOurs
from core.records import Deployment, State
from core.reply import collecting_notes
from tests.backends.aca.planted import FORMER, NEWEST, SPEC, Planted, planting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


async def seen(there: Planted, name: str = "gemma") -> Deployment:
    return await status.describe(there.site, name)


async def noted(there: Planted) -> tuple[Deployment, str]:
    """Look, and give what was noted as well."""
    with collecting_notes() as notes:
        return await seen(there), "\n".join(notes)


async def test_nothing_of_that_name_is_not_found(there: Planted) -> None:
    """The error says where to look."""
    with pytest.raises(DeploymentNotFound) as caught:
        await seen(there, "nobody")
    assert caught.value.next_steps[0].tool == "list_deployments"


async def test_a_name_that_no_app_can_have_is_not_even_asked_for(there: Planted) -> None:
    """Nor can it climb out of its folder."""
    with pytest.raises(DeploymentNotFound):
        await seen(there, "../../containerApps/gemma")
    assert there.arm.calls == []


async def test_somebody_elses_app_is_left_alone(there: Planted) -> None:
    """A name is no proof of whose it is."""
    there.app(tags={})
    with pytest.raises(NotOurs):
        await seen(there)
    assert list(await status.list_deployments(there.site)) == []


async def test_another_targets_deployment_says_where_it_is(there: Planted) -> None:
    """Both targets may be in one group."""
    there.app(tags={"managed-by": "vllm-devops-agent", "vllm-devops-target": "aca-t4"})
    with pytest.raises(DeploymentNotFound, match="it is on aca-t4"):
        await seen(there)
    assert list(await status.list_deployments(there.site)) == []


async def test_an_app_that_is_ready_and_answers_is_told_whole(there: Planted) -> None:
    """State, address, what it runs, what it costs."""
    there.app()
    there.revision()
    name = there.replica()
    there.points = {NEWEST: [1.0] * 30}
    now = await seen(there)
    assert (now.state, now.replicas, now.instance) == (State.READY, 1, name)
    assert (now.model, now.url) == (SPEC.model, there.url)
    assert (now.revision, now.engine) == (SPEC.fingerprint, "simulated vLLM 0.32.0")
    assert now.expires_at == datetime(2100, 1, 1, tzinfo=UTC)
    assert now.usd_per_hour
    assert now.usd_so_far == pytest.approx(now.usd_per_hour / 2, rel=0.001)


async def test_the_model_is_asked_once_and_no_more(there: Planted) -> None:
    """Each question would postpone the idle scale-down; the first says until when."""
    there.app()
    there.revision()
    there.replica()
    now, notes = await noted(there)
    await seen(there)
    assert there.asked == 1
    assert now.awake_until
    assert now.awake_until > datetime.now(UTC)
    assert notes == ""


async def test_a_replica_that_is_not_ready_is_never_asked(there: Planted) -> None:
    """A request would be held, and count as a reason to scale."""
    there.app(latestReadyRevisionName="")
    there.revision()
    there.replica(ready=False)
    await seen(there)
    assert there.asked == 0


async def test_without_replicas_what_was_ready_is_asleep_and_not_asked(there: Planted) -> None:
    """Looking never wakes."""
    there.app()
    there.revision()
    there.site.answered.add(NEWEST)
    now = await seen(there)
    assert (now.state, now.replicas, there.asked) == (State.ASLEEP, 0, 0)
    assert not there.site.answered


async def test_replicas_of_every_revision_are_counted(there: Planted) -> None:
    """One that was replaced goes on billing while it holds a replica, and says what it costs."""
    there.app()
    there.revision(FORMER, age=7200, active=False)
    there.replica(FORMER)
    there.revision()
    there.replica()
    now, notes = await noted(there)
    assert (now.state, now.replicas) == (State.READY, 2)
    assert f"{FORMER} holds 1 replica(s), at $" in notes


async def test_what_sleeps_beside_a_former_revision_that_runs_is_not_called_asleep(
    there: Planted,
) -> None:
    """Asleep means that nothing is billed."""
    there.app()
    there.revision(FORMER, age=7200, active=False)
    there.replica(FORMER)
    there.revision()
    now = await seen(there)
    assert now.state is State.UNKNOWN
    assert now.failure
    assert now.failure.code == "FORMER_REVISION_RUNS"


async def test_replicas_that_are_only_counted_count(there: Planted) -> None:
    """A revision may say that it holds more than it lists."""
    there.app(runningStatus="Stopped")
    there.revision(replicas=1)
    assert (await seen(there)).state is State.STOPPING


async def test_stopped_is_what_holds_no_replica_of_any_revision(there: Planted) -> None:
    """Until then it is stopping."""
    there.app(runningStatus="Stopped")
    there.revision(FORMER, age=7200)
    there.replica(FORMER)
    there.revision()
    now = await seen(there)
    assert (now.state, now.replicas) == (State.STOPPING, 1)
    there.replicas.clear()
    there.revisions.clear()
    there.revision()
    assert (await seen(there)).state is State.STOPPED


async def test_an_app_that_is_being_deleted_says_so(there: Planted) -> None:
    """It may still be seen for a while."""
    there.app(provisioningState="Deleting")
    assert (await seen(there)).state is State.DELETING


async def test_without_a_revision_it_waits_for_one(there: Planted) -> None:
    """Azure has taken the app and made nothing of it yet."""
    there.app(provisioningState="InProgress", latestRevisionName="", latestReadyRevisionName="")
    now = await seen(there)
    assert (now.state, now.phase and now.phase.name) == (State.CREATING, "queued")


async def test_a_model_that_does_not_answer_yet_is_loading(there: Planted) -> None:
    """Ready is only what has answered."""
    there.app()
    there.revision()
    there.replica()
    there.healthy = False
    now = await seen(there)
    assert (now.state, now.phase and now.phase.name) == (State.LOADING, "warming")
    assert now.failure
    assert now.failure.cause.startswith("Its replica is up but the model has not answered")


async def test_an_internal_app_is_ready_by_azures_own_probe(there: Planted) -> None:
    """Nobody here can ask it, which is said."""
    there.app(ingress={"external": False})
    there.revision()
    there.replica()
    there.healthy, there.refusal = False, (404, "not found")
    now, notes = await noted(there)
    assert now.state is State.READY
    assert "only inside its environment's network" in notes


async def test_a_refused_address_is_told_with_the_one_that_would_be_let_in(tmp_path: Path) -> None:
    """A person's address changes; deploying again puts it right."""
    async with planting(tmp_path, azure_allowed_addresses=("203.0.113.9",)) as there:
        allowed = {"name": "a", "ipAddressRange": "198.51.100.1/32", "action": "Allow"}
        there.app(ingress={"ipSecurityRestrictions": [allowed]})
        there.revision()
        there.replica()
        there.healthy, there.refusal = False, (403, "RBAC: access denied")
        now = await seen(there)
    assert now.failure
    assert now.failure.code == "ADDRESS_NOT_ALLOWED"
    assert "198.51.100.1/32" in now.failure.cause
    assert "203.0.113.9/32" in now.failure.fix


async def test_a_login_that_ends_midway_is_said_as_that(there: Planted) -> None:
    """Neither an empty list nor a strange state."""
    there.app()
    there.arm.refuse("GET .*/revisions", 401, "ExpiredAuthenticationToken")
    with pytest.raises(NotAuthenticated):
        await seen(there)
    with pytest.raises(NotAuthenticated):
        await status.list_deployments(there.site)


async def test_one_app_that_cannot_be_read_does_not_hide_the_others(there: Planted) -> None:
    """It is listed with the reason."""
    there.app()
    there.arm.refuse("GET .*/revisions", 403, "AuthorizationFailed")
    with collecting_notes() as notes:
        (now,) = await status.list_deployments(there.site)
    assert (now.name, now.state) == ("gemma", State.UNKNOWN)
    assert now.failure
    assert now.failure.code == "PERMISSION_DENIED"
    assert notes


async def test_without_metrics_the_state_is_told_all_the_same(there: Planted) -> None:
    """What is missing is said."""
    there.app()
    there.revision()
    there.replica()
    there.arm.refuse("POST .*metrics:getBatch", 403, "AuthorizationFailed")
    now, notes = await noted(there)
    assert (now.state, now.usd_so_far) == (State.READY, None)
    assert "read how many replicas ran" in notes


async def test_a_list_that_azure_refuses_is_a_coded_error(there: Planted) -> None:
    """Not a group of errors, nor an empty list."""
    there.arm.refuse("GET .*/containerApps", 503, "ServiceUnavailable")
    with pytest.raises(CloudUnavailable):
        await status.list_deployments(there.site)


async def test_without_a_group_there_is_nothing_to_list(there: Planted) -> None:
    """Before the set-up there is none."""
    there.arm.refuse("GET .*/containerApps", 404, "ResourceGroupNotFound")
    assert list(await status.list_deployments(there.site)) == []


async def test_an_app_whose_spec_was_lost_is_still_told(there: Planted) -> None:
    """Tags can be changed by hand."""
    own = {"managed-by": "vllm-devops-agent", "vllm-devops-target": "aca-a100"}
    there.app(tags={**own, "vllm-devops-json-0": "1:{broken"}, provisioningState="Deleting")
    assert (await seen(there)).model == "not known"
    assert await app.get_spec(there.site, "gemma") is None
