"""What fits, what does not, and the reason."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidArgument, Unsupported
from core.records import DeploymentSpec, MemoryPlan, ModelShape
from planner.flags import Flags, profile, size_in_bytes
from planner.layouts import Ground
from planner.memory import foresee, pinned_cache, plan_memory
from planner.model import read_model, shape_of
from planner.places import accelerator, accelerators, place
from tests.measure_planner import public_rows, shape
from tests.planner.shapes import (
    AWQ,
    FP8_BLOCK,
    LLAMA_8B,
    catalogued,
    gemma3,
    with_quantization,
)

NAMES = ("e2b", "e2b qat", "e4b qat", "12b", "12b qat", "26b qat", "31b qat")

GEMMA3_4B = shape_of("gemma-3-4b", gemma3(34, 2560, 8, 4, 10240))
GEMMA3_4B_INT4 = shape_of(
    "gemma-3-4b", {**gemma3(34, 2560, 8, 4, 10240), "quantization_config": AWQ}
)
GPT_OSS = shape("gpt-oss-20b")
BEFORE_GRAPHS = {"vllm_version": "0.19.0", "max_model_len": 8192}


def plan(model: str | ModelShape, where: str, **flags: Any) -> MemoryPlan:
    shape = catalogued(model) if isinstance(model, str) else model
    return plan_memory(shape, accelerator(where), Flags(**flags))


@pytest.mark.parametrize(
    ("model", "where", "flags", "words"),
    [
        ("e2b", "a100-80", {"kv_cache_dtype": "fp8"}, "fp8 KV cache needs SM 8.9"),
        ("e2b", "rtx-3090", {"kv_cache_dtype": "fp8_e4m3"}, "fp8 KV cache needs SM 8.9"),
        ("e2b", "t4", {"quantization": "fp8"}, "fp8 weights need SM 8.0"),
        ("e2b", "t4", {"dtype": "bfloat16"}, "no bfloat16"),
        ("e2b", "t4", {"kv_cache_dtype": "bfloat16"}, "also not for a KV cache"),
        (GEMMA3_4B, "t4", {"dtype": "float16"}, "does not run gemma3_text in float16"),
        (GEMMA3_4B, "l4", {"dtype": "half"}, "does not run gemma3_text in float16"),
        (GEMMA3_4B_INT4, "t4", {}, "quantized weights do not run in float32"),
        (GPT_OSS, "h100", {"gpu_memory_utilization": 0.95, **BEFORE_GRAPHS}, "about 3.6 GiB"),
        ("12b qat", "rtx-3090", {"gpu_memory_utilization": 0.9907}, "are free at the start"),
        ("12b qat", "l4", {"max_model_len": 300_000}, "beyond the model's 262,144"),
        ("12b qat", "l4", {"tensor_parallel_size": 3}, "cannot be shared by 3"),
        ("12b", "l4", {}, "while loading"),
        ("31b qat", "l4", {}, "while loading"),
        ("12b qat", "l4", {"kv_cache_memory_bytes": 20 * 2**30}, "are free"),
        ("26b qat", "l4", {"max_model_len": 262_144}, "One request of 262,144 tokens needs"),
        ("e2b", "v5e", {"gpu_memory_utilization": 0.95}, "compiled programs"),
        ("12b qat", "v6e", {"vllm_version": "0.30.0"}, "no int4 weights"),
        ("e2b", "cpu", {}, "not known"),
        (
            "e2b",
            "v5e",
            {"disable_chunked_mm_input": True, "max_num_batched_tokens": 2048},
            "is below 2,496",
        ),
    ],
)
def test_what_cannot_run_says_why(
    model: str | ModelShape, where: str, flags: dict[str, Any], words: str
) -> None:
    """The verdict is no, and a sentence gives the true reason."""
    made = plan(model, where, **flags)
    assert not made.fits
    assert any(words in reason for reason in made.reasons)


@pytest.mark.parametrize(
    ("model", "where", "flags"),
    [
        ("26b qat", "l4", {"max_model_len": 16_384, "max_num_seqs": 8, "kv_cache_dtype": "fp8"}),
        ("12b qat", "l4", {"max_model_len": 32_768}),
        ("26b", "a100-80", {}),
        (GPT_OSS, "h100", {"gpu_memory_utilization": 0.90, **BEFORE_GRAPHS}),
        ("31b qat", "rtx-3090", {"tensor_parallel_size": 2, "max_model_len": 33_024}),
        ("31b qat", "l4", {"cpu_offload_gb": 14, "max_model_len": 8192}),
        ("31b", "h100", {"max_num_batched_tokens": 2496, "max_model_len": 32_768}),
        ("e4b", "v6e", {"max_model_len": 16_384}),
        ("e2b", "cpu", {"kv_cache_memory_bytes": 2**30, "max_model_len": 2048}),
        ("e2b", "v5e", {"disable_chunked_mm_input": True, "max_num_batched_tokens": 2496}),
    ],
)
def test_what_runs_fits(model: str | ModelShape, where: str, flags: dict[str, Any]) -> None:
    """No reason against it is found."""
    assert plan(model, where, **flags).reasons == ()


@pytest.mark.parametrize(
    ("model", "where", "words"),
    [
        ("e2b", "t4", "64 KiB of shared memory"),
        ("e2b", "t4", "casts to fp16"),
        ("e2b", "h100", "--max-num-seqs"),
        ("12b", "v6e", "no JAX build"),
    ],
)
def test_what_starts_but_should_be_known_is_warned_of(model: str, where: str, words: str) -> None:
    """A warning is no verdict."""
    assert words in " ".join(plan(model, where, max_model_len=8192).warnings)


def test_an_fp8_cache_on_a_tpu_is_judged_by_the_bf16_one_that_was_seen() -> None:
    """Twice as much is expected, and what surely fits is no more than without it."""
    flags = {"tensor_parallel_size": 8, "max_model_len": 262_144}
    plain, asked = (plan("31b", "v6e", kv_cache_dtype=kind, **flags) for kind in ("auto", "fp8"))
    assert asked.kv_expected.kv_tokens > 1.5 * plain.kv_expected.kv_tokens
    assert (asked.kv_low, asked.fits) == (plain.kv_low, False)
    assert any("judged by 16 bits" in warning for warning in asked.warnings)


def test_a_model_that_is_not_known_cannot_be_planned() -> None:
    """Nothing is guessed from a name."""
    with pytest.raises(Unsupported, match="cannot be planned"):
        plan(read_model("someone/something"), "l4")
    without_groups = shape_of("x", {**LLAMA_8B, "model_type": "novel"})
    with pytest.raises(Unsupported, match="cannot be planned"):
        plan(without_groups, "l4")


@pytest.mark.parametrize("flags", [{"kv_cache_dtype": "int3"}, {"vllm_version": "newest"}])
def test_flags_that_cannot_be_are_refused(flags: dict[str, Any]) -> None:
    """They are mistakes of the person, not properties of the plan."""
    with pytest.raises(InvalidArgument):
        plan("e2b", "l4", **flags)
    with pytest.raises(InvalidArgument, match="No accelerator is called"):
        accelerator("abacus")


@pytest.mark.parametrize(
    ("model", "where", "seqs", "batched"),
    [
        ("e2b", "l4", 256, 2048),
        ("12b", "l4", 256, 2496),
        ("e2b", "h100", 1024, 8192),
        ("e2b", "a100-80", 256, 2048),
        ("e2b", "v6e", 256, 1024),
        ("e2b", "v5e", 256, 512),
        ("e2b", "cpu", 128, 2048),
    ],
)
def test_defaults_are_vllms(model: str, where: str, seqs: int, batched: int) -> None:
    """They follow the accelerator, and an image that must not be cut."""
    made = plan(model, where)
    assert (made.max_num_seqs, made.max_num_batched_tokens) == (seqs, batched)


def test_the_largest_devices_get_the_largest_batches() -> None:
    """From 160 GiB on."""
    large = accelerator("h100").model_copy(update={"memory_gib": 180.0})
    assert plan_memory(catalogued("e2b"), large, Flags()).max_num_batched_tokens == 16_384


def test_a_version_takes_the_row_nearest_below() -> None:
    """And the plan says which."""
    assert profile("0.32.0+cpu").version == "0.28.0"
    assert profile("v0.21.1rc1").version == "0.21.0"
    assert profile("0.8.5").version == "0.9.0"
    assert profile(None).version == "0.33.0"
    made = plan("e2b", "l4", vllm_version="0.23.0")
    assert "vLLM 0.23.0: planned as 0.21.0." in made.derivation


def test_async_scheduling_doubles_what_a_request_keeps() -> None:
    """Since 0.26 two batches are in flight, unless it is turned off."""
    flags = {"max_model_len": 32_768, "kv_cache_memory_bytes": 2**33}
    old, new, off = (
        plan("12b qat", "l4", **flags, **more).kv_expected.blocks_per_request
        for more in (
            {"vllm_version": "0.25.0"},
            {"vllm_version": "0.26.0"},
            {"async_scheduling": False},
        )
    )
    assert old == off < new


def test_a_spec_is_read_with_its_engine_args() -> None:
    """What has no field of its own is found among the words."""
    words = ("--block-size", "32", "--no-async-scheduling", "--language-model-only")
    spec = DeploymentSpec(
        name="a", model="b", max_model_len=8, kv_cache_memory_bytes="2G", engine_args=words
    )
    flags = Flags.of(spec, vllm_version="0.30")
    assert (flags.max_model_len, flags.kv_cache_memory_bytes) == (8, 2**31)
    assert (flags.block_size, flags.async_scheduling, flags.language_model_only) == (
        *(32, False, True),
    )
    assert size_in_bytes("25.6k") == 25_600
    with pytest.raises(InvalidArgument):
        size_in_bytes("much")


def test_every_accelerator_says_where_its_numbers_come_from() -> None:
    """A number that nobody can trace does not go in."""
    for each in accelerators().values():
        assert each.sources
        if each.kind != "cpu":
            assert each.memory_gib
            assert each.bandwidth_gb_per_s


def test_towers_are_left_out_on_request() -> None:
    """--language-model-only saves what they hold."""
    saved = plan("31b", "h100").weights_gib
    saved -= plan("31b", "h100", language_model_only=True).weights_gib
    assert saved == pytest.approx(575_742_176 * 2 / 2**30, rel=0.01)


def test_fp8_weights_through_marlin_take_scales() -> None:
    """Where there is no fp8 arithmetic, block scales are spread out."""
    model = with_quantization("31b", FP8_BLOCK)
    assert plan(model, "rtx-3090").weights_gib > plan(model, "l4").weights_gib


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", list(accelerators()))
def test_no_estimate_is_above_a_higher_one(name: str, where: str) -> None:
    """And what does not fit has a reason."""
    made = plan(name, where, max_model_len=8192)
    cache = made.kv_cache_gib
    assert cache.low <= cache.expected <= cache.high
    assert made.kv_low.num_blocks <= made.kv_expected.num_blocks <= made.kv_high.num_blocks
    assert made.kv_low.kv_cache_bytes == round(cache.low * 2**30)
    assert made.fits == (not made.reasons)


places = st.sampled_from(["l4", "rtx-3090", "a100-80", "v5e", "v6e"])
asked = st.fixed_dictionaries(
    {
        "max_model_len": st.integers(512, 100_000),
        "max_num_seqs": st.integers(1, 512),
        "max_num_batched_tokens": st.sampled_from([1024, 2496, 4096, 8192]),
        "gpu_memory_utilization": st.floats(0.3, 0.92),
    }
)


@settings(max_examples=60)
@given(st.sampled_from(NAMES), places, asked, st.floats(0, 60))
def test_more_memory_is_never_worse(
    name: str, where: str, flags: dict[str, Any], more: float
) -> None:
    """The same flags on the same device with more memory."""
    device, shape = accelerator(where), catalogued(name)
    larger = device.model_copy(update={"memory_gib": (device.memory_gib or 0) + more})
    base, better = (plan_memory(shape, each, Flags(**flags)) for each in (device, larger))
    assert_no_worse(better, base)


@settings(max_examples=60)
@given(st.sampled_from(NAMES), places, asked, st.integers(1, 512))
def test_fewer_sequences_are_never_worse(
    name: str, where: str, flags: dict[str, Any], fewer: int
) -> None:
    """They need less of the sampler and fewer graphs, and on a TPU shorter blocks."""
    few = {**flags, "max_num_seqs": min(fewer, flags["max_num_seqs"])}
    assert_no_worse(plan(name, where, **few), plan(name, where, **flags))


@settings(max_examples=60)
@given(st.sampled_from(NAMES), places, asked, st.integers(512, 100_000))
def test_shorter_requests_are_never_worse(
    name: str, where: str, flags: dict[str, Any], length: int
) -> None:
    """A plan that fits still fits."""
    short = {**flags, "max_model_len": min(length, flags["max_model_len"])}
    assert_no_worse(plan(name, where, **short), plan(name, where, **flags))


def assert_no_worse(better: MemoryPlan, worse: MemoryPlan) -> None:
    assert better.fits >= worse.fits
    assert better.kv_cache_gib.low >= worse.kv_cache_gib.low
    # Blocks are whole, so a TPU's concurrency may lose the part of one.
    shortfall = 1 if better.kv_is_shared else 0
    assert better.kv_low.max_concurrency + shortfall >= worse.kv_low.max_concurrency


def test_a_model_that_refuses_fp16_takes_float32_where_there_is_no_bf16() -> None:
    """Its weights and its cache take twice as much, and a warning says so."""
    on_t4, on_l4 = (plan(GEMMA3_4B, where, max_model_len=2048) for where in ("t4", "l4"))
    assert on_t4.weights_gib == pytest.approx(2 * on_l4.weights_gib, rel=0.01)
    assert on_t4.kv_low.bytes_per_block == 2 * on_l4.kv_low.bytes_per_block
    for words in ("takes float32", "heads of 256 in 32 bits"):
        assert any(words in warning for warning in on_t4.warnings), words


def pinned(model: str, where: str, **flags: Any) -> int | None:
    given = {"max_model_len": 8192, "vllm_version": "0.32.0"} | flags
    return pinned_cache(plan(model, where, **given), accelerator(where), Flags(**given))


@pytest.mark.parametrize("where", ["a100-80", "rtx-pro-6000"])
def test_a_cache_that_is_known_to_two_percent_is_asked_for_at_its_low_estimate(where: str) -> None:
    found = plan("12b qat", where, max_model_len=8192, vllm_version="0.32.0")
    assert pinned("12b qat", where) == found.kv_low.kv_cache_bytes
    assert found.kv_low.kv_cache_bytes < found.kv_expected.kv_cache_bytes


def test_what_is_foreseen_of_a_deployment_has_the_cache_that_was_asked_for() -> None:
    """Else the engine's own line would be held against a cache that it was not started with."""
    spec = DeploymentSpec(name="one", model="12b qat", max_model_len=8192)
    shape, where = catalogued("12b qat"), accelerator("a100-80")
    found = foresee(spec, shape, where, vllm_version="0.32.0", pinned=True)
    assert found
    assert found.kv_expected.kv_cache_bytes == pinned("12b qat", "a100-80")


