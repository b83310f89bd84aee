"""What is of an earlier boot, of one request or of a moment is not taken for what is wrong now."""

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from backends.base import LogQuery
from core.records import DeploymentSpec, Failure, State
from logs.read import Line
from operations import diagnose
from tests.operations.diagnosis.made import (
    Engine,
    Somewhere,
    Writes,
    deployment,
    diagnosed,
    just_now,
    page,
    verdicts,
)
from tests.soon import HANGS
from tests.webserver import listening

pytestmark = pytest.mark.anyio

BEGUN = "INFO 11-20 [utils.py:1] vLLM API server version 0.11.0"
UP = "INFO:     Application startup complete."
SMALL = "ValueError: No available memory for the cache blocks."
GATED = "Cannot access gated repo for url https://huggingface.co/acme/m."
DEAD = "EngineCore encountered a fatal error."
NAME = "Cannot connect to host images.example:443 [Name or service not known]"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB."
ENDED = Failure(code="ENGINE_EXITED", cause="It ended.", fix="Look at it.")

LOGS: dict[str, tuple[list[tuple[float, str]], str]] = {
    "another cause before": ([(40, BEGUN), (38, SMALL), (10, BEGUN), (9, GATED)], "MODEL_GATED"),
    "a known one before, none now": (
        [(40, BEGUN), (38, SMALL), (10, BEGUN), (9, DEAD)],
        "ENGINE_CORE_DIED",
    ),
    "started again, and not yet ended": (
        [(5, BEGUN), (4, SMALL), (4, DEAD), (1, BEGUN)],
        "KV_CACHE_TOO_SMALL",
    ),
    "one request's, long before the end": (
        [(50, BEGUN), (49, UP), (30, NAME), (2, DEAD)],
        "ENGINE_CORE_DIED",
    ),
    "right before the end": ([(50, BEGUN), (49, UP), (3, OOM), (2, DEAD)], "DOES_NOT_FIT"),
}


def wrote(rows: Sequence[tuple[float, str]]) -> Writes:
    """Give a target whose log has these lines, so many minutes ago."""
    writes = Writes(backend="cloud_run")
    writes.log = [Line(just_now() - timedelta(minutes=ago), text) for ago, text in rows]
    return writes


@pytest.mark.parametrize("case", LOGS)
async def test_the_cause_is_that_of_the_newest_end(case: str, tmp_path: Path) -> None:
    """A deployment is made anew and fails of something else; engines outlive single requests."""
    rows, code = LOGS[case]
    seen = await diagnosed(wrote(rows), deployment(State.FAILED, failure=ENDED), tmp_path)
    assert seen.code == code
    if code == "ENGINE_CORE_DIED":
        assert "Before, at " in (seen.cause or "")


async def test_what_started_before_the_newest_boot_is_not_what_this_one_did(tmp_path: Path) -> None:
    rows = [(40, BEGUN), (39, UP), (10, BEGUN), (9, SMALL)]
    seen = await diagnosed(wrote(rows), deployment(State.FAILED, failure=ENDED), tmp_path)
    assert (seen.layer, seen.code) == ("engine boot", "KV_CACHE_TOO_SMALL")


async def test_a_log_that_hangs_changes_no_layer(tmp_path: Path) -> None:
    """Its search ends before the walk's own share is over."""

    class Hangs(Writes):
        async def log_pages(
            self, name: str, query: LogQuery
        ) -> AsyncGenerator[Sequence[Line], None]:
            await anyio.sleep_forever()
            yield []

    now = deployment(State.FAILED, failure=ENDED)
    seen = await diagnosed(Hangs(backend="cloud_run"), now, tmp_path, seconds=2)
    assert (seen.layer, seen.code) == ("engine boot", "ENGINE_EXITED")
    assert "were over" in (seen.cause or "")


async def test_a_spec_that_hangs_costs_arguments_and_no_answer(tmp_path: Path) -> None:
    """The next call is told with what is known of the deployment."""

    class Hangs(Writes):
        async def spec(self, name: str) -> DeploymentSpec | None:
            await anyio.sleep_forever()
            raise AssertionError(name)

    now = deployment(State.FAILED, failure=ENDED)
    with anyio.fail_after(HANGS):
        seen = await diagnosed(Hangs(backend="cloud_run", log=[SMALL]), now, tmp_path, seconds=1)
    assert seen.next


@pytest.mark.parametrize("well", [True, False])
async def test_a_model_is_asked_once_its_queue_is_over(
    *, well: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What says no token is not well because nobody waits any more."""
    engine = Engine()
    if not well:
        monkeypatch.setattr(diagnose, "_ANSWER_SECONDS", 0.2)
        engine.answer_seconds = 0.4
    engine.pages = [page(waiting=3), page()]
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(), tmp_path)
    assert seen.code == (None if well else "MODEL_SILENT")
    assert verdicts(seen)["metrics"] == "healthy"
    assert verdicts(seen)["model answers"] == ("healthy" if well else "failed")


async def test_a_key_is_not_cut_in_half(tmp_path: Path) -> None:
    """What is left of it would not be known as one, and be shown."""
    key = "an-owners-own-key-of-no-known-shape"
    line = f"{OOM} {'x ' * 110}{key} {'y ' * 90}"
    for more in range(0, 60, 7):
        now = deployment(State.FAILED, failure=ENDED)
        seen = await diagnosed(wrote([(1, f"{OOM} {'x' * more} {line}")]), now, tmp_path)
        shown = seen.evidence[0].text
        assert key in shown or key[:4] not in shown
