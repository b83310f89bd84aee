"""Kept pairs, what they say, and the constants that they give."""

import random
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.journal import Journal
from core.records import MemoryPlan, ModelShape
from planner.calibrate import (
    ActualCache,
    DecodePair,
    cache_prediction,
    calibration,
    fit_constants,
    keep_decode,
    kept,
)
from planner.flags import Flags
from planner.memory import plan_memory
from planner.places import accelerator
from planner.speed import Constants
from tests.planner.shapes import FP8_BLOCK, catalogued, with_quantization

AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
FP8_31B = with_quantization("31b", FP8_BLOCK)
ROWS_3090 = (("31b qat", 2, 66.4), (FP8_31B, 2, 44.3))
ROWS_V6E = (("e2b", 1, 211), ("12b", 1, 45.3))


def decoded(
    model: ModelShape | str,
    ways: int,
    tokens_per_second: float,
    *,
    where: str = "rtx-3090",
    context: int = 0,
    **kwargs: Any,
) -> DecodePair:
    shape = catalogued(model) if isinstance(model, str) else model
    flags = Flags(tensor_parallel_size=ways, **kwargs)
    return DecodePair.of(
        *(shape, accelerator(where), flags),
        context=context,
        seconds_per_token=1 / tokens_per_second,
        at=AT,
        target="mine",
        engine_version="vLLM 0.32.0",
    )


def step_seconds(pair: DecodePair, gb_per_s: float, layer_us: float) -> float:
    read = pair.bytes_per_step / 1e9 / pair.flags.tensor_parallel_size
    return read / gb_per_s + pair.layers * layer_us * 1e-6


def synthetic(gb_per_s: float, layer_us: float) -> list[DecodePair]:
    """Steps of several models, lengths and ways that take exactly what these constants say."""
    models: tuple[ModelShape | str, ...] = ("e2b", "e4b qat", "12b", "12b qat", FP8_31B)
    pairs = [
        decoded(model, ways, 1, context=context)
        for model in models
        for ways in (1, 2)
        for context in (0, 4096)
    ]
    return [took(pair, step_seconds(pair, gb_per_s, layer_us)) for pair in pairs]


def took(pair: DecodePair, seconds: float) -> DecodePair:
    return pair.model_copy(update={"actual_seconds_per_token": seconds})


def fitted(pairs: list[DecodePair], where: str = "rtx-3090") -> Constants:
    found = fit_constants(where, pairs)
    assert isinstance(found, Constants), found
    return found


@given(st.floats(50, 930), st.floats(1, 200))
def test_constants_are_recovered_from_steps_that_follow_them(
    gb_per_s: float, layer_us: float
) -> None:
    """Without noise, to the digits that are written."""
    found = fitted(synthetic(gb_per_s, layer_us))
    assert found.effective_gb_per_s == pytest.approx(gb_per_s, abs=0.06)
    assert found.layer_microseconds == pytest.approx(layer_us, abs=0.006)
    assert found.error == 0.03


def test_constants_are_recovered_within_a_percent_under_noise_of_two() -> None:
    """Each step measured 50 times, 2 % off as often as chance has it."""
    chance = random.Random(4)
    noisy = [
        took(pair, pair.actual_seconds_per_token * chance.gauss(1, 0.02))
        for pair in synthetic(883, 69)
        for _ in range(50)
    ]
    found = fitted(noisy)
    assert found.effective_gb_per_s == pytest.approx(883, rel=0.01)
    assert found.layer_microseconds == pytest.approx(69, rel=0.01)
    assert 0.05 < found.error < 0.1


