"""How long steps take, and the line that tells what came of them."""

from dataclasses import replace

import anyio
import pytest

from simulators.engine.metrics import stats_logger
from simulators.engine.scheduler import LAUNCH_SECONDS, Batch, Chunk, Device, Request
from tests.simulators.conftest import Simulate

L4 = Device(
    bytes_per_s=300e9,
    prefill_tokens_per_s=3000,
    weights_bytes=9e9,
    kv_bytes_per_token=100_000,
)


def batch(*chunks: tuple[int, int]) -> Batch:
    """Requests with so many tokens computed, and so many to go."""
    made = []
    for computed, tokens in chunks:
        request = Request(prompt=[1] * max(1, computed), max_tokens=9, computed=computed)
        request.tokens += [1] * (computed > 0)
        made.append(Chunk(request, tokens))
    return Batch(tuple(made), (), ())


def test_a_decode_step_reads_the_weights_once() -> None:
    """Thirty milliseconds for one sequence, hardly more for eight."""
    one, eight = (L4.step_seconds(batch(*[(100, 1)] * count)) for count in (1, 8))
    assert one == pytest.approx(LAUNCH_SECONDS + 0.030, rel=0.01)
    assert one < eight < 1.1 * one


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    """3,000 tokens take a second whatever the weights weigh."""
    assert L4.step_seconds(batch((0, 3000))) == pytest.approx(1, rel=0.01)


def test_a_long_context_makes_a_step_longer() -> None:
    """90,000 tokens of cache are as many bytes as the weights."""
    short, long = (L4.step_seconds(batch((context, 1))) for context in (1, 90_000))
    assert long == pytest.approx(2 * short, rel=0.1)


def test_time_can_be_scaled_or_fixed() -> None:
    """For tests and demonstrations."""
    step = batch((100, 1))
    assert replace(L4, time_scale=0.5).step_seconds(step) == L4.step_seconds(step) / 2
    assert replace(L4, fixed_step_seconds=0.25).step_seconds(step) == 0.25


@pytest.mark.anyio
async def test_averages_are_written_while_something_happens(
    simulate: Simulate, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for the interval with the request, one for the first idle one, then silence."""
    async with simulate() as engine, anyio.create_task_group() as tasks:
        await engine.post("/v1/completions", prompt=[7] * 40, max_tokens=2)
        scheduler, metrics = engine.served.engine.scheduler, engine.served.metrics
        tasks.start_soon(stats_logger(scheduler, metrics, every_seconds=0.02))
        await anyio.sleep(0.15)
        tasks.cancel_scope.cancel()
    lines = capsys.readouterr().out.splitlines()
    assert ["Avg prompt throughput: 2000.0 tokens/s" in line for line in lines] == [True, False]
