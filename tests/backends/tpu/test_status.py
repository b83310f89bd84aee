"""A request, its VM, its log and its model, told as one deployment; which there are."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends.base import EngineFacts
from backends.tpu import search, status
from backends.tpu.site import ChipState, Ended, Place
from backends.tpu.status import DELETING, REPLACING, RETURNING, SEARCHING, WAITS_IN
from core.errors import ApiDisabled, CloudUnavailable, DeploymentNotFound, NotOurs
from core.records import Deployment, Failure, State
from core.reply import collecting_notes
from tests.backends.tpu.planned import EIGHT
from tests.backends.tpu.sites import offline, on
from tests.backends.tpu.stage import HERE, KEY, NOW, Stage, attempt, staged

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
        made.opened("127.0.0.1/32")
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
    """With its newest try; a certificate is no step."""
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
    assert deployment.phase.since == NOW - timedelta(seconds=60)


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


FULL = (
    "RuntimeError: HLO temporaries (20.1G) exceeds available HBM (19.5G)",
    "RuntimeError: Engine core initialization failed. See root cause above.",
)


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


async def served(stage: Stage, *, tell: bool = True, **said: object) -> None:
    """A VM whose engine is up."""
    spec = stage.spec(**said)
    stage.kept(attempt(), placed=HERE, spec=spec)
    await stage.serves(stage.chip(spec=spec), tell=tell)
    stage.told("starting engine", ago=80)
    stage.told("ready", ago=20)


async def test_it_is_ready_once_its_model_has_answered(stage: Stage) -> None:
    """With the key, over TLS."""
    await served(stage)
    deployment, _ = await told(stage)
    assert (deployment.state, deployment.failure) == (State.READY, None)
    assert stage.asked == [f"Bearer {KEY}"]


async def test_it_is_asked_once(stage: Stage) -> None:
    """Another look asks no more, and reads the script's own log alone."""
    await served(stage)
    await told(stage)
    before = len(stage.project.calls)
    deployment, _ = await told(stage)
    calls = stage.project.calls[before:]
    assert deployment.state is State.READY
    assert len(stage.asked) == 1
    assert len([call for call in calls if call.endswith("ListLogEntries")]) == 1


async def test_a_boot_is_read_once_at_each_look(stage: Stage) -> None:
    """A project has 60 reads a minute, for every deployment and every server that looks."""
    stage.kept(attempt(), placed=HERE)
    stage.chip()
    stage.told("pulling image", ago=20)
    deployment, _ = await told(stage)
    assert deployment.state is State.LOADING
    assert len([call for call in stage.project.calls if call.endswith("ListLogEntries")]) == 1


async def test_another_start_of_the_engine_is_asked_anew(stage: Stage) -> None:
    """An answer of its former life says nothing of this one."""
    await served(stage)
    await told(stage)
    stage.told("starting engine", "The engine ended and is started again.", ago=10)
    deployment, _ = await told(stage)
    assert deployment.state is State.LOADING
    stage.told("ready", ago=5)
    deployment, _ = await told(stage)
    assert deployment.state is State.READY
    assert len(stage.asked) == 2


async def test_an_engine_that_died_after_it_answered_has_failed(stage: Stage) -> None:
    """An answer once given does not hide it."""
    await served(stage)
    await told(stage)
    stage.told("ended", "The engine ended with exit code 1.", ago=5)
    deployment, _ = await told(stage)
    assert deployment.state is State.FAILED


async def test_somebody_elses_certificate_is_not_spoken_to(stage: Stage) -> None:
    """The key is not shown to whoever has taken the address."""
    await served(stage)
    other = await stage.serves(stage.chip(), tell=True)
    mine = next(iter(stage.compute.chips.values()))
    assert mine == other
    first = next(one for one in stage.project.log if one.own_labels.get("phase") == "certificate")
    stage.told("certificate", first.text, ago=1)
    deployment, _ = await told(stage)
    assert deployment.state is State.LOADING
    assert deployment.failure
    assert "another certificate" in deployment.failure.cause
    assert not stage.asked


async def test_without_a_certificate_nothing_is_asked(stage: Stage) -> None:
    """Whatever the script says of being ready."""
    await served(stage, tell=False)
    deployment, _ = await told(stage)
    assert deployment.state is State.LOADING
    assert deployment.failure
    assert deployment.failure.code == "NOT_READY"
    assert "certificate" in deployment.failure.cause
    assert not stage.asked


