"""A request, its VM and its log, told as one deployment."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends.tpu import status
from backends.tpu.planes import ChipState, Place
from backends.tpu.search import DELETING, REPLACING, RETURNING, SEARCHING, WAITS_IN
from core.records import Deployment, Failure, State
from core.reply import collecting_notes
from tests.backends.tpu.stage import HERE, NOW, Stage, attempt, staged

pytestmark = pytest.mark.anyio

QUEUE = Place("us-east5-a", "queued")
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
COMPILES = (
    "INFO 11-21 02:17:22 [x.py:9] Compiling sampling with different input shapes.",
    "INFO 11-21 02:17:22 [x.py:1] Precompile worker0 sample --> {'num_reqs': 8}",
    "INFO 11-21 02:17:23 [x.py:1] Precompile worker0 sample --> {'num_reqs': 16}",
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


async def test_a_search_is_queued_and_says_where_it_is(stage: Stage) -> None:
    """Nothing bills, and the next call takes its next step."""
    stage.kept(attempt("QUOTA_EXCEEDED", Place("us-east5-a", "compute")), attempt("", QUEUE))
    deployment, _ = await told(stage)
    assert (deployment.state, deployment.replicas, deployment.usd_so_far) == (State.QUEUED, 0, None)
    assert deployment.phase
    assert deployment.phase.name == SEARCHING
    assert "us-east5-a (queued resource), place 2 of" in deployment.phase.detail
    assert deployment.resources["gave no chip"] == "us-east5-a (Compute Engine): QUOTA_EXCEEDED"
    assert deployment.url is None


async def test_a_request_that_waits_is_shown_in_the_clouds_words(stage: Stage) -> None:
    """The queued resource and its state, before there is any node."""
    stage.kept(attempt("", QUEUE))
    stage.chip(ChipState.WAITING, place=QUEUE, said="WAITING_FOR_RESOURCES", node="")
    deployment, _ = await told(stage)
    assert deployment.state is State.QUEUED
    assert deployment.resources["queued resource"] == "vllm-devops-gemma WAITING_FOR_RESOURCES"
    assert "node" not in deployment.resources
    assert deployment.phase
    assert deployment.phase.detail.endswith("WAITING_FOR_RESOURCES")


async def test_a_chip_that_the_search_has_not_noted_yet_still_waits_for_a_call(
    stage: Stage,
) -> None:
    """Its phase is one that a call goes on from: else nobody would ever note the chip."""
    stage.kept(attempt("", QUEUE))
    stage.chip(place=QUEUE)
    deployment, _ = await told(stage)
    assert deployment.state is State.CREATING
    assert deployment.phase
    assert deployment.phase.name in WAITS_IN


@pytest.mark.parametrize(
    ("said", "state", "phase"),
    [
        ({"deleting": True, "placed": HERE}, State.DELETING, DELETING),
        ({"replacing": (HERE,)}, State.QUEUED, REPLACING),
        ({"attempts": (attempt("NO_CAPACITY", returned=False),)}, State.QUEUED, RETURNING),
    ],
)
async def test_what_goes_on_only_by_calls_says_so(
    stage: Stage, said: dict[str, Any], state: State, phase: str
) -> None:
    """A removal, a replacement, a request that is given back."""
    stage.kept(**said)
    deployment, _ = await told(stage)
    assert (deployment.state, deployment.phase and deployment.phase.name) == (state, phase)


async def test_a_search_that_found_nothing_has_failed(stage: Stage) -> None:
    """As it was written down, with every place that gave no chip."""
    failure = Failure(code="NO_CAPACITY", cause="No chip in one place.", fix="Deploy again.")
    stage.kept(attempt("NO_CAPACITY"), failure=failure)
    deployment, _ = await told(stage)
    assert (deployment.state, deployment.failure) == (State.FAILED, failure)


async def test_a_vm_that_is_being_made_is_no_boot_yet(stage: Stage) -> None:
    """A chip was given; nothing of ours runs on it."""
    stage.kept(attempt(), placed=HERE)
    stage.chip(ChipState.PROVISIONING, said="STAGING")
    deployment, _ = await told(stage)
    assert deployment.state is State.CREATING
    assert deployment.phase
    assert (deployment.phase.name, deployment.phase.detail) == ("making the VM", "STAGING")


async def test_a_vm_that_runs_is_never_ready_by_itself(stage: Stage) -> None:
    """ACTIVE and RUNNING say nothing of vLLM; it bills from here on."""
    stage.kept(attempt(), placed=HERE)
    stage.chip(external_ip="127.77.1.1")
    deployment, _ = await told(stage)
    assert (deployment.state, deployment.replicas) == (State.LOADING, 1)
    assert deployment.phase
    assert deployment.phase.name == "booting"
    assert deployment.url == "https://127.77.1.1:8000"
    assert deployment.usd_so_far
    assert deployment.usd_per_hour


async def test_the_script_tells_each_step_of_a_boot(stage: Stage) -> None:
    """A step that is tried again goes on since its first try; a certificate is no step."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.told("booting", ago=110)
    stage.told("certificate", CERTIFICATE, ago=100)
    stage.told("pulling image", "vllm/vllm-tpu:v0.27.0", ago=90)
    stage.told("pulling image", "Try 2 of 6, for: no route", ago=60)
    deployment, _ = await told(stage)
    assert deployment.phase
    assert deployment.phase.name == "pulling image"
    assert deployment.phase.detail == "Try 2 of 6, for: no route"
    assert deployment.phase.since == NOW - timedelta(seconds=90)


