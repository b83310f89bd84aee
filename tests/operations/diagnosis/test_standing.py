"""What a deployment stands on, how long its making takes, and what it costs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from core.journal import Journal
from core.records import Failure, Phase, State
from operations import case
from tests.operations.diagnosis.made import (
    Engine,
    OnHost,
    Somewhere,
    Writes,
    deployment,
    diagnosed,
    just_now,
    page,
    tools,
    verdicts,
)
from tests.webserver import listening

pytestmark = pytest.mark.anyio


class Built(Somewhere):
    """It is made in steps."""

    waits_in: ClassVar[frozenset[str]] = frozenset({"searching"})

    async def go_on(self, name: str) -> None:
        """Take no step: whoever diagnoses only looks."""
        raise AssertionError(name)


def _phase(name: str, minutes: float, percent: int | None = None) -> Phase:
    return Phase(name=name, since=just_now() - timedelta(minutes=minutes), percent=percent)


async def test_a_step_that_nobody_takes_is_told_with_its_time(tmp_path: Path) -> None:
    now = deployment(State.CREATING, phase=_phase("searching", 20))
    seen = await diagnosed(Built(), now, tmp_path)
    assert (seen.layer, seen.code) == ("cloud resource", "STEPS_STOPPED")
    assert f"since {now.phase.since:%F %H:%M}" in (seen.cause or "") if now.phase else False
    assert tools(seen) == ["status_vllm", "destroy_vllm"]
    assert seen.next[0].arguments == {"target": "somewhere", "name": "one", "wait_s": 30}


async def test_a_making_that_takes_too_long_is_ill(tmp_path: Path) -> None:
    seen = await diagnosed(Built(), deployment(State.CREATING, minutes=60), tmp_path)
    assert (seen.layer, seen.code) == ("cloud resource", "TAKES_TOO_LONG")


@pytest.mark.parametrize(("minutes", "code"), [(2, None), (40, "TAKES_TOO_LONG")])
async def test_what_is_long_is_what_it_took_before(
    minutes: float, code: str | None, tmp_path: Path
) -> None:
    """Earlier boots of two minutes make forty too long, and two not yet."""
    Journal(tmp_path / "real" / "journal.db").record_phase("somewhere", "vLLM", "pulling", 120)
    now = deployment(State.CREATING, phase=_phase("pulling", minutes))
    seen = await diagnosed(Somewhere(), now, tmp_path)
    assert seen.code == code
    assert seen.healthy or any("usually" in one.text for one in seen.evidence)


async def test_a_queue_has_no_usual_time(tmp_path: Path) -> None:
    seen = await diagnosed(Somewhere(), deployment(State.QUEUED, minutes=1440), tmp_path)
    assert seen.healthy
    assert tools(seen) == ["status_vllm"]


async def test_a_boot_that_goes_on_is_not_ill(tmp_path: Path) -> None:
    now = deployment(State.LOADING, phase=_phase("loading weights", 1, 61))
    seen = await diagnosed(Somewhere(), now, tmp_path)
    assert seen.healthy
    assert "still loading weights 61 %" in seen.summary()
    assert tools(seen) == ["status_vllm"]
    assert verdicts(seen)["health"] == "skipped"


async def test_a_boot_that_takes_too_long_is_ill(tmp_path: Path) -> None:
    """What its log knows of it is the cause, else the time alone."""
    now = deployment(State.LOADING, phase=_phase("loading weights", 90))
    plain = await diagnosed(Writes(log=["INFO all is healthy"]), now, tmp_path)
    assert (plain.layer, plain.code) == ("engine boot", "BOOT_TAKES_TOO_LONG")
    wrote = ["OSError: [Errno 28] No space left on device"]
    told = await diagnosed(Writes(log=wrote), now, tmp_path)
    assert (told.layer, told.code) == ("engine boot", "DISK_FULL")
    assert "Still loading weights, for" in (told.cause or "")


async def test_a_server_that_just_came_up_may_be_silent_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = Failure(code="ENDPOINT_UNREACHABLE", cause="Nothing yet.", fix="Wait.")
    now = deployment(State.LOADING, phase=_phase("warming", 0.1), failure=silence)
    assert (await diagnosed(Somewhere(), now, tmp_path)).healthy
    monkeypatch.setattr(case, "FIRST_ANSWER_SECONDS", 1.0)
    seen = await diagnosed(Somewhere(), now, tmp_path)
    assert (seen.layer, seen.code) == ("health", "ENDPOINT_UNREACHABLE")


async def test_a_full_disk_is_the_cause_of_what_fails_without_another(tmp_path: Path) -> None:
    """A reason that is known is the better one, and the disk a remark then."""
    vague = Failure(code="ENGINE_EXITED", cause="It ended.", fix="Look.")
    seen = await diagnosed(OnHost(), deployment(State.FAILED, failure=vague), tmp_path)
    assert (seen.layer, seen.code) == ("container", "DISK_FULL")
    known = Failure(code="KV_CACHE_TOO_SMALL", cause="No room for the cache.", fix="Less.")
    seen = await diagnosed(OnHost(), deployment(State.FAILED, failure=known), tmp_path)
    assert (seen.layer, seen.code) == ("engine boot", "KV_CACHE_TOO_SMALL")
    assert [one.code for one in seen.remarks] == ["HOST_SHORT_OF_DISK"]


async def test_a_full_disk_under_a_model_that_answers_is_ill_once_its_log_says_so(
    tmp_path: Path,
) -> None:
    """Short of disk alone is a remark; a failed write alone is one as well."""
    engine, wrote = Engine(), ["OSError: [Errno 28] No space left on device"]
    async with listening(engine.app) as url:
        both = await diagnosed(OnHost(url, log=wrote), deployment(), tmp_path)
        host = await diagnosed(OnHost(url), deployment(), tmp_path)
        roomy = OnHost(url, log=wrote)
        roomy.disk_gib = 50.0
        line = await diagnosed(roomy, deployment(), tmp_path)
    assert (both.layer, both.code) == ("recent logs", "DISK_FULL")
    assert both.fix
    assert "Make room" in both.fix
    assert tools(both) == ["start_vllm"]
    assert {one.kind for one in both.evidence} == {"line", "number"}
    assert (host.healthy, line.healthy) == (True, True)
    assert [one.code for one in host.remarks] == ["HOST_SHORT_OF_DISK"]
    assert [one.code for one in line.remarks] == ["DISK_FULL"]
    assert line.remarks[0].count == 1


async def test_what_is_overdue_is_ill_at_its_cost(tmp_path: Path) -> None:
    """All else is healthy; the next call ends it."""
    engine = Engine()
    over = just_now() - timedelta(hours=3)
    async with listening(engine.app) as url:
        now = deployment(expires_at=over, usd_per_hour=2.0, usd_so_far=9.5)
        seen = await diagnosed(Somewhere(url), now, tmp_path)
    assert (seen.layer, seen.code) == ("cost", "OVERDUE")
    assert "$9.50" in (seen.cause or "")
    assert tools(seen) == ["destroy_vllm"]


@pytest.mark.parametrize(
    ("hours", "requests", "price", "replicas", "layer"),
    [
        (5, 2, 2.0, 1, "cost"),
        (5, 20, 2.0, 1, None),
        (1, 0, 2.0, 1, None),
        (5, 0, 0.0, 1, None),
        (5, 2, 2.0, 2, None),  # the page is one replica's: the other may be used
    ],
)
async def test_what_is_billed_and_hardly_used_is_ill_at_its_cost(
    hours: float, requests: int, price: float, replicas: int, layer: str | None, tmp_path: Path
) -> None:
    """Not in its first hours, not where it costs nothing, not where it is or may be used."""
    engine = Engine()
    engine.pages = [page(good=requests)]
    async with listening(engine.app) as url:
        now = deployment(minutes=60 * hours, usd_per_hour=price, replicas=replicas)
        seen = await diagnosed(Somewhere(url), now, tmp_path)
    assert seen.layer == layer
    assert seen.code == ("IDLE_AND_BILLED" if layer else None)


async def test_an_engine_that_was_started_anew_has_had_no_time_to_be_used(tmp_path: Path) -> None:
    """Its counters begin with it, whenever the deployment became ready."""
    engine = Engine()
    begun = datetime.now(UTC) - timedelta(minutes=30)
    engine.pages = [f"{page(good=2)}\nprocess_start_time_seconds {begun.timestamp()}\n"]
    async with listening(engine.app) as url:
        now = deployment(minutes=60 * 50, usd_per_hour=2.0)
        seen = await diagnosed(Somewhere(url), now, tmp_path)
    assert seen.healthy


async def test_a_failed_one_that_bills_on_says_so(tmp_path: Path) -> None:
    failure = Failure(code="KV_CACHE_TOO_SMALL", cause="No room.", fix="Less.")
    now = deployment(State.FAILED, failure=failure, replicas=1, usd_per_hour=2.7)
    seen = await diagnosed(Somewhere(), now, tmp_path)
    assert [one.code for one in seen.remarks] == ["BILLED_ALL_THE_SAME"]
    assert seen.usd_per_hour == 2.7


@pytest.mark.parametrize(
    ("state", "first"), [(State.STOPPED, "start_vllm"), (State.ASLEEP, "verify_model_health")]
)
async def test_what_rests_is_well_and_is_not_asked(
    state: State, first: str, tmp_path: Path
) -> None:
    """By design: what to call is said, and nothing wakes it.

    Whose client was refused wants to read that first, not that nothing is wrong.
    """
    engine = Engine()
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(state), tmp_path)
    assert seen.healthy
    assert seen.summary().startswith(f"one on somewhere: it is {state} since ")
    assert tools(seen)[0] == first
    assert engine.asked == 0
