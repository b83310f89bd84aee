"""Boots on TPU chips that are not there, in the words of tpu-inference."""

from datetime import UTC, datetime

import pytest

from logs.boot import COMPILING, read_boot
from simulators.engine.boot import boot_of
from simulators.engine.flags import BootError, Knobs, parse, read_failure
from simulators.engine.room import CachePlan
from tests.simulators.test_rehearsal import E2B, planned, rehearsal

pytestmark = pytest.mark.anyio


async def boot(*more: str, chips: int, count: int | None = None, fail: str = "") -> CachePlan:
    argv = (E2B, "--max-model-len", "8192", "--tensor-parallel-size", str(chips), *more)
    room, knobs = rehearsal("v6e", *argv, count=count), Knobs(boot_seconds=0)
    return await boot_of(room, parse(argv), knobs, read_failure(fail)).run()


@pytest.mark.parametrize("chips", [1, 4, 8])
async def test_its_log_is_read_as_that_of_a_real_one(
    chips: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the figures that the planner foresees."""
    plan = await boot(chips=chips)
    expected = planned(E2B, "v6e", tensor_parallel_size=chips, max_model_len=8192)
    seen = read_boot(capsys.readouterr().out.splitlines(), now=datetime.now(UTC))
    assert seen.chips == chips
    assert seen.compiled > 10
    assert seen.memory.kv_cache_tokens == expected.kv_expected.kv_tokens == plan.tokens
    assert seen.memory.weights_gib == pytest.approx(expected.weights_gib, abs=0.01)


async def test_a_long_compilation_is_seen_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it hangs, the last line is one of compiling."""
    with pytest.raises(BootError, match="RESOURCE_EXHAUSTED: XLA:TPU runtime"):
        await boot(chips=1, fail="tpu-program-allocation")
    seen = read_boot(capsys.readouterr().out.splitlines(), now=datetime.now(UTC))
    assert seen.phase == COMPILING
    assert seen.memory.kv_cache_tokens


async def test_an_eager_boot_compiles_sampling_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """As tpu-inference does, in spite of the flag."""
    await boot("--enforce-eager", chips=1)
    said = capsys.readouterr().out
    assert "Precompile worker0 sample" in said
    assert "Warm-up call pass" not in said


@pytest.mark.parametrize(("chips", "count"), [(1, 4), (4, 1), (8, 4)])
async def test_chips_that_are_left_over_or_missing_are_refused(chips: int, count: int) -> None:
    """JAX takes all that it sees."""
    with pytest.raises(BootError, match=rf"Number of devices {count} must equal .*\(1, {chips}\)"):
        await boot(chips=chips, count=count)
