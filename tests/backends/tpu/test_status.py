"""A request, its VM, its log and its model, told as one deployment; which there are."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from backends.tpu import search, status
from backends.tpu.site import ChipState, Ended, Place, Search
from backends.tpu.status import DELETING, REPLACING, RETURNING, SEARCHING, WAITS_IN
from core.errors import ApiDisabled, CloudUnavailable, DeploymentNotFound, NotOurs
from core.records import Deployment, Failure, State
from core.reply import collecting_notes
from tests.backends.tpu.planned import EIGHT
from tests.backends.tpu.sites import MODEL, offline, on
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


FULL = (
    "RuntimeError: HLO temporaries (20.1G) exceeds available HBM (19.5G)",
    "RuntimeError: Engine core initialization failed. See root cause above.",
)


def minutes(before: float) -> datetime:
    """So many minutes ago."""
    return NOW - timedelta(minutes=before)


@dataclass(kw_only=True)
class Case:
    """What is remembered, there and logged; and what is told of it."""

    id: str
    kept: dict[str, Any] | None = None
    """None: nothing is remembered here."""
    chip: tuple[ChipState, dict[str, Any]] | None = None
    ended: Ended | None = None
    script: tuple[tuple[str, str, float], ...] = ()
    """Phase, message, seconds ago."""
    wrote: tuple[tuple[str, float], ...] = ()
    state: State
    phase: str | None = None
    detail: str = ""
    """Part of it."""
    code: str | None = None
    words: tuple[str, ...] = ()
    """Parts of the failure's cause and fix, and of what is noted."""
    never: tuple[str, ...] = ()
    """Parts of none of those."""
    more: dict[str, Any] = field(default_factory=dict)
    """Other fields of the deployment."""


ON_QUEUE: Final = {"attempts": (attempt(place=QUEUE),), "placed": QUEUE}
PLACED: Final = {"attempts": (attempt(),), "placed": HERE}
ASKED: Final = {"attempts": (attempt("", QUEUE),)}
RUNS: Final = (ChipState.RUNNING, dict[str, Any]())
WAITS: Final = {"place": QUEUE, "said": "WAITING_FOR_RESOURCES", "node": ""}
BOOTS: Final[dict[str, Any]] = {"kept": PLACED, "chip": RUNS}
COMPILED: Final = tuple((line, 50.0) for line in COMPILES)
NOTHING: Final = Failure(code="NO_CAPACITY", cause="No chip in one place.", fix="Deploy again.")


def leftover(state: ChipState, **said: Any) -> dict[str, Any]:
    """Of the queue."""
    return {"kept": ON_QUEUE, "chip": (state, {"place": QUEUE, **said}), "state": State.FAILED}