@pytest.mark.parametrize(
    ("model", "where", "flags"),
    [
        ("e4b", "l4", {}),  # known to eleven percent
        ("31b qat", "l4", {}),  # does not fit
        ("12b qat", "a100-80", {"gpu_memory_utilization": 0.95}),  # nothing is left outside
        ("12b qat", "a100-80", {"kv_cache_memory_bytes": 2**35}),  # somebody has said
        ("12b qat", "a100-80", {"num_gpu_blocks_override": 20_000}),
        ("12b qat", "a100-80", {"vllm_version": None}),  # an image of one's own
        ("12b qat", "v6e", {}),  # measured the same each time
    ],
)
def test_vllm_measures_the_cache_itself_where_no_plan_is_so_exact(
    model: str, where: str, flags: dict[str, Any]
) -> None:
    assert pinned(model, where, **flags) is None


def test_published_boots_had_room_for_what_would_have_been_asked_for() -> None:
    rows = [row for part in ("open", "held") for row in public_rows(part) if "kv_gib" in row.said]
    caches = [(row, row.plan.kv_cache_gib) for row in rows if row.plan.fits]
    narrow = [row for row, gib in caches if gib.expected - gib.low <= 0.02 * gib.expected]
    assert len(narrow) > 40
    for row in narrow:
        card = accelerator(row.said["card"])
        outside = row.said["visible_gib"] * (card.free_at_start - row.plan.gpu_memory_utilization)
        assert row.plan.kv_cache_gib.low - row.said["kv_gib"] <= max(0.0, outside) + 0.1, row.id


@pytest.mark.parametrize("deployer", ["aca", "local", ""])
def test_the_cache_is_asked_for_on_clouds_that_this_server_deploys_to(deployer: str) -> None:
    where = place("aca-a100").model_copy(update={"deployable_by": deployer})
    flags = Flags(max_model_len=8192, vllm_version="0.32.0")
    found = Ground(catalogued("12b qat"), where.device, 1).pinned(flags, where)
    assert (found.kv_cache_memory_bytes is not None) is (deployer == "aca")
