"""Whether an engine keeps up with its load."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from backends.base import Backend
from core.metrics import MetricsPage
from core.reply import collecting_notes
from core.settings import Settings
from operations import diagnose
from operations.diagnose import Look, judge
from operations.observe import metrics
from operations.resolve import Found
from operations.runtime import Runtime
from tests.operations.diagnosis.made import (
    Engine,
    Somewhere,
    deployment,
    diagnosed,
    page,
    tools,
    verdicts,
)
from tests.webserver import listening

pytestmark = pytest.mark.anyio


def looks(*pages: dict[str, Any], every: float = 5.0) -> list[Look]:
    """Look at each page, some seconds apart."""
    return [Look(i * every, MetricsPage(page(**one)).engine()) for i, one in enumerate(pages)]


ILL: dict[str, tuple[Sequence[Look], str]] = {
    "waiting": (looks(*[{"waiting": 3, "running": 8}] * 7), "SATURATED"),
    "waiting and full": (looks(*[{"waiting": 3, "kv": 0.97}] * 7), "KV_CACHE_TOO_SMALL_FOR_LOAD"),
    "full": (looks({"kv": 0.86}, {"kv": 0.9}), "KV_CACHE_NEARLY_FULL"),
    "preempting": (looks({"preempted": 3}, {"preempted": 5}), "PREEMPTING"),
    "failing": (looks({"bad": 3, "good": 10}, {"bad": 5, "good": 20}), "REQUESTS_FAIL"),
}
WELL: dict[str, Sequence[Look]] = {
    "idle": looks({}, {}),
    "a burst": looks({"waiting": 3}, {"waiting": 2}, {"waiting": 0}),
    "no time to watch": looks({"waiting": 3}, {"waiting": 3}, every=1.0),
    "busy": looks({"running": 8, "kv": 0.85}, {"running": 8, "kv": 0.9}),
    "preempted once": looks({"preempted": 3}, {"preempted": 3}),
    "failed once": looks({"bad": 3, "good": 3}, {"bad": 3, "good": 9}),
    "one of few, after many": looks({"good": 500}, {"bad": 1, "good": 504}),
    "one in a hundred": looks({}, {"bad": 1, "good": 99}),
    "restarted": looks({"preempted": 3, "bad": 9}, {}),
}


@pytest.mark.parametrize("case", ILL)
def test_a_load_that_is_too_much_has_its_code(case: str) -> None:
    """The words hold the figures, and a tool that shows more."""
    seen, code = ILL[case]
    failure = judge(seen)
    assert failure
    assert failure.code == code
    assert failure.next


@pytest.mark.parametrize("case", WELL)
def test_a_load_that_is_borne_is_no_ill(case: str) -> None:
    assert judge(WELL[case]) is None


@pytest.mark.usefixtures("hastened")
async def test_a_queue_is_watched_until_it_is_known_to_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks go on while requests wait; a note says how long, and each figure is evidence."""
    _hasty(monkeypatch)
    engine = Engine()
    engine.pages = [page(waiting=4, running=8, kv=0.5)]
    async with listening(engine.app) as url:
        with collecting_notes() as notes:
            seen = await diagnosed(Somewhere(url), deployment(), tmp_path)
    assert (seen.layer, seen.code) == ("metrics", "SATURATED"), seen
    assert "4 requests wait" in (seen.cause or "")
    assert len(seen.evidence) >= 3
    assert all(one.kind == "number" for one in seen.evidence)
    assert any("watched" in one for one in notes)
    assert tools(seen) == ["get_metrics", "recommend_deployment"]


@pytest.mark.usefixtures("hastened")
async def test_a_queue_that_ends_is_watched_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look without one ends it, and the layers after it are looked at."""
    monkeypatch.setattr(diagnose, "EVERY_SECONDS", 0.01)
    engine = Engine()
    engine.pages = [page(waiting=waiting, preempted=2) for waiting in (4, 2, 0)]
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(), tmp_path)
    assert verdicts(seen)["metrics"] == "healthy"
    assert verdicts(seen)["cost"] == "healthy"
    assert [one.code for one in seen.remarks] == ["PREEMPTED_BEFORE"]


@pytest.mark.usefixtures("hastened")
async def test_a_model_that_is_silent_for_its_queue_is_saturated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is the cause, and not the model behind it."""
    _hasty(monkeypatch)
    monkeypatch.setattr(diagnose, "_ANSWER_SECONDS", 0.1)
    engine = Engine()
    engine.answer_seconds = 0.3
    engine.pages = [page(waiting=40, kv=0.99)]
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(), tmp_path)
    assert (seen.layer, seen.code) == ("metrics", "KV_CACHE_TOO_SMALL_FOR_LOAD")
    assert "model answers" not in verdicts(seen)


@pytest.mark.usefixtures("hastened")
async def test_a_server_without_metrics_is_not_ill_for_it(tmp_path: Path) -> None:
    engine = Engine()
    engine.pages = ["no such page {,"]
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(), tmp_path)
    assert seen.healthy
    assert verdicts(seen)["metrics"] == "skipped"


def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch for a second, in which a busy machine takes several looks, and call less long."""
    monkeypatch.setattr(diagnose, "WATCH_SECONDS", 1.0)
    monkeypatch.setattr(diagnose, "ENOUGH_SECONDS", 0.05)
    monkeypatch.setattr(diagnose, "EVERY_SECONDS", 0.2)


@pytest.mark.usefixtures("hastened")
async def test_a_rate_is_what_came_in_the_time_between_two_looks(tmp_path: Path) -> None:
    """A hundred tokens more, over the seconds that are told beside it."""
    engine = Engine()
    engine.pages = [f"{page()}vllm:prompt_tokens_total {tokens}\n" for tokens in (50, 150)]
    runtime = Runtime(Settings(vllm_devops_state_dir=tmp_path), frozenset())
    async with listening(engine.app) as url:
        report = await metrics(runtime, Found(cast("Backend", Somewhere(url)), deployment()), None)
    rates = report.rates
    assert rates
    assert rates.prompt_tokens_per_second
    seconds = 100 / rates.prompt_tokens_per_second
    assert abs(seconds - rates.window_seconds) <= 0.01