HOLDS: Final = ("Google's words.", "destroy_vllm", "counts against the quota")
CASES: Final = (
    # A request that waits, before there is any node, in the cloud's words.
    Case(id="waits", kept=ASKED, chip=(ChipState.WAITING, WAITS), state=State.QUEUED,
         phase=SEARCHING, detail="; WAITING_FOR_RESOURCES"),
    # Its phase is one that a call goes on from: else nobody would ever note the chip.
    Case(id="not noted", kept=ASKED, chip=(ChipState.RUNNING, {"place": QUEUE}),
         state=State.CREATING, phase=SEARCHING),
    Case(id="deleting", kept={"deleting": True, "placed": HERE}, state=State.DELETING,
         phase=DELETING),
    Case(id="replacing", kept={"replacing": (HERE,)}, state=State.QUEUED, phase=REPLACING),
    Case(id="returning", kept={"attempts": (attempt("NO_CAPACITY", returned=False),)},
         state=State.QUEUED, phase=RETURNING),
    Case(id="found nothing", kept={"attempts": (attempt("NO_CAPACITY"),), "failure": NOTHING},
         state=State.FAILED, code="NO_CAPACITY", more={"failure": NOTHING}),
    Case(id="being made", kept=PLACED, chip=(ChipState.PROVISIONING, {"said": "STAGING"}),
         state=State.CREATING, phase="making the VM", detail="STAGING"),
    # ACTIVE and RUNNING say nothing of vLLM; it bills from here on.
    Case(id="runs", kept=PLACED, chip=(ChipState.RUNNING, {"external_ip": "127.77.1.1"}),
         state=State.LOADING, phase="booting",
         more={"replicas": 1, "url": "https://127.77.1.1:8000"}),
    # The newest try; a certificate is no step.
    Case(id="step", **BOOTS, state=State.LOADING, phase="pulling image", detail="Try 2 of 6",
         script=(("booting", "", 110), ("certificate", CERTIFICATE, 100),
                 ("pulling image", "vllm/vllm-tpu:v0.27.0", 90),
                 ("pulling image", "Try 2 of 6, for: no route", 60))),
    Case(id="compiles", **BOOTS, state=State.LOADING, phase="compiling",
         detail="2 graphs so far; the total is not reported",
         script=(("booting", "", 110), ("starting engine", "", 80)), wrote=COMPILED),
    # A VM that came up again boots again, whatever it has compiled before.
    Case(id="boots again", **BOOTS, state=State.LOADING, phase="booting", wrote=COMPILED,
         script=(("starting engine", "", 100), ("booting", "", 30))),
    # Its next boot is told from its first line on, which is older than the script's word of it.
    Case(id="engine again", **BOOTS, state=State.LOADING, phase="loading weights",
         script=(("starting engine", "", 100), ("ready", "", 80),
                 ("starting engine", "The engine ended and is started again.", 50)),
         wrote=(("INFO 11-21 02:00:00 Starting to load model m...", 55),)),
    Case(id="silent", kept=PLACED, chip=(ChipState.RUNNING, {"given_at": minutes(20)}),
         state=State.LOADING, phase="booting",
         words=("logged nothing in Cloud Logging", "roles/logging.logWriter")),
    # By its labels and metadata alone.
    Case(id="another machine's", chip=(ChipState.WAITING, WAITS), state=State.QUEUED,
         phase=SEARCHING, more={"model": MODEL}),
    # By an earlier version or by hand: nothing here starts a TPU again.
    Case(id="stopped", kept=PLACED, chip=(ChipState.STOPPED, {"given_at": minutes(60)}),
         state=State.FAILED, code="NODE_STOPPED", more={"replicas": 0, "usd_so_far": None}),
    Case(id="gone", kept=PLACED, state=State.FAILED, code="NOT_KNOWN"),
    # Ours is gone, and the id was given anew.
    Case(id="somebody else's", kept=PLACED, state=State.FAILED, code="NOT_KNOWN",
         chip=(ChipState.RUNNING, {"labels": {"managed-by": "somebody"}}), more={"replicas": 0}),
    *(
        Case(id=code, **leftover(state, taken_by=by, why="Google's words.", node=""), code=code,
             words=HOLDS, more={"usd_so_far": None})
        for state, by, code in (
            (ChipState.SUSPENDED, "service", "PREEMPTED"),
            (ChipState.SUSPENDED, "user", "DELETED_ELSEWHERE"),
            (ChipState.FAILED, "", "REQUEST_FAILED"),
        )
    ),
    # It never starts again, and its end by Google is dropped when it stops.
    Case(id="disk", kept=PLACED, chip=(ChipState.SUSPENDED, {}), state=State.FAILED,
         code="NOT_KNOWN", words=("destroy_vllm", "bills its disk"), never=("bills nothing",)),
    # The service suspends those of flex-start as it does those it takes back.
    Case(id="expired", kept=ON_QUEUE, state=State.EXPIRED, code="EXPIRED", words=("ttl_minutes",),
         chip=(ChipState.SUSPENDED,
               {"place": QUEUE, "taken_by": "service", "ends_at": minutes(1)}),
         more={"since": minutes(1)}),
    # From the chip to the moment at which it was taken.
    Case(id="cost", **leftover(ChipState.SUSPENDED, given_at=minutes(120)), code="PREEMPTED",
         ended=Ended("PREEMPTED", minutes(60), ""), more={"usd_so_far": 2.7219}),
    Case(id="script failed", **BOOTS, state=State.FAILED, code="BOOT_FAILED",
         script=(("booting", "", 100), ("failed", "v9 cannot be pulled: manifest unknown", 50)),
         words=("manifest unknown", "bills", "$2.72 an hour")),
    Case(id="engine died", **BOOTS, state=State.FAILED, code="TPU_HBM_EXCEEDED",
         script=(("starting engine", "", 100),
                 ("ended", "The engine ended with exit code 1.", 50)),
         wrote=tuple((line, 60) for line in FULL), words=("20.1G", "bills")),
    # Docker adds 128 to it.
    Case(id="engine killed", **BOOTS, state=State.FAILED, code="KILLED", words=("signal 9",),
         script=(("starting engine", "", 100),
                 ("ended", "The engine ended with exit code 137.", 50))),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_what_is_there_is_told(stage: Stage, case: Case) -> None:
    """Its state, what it waits for or why it failed, and what it costs."""
    if case.kept is not None:
        stage.kept(**case.kept)
    if case.chip:
        stage.chip(case.chip[0], **case.chip[1])
    stage.queued.ends = case.ended
    for phase, message, ago in case.script:
        stage.told(phase, message, ago=ago)
    for line, ago in case.wrote:
        stage.wrote(line, ago=ago)
    deployment, notes = await told(stage)
    failure, at = deployment.failure, deployment.phase
    assert (deployment.state, at and at.name) == (case.state, case.phase)
    assert (failure and failure.code) == case.code
    assert case.detail in (at.detail if at else "")
    said = f"{failure.cause} {failure.fix} {notes}" if failure else notes
    assert [one for one in case.words if one not in said] == []
    assert [one for one in case.never if one in said] == []
    assert {name: getattr(deployment, name) for name in case.more} == case.more
    assert at is None or at.name not in {SEARCHING, DELETING} or at.name in WAITS_IN


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


async def test_when_it_ends_is_told_by_whichever_comes_first(stage: Stage) -> None:
    """Google's end, our label, which allows for the wait, or the time to run from the chip on."""
    stage.kept(attempt(), placed=HERE)
    label, later = NOW + timedelta(hours=1), NOW + timedelta(hours=4)
    stage.chip(labels={"vllm-devops-expires": f"{label.timestamp():.0f}"}, ends_at=later)
    deployment, _ = await told(stage)
    assert deployment.expires_at
    assert abs(deployment.expires_at - label) < timedelta(seconds=1)
    stage.kept(attempt(), placed=HERE, spec=stage.spec(ttl_minutes=30))
    labels = {"vllm-devops-expires": f"{later.timestamp():.0f}"}
    chip = stage.chip(labels=labels, spec=stage.spec(ttl_minutes=30))
    assert chip.given_at
    assert (await told(stage))[0].expires_at == chip.given_at + timedelta(minutes=30)


async def test_the_look_at_everything_is_shared(stage: Stage) -> None:
    """Nine targets listed together ask each plane once."""
    stage.chip()
    async with anyio.create_task_group() as tasks:
        for _ in range(9):
            tasks.start_soon(status.list_deployments, stage.site)
    assert (stage.queued.listed, stage.compute.listed) == (1, 1)


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


async def test_another_start_of_the_engine_is_asked_anew(stage: Stage) -> None:
    """An answer of its former life says nothing of this one, and hides no end of it."""
    await served(stage)
    await told(stage)
    stage.told("starting engine", "The engine ended and is started again.", ago=10)
    assert (await told(stage))[0].state is State.LOADING
    stage.told("ready", ago=5)
    assert (await told(stage))[0].state is State.READY
    assert len(stage.asked) == 2
    stage.told("ended", "The engine ended with exit code 1.", ago=1)
    assert (await told(stage))[0].state is State.FAILED


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


async def test_what_was_asked_for_is_read_from_memory_or_metadata(stage: Stage) -> None:
    """Metadata that was spoiled says nothing."""
    stage.chip()
    assert await search.spec_of(stage.site, "gemma") == stage.spec()
    stage.chip(spec_json="{")
    assert await search.spec_of(stage.site, "gemma") is None
    kept = stage.kept(attempt(""))
    assert await search.spec_of(stage.site, "gemma") == kept.blueprint.spec


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
    found = await on(stage.site).engine_facts("gemma")
    assert (found.version, found.weights_dtype) == ("0.27.0", "torch.bfloat16")
    assert found.memory["kv_cache_tokens"] == 1_151_744


async def test_its_memory_is_foreseen_as_it_was_planned(stage: Stage) -> None:
    """For the chips that it is spread over and the version of its image."""
    stage.chip()
    stage.kept(placed=HERE)
    found = await on(stage.site).predicted("gemma")
    assert found
    assert found.memory.count == 1
    assert found.flags.max_num_batched_tokens == 4096
    assert found.flags.vllm_version == "0.27.0"
    assert found.accelerator.name == "v6e"


async def test_what_another_machine_made_is_foreseen_too(stage: Stage) -> None:
    """By what its VM's metadata says; of an unknown image the newest version is taken."""
    spec = stage.spec(max_model_len=8192, image="us-docker.pkg.dev/p/r/mine@sha256:" + "0" * 64)
    stage.chip(spec=spec)
    found = await on(stage.site).predicted("gemma")
    assert found
    assert found.flags.vllm_version is None
    stage.chip(spec_json="")
    assert await on(stage.site).predicted("gemma") is None


async def test_the_hardware_is_that_of_one_vm() -> None:
    """As the planner knows it."""
    backend = on(offline(EIGHT))
    known = backend.hardware_known()
    assert known
    chip, count = known
    assert (chip.name, count) == ("v6e", 8)
    host = await backend.hardware("gemma")
    assert (host.vcpu, host.ram_gib) == (180, 1440)


async def test_what_an_earlier_version_wrote_down_is_read(stage: Stage) -> None:
    """Its reason for the control planes is a field that nobody fills any more."""
    written = stage.kept(attempt(), placed=HERE).model_dump(mode="json")
    written["blueprint"]["reason"] = "Both control planes are asked."
    assert Search.model_validate(written).placed == HERE
