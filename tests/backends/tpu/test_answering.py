"""Ready is what has answered: asked by TLS, with the one certificate that its VM told of."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.tpu import status
from core.records import Deployment, State
from core.reply import collecting_notes
from tests.backends.tpu.stage import HERE, KEY, Stage, attempt, staged

pytestmark = pytest.mark.anyio


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
