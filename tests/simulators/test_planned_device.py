"""How long steps take on accelerators that are not there; no clock is read."""

from dataclasses import replace
from itertools import pairwise

import pytest

from planner.flags import Flags
from planner.model import read_model
from planner.places import accelerator
from planner.speed import decode, prefill
from simulators.engine.scheduler import PlannedDevice
from tests.simulators.test_device import batch
from tests.simulators.test_rehearsal import serve

PLACES = ("t4", "l4", "rtx-3090", "a100-80", "h100", "v6e")


def device(where: str, model: str = "12b-qat", ways: int = 1) -> PlannedDevice:
    flags = Flags(tensor_parallel_size=ways)
    return PlannedDevice(model=read_model(model), accelerator=accelerator(where), flags=flags)


def decoding(where: str, requests: int = 1, context: int = 500, model: str = "12b-qat") -> float:
    return device(where, model).step_seconds(batch(*[(context, 1)] * requests))


def test_an_rtx_3090_says_78_tokens_a_second() -> None:
    """Which was measured there, with the 12B QAT and one request."""
    assert decoding("rtx-3090") == pytest.approx(1 / 78, rel=0.05)


def test_faster_memory_makes_shorter_steps() -> None:
    """From an L4 to an H100."""
    steps = [decoding(where) for where in ("l4", "rtx-3090", "a100-80", "h100")]
    assert steps == sorted(steps, reverse=True)
    assert 4 < steps[0] / steps[-1] < 12


@pytest.mark.parametrize("model", ["12b-qat", "26b-qat", "e4b"])
@pytest.mark.parametrize("where", PLACES)
def test_more_requests_or_longer_ones_never_shorten_a_step(where: str, model: str) -> None:
    """And each request more costs less than a step of its own."""
    by_requests = [decoding(where, count, model=model) for count in (1, 2, 4, 8, 32, 128)]
    by_context = [decoding(where, 4, size, model=model) for size in (1, 500, 4000, 32_000)]
    assert all(less <= more for less, more in pairwise(by_requests))
    assert all(less <= more for less, more in pairwise(by_context))
    assert by_requests[3] < 8 * by_requests[0]


@pytest.mark.parametrize(("where", "ways"), [("a100-80", 1), ("l4", 1), ("l4", 8)])
def test_a_prompt_in_pieces_takes_as_long_as_planned(where: str, ways: int) -> None:
    """Chunks of 2,048 tokens add up to the planner's prefill of 16,384."""
    chosen = device(where, ways=ways)
    pieces = sum(chosen.step_seconds(batch((done, 2048))) for done in range(0, 16_384, 2048))
    whole = prefill(chosen.model, chosen.accelerator, chosen.flags, prompt_tokens=16_384)
    assert pieces == pytest.approx(whole.seconds.middle, rel=0.01)


@pytest.mark.anyio
async def test_a_rehearsed_engine_steps_at_that_pace() -> None:
    """In real time, within the plan's band, whether or not that band is a narrow one."""
    for where in ("rtx-3090", "l4", "a100-80", "v6e"):
        engine = (await serve(where, "12b-qat", "--max-model-len", "8192")).engine
        chosen = device(where)
        foreseen = decode(chosen.model, chosen.accelerator, chosen.flags, context=500)
        band = foreseen.tokens_per_second
        assert band.low <= 1 / engine._device.step_seconds(batch((499, 1))) <= band.high, where


def test_an_empty_step_still_takes_time() -> None:
    """An engine that steps for nothing must not spin."""
    assert device("l4").step_seconds(batch()) > 0


def test_its_time_can_be_scaled_or_fixed() -> None:
    """As that of the simpler device."""
    chosen, step = device("l4"), batch((100, 1))
    assert replace(chosen, time_scale=0.5).step_seconds(step) == chosen.step_seconds(step) / 2
    assert replace(chosen, fixed_step_seconds=0.25).step_seconds(step) == 0.25
