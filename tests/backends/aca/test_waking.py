"""An app woken by questions, none of which outlives the ingress."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from azure.mgmt.appcontainers import models

from backends.aca import status
from core.errors import NotReady, Unauthorized
from tests.backends.aca.planted import NEWEST, Planted, planting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Planted]:
    monkeypatch.setattr(status, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(status, "budget_seconds", lambda _app: 5.0)
    async with planting(tmp_path) as planted:
        planted.app()
        planted.revision()
        yield planted


async def test_what_answers_is_awake_and_need_not_be_asked_again(there: Planted) -> None:
    """When it was asked is remembered, for its replica stays a while after that."""
    await status.wake(there.site, "gemma")
    assert there.site.answered == {NEWEST}
    assert "gemma" in there.site.woken


async def test_a_question_that_the_ingress_ended_is_asked_again(there: Planted) -> None:
    """A boot takes longer than the 240 s for which one is held."""
    there.fails_first, there.refusal = 3, (504, "stream timeout")
    await status.wake(there.site, "gemma")
    assert there.asked == 4


async def test_one_that_fails_to_boot_is_not_asked_for_ever(there: Planted) -> None:
    """What is wrong is named."""
    there.healthy = False
    there.revisions[0]["properties"] |= {
        "runningState": "Failed", "provisioningError": "manifest unknown",
    }  # fmt: skip
    with pytest.raises(NotReady) as caught:
        await status.wake(there.site, "gemma")
    assert "manifest unknown" in caught.value.summary
    assert "`image`" in caught.value.fix


async def test_when_its_time_is_over_what_it_waits_for_is_named(
    there: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The startup probe says how long a boot may take."""
    monkeypatch.setattr(status, "budget_seconds", lambda _app: 0.0)
    there.healthy = False
    there.replica(ready=False, started=False, runningState="Waiting", age=5)
    with pytest.raises(NotReady, match="assigning a GPU host"):
        await status.wake(there.site, "gemma")


async def test_a_refused_key_is_no_reason_to_ask_again(there: Planted) -> None:
    """It will not become right."""
    there.healthy, there.refusal = False, (401, "no")
    with pytest.raises(Unauthorized):
        await status.wake(there.site, "gemma")
    assert there.asked == 1


def test_a_boot_may_take_what_its_startup_probe_allows() -> None:
    """And some time for the host and the image before that."""
    probe = models.ContainerAppProbe(
        type="Startup", initial_delay_seconds=5, period_seconds=10, failure_threshold=240
    )
    made = models.Template(containers=[models.Container(name="vllm", probes=[probe])])
    properties = models.ContainerAppProperties(template=made)
    app = models.ContainerApp(location="x", properties=properties)
    assert status.budget_seconds(app) == 900 + 5 + 2400
