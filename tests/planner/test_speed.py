"""Speeds beside figures that others measured, and what must hold of any."""

import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidArgument
from core.records import ModelShape
from planner.advise import host_gib
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import shape_of
from planner.places import accelerator, place
from planner.speed import Decode, Work, decode, prefill, saturation
from tests.planner.shapes import FP8_BLOCK, LLAMA_8B, catalogued, with_quantization

FP8_31B = with_quantization("31b", FP8_BLOCK)
DEVICES = st.sampled_from(["l4", "t4", "a100-80", "rtx-pro-6000", "h100", "rtx-3090", "v6e", "v5e"])
MODELS = st.sampled_from(["e2b", "e4b qat", "12b", "12b qat", "26b qat", "31b qat"])


def step(model: ModelShape | str, where: str, **kwargs: Any) -> Decode:
    shape = catalogued(model) if isinstance(model, str) else model
    asked = {name: kwargs.pop(name) for name in ("concurrency", "context") if name in kwargs}
    return decode(shape, accelerator(where), Flags(**kwargs), **asked)


class Measured(NamedTuple):
    """One published speed of a single stream."""

    model: ModelShape | str
    where: str
    tokens_per_second: float
    flags: dict[str, Any]


TWO = {"tensor_parallel_size": 2}
CALIBRATED = {
    "3090, 12B QAT": Measured("12b qat", "rtx-3090", 78, {}),
    "2 x 3090, 31B QAT": Measured("31b qat", "rtx-3090", 66.4, TWO),
    "2 x 3090, 31B FP8": Measured(FP8_31B, "rtx-3090", 44.3, TWO),
    "v6e, E2B": Measured("e2b", "v6e", 211, {}),
    "v6e, E4B": Measured("e4b", "v6e", 111, {}),
    "v6e, 12B": Measured("12b", "v6e", 45.3, {}),
}
IN_A_BAND = {
    "L4, 26B QAT": Measured("26b qat", "l4", 61.67, {}),
    "v5e, E2B": Measured("e2b", "v5e", 124.7, {}),
    "L4, 31B QAT, 14 GiB offloaded, worst": Measured("31b qat", "l4", 0.8, {"cpu_offload_gb": 14}),
    "L4, 31B QAT, 14 GiB offloaded, best": Measured("31b qat", "l4", 1.6, {"cpu_offload_gb": 14}),
    "L4, 31B QAT, 5 GiB offloaded": Measured("31b qat", "l4", 2, {"cpu_offload_gb": 5}),
}


@pytest.mark.parametrize("row", CALIBRATED.values(), ids=CALIBRATED)
def test_a_calibrated_device_decodes_within_three_percent(row: Measured) -> None:
    """Where two measurements exist, the figure is a number."""
    foreseen = step(row.model, row.where, **row.flags)
    assert foreseen.calibrated
    assert foreseen.tokens_per_second.expected == pytest.approx(row.tokens_per_second, rel=0.03)


def test_a_mixture_of_experts_is_not_told_what_was_measured_of_others() -> None:
    """It chooses its experts before it reads them: nobody has measured that there."""
    assert step("12b", "v6e").calibrated
    assert not step("26b", "v6e").calibrated


@pytest.mark.parametrize(
    ("two", "third"),
    [
        (("v6e, E2B", "v6e, 12B"), "v6e, E4B"),
        (("v6e, E4B", "v6e, 12B"), "v6e, E2B"),
        (("2 x 3090, 31B QAT", "2 x 3090, 31B FP8"), "3090, 12B QAT"),
    ],
)
def test_two_measurements_predict_a_third_model(two: tuple[str, str], third: str) -> None:
    """The step model holds without its fitted constants."""
    (x1, l1, t1), (x2, l2, t2) = (_terms(CALIBRATED[name]) for name in two)
    per_gb = (t1 * l2 - t2 * l1) / (x1 * l2 - x2 * l1)
    per_layer = (t1 - x1 * per_gb) / l1
    gigabytes, layers, seconds = _terms(CALIBRATED[third])
    assert gigabytes * per_gb + layers * per_layer == pytest.approx(seconds, rel=0.035)


def _terms(row: Measured) -> tuple[float, int, float]:
    shape = catalogued(row.model) if isinstance(row.model, str) else row.model
    ways = row.flags.get("tensor_parallel_size", 1)
    read = step(row.model, row.where, **row.flags).bytes_read / ways / 1e9
    return read, len(shape.layers), 1 / row.tokens_per_second


@pytest.mark.parametrize("row", IN_A_BAND.values(), ids=IN_A_BAND)
def test_any_other_device_decodes_within_its_band(row: Measured) -> None:
    """Where they do not, the figure is a band, never one number."""
    foreseen = step(row.model, row.where, **row.flags)
    assert not foreseen.calibrated
    assert foreseen.tokens_per_second.expected is None
    assert (
        foreseen.tokens_per_second.low <= row.tokens_per_second <= foreseen.tokens_per_second.high
    )


