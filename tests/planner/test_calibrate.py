"""Kept pairs, what they say, and the constants that they give."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records import Gib, ModelShape
from planner.calibrate import (
    ActualCache,
    Calibration,
    DecodePair,
    Fitted,
    KvPair,
    LeftOut,
    PredictedCache,
    calibrate,
    fit_constants,
)
from planner.flags import Flags
from planner.memory import plan_memory
from planner.places import accelerator
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


def cached(where: str = "rtx-3090", *, more_gib: float = 0.0, **kwargs: Any) -> KvPair:
    """12B QAT, with so much more cache than was expected."""
    flags = Flags(max_model_len=32_768, max_num_batched_tokens=2496, **kwargs)
    plan = plan_memory(catalogued("12b qat"), accelerator(where), flags)
    predicted = PredictedCache.of(plan)
    kv = plan.kv_expected
    actual = ActualCache(
        kv_cache_gib=predicted.kv_cache_gib.expected + more_gib,
        num_blocks=kv.num_blocks,
        kv_tokens=kv.kv_tokens,
        max_concurrency=kv.max_concurrency,
    )
    return KvPair(
        at=AT,
        target="mine",
        name="one",
        model=plan.model,
        accelerator=where,
        count=1,
        flags=flags,
        engine_version="vLLM 0.32.0",
        predicted=predicted,
        actual=actual,
    )


def published() -> KvPair:
    """A row that others measured, beside an estimate of it."""
    gib = Gib(low=10.39, expected=11.003, high=11.67)
    foreseen = PredictedCache(
        kv_cache_gib=gib, num_blocks=11_267, kv_tokens=228_262, max_concurrency=6.966
    )
    real = ActualCache(
        kv_cache_gib=11.0, num_blocks=11_264, kv_tokens=228_200, max_concurrency=6.96
    )
    return cached().model_copy(update={"predicted": foreseen, "actual": real})


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
    return [
        pair.model_copy(update={"actual_seconds_per_token": step_seconds(pair, gb_per_s, layer_us)})
        for pair in pairs
    ]


def fitted(pairs: list[DecodePair], where: str = "rtx-3090") -> Fitted:
    found = fit_constants(where, pairs)
    assert isinstance(found, Fitted), found
    return found


def refused(pairs: list[DecodePair]) -> str:
    found = fit_constants("rtx-3090", pairs)
    assert isinstance(found, LeftOut), found
    return found.why


@given(st.floats(50, 930), st.floats(1, 200))
def test_constants_are_recovered_from_steps_that_follow_them(
    gb_per_s: float, layer_us: float
) -> None:
    """Without noise, to the digits that are written."""
    found = fitted(synthetic(gb_per_s, layer_us))
    assert found.constants.effective_gb_per_s == pytest.approx(gb_per_s, abs=0.06)
    assert found.constants.layer_microseconds == pytest.approx(layer_us, abs=0.006)
    assert all(abs(each.error) < 1e-6 for each in found.residuals)


@pytest.mark.parametrize("seed", range(5))
def test_constants_are_recovered_within_a_percent_under_noise_of_two(seed: int) -> None:
    """Each step measured 50 times, 2 % off as often as chance has it."""
    chance, pairs = random.Random(seed), synthetic(883, 69)
    noisy = [
        pair.model_copy(
            update={
                "actual_seconds_per_token": pair.actual_seconds_per_token * chance.gauss(1, 0.02)
            }
        )
        for pair in pairs
        for _ in range(50)
    ]
    found = fitted(noisy)
    assert found.constants.effective_gb_per_s == pytest.approx(883, rel=0.01)
    assert found.constants.layer_microseconds == pytest.approx(69, rel=0.01)
    assert 0.05 < found.constants.error < 0.1


def test_the_3090s_two_rows_give_its_constants() -> None:
    """883 GB/s and 69 us as published, with bytes counted here; and they predict the third."""
    found = fitted([decoded(*row) for row in ROWS_3090])
    assert found.constants.effective_gb_per_s == pytest.approx(883, rel=0.04)
    assert found.constants.layer_microseconds == pytest.approx(69, rel=0.1)
    assert found.constants.tensor_parallel == (2,)
    assert found.constants.weight_bits == (4, 8)
    assert found.constants.error == 0.03
    assert found.condition == pytest.approx(8, abs=0.1)
    third = decoded("12b qat", 1, 78)
    again = step_seconds(
        third, found.constants.effective_gb_per_s, found.constants.layer_microseconds
    )
    assert again == pytest.approx(1 / 78, rel=0.035)


def test_a_third_row_brings_them_nearer() -> None:
    """All three: within 2 %, and none is missed by more than 1.3 %."""
    found = fitted([decoded(*row) for row in (*ROWS_3090, ("12b qat", 1, 78))])
    assert found.constants.effective_gb_per_s == pytest.approx(883, rel=0.02)
    assert found.constants.layer_microseconds == pytest.approx(69, rel=0.02)
    assert max(abs(each.error) for each in found.residuals) < 0.013
    assert found.today
    assert found.today.effective_gb_per_s == 883


def test_the_v6es_two_rows_give_its_constants() -> None:
    """1,124 GB/s and 19 us."""
    found = fitted([decoded(*row, where="v6e") for row in ROWS_V6E], "v6e")
    assert found.constants.effective_gb_per_s == pytest.approx(1124, rel=0.01)
    assert found.constants.layer_microseconds == pytest.approx(19, rel=0.05)


@pytest.mark.parametrize(
    "pairs",
    [
        [decoded("12b qat", 1, 78)],
        [decoded("12b qat", 1, 78), decoded("12b qat", 1, 77)],
        [decoded("12b qat", 1, 78), decoded("12b qat", 1, 70, context=30_000)],
        [decoded("12b qat", 1, 78), decoded("31b qat", 2, 66.4)],
    ],
    ids=["one", "the same twice", "a longer context", "as many bytes per layer"],
)
def test_what_cannot_be_told_apart_is_refused(pairs: list[DecodePair]) -> None:
    """Two constants need two different measurements."""
    assert "cannot be separated" in refused(pairs)


def test_more_than_the_data_sheet_is_refused() -> None:
    """A 3090 has 936 GB/s."""
    assert "data sheet says 936" in refused(synthetic(1000, 50))


def test_a_layer_that_takes_less_than_no_time_is_refused() -> None:
    """So is bandwidth below nothing."""
    assert "us a layer" in refused(synthetic(500, -10))
    assert "no bandwidth" in refused([decoded("12b qat", 1, 60), decoded("12b", 1, 70)])


def test_pairs_that_teach_nothing_are_named() -> None:
    """Experts, offloaded weights, rehearsals and unknown devices, each with its reason."""
    plain = decoded("12b qat", 1, 78)
    found = calibrate(
        [
            decoded("26b qat", 2, 100),
            decoded("12b qat", 1, 20, cpu_offload_gb=4),
            plain.model_copy(update={"simulated": True}),
            plain.model_copy(update={"accelerator": "abacus"}),
            plain.model_copy(update={"accelerator": "cpu"}),
        ],
        [
            cached(kv_cache_memory_bytes=2**33),
            cached().model_copy(update={"simulated": True}),
            cached().model_copy(update={"accelerator": "abacus"}),
        ],
    )
    assert (found.fitted, found.kv_offsets) == ((), ())
    said = [each.why.split()[-1] for each in found.left_out]
    assert said == ["estimate", "PCIe", "speed", "known", "known", "found", "cache", "known"]
    assert found.summary().startswith("Nothing can be learned")


def test_kv_caches_give_an_offset_for_each_accelerator() -> None:
    """The median, its range, and how many lay in their band."""
    caches = [cached(more_gib=more) for more in (-0.1, 0.2, 3.0)]
    found = calibrate([], [*caches, cached("l4", more_gib=-0.25)])
    l4, card = found.kv_offsets
    assert (l4.accelerator, l4.offset_gib, l4.pairs) == ("l4", -0.25, 1)
    assert (card.accelerator, card.offset_gib, card.pairs) == ("rtx-3090", 0.2, 3)
    assert (card.lowest_gib, card.highest_gib, card.within) == (-0.1, 3.0, 2)
    assert card.source == "measured here, 3 pairs, 2026-11-20"


def test_a_calibration_comes_back_from_json() -> None:
    """Every field of it is data."""
    found = calibrate([decoded(*row) for row in ROWS_3090], [cached()])
    assert Calibration.model_validate_json(found.model_dump_json()) == found


def test_a_kv_pair_says_how_far_it_was_out() -> None:
    """Inside its band, and a count next to it."""
    assert published().sentence() == (
        "KV cache 11.00 GiB, predicted 10.39-11.67: within; "
        "228,200 tokens, predicted 228,262: +0.03 %"
    )


@pytest.mark.parametrize(
    ("gib", "said"), [(10.0, "0.39 GiB below"), (12.0, "0.33 GiB above"), (10.39, "within")]
)
def test_a_kv_pair_says_on_which_side(gib: float, said: str) -> None:
    """Below or above the band, by how much."""
    pair = published()
    actual = pair.actual.model_copy(update={"kv_cache_gib": gib})
    assert f"predicted 10.39-11.67: {said};" in (
        pair.model_copy(update={"actual": actual}).sentence()
    )


def test_a_cache_whose_size_was_not_said_is_reckoned_from_its_blocks() -> None:
    """Blocks are alike, so half of them are half of it."""
    pair = published()
    update = {"kv_cache_gib": None, "num_blocks": 5633}
    pair = pair.model_copy(update={"actual": pair.actual.model_copy(update=update)})
    assert pair.actual_gib == pytest.approx(5.5, abs=0.01)
    assert pair.offset_gib == pytest.approx(-5.5, abs=0.01)
    none = pair.predicted.model_copy(update={"num_blocks": 0})
    nothing = pair.model_copy(update={"predicted": none})
    assert (nothing.actual_gib, nothing.offset_gib) == (None, None)
    assert nothing.sentence() == "228,200 tokens, predicted 228,262: +0.03 %"


def test_an_empty_cache_has_no_percentage() -> None:
    """Nothing is divided by it."""
    pair = published()
    empty = pair.actual.model_copy(update={"kv_tokens": 0})
    assert "none came" in pair.model_copy(update={"actual": empty}).sentence()


@pytest.mark.parametrize(
    ("speed", "said"), [(78, "within"), (60, "17.4 tokens/s below"), (90, "7.77 tokens/s above")]
)
def test_a_decode_pair_says_how_far_it_was_out(speed: float, said: str) -> None:
    """In tokens a second, as people speak of it."""
    assert decoded("12b qat", 1, speed).sentence() == (
        f"{speed} tokens/s, predicted 79.8 (77.4-82.2): {said}"
    )