def test_published_rows_give_the_constants_of_their_devices() -> None:
    """883 GB/s and 69 us of the 3090, which predict a third row; 1,124 and 19 of the v6e."""
    found = fitted([decoded(*row) for row in ROWS_3090])
    assert found.effective_gb_per_s == pytest.approx(883, rel=0.04)
    assert found.layer_microseconds == pytest.approx(69, rel=0.1)
    assert (found.tensor_parallel, found.weight_bits, found.error) == ((2,), (4, 8), 0.03)
    third = decoded("12b qat", 1, 78)
    again = step_seconds(third, found.effective_gb_per_s, found.layer_microseconds)
    assert again == pytest.approx(1 / 78, rel=0.035)
    chip = fitted([decoded(*row, where="v6e") for row in ROWS_V6E], "v6e")
    assert chip.effective_gb_per_s == pytest.approx(1124, rel=0.01)
    assert chip.layer_microseconds == pytest.approx(19, rel=0.05)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([decoded("12b qat", 1, 78)], "cannot be separated"),
        (
            [decoded("12b qat", 1, 78), decoded("12b qat", 1, 70, context=30_000)],
            "cannot be separated",
        ),
        ([decoded("12b qat", 1, 78), decoded("31b qat", 2, 66.4)], "cannot be separated"),
        (synthetic(1000, 50), "data sheet says 936"),
        (synthetic(500, -10), "us a layer"),
        ([decoded("12b qat", 1, 60), decoded("12b", 1, 70)], "they mean inf"),
    ],
)
def test_what_cannot_be_is_refused(pairs: list[DecodePair], said: str) -> None:
    """Two constants need two different measurements, and no more than the data sheet."""
    found = fit_constants("rtx-3090", pairs)
    assert isinstance(found, str)
    assert said in found


def test_the_rows_are_toml_that_the_planner_reads() -> None:
    """Pairs that teach nothing are comments: experts, offload, rehearsals and unknown devices."""
    plain = decoded("12b qat", 1, 78)
    useless = [
        decoded("26b qat", 2, 100),
        decoded("12b qat", 1, 20, cpu_offload_gb=4),
        plain.model_copy(update={"simulated": True}),
        plain.model_copy(update={"accelerator": "abacus"}),
    ]
    pairs = [decoded(*row) for row in ROWS_3090]
    lines = list(calibration([*useless, *pairs, decoded("12b qat", 1, 20, where="l4")]))
    rows = tomllib.loads("\n".join(lines))["constants"]
    assert rows.keys() == {"rtx-3090"}
    assert Constants.model_validate(rows["rtx-3090"]) == fitted(pairs)
    assert "# instead of 883 GB/s, 69 us a layer" in lines
    left = [line.split()[-1] for line in lines if line.startswith("# left out")]
    assert left[:4] == ["estimate", "PCIe", "speed", "known"]
    assert len(left) == 5


def test_a_speed_is_kept_for_each_doubling_of_the_context(tmp_path: Path) -> None:
    """Newer ones of the same model, flags and length replace; a rehearsal replaces nothing, and
    what another version kept spoils nothing.
    """
    journal = Journal(tmp_path / "journal.db")
    journal.keep_pair("decode", "old", '{"tokens": 5}')
    old, new, longer = (decoded("12b qat", 1, 70, context=tokens) for tokens in (600, 700, 1400))
    eager = decoded("12b qat", 1, 60, context=700, enforce_eager=True)
    rehearsed = new.model_copy(update={"simulated": True})
    for pair in (old, new, longer, eager, rehearsed):
        keep_decode(journal, pair)
    assert kept(journal) == (new, longer, eager, rehearsed)


@pytest.mark.parametrize(
    ("more", "said"), [(0.0, "within"), (-5.0, "GiB below"), (5.0, "GiB above"), (None, "within")]
)
def test_a_cache_is_held_against_its_plan(more: float | None, said: str) -> None:
    """By its size, or by its blocks where the engine does not say it."""
    made: MemoryPlan = plan_memory(catalogued("12b qat"), accelerator("rtx-3090"), Flags())
    kv, gib = made.kv_expected, made.kv_cache_gib.expected
    size = None if more is None else gib + more
    actual = ActualCache(kv_cache_gib=size, num_blocks=kv.num_blocks, kv_tokens=kv.kv_tokens)
    sentence = cache_prediction(made, actual)
    assert sentence.startswith(f"KV cache {gib + (more or 0):.2f} GiB, predicted ")
    assert said in sentence
    assert sentence.endswith(f"{kv.kv_tokens:,} tokens, predicted {kv.kv_tokens:,}: +0.00 %")
    assert "none came" in cache_prediction(made, actual.model_copy(update={"kv_tokens": 0}))