def test_no_more_is_moved_over_pcie_than_a_step_reads() -> None:
    """All layers of 12B QAT are 6 GB: an offload of 20 GiB takes as long as one of 100."""
    some, most, all_of_it = (
        step("12b qat", "l4", cpu_offload_gb=gib).roof_tokens_per_second for gib in (4, 20, 100)
    )
    assert some > most == all_of_it > 0


def test_each_gpu_moves_what_is_offloaded_of_it_over_its_own_link() -> None:
    """vLLM counts --cpu-offload-gb per GPU: with two, twice as much is moved in the same time."""

    def moving(ways: int) -> float:
        none, some = (
            step("31b qat", "rtx-3090", tensor_parallel_size=ways, cpu_offload_gb=gib)
            for gib in (None, 4)
        )
        return 1 / some.roof_tokens_per_second - 1 / none.roof_tokens_per_second

    assert moving(1) == pytest.approx(moving(2)) == pytest.approx(4 * 2**30 / 32e9, rel=0.05)
    flags = Flags(tensor_parallel_size=2, cpu_offload_gb=4)
    shape, where = catalogued("31b qat"), place("rtx-3090")
    without = flags.model_copy(update={"cpu_offload_gb": None})
    assert host_gib(shape, where, flags) - host_gib(shape, where, without) == 8


def test_a_long_prompt_costs_its_attention_beside_its_weights() -> None:
    """Two products of queries with keys, two with values, for each head and layer."""
    shape, ways = shape_of("llama-8b", LLAMA_8B), Flags()
    once, twice = (
        prefill(shape, accelerator("h100"), ways, prompt_tokens=tokens).seconds.low
        for tokens in (16_384, 32_768)
    )
    weights, attention = 2 * 6.98e9, 4 * 32 * 128 * 32 * 8192
    longer = 2 * (weights + 2 * attention) / (weights + attention)
    assert twice / once == pytest.approx(longer, rel=0.005)


def test_a_speed_measured_over_the_internet_is_at_the_foot_of_the_band() -> None:
    """A100, 12B QAT, 98.7 tokens/s seen by a far client."""
    assert step("12b qat", "a100-80").tokens_per_second.low == pytest.approx(98.7, rel=0.03)


@pytest.mark.parametrize(
    ("model", "where", "ways", "measured"),
    [
        ("12b qat", "a100-80", 1, 7300),
        ("12b qat", "l4", 1, 3000),
        ("26b qat", "l4", 1, 7300),
        ("31b qat", "l4", 8, 2100),
    ],
)
def test_a_cold_prompt_of_16k_is_read_within_the_band(
    model: str, where: str, ways: int, measured: float
) -> None:
    """The only published prefills that no cache had a part in."""
    flags = Flags(tensor_parallel_size=ways)
    foreseen = prefill(catalogued(model), accelerator(where), flags, prompt_tokens=16_384)
    rate = foreseen.tokens_per_second
    assert rate.low <= measured <= rate.high
    assert foreseen.ttft_seconds.low > foreseen.seconds.low


@pytest.mark.parametrize(("model", "roof"), [("12b qat", 36.7), ("12b", 12.6)])
def test_eighty_tokens_a_second_of_12b_on_an_l4_is_impossible(model: str, roof: float) -> None:
    """The roof is 37 in int4, and 12.6 in bf16, which does not even fit."""
    assert step(model, "l4").roof_tokens_per_second == pytest.approx(roof, rel=0.01)


def test_a_step_reads_rows_of_per_layer_embeddings_not_their_table() -> None:
    """E2B's 4.7 GB table is looked up, its tied embedding is multiplied with."""
    read = step("e2b", "v6e").bytes_read
    assert read == pytest.approx(3.754e9 + 0.805e9, rel=0.01)


def test_few_tokens_touch_few_experts() -> None:
    """One token reads 8 of 128, eight tokens about 52, never more than all."""
    work = Work(catalogued("26b qat"), accelerator("l4"), Flags())
    assert work.experts_touched(1) == pytest.approx(8)
    assert work.experts_touched(8) == pytest.approx(51.6, abs=0.1)
    assert work.experts_touched(10_000) == pytest.approx(128)


def test_a_sliding_layer_reads_its_window_on_a_gpu_and_everything_on_a_tpu() -> None:
    """tpu-inference keeps no windows."""
    grown = {
        where: step("12b qat", where, context=65_536).bytes_read
        - step("12b qat", where, context=32_768).bytes_read
        for where in ("l4", "v6e")
    }
    assert grown["l4"] == 32_768 * 8 * 2 * 512 * 2
    assert grown["v6e"] == grown["l4"] + 32_768 * 40 * 8 * 2 * 256 * 2


def test_an_fp8_cache_is_read_in_half_the_bytes() -> None:
    """The weights stay what they are."""
    bare = step("12b qat", "l4").bytes_read
    plain = step("12b qat", "l4", context=4096).bytes_read - bare
    fp8 = step("12b qat", "l4", context=4096, kv_cache_dtype="fp8").bytes_read - bare
    assert plain == 2 * fp8


