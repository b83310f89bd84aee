"""How a deployment on TPUs ends: its chip taken, its time over, its engine dead."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from backends.tpu import status
from backends.tpu.planes import ChipState, Ended, Place
from core.records import Deployment, State
from core.reply import collecting_notes
from tests.backends.tpu.stage import HERE, NOW, Stage, attempt, staged

pytestmark = pytest.mark.anyio

QUEUE = Place("us-east5-a", "queued")
FULL = (
    "RuntimeError: HLO temporaries (20.1G) exceeds available HBM (19.5G)",
    "RuntimeError: Engine core initialization failed. See root cause above.",
)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        yield made


async def told(stage: Stage) -> tuple[Deployment, str]:
    """What is said of it, and what is noted beside."""
    with collecting_notes() as notes:
        deployment = await status.describe(stage.site, "gemma")
    return deployment, " ".join(notes)


@pytest.mark.parametrize("code", ["PREEMPTED", "EXPIRED", "DELETED_ELSEWHERE"])
async def test_a_vm_that_is_gone_is_told_by_what_google_remembers(stage: Stage, code: str) -> None:
    """Its operations are the only explanation left; its time ended then."""
    stage.kept(attempt(), placed=HERE)
    at = NOW - timedelta(minutes=1)
    stage.compute.ends = Ended(code, at, "Instance was preempted.")  # type: ignore[arg-type]  # of the table
    deployment, _ = await told(stage)
    state = State.EXPIRED if code == "EXPIRED" else State.FAILED
    assert (deployment.state, deployment.since) == (state, at)
    assert deployment.failure
    assert deployment.failure.code == code
    assert (": Its time was over" in deployment.summary()) == (code == "EXPIRED")
    assert "Instance was preempted." in deployment.failure.cause
    assert "deploy_vllm" in deployment.failure.fix
    assert "destroy_vllm" not in deployment.failure.fix
    assert deployment.replicas == 0


async def test_a_vm_that_is_gone_for_reasons_unknown_says_so(stage: Stage) -> None:
    """No reason is made up."""
    stage.kept(attempt(), placed=HERE)
    deployment, _ = await told(stage)
    assert deployment.failure
    assert deployment.failure.code == "NOT_KNOWN"


@pytest.mark.parametrize(
    ("state", "taken_by", "code"),
    [
        (ChipState.SUSPENDED, "service", "PREEMPTED"),
        (ChipState.SUSPENDED, "user", "DELETED_ELSEWHERE"),
        (ChipState.FAILED, "", "REQUEST_FAILED"),
    ],
)
async def test_a_leftover_is_named_with_what_it_holds(
    stage: Stage, state: ChipState, taken_by: str, code: str
) -> None:
    """It bills nothing, and counts against the quota until destroy_vllm."""
    stage.kept(attempt(place=QUEUE), placed=QUEUE)
    stage.chip(state, place=QUEUE, taken_by=taken_by, why="Google's words.", node="")
    deployment, _ = await told(stage)
    assert deployment.state is State.FAILED
    assert deployment.failure
    assert deployment.failure.code == code
    assert "Google's words." in deployment.failure.cause
    assert "destroy_vllm" in deployment.failure.fix
    assert "counts against the quota" in deployment.failure.fix
    assert deployment.usd_so_far is None


async def test_an_instance_that_was_stopped_bills_its_disk(stage: Stage) -> None:
    """It never starts again, and its end by Google is dropped when it stops."""
    stage.kept(attempt(), placed=HERE)
    stage.chip(ChipState.SUSPENDED)
    deployment, _ = await told(stage)
    assert deployment.failure
    assert "destroy_vllm" in deployment.failure.fix
    assert "bills its disk" in deployment.failure.fix
    assert "bills nothing" not in deployment.failure.fix


async def test_a_leftover_whose_time_is_over_has_expired(stage: Stage) -> None:
    """The service suspends those of flex-start as it does those it takes back."""
    stage.kept(attempt(place=QUEUE), placed=QUEUE)
    ends = NOW - timedelta(seconds=30)
    stage.chip(ChipState.SUSPENDED, place=QUEUE, taken_by="service", ends_at=ends)
    deployment, _ = await told(stage)
    assert deployment.failure
    assert (deployment.failure.code, deployment.since) == ("EXPIRED", ends)
    assert "ttl_minutes" in deployment.failure.fix


async def test_what_it_cost_ends_with_its_vm(stage: Stage) -> None:
    """From the chip to the moment at which it was taken."""
    stage.kept(attempt(place=QUEUE), placed=QUEUE)
    given = NOW - timedelta(hours=2)
    stage.queued.ends = Ended("PREEMPTED", NOW - timedelta(hours=1), "")
    stage.chip(ChipState.SUSPENDED, place=QUEUE, given_at=given)
    deployment, _ = await told(stage)
    assert deployment.usd_so_far == deployment.usd_per_hour


async def test_a_script_that_failed_leaves_a_vm_that_bills(stage: Stage) -> None:
    """What it could not do is the failure, and the bill goes on until somebody acts."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.told("booting", ago=100)
    stage.told("failed", "vllm/vllm-tpu:v9 cannot be pulled: manifest unknown", ago=50)
    deployment, notes = await told(stage)
    assert deployment.state is State.FAILED
    assert deployment.failure
    assert deployment.failure.code == "BOOT_FAILED"
    assert "manifest unknown" in deployment.failure.cause
    assert "bills" in notes
    assert f"${deployment.usd_per_hour:.2f} an hour" in notes


async def test_an_engine_that_died_is_told_by_its_last_lines(stage: Stage) -> None:
    """By the catalogue of failures, with the lines; its VM bills on."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.told("starting engine", ago=100)
    stage.wrote(*FULL, ago=60)
    stage.told("ended", "The engine ended with exit code 1.", ago=50)
    deployment, notes = await told(stage)
    assert deployment.failure
    assert deployment.failure.code == "TPU_HBM_EXCEEDED"
    assert "20.1G" in deployment.failure.cause
    assert "bills" in notes


async def test_an_engine_that_was_killed_says_by_which_signal(stage: Stage) -> None:
    """Docker adds 128 to it."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.told("starting engine", ago=100)
    stage.told("ended", "The engine ended with exit code 137.", ago=50)
    deployment, _ = await told(stage)
    assert deployment.failure
    assert deployment.failure.code == "KILLED"
    assert "signal 9" in deployment.failure.cause


async def test_an_engine_that_is_started_again_boots(stage: Stage) -> None:
    """Its next boot is told from its first line on, which is older than the script's word of it."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.told("starting engine", ago=100)
    stage.told("ready", ago=80)
    stage.wrote("INFO 11-21 02:00:00 Starting to load model m...", ago=55)
    stage.told("starting engine", "The engine ended and is started again.", ago=50)
    deployment, _ = await told(stage)
    assert deployment.state is State.LOADING
    assert deployment.phase
    assert deployment.phase.name == "loading weights"
