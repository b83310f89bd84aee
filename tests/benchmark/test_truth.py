"""The client's claims against an endpoint that knows when it wrote each token."""

from pathlib import Path
from typing import Any, Final, Literal

import pytest

from benchmark.figures import compute, judged
from benchmark.records import CellSpec, ClientView, Code, Load, Measured, RunPlan, Subject
from benchmark.workload import bodies
from tests.our_client import CONTEXT, a_job, measured
from tests.truth.claims import Errors, compare
from tests.truth.serving import MODEL, serving

pytestmark = pytest.mark.anyio

# Streams take their own time, so each of these tests lasts three to four seconds. A client that is
# wrong is wrong every time; one stall of a machine that is busy with other things spoils the p99 of
# so short a window, so a test may try again.
PACED: Final[dict[str, Any]] = {"ttft_ms": 50, "itl_ms": 10}
ATTEMPTS: Final = 5
CLIENTS: Final = frozenset({Code.CLIENT_SATURATED, Code.CLIENT_NOISE})
"""What a client says of itself where it may have moved a figure."""


async def honest(
    folder: Path, concurrency: int, *, overloaded: bool = False, **how: Any
) -> list[str]:
    """Try until every figure is true, or off by no more than the client itself says of it.

    Nothing may be lost or miscounted in any attempt, stall or not; and unless it is `overloaded`
    all the time, most of what a stalled client claims is as exact as ever. Gives what was wrong
    with each attempt; nothing if the last one was right.
    """
    wrong: list[str] = []
    for attempt in range(ATTEMPTS):
        errors, client, said = await claims(folder, concurrency, **how)
        assert errors.complete, errors.words()
        beyond = [] if Code.CLIENT_SATURATED in said else errors.beyond(client.error_bounds)
        excused = bool(said & CLIENTS) and (overloaded or errors.unbiased)
        if not beyond and (errors.within() or excused):
            return []
        wrong.append(f"{attempt}: {errors.words()}; {', '.join((*said, *beyond))}")
    return wrong


async def claims(
    folder: Path,
    concurrency: int,
    *,
    api: Literal["completion", "chat"] = "completion",
    **endpoint: Any,
) -> tuple[Errors, ClientView, frozenset[Code]]:
    """Measure for a short while; give the errors, and what client and verdicts say of them."""
    async with serving(folder, **endpoint) as mock:
        job = a_job(mock.base_url, concurrency, folder, seconds=1.0, api=api)
        told = await measured(job, folder / "client.log")
        truth = await mock.truth()
    body = bodies(job)
    return compare(told, truth, body), told.client, codes(Load(concurrency=job.concurrency), told)


def codes(load: Load, told: Measured) -> frozenset[Code]:
    spec = CellSpec(context=CONTEXT, load=load)
    plan = RunPlan(contexts=(CONTEXT,), loads=(load,))
    cell = compute(spec, told, server=None, plan=plan, usd_per_hour=None)
    subject = Subject(model=MODEL)
    cell = judged(cell, measured=told, plan=plan, subject=subject, before=())
    return frozenset(verdict.code for verdict in cell.verdicts)


async def test_one_users_times_are_true(tmp_path: Path) -> None:
    """With nothing else to do, there is no excuse but a stall."""
    assert await honest(tmp_path, 1, **PACED) == []


async def test_512_users_times_are_true(tmp_path: Path) -> None:
    """Or the client, on half a core and with 50,000 tokens a second, says that it was saturated."""
    assert await honest(tmp_path, 512, overloaded=True, **PACED) == []


async def test_several_tokens_at_once_are_counted_apart(tmp_path: Path) -> None:
    """Gaps are those of events, tokens are those of usage."""
    assert await honest(tmp_path, 64, tokens_per_event=5, **PACED) == []


async def test_a_chats_role_is_no_token(tmp_path: Path) -> None:
    """Its event is in no gap and starts no TTFT."""
    assert await honest(tmp_path, 8, api="chat", **PACED) == []


async def test_no_request_is_lost_at_full_speed(tmp_path: Path) -> None:
    """An endpoint without delay is faster than any client: counts hold, and it says so."""
    assert await honest(tmp_path, 16, overloaded=True, ttft_ms=0, itl_ms=0) == []
