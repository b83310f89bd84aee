"""Which deployments there are: by this machine's memory and by both control planes."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from backends.tpu import chips, status
from backends.tpu.planes import ChipState, Place
from core.errors import ApiDisabled, CloudUnavailable, DeploymentNotFound, NotOurs
from core.records import State
from core.reply import collecting_notes
from tests.backends.tpu.stage import HERE, NOW, Stage, attempt, staged

pytestmark = pytest.mark.anyio

QUEUE = Place("us-east5-a", "queued")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        yield made


async def test_memory_and_clouds_are_merged_by_name(stage: Stage) -> None:
    """A search of this machine, a VM of another one, and each of them once."""
    stage.kept(attempt("", QUEUE))
    stage.chip(ChipState.WAITING, place=QUEUE)
    stage.chip(spec=stage.spec(name="another"))
    rows = await status.list_deployments(stage.site)
    assert [(row.name, row.state) for row in rows] == [
        ("another", State.LOADING),
        ("gemma", State.QUEUED),
    ]


async def test_another_targets_and_others_are_not_listed(stage: Stage) -> None:
    """Nor what was not made here at all."""
    stage.chip(labels={"vllm-devops-target": "tpu-v6e-4"})
    stage.chip(spec=stage.spec(name="theirs"), labels={"managed-by": "somebody"})
    assert not await status.list_deployments(stage.site)
    assert len(await chips.list_chips(stage.site)) == 2


async def test_another_targets_is_not_found_but_named(stage: Stage) -> None:
    """So that it is asked for there."""
    stage.chip(labels={"vllm-devops-target": "tpu-v6e-4"})
    with pytest.raises(DeploymentNotFound, match="it is on tpu-v6e-4"):
        await status.describe(stage.site, "gemma")


async def test_somebody_elses_vm_of_that_id_is_not_ours(stage: Stage) -> None:
    """It is said to be left alone."""
    stage.chip(labels={"managed-by": "somebody"})
    with pytest.raises(NotOurs, match="left alone"):
        await status.describe(stage.site, "gemma")


@pytest.mark.parametrize("name", ["nobody", "../up", "Gemma", ""])
async def test_what_there_is_not_is_not_found(stage: Stage, name: str) -> None:
    """Nor is what no deployment can be called."""
    with pytest.raises(DeploymentNotFound):
        await status.describe(stage.site, name)


async def test_the_one_that_lives_stands_for_the_name(stage: Stage) -> None:
    """A leftover of an earlier zone does not hide it, though it is younger."""
    stage.chip(ChipState.SUSPENDED, place=QUEUE, created_at=NOW)
    stage.chip(created_at=NOW - timedelta(minutes=5))
    deployment = await status.describe(stage.site, "gemma")
    assert deployment.state is State.LOADING


async def test_a_plane_that_is_off_is_noted(stage: Stage) -> None:
    """The other one's are shown all the same."""
    stage.queued.broken = ApiDisabled("The TPU API is off.", fix="")
    stage.chip()
    with collecting_notes() as notes:
        rows = await status.list_deployments(stage.site)
    assert [row.name for row in rows] == ["gemma"]
    assert any("The TPU API is off." in note for note in notes)


async def test_both_off_is_an_error(stage: Stage) -> None:
    """Nothing was seen, which is not nothing."""
    stage.queued.broken = stage.compute.broken = ApiDisabled("Off.", fix="")
    with pytest.raises(ApiDisabled):
        await status.list_deployments(stage.site)


async def test_a_plane_that_does_not_answer_is_an_error(stage: Stage) -> None:
    """There may be a VM in it that bills."""
    stage.queued.broken = CloudUnavailable("Not there.", fix="")
    stage.chip()
    with pytest.raises(CloudUnavailable):
        await chips.list_chips(stage.site)


async def test_a_remembered_one_is_looked_at_where_it_was_placed(stage: Stage) -> None:
    """Without a look at every zone, and though the other plane is silent."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.queued.broken = CloudUnavailable("Not there.", fix="")
    deployment = await status.describe(stage.site, "gemma")
    assert deployment.state is State.LOADING
    assert not stage.compute.listed


async def test_somebody_elses_vm_at_its_place_is_not_taken_for_it(stage: Stage) -> None:
    """Ours is gone, and the id was given anew."""
    stage.kept(attempt(), placed=HERE)
    stage.chip(labels={"managed-by": "somebody"})
    deployment = await status.describe(stage.site, "gemma")
    assert (deployment.state, deployment.replicas) == (State.FAILED, 0)


async def test_what_was_asked_for_is_read_from_memory_or_metadata(stage: Stage) -> None:
    """Metadata that was spoiled says nothing."""
    stage.chip()
    assert await chips.spec_of(stage.site, "gemma") == stage.spec()
    stage.chip(spec_json="{")
    assert await chips.spec_of(stage.site, "gemma") is None
    kept = stage.kept(attempt(""))
    assert await chips.spec_of(stage.site, "gemma") == kept.blueprint.spec


async def test_a_look_without_a_chip_gives_none(stage: Stage) -> None:
    """A search stands for it, and nothing in the cloud yet."""
    stage.kept(attempt("NO_CAPACITY"))
    assert await chips.chip_of(stage.site, "gemma") is None


async def test_one_that_cannot_be_told_does_not_hide_the_others(stage: Stage) -> None:
    """Why it cannot is said of it alone."""
    stage.kept(attempt("", QUEUE))
    stage.chip(spec=stage.spec(name="another"))
    stage.fail("*ListLogEntries", "PERMISSION_DENIED")
    with collecting_notes() as notes:
        rows = await status.list_deployments(stage.site)
    assert [row.name for row in rows] == ["another", "gemma"]
    assert notes