async def test_a_long_compile_is_no_hang(stage: Stage) -> None:
    """It says how many graphs there are so far, and how long it usually takes, by whom."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.told("booting", ago=110)
    stage.told("starting engine", ago=80)
    stage.wrote(*COMPILES)
    deployment, _ = await told(stage)
    assert (deployment.state, deployment.failure) == (State.LOADING, None)
    assert deployment.phase
    assert deployment.phase.name == "compiling"
    assert deployment.phase.detail.startswith("2 graphs so far")
    assert "expected: 5 min, 1 to 10" in deployment.phase.detail


async def test_only_the_newest_boot_is_told(stage: Stage) -> None:
    """A VM that came up again boots again, whatever it has compiled before."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.told("starting engine", ago=100)
    stage.wrote(*COMPILES, ago=90)
    stage.told("booting", ago=30)
    deployment, _ = await told(stage)
    assert deployment.phase
    assert deployment.phase.name == "booting"


async def test_a_silent_vm_is_explained(stage: Stage) -> None:
    """One that may not write logs boots on, and nobody sees how far it is."""
    stage.kept(attempt(), placed=HERE)
    stage.chip(given_at=NOW - timedelta(minutes=20))
    _, notes = await told(stage)
    assert "logged nothing in Cloud Logging" in notes
    assert "roles/logging.logWriter" in notes


async def test_what_the_serial_port_tells_stands_in_for_the_log(stage: Stage) -> None:
    """On Compute Engine, where it can be read."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    prefix = "Nov 21 02:14:48 host google_metadata_script_runner[1]: startup-script:"
    stage.compute.port = [
        "[    0.1] Linux",
        f"{prefix} vllm-devops: booting: 6.8",
        f"{prefix} vllm-devops: pulling image: vllm/vllm-tpu:v0.27.0",
    ]
    deployment, notes = await told(stage)
    assert deployment.phase
    assert deployment.phase.name == "pulling image"
    assert not notes


async def test_of_another_machines_search_its_request_is_told(stage: Stage) -> None:
    """By its labels and metadata alone."""
    stage.chip(ChipState.WAITING, place=QUEUE, said="WAITING_FOR_RESOURCES")
    deployment, _ = await told(stage)
    assert (deployment.state, deployment.model) == (State.QUEUED, stage.spec().model)
    assert deployment.revision == stage.spec().fingerprint


async def test_a_stopped_vm_bills_nothing_more(stage: Stage) -> None:
    """It says so, and no cost that would grow."""
    stage.kept(attempt(), placed=HERE)
    stage.chip(ChipState.STOPPED, given_at=NOW - timedelta(hours=1))
    deployment, _ = await told(stage)
    assert (deployment.state, deployment.replicas) == (State.STOPPED, 0)
    assert deployment.usd_so_far is None


async def test_when_it_ends_is_told_by_the_cloud_or_by_our_label(stage: Stage) -> None:
    """Whichever comes first."""
    stage.kept(attempt(), placed=HERE)
    label = NOW + timedelta(hours=1)
    stage.chip(
        labels={"vllm-devops-expires": f"{label.timestamp():.0f}"}, ends_at=NOW + timedelta(hours=4)
    )
    deployment, _ = await told(stage)
    assert deployment.expires_at
    assert abs(deployment.expires_at - label) < timedelta(seconds=1)


async def test_the_time_to_run_begins_with_the_chip(stage: Stage) -> None:
    """Its label was written with the request and allows for the wait."""
    stage.kept(attempt(), placed=HERE, spec=stage.spec(ttl_minutes=30))
    later = NOW + timedelta(hours=2)
    chip = stage.chip(labels={"vllm-devops-expires": f"{later.timestamp():.0f}"})
    deployment, _ = await told(stage)
    assert chip.given_at
    assert deployment.expires_at == chip.given_at + timedelta(minutes=30)


async def test_the_look_at_everything_is_shared(stage: Stage) -> None:
    """Nine targets listed together ask each plane once."""
    stage.chip()
    async with anyio.create_task_group() as tasks:
        for _ in range(9):
            tasks.start_soon(status.list_deployments, stage.site)
    assert (stage.queued.listed, stage.compute.listed) == (1, 1)
