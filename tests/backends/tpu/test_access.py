"""Where a VM answers, and how it is protected."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.common.engine import ask_models
from backends.tpu import status
from backends.tpu.site import ChipState, Place
from core.address import KEY_HEADER
from core.errors import NotReady, Unreachable
from simulators.common import certificates
from tests.backends.tpu.stage import HERE, KEY, Stage, attempt, staged

pytestmark = pytest.mark.anyio

QUEUE = Place("us-east5-a", "queued")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        made.kept(attempt(), placed=HERE)
        yield made


async def test_it_is_reached_with_its_key_and_its_own_certificate(stage: Stage) -> None:
    """And the model answers to them."""
    await stage.serves(stage.chip())
    found = await status.access_to(stage.site, "gemma")
    await ask_models(found)
    assert stage.asked == [f"Bearer {KEY}"]
    assert found.api_key
    assert found.api_key.get_secret_value() == KEY
    assert KEY not in found.model_dump_json()


async def test_whom_the_firewall_lets_in_is_said(stage: Stage) -> None:
    """As the rule is now, and what needs no key."""
    await stage.serves(stage.chip())
    stage.opened("203.0.113.4/32", "198.51.100.0/24")
    said = (await status.access_to(stage.site, "gemma")).protection
    assert "lets in 203.0.113.4/32, 198.51.100.0/24" in said
    assert "/health and /ping" in said
    stage.opened("0.0.0.0/0")
    assert "lets in everybody" in (await status.access_to(stage.site, "gemma")).protection
    stage.project.firewalls.clear()
    assert "lets in nobody" in (await status.access_to(stage.site, "gemma")).protection


async def test_the_commands_name_what_they_fetch(stage: Stage) -> None:
    """The key from Secret Manager, the certificate from the log; neither is in them."""
    await stage.serves(stage.chip())
    found = await status.access_to(stage.site, "gemma")
    key = found.header_commands[KEY_HEADER]
    assert "--secret=vllm-devops-tpu-gemma-api-key" in key
    assert 'labels.deployment="gemma"' in found.certificate_command
    assert "BEGIN" not in found.certificate_command


async def test_before_its_address_or_certificate_it_is_not_ready(stage: Stage) -> None:
    """Each is said, and none is guessed."""
    with pytest.raises(NotReady, match="no VM"):
        await status.access_to(stage.site, "gemma")
    stage.chip(ChipState.PROVISIONING)
    with pytest.raises(NotReady, match="no VM"):
        await status.access_to(stage.site, "gemma")
    stage.chip()
    with pytest.raises(NotReady, match="no address"):
        await status.access_to(stage.site, "gemma")
    stage.chip(external_ip="127.77.1.1")
    with pytest.raises(NotReady, match="certificate"):
        await status.access_to(stage.site, "gemma")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (HERE, "gcloud compute ssh vllm-devops-gemma --zone=us-east5-b"),
        (QUEUE, "gcloud alpha compute tpus tpu-vm ssh vllm-devops-gemma --zone=us-east5-a"),
    ],
)
async def test_an_internal_one_is_reached_by_a_tunnel(
    stage: Stage, place: Place, words: str
) -> None:
    """Whose command is given whole, with where to ask then."""
    spec = stage.spec(access="internal")
    stage.kept(attempt(place=place), placed=place, spec=spec)
    stage.chip(place=place, spec=spec)
    with pytest.raises(NotReady) as caught:
        await status.access_to(stage.site, "gemma")
    assert words in caught.value.fix
    assert "--tunnel-through-iap -- -N -L 8000:localhost:8000" in caught.value.fix
    assert "http://localhost:8000" in caught.value.fix


async def test_of_another_machines_vm_the_same_is_told(tmp_path: Path) -> None:
    """Nothing is remembered here: its metadata says what it is."""
    async with staged(tmp_path) as stage:
        there = await stage.serves(stage.chip())
        found = await status.access_to(stage.site, "gemma")
        await ask_models(found)
        assert found.base_url == f"https://{there.external_ip}:8000"


async def test_a_hundred_questions_read_the_log_once(stage: Stage) -> None:
    """Cloud Logging answers 60 times a minute, and a look brings the newest certificate."""
    await stage.serves(stage.chip())
    for _ in range(3):
        await status.access_to(stage.site, "gemma")
    calls = [call for call in stage.project.calls if call.endswith("ListLogEntries")]
    assert len(calls) == 1


async def test_a_look_brings_the_certificate_of_another_boot(stage: Stage) -> None:
    """The former one is not believed any longer."""
    await stage.serves(stage.chip())
    former = await status.access_to(stage.site, "gemma")
    newest = certificates.make(stage.folder / "new", "vllm-devops-gemma", ("127.77.1.1",))
    stage.told("booting", ago=60)
    stage.told("certificate", newest, ago=50)
    stage.told("ready", ago=40)
    await status.describe(stage.site, "gemma")
    now = await status.access_to(stage.site, "gemma")
    assert (now.certificate, now == former) == (newest, False)


async def test_another_address_is_not_trusted_for_that_certificate(stage: Stage) -> None:
    """It is for the VM's own address alone."""
    first = await stage.serves(stage.chip())
    found = await status.access_to(stage.site, "gemma")
    second = await stage.serves(stage.chip(), tell=False)
    moved = found.base_url.replace(first.external_ip, second.external_ip)
    with pytest.raises(Unreachable, match="another certificate"):
        await ask_models(found.model_copy(update={"base_url": moved}))