async def test_a_firewall_that_keeps_this_machine_out_is_named(tmp_path: Path) -> None:
    """Google drops what it does not let in: there is no other word of it."""
    async with staged(tmp_path, google_allowed_addresses=("198.51.100.7/32",)) as stage:
        stage.opened("203.0.113.0/24")
        stage.kept(attempt(), placed=HERE)
        there = await stage.serves(stage.chip())
        stage.shown(there.model_copy(update={"external_ip": "127.77.99.99"}))
        stage.told("ready", ago=20)
        deployment, _ = await told(stage)
    assert deployment.failure
    assert "203.0.113.0/24" in deployment.failure.cause
    assert "198.51.100.7/32" in deployment.failure.cause
    assert "deploy_vllm" in deployment.failure.fix


async def test_an_internal_one_is_ready_by_its_own_word(stage: Stage) -> None:
    """Nobody outside is let in to ask, and that is said."""
    await served(stage, access="internal")
    deployment, notes = await told(stage)
    assert (deployment.state, deployment.url) == (State.READY, None)
    assert "its own VM" in notes
    assert not stage.asked


async def test_a_model_that_answers_is_asked_before_the_script_says_ready(stage: Stage) -> None:
    """The engine's own line that it has started is enough to ask."""
    stage.kept(attempt(), placed=HERE)
    await stage.serves(stage.chip())
    stage.told("starting engine", ago=80)
    stage.wrote("INFO:     Application startup complete.", ago=20)
    deployment, _ = await told(stage)
    assert deployment.state is State.READY


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
    assert len(await stage.site.chips()) == 2


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
        await stage.site.chips()


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
    assert await search.spec_of(stage.site, "gemma") == stage.spec()
    stage.chip(spec_json="{")
    assert await search.spec_of(stage.site, "gemma") is None
    kept = stage.kept(attempt(""))
    assert await search.spec_of(stage.site, "gemma") == kept.blueprint.spec


async def test_a_look_without_a_chip_gives_none(stage: Stage) -> None:
    """A search stands for it, and nothing in the cloud yet."""
    stage.kept(attempt("NO_CAPACITY"))
    assert await search.chip_of(stage.site, "gemma") is None


async def test_one_that_cannot_be_told_does_not_hide_the_others(stage: Stage) -> None:
    """Why it cannot is said of it alone."""
    stage.kept(attempt("", QUEUE))
    stage.chip(spec=stage.spec(name="another"))
    stage.fail("*ListLogEntries", "PERMISSION_DENIED")
    with collecting_notes() as notes:
        rows = await status.list_deployments(stage.site)
    assert [row.name for row in rows] == ["another", "gemma"]
    assert notes


_BOOT = (
    "(EngineCore pid=3) INFO [core.py:1] V1 LLM engine (v0.27.0) with config: dtype=torch.bfloat16",
    "(EngineCore pid=3) INFO [kv_cache_utils.py:2235] GPU KV cache size: 1,151,744 tokens",
    "(APIServer pid=1) INFO:     Application startup complete.",
)


async def test_the_log_of_the_boot_tells_version_and_memory(stage: Stage) -> None:
    """As vllm-tpu says it itself."""
    stage.chip()
    stage.wrote(*_BOOT)
    found = await status.engine_facts(stage.site, "gemma")
    assert (found.version, found.weights_dtype) == ("0.27.0", "torch.bfloat16")
    assert found.memory["kv_cache_tokens"] == 1_151_744


async def test_without_a_vm_nothing_is_known(stage: Stage) -> None:
    """A search goes on: there is no engine to speak of."""
    stage.kept()
    assert await status.engine_facts(stage.site, "gemma") == EngineFacts()


async def test_its_memory_is_foreseen_as_it_was_planned(stage: Stage) -> None:
    """For the chips that it is spread over and the version of its image."""
    stage.chip()
    stage.kept(placed=HERE)
    found = await status.predicted(stage.site, "gemma")
    assert found
    assert found.memory.count == 1
    assert found.flags.max_num_batched_tokens == 4096
    assert found.flags.vllm_version == "0.27.0"
    assert found.accelerator.name == "v6e"


async def test_what_another_machine_made_is_foreseen_too(stage: Stage) -> None:
    """By what its VM's metadata says; of an unknown image the newest version is taken."""
    spec = stage.spec(max_model_len=8192, image="us-docker.pkg.dev/p/r/mine@sha256:" + "0" * 64)
    stage.chip(spec=spec)
    found = await status.predicted(stage.site, "gemma")
    assert found
    assert found.flags.vllm_version is None
    stage.chip(spec_json="")
    assert await status.predicted(stage.site, "gemma") is None


async def test_the_hardware_is_that_of_one_vm() -> None:
    """As the planner knows it."""
    backend = on(offline(EIGHT))
    known = backend.hardware_known()
    assert known
    chip, count = known
    assert (chip.name, count) == ("v6e", 8)
    host = await backend.hardware("gemma")
    assert (host.vcpu, host.ram_gib) == (180, 1440)
