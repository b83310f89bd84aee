"""Deployments that have no app yet, as what they stand on is being made."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backends.aca import app, logs, resources, status
from backends.lifecycle import Pending
from core.errors import DeploymentNotFound, NotOurs, NotReady
from core.records import Failure, State
from core.reply import collecting_notes
from planner.model import catalog_shape
from tests.backends.aca.planted import SPEC, Planted, planting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def wait(there: Planted, failure: Failure | None = None) -> Pending:
    """Let a deployment wait for its environment."""
    store = there.site.pending
    waiting = Pending(
        spec=SPEC,
        model=catalog_shape(SPEC.model),
        where=store.where,
        since=datetime.now(UTC),
        phase=resources.ENVIRONMENT,
        failure=failure,
    )
    store.keep(waiting)
    return waiting


async def test_before_there_is_an_app_its_phase_is_what_it_waits_for(there: Planted) -> None:
    """Nothing is billed, and what it would cost is known."""
    wait(there)
    now = await status.describe(there.site, "gemma")
    assert (now.state, now.phase and now.phase.name) == (State.CREATING, resources.ENVIRONMENT)
    assert (now.model, now.revision, now.replicas) == (SPEC.model, SPEC.fingerprint, 0)
    assert now.engine.startswith("simulated vLLM")
    assert now.usd_per_hour
    assert now.url is None
    assert await app.get_spec(there.site, "gemma") == SPEC


async def test_whoever_needs_its_app_is_told_that_there_is_none_yet(there: Planted) -> None:
    """It is listed, so nobody is told that there is no such deployment."""
    wait(there)
    with pytest.raises(NotReady, match=resources.ENVIRONMENT) as caught:
        await app.get_app(there.site, "gemma")
    assert "destroy_vllm" in caught.value.fix
    assert caught.value.next_steps[0].tool == "status_vllm"
    with pytest.raises(DeploymentNotFound):
        await app.get_app(there.site, "another")


async def test_what_stopped_it_is_told(there: Planted) -> None:
    """Deployed again, it is tried anew."""
    why = Failure(code="QUOTA_EXCEEDED", cause="No more environments.", fix="Remove one.")
    wait(there, why)
    now = await status.describe(there.site, "gemma")
    assert (now.state, now.phase, now.failure) == (State.FAILED, None, why)


async def test_one_that_waits_is_listed_beside_those_that_run(there: Planted) -> None:
    """By name, each once."""
    wait(there)
    there.app("zeta", provisioningState="Deleting")
    found = [(each.name, each.state) for each in await status.list_deployments(there.site)]
    assert found == [("gemma", State.CREATING), ("zeta", State.DELETING)]


async def test_a_former_app_serves_until_the_new_one_has_what_it_needs(there: Planted) -> None:
    """Whoever follows the deployment must see that there is a next step."""
    there.app()
    wait(there)
    with collecting_notes() as notes:
        now = await status.describe(there.site, "gemma")
    assert now.state is State.CREATING
    assert any("serves as it did before" in note for note in notes)


async def test_somebody_elses_app_is_not_hidden_by_what_waits(there: Planted) -> None:
    """It was made after that."""
    there.app(tags={})
    wait(there)
    with pytest.raises(NotOurs):
        await status.describe(there.site, "gemma")


async def test_it_has_no_log_yet(there: Planted) -> None:
    """Which is said."""
    wait(there)
    with collecting_notes() as notes:
        found = await logs.read_logs(there.site, "gemma", lines=9)
    assert found.total == 0
    assert notes == ["gemma has no container yet."]


def test_the_phases_before_an_app_are_those_that_have_a_next_step() -> None:
    """Whoever follows a deployment goes on in them."""
    assert "creating the environment" in resources.PHASES
    assert "queued" not in resources.PHASES