def test_one_kv_head_is_copied_to_every_accelerator() -> None:
    """12B's full layers have one: four cards read it four times."""
    four = {"tensor_parallel_size": 4}
    long = step("12b qat", "l4", context=65_536, **four).bytes_read
    assert long - step("12b qat", "l4", context=32_768, **four).bytes_read == (
        32_768 * 8 * 4 * 2 * 512 * 2
    )


def test_many_short_requests_are_bound_by_arithmetic_alone() -> None:
    """Reading goes on meanwhile: the longer of the two counts."""
    found = step("12b qat", "l4", concurrency=2048)
    assert found.roof_tokens_per_second == pytest.approx(121e12 / (2 * 11.91e9), rel=0.01)


def test_saturation_names_both_ends() -> None:
    """Short requests are bound by arithmetic at last, long ones never."""
    model, device = catalogued("12b qat"), accelerator("l4")
    flags = Flags(max_model_len=8192, max_num_seqs=8)
    plan = plan_memory(model, device, flags)
    short = saturation(model, device, flags, plan, context=1)
    long = saturation(model, device, flags, plan, context=8192)
    assert short.compute_requests is not None
    assert 50 < short.compute_requests < 300
    assert long.compute_requests is None
    assert long.kv_requests == int(plan.kv_low.max_concurrency)


@pytest.mark.parametrize("where", ["h100", "a100-80", "l4"])
def test_arithmetic_takes_longer_from_as_many_requests_as_the_data_sheet_says(where: str) -> None:
    """In 16 bits each weight is two bytes and two operations: it is TFLOPS by bandwidth."""
    model, device = shape_of("llama-8b", LLAMA_8B), accelerator(where)
    flags = Flags(max_model_len=8192)
    found = saturation(model, device, flags, plan_memory(model, device, flags), context=0)
    tflops = Work(model, device, flags).tflops
    assert tflops
    assert device.bandwidth_gb_per_s
    assert found.compute_requests == math.ceil(1000 * tflops / device.bandwidth_gb_per_s)


def test_what_is_not_known_is_not_guessed() -> None:
    """A CPU's bandwidth, a model's shape."""
    with pytest.raises(InvalidArgument, match="bandwidth"):
        step("e2b", "cpu")
    with pytest.raises(InvalidArgument, match="shape"):
        step(ModelShape(model="nobody/knows"), "l4")


@given(MODELS, DEVICES, st.integers(1, 200), st.integers(0, 32_768))
@settings(deadline=None, max_examples=60)
def test_more_work_is_never_done_sooner(model: str, where: str, users: int, context: int) -> None:
    """More users: all together not slower at best, each not faster. Longer context: not faster."""
    here = step(model, where, concurrency=users, context=context)
    more = step(model, where, concurrency=users + 1, context=context)
    longer = step(model, where, concurrency=users, context=context + 512)
    each, each_more = here.tokens_per_second_per_user, more.tokens_per_second_per_user
    assert more.roof_tokens_per_second >= here.roof_tokens_per_second * 0.999
    assert each_more.low <= each.low
    assert each_more.high <= each.high * 1.0001
    assert longer.tokens_per_second.high <= here.tokens_per_second.high * 1.0001


@given(MODELS, DEVICES, st.integers(1, 64), st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=60)
def test_no_band_is_above_its_roof(model: str, where: str, users: int, ways: int) -> None:
    """Low below high below what the data sheet promises."""
    found = step(model, where, concurrency=users, context=1024, tensor_parallel_size=ways)
    band = found.tokens_per_second
    assert 0 < band.low <= band.high <= found.roof_tokens_per_second
    assert band.low <= (band.expected or band.low) <= band.high


@given(MODELS, st.integers(100, 16_384))
@settings(deadline=None, max_examples=30)
def test_a_longer_prompt_is_never_read_sooner(model: str, tokens: int) -> None:
    """And its first token comes later."""
    shape, device = catalogued(model), accelerator("l4")
    short = prefill(shape, device, Flags(), prompt_tokens=tokens)
    long = prefill(shape, device, Flags(), prompt_tokens=tokens + 100)
    assert short.ttft_seconds.low < long.ttft_seconds.low
    assert short.ttft_seconds.high < long.ttft_seconds.high


def test_a_speed_above_all_that_was_measured_names_the_nearest() -> None:
    """A model that was measured there is none; where nothing was, the nearest card is named."""
    said = {
        (name, where): decode(catalogued(name), accelerator(where), Flags()).beyond
        for name, where in (("26b qat", "l4"), ("e2b qat", "l4"), ("e2b", "h100"), ("e2b", "v6e"))
    }
    assert said["26b qat", "l4"] is None
    assert said["e2b", "v6e"] is None  # from the device's own constants
    assert "the most that was measured there is 61.67 tokens/s" in (said["e2b qat", "l4"] or "")
    assert "nothing was measured there; the nearest is" in (said["e2b", "h100"] or "")
