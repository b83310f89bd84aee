"""Plans beside figures that others measured and published."""

from typing import Any, Literal, NamedTuple

import pytest

from core.records import MemoryPlan, ModelShape
from planner.flags import Flags
from planner.memory import plan_memory
from planner.places import accelerator
from tests.measure_planner import Figures, figures, public_rows
from tests.planner.shapes import AWQ, FP8_BLOCK, catalogued, with_quantization

GIB = 2**30


def plan(model: ModelShape, where: str, **flags: Any) -> MemoryPlan:
    return plan_memory(model, accelerator(where), Flags(**flags))


class Row(NamedTuple):
    """One published boot."""

    where: str
    model: ModelShape
    kv_gib: float
    blocks: int | None
    tokens: int
    concurrency: float
    flags: dict[str, Any]


B1 = {"vllm_version": "0.23.0"}
TWO = {"tensor_parallel_size": 2, "max_num_batched_tokens": 4096, "vllm_version": "0.21.0"}
NIGHTLY = {"max_num_seqs": 8, "max_num_batched_tokens": 4096, "vllm_version": "0.25.1"}
SMALL_BATCH = {"max_num_batched_tokens": 2496, "max_num_seqs": 256}
FP8_KV = {"kv_cache_dtype": "fp8"}
E2B = catalogued("e2b")
AWQ_26B = with_quantization("26b", AWQ)
FP8_31B = with_quantization("31b", FP8_BLOCK)

ROWS = {
    "A100, 12B QAT": Row(
        *("a100-80", catalogued("12b qat"), 66.26, 67_847, 1_050_170, 32.05),
        {**NIGHTLY, "max_model_len": 32_768, "gpu_memory_utilization": 0.95},
    ),
    "3090, 12B QAT, 32k": Row(
        *("rtx-3090", catalogued("12b qat"), 11.00, 11_264, 228_200, 6.96),
        {**B1, **SMALL_BATCH, "max_model_len": 32_768, "gpu_memory_utilization": 0.90},
    ),
    "3090, 12B QAT, 128k": Row(
        *("rtx-3090", catalogued("12b qat"), 10.99, 11_253, 467_959, 3.57),
        {**B1, **SMALL_BATCH, "max_model_len": 131_072, "gpu_memory_utilization": 0.90},
    ),
    "2 x 3090, 26B AWQ, 8k": Row(
        *("rtx-3090", AWQ_26B, 10.17, 33_325, 146_668, 17.9), {**TWO, "max_model_len": 8192}
    ),
    "2 x 3090, 26B AWQ, 256k": Row(
        *("rtx-3090", AWQ_26B, 10.17, 33_325, 891_535, 3.40), {**TWO, "max_model_len": 262_144}
    ),
    "2 x 3090, 31B FP8": Row(
        *("rtx-3090", FP8_31B, 4.04, 3309, 14_561, 1.78), {**TWO, "max_model_len": 8192}
    ),
    "2 x 3090, 31B QAT": Row(
        *("rtx-3090", catalogued("31b qat"), 10.30, 8437, 105_609, 3.20),
        {**TWO, **B1, "max_model_len": 33_024},
    ),
    "Arc B60, 26B int4": Row(
        *("arc-b60", AWQ_26B, 4.25, 6963, 78_433, 2.39),
        {**SMALL_BATCH, "max_model_len": 32_768, "vllm_version": "0.26.0"},
    ),
    "L4, 26B QAT": Row(
        *("l4", catalogued("26b qat"), 2.17, 7097, 54_925, 3.35),
        {**NIGHTLY, **FP8_KV, "max_model_len": 16_384, "gpu_memory_utilization": 0.90},
    ),
    "L4, 31B QAT, offloaded": Row(
        *("l4", catalogued("31b qat"), 13.36, None, 48_161, 5.88),
        {
            **NIGHTLY,
            **FP8_KV,
            "max_model_len": 8192,
            "gpu_memory_utilization": 0.90,
            "cpu_offload_gb": 14,
        },
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_bytes_of_a_cache_give_its_tokens(row: Row) -> None:
    """Blocks, tokens and concurrency are those of the log, within its rounding."""
    flags = {**row.flags, "kv_cache_memory_bytes": int(row.kv_gib * GIB)}
    kv = plan(row.model, row.where, **flags).kv_expected
    if row.blocks:
        assert kv.num_blocks == pytest.approx(row.blocks, rel=0.002)
    assert kv.kv_tokens == pytest.approx(row.tokens, rel=0.002)
    assert kv.max_concurrency == pytest.approx(row.concurrency, rel=0.002, abs=0.01)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "gpu_memory" in str(row)])
def test_the_size_of_a_cache_is_foreseen(name: str) -> None:
    """Within 0.3 GiB of what was logged, 0.8 with experts; and the band holds it."""
    row = ROWS[name]
    cache = plan(row.model, row.where, **row.flags).kv_cache_gib
    margin = 0.8 if row.model.num_experts else 0.3
    assert cache.expected == pytest.approx(row.kv_gib, abs=margin)
    assert cache.low <= row.kv_gib <= cache.high


@pytest.mark.parametrize(
    ("model", "where", "flags", "gib", "margin"),
    [
        (catalogued("12b qat"), "a100-80", {}, 8.29, 0.01),
        (
            catalogued("31b qat"),
            "rtx-3090",
            {"tensor_parallel_size": 2, "language_model_only": True},
            9.59,
            0.01,
        ),
        (
            FP8_31B,
            "rtx-3090",
            {"tensor_parallel_size": 2, "language_model_only": True},
            15.85,
            0.01,
        ),
        (catalogued("26b"), "a100-80", {}, 48.5, 0.05),
        (catalogued("26b qat"), "l4", {}, 16.44, 0.05),
        (catalogued("e2b"), "v5e", {}, 8.97, 0.01),
    ],
)
def test_resident_weights_are_those_of_the_log(
    model: ModelShape, where: str, flags: dict[str, Any], gib: float, margin: float
) -> None:
    """Within 1 %, or 5 % with experts, of what vLLM said loading took."""
    assert plan(model, where, **flags).weights_gib == pytest.approx(gib, rel=margin)


@pytest.mark.parametrize(
    ("where", "flags", "blocks", "block_size", "tokens"),
    [
        ("v5e", {"gpu_memory_utilization": 0.92, "max_model_len": 16_384}, 10_043, 32, 321_376),
        ("v6e", {"gpu_memory_utilization": 0.92, "max_model_len": 32_768}, 17_996, 64, 1_151_744),
        (
            "v6e",
            {"gpu_memory_utilization": 0.40, "max_model_len": 16_384, "tensor_parallel_size": 4},
            *(18_523, 32, 592_736),
        ),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
def test_a_tpus_cache_is_foreseen(
    where: str, flags: dict[str, Any], blocks: int, block_size: int, tokens: int, dtype: str
) -> None:
    """Within 0.2 % of tpu-inference's log; fp8 gains nothing with one KV head per chip."""
    kv = plan(catalogued("e2b"), where, kv_cache_dtype=dtype, **flags).kv_expected
    assert kv.block_size == block_size
    assert kv.num_blocks == pytest.approx(blocks, rel=0.002)
    assert kv.kv_tokens == pytest.approx(tokens, rel=0.002)


def test_31b_dies_on_an_l4_while_loading() -> None:
    """Its weights fit; the second token table of a tied model does not."""
    made = plan(catalogued("31b qat"), "l4", gpu_memory_utilization=0.95, max_model_len=8192)
    assert not made.fits
    assert made.weights_gib < 21
    assert made.load_peak_gib == pytest.approx(22.1, abs=0.05)
    assert "22.10 GiB to load" in made.reasons[0]
    assert "2.62 for a second token table" in made.reasons[0]
    assert "21.96 GiB is visible" in made.reasons[0]
    shared = plan(catalogued("31b"), "l4", tensor_parallel_size=2, max_model_len=8192)
    assert "1.31 for a second token table" in shared.reasons[0]


def test_a_tpu_needs_room_for_its_programs() -> None:
    """v5e boots at 0.92 and never at 0.95."""
    roomy, tight = (
        plan(catalogued("e2b"), "v5e", gpu_memory_utilization=util, max_model_len=16_384)
        for util in (0.92, 0.95)
    )
    assert roomy.fits
    assert not tight.fits
    assert "compiled programs" in tight.reasons[0]


@pytest.mark.parametrize(
    ("part", "limits"),
    [
        ("open", Figures(44, 0.005, 0.04, 0.0005, 0.001, 1, 42, 0)),
        ("held", Figures(26, 0.005, 0.04, 0.0005, 0.001, 2, 24, 0)),
    ],
)
def test_boots_that_others_published_are_foreseen(
    part: Literal["open", "held"], limits: Figures
) -> None:
    """What vLLM had left for its cache, its tokens, and whether it started at all."""
    found = figures(list(public_rows(part)))
    assert (found.rows, found.of) == (limits.rows, limits.of)
    errors = zip(found, limits, strict=True)
    assert all(abs(error) <= most for error, most in errors), found


def test_the_sampler_is_counted_by_version() -> None:
    """A sort before 0.17 takes 38 bytes a logit, 50 with few sequences; masking takes 14."""
    for version, seqs, each in (("0.16.0", 1024, 38), ("0.16.0", 64, 50), ("0.17.0", 1024, 14)):
        low, high = (
            next(
                part.gib.expected * GIB
                for part in plan(model, "h100", vllm_version=version, max_num_seqs=seqs).parts
                if part.name == "sampler"
            )
            for model in (E2B, E2B.model_copy(update={"vocab_size": (E2B.vocab_size or 0) + 1000}))
        )
        rows = min(seqs, 132) if each == 14 else 0
        assert high - low == pytest.approx(1000 * (seqs * each + 4 * rows))


def test_the_states_of_a_batch_and_of_its_samples_are_held_in_16_bits() -> None:
    flags = {"vllm_version": "0.17.0", "max_num_seqs": 1024, "max_num_batched_tokens": 2048}
    wider = E2B.model_copy(update={"hidden_size": (E2B.hidden_size or 0) + 1000})
    low, high = (
        next(
            one.gib.expected for one in plan(model, "h100", **flags).parts if one.name == "sampler"
        )
        for model in (E2B, wider)
    )
    assert (high - low) * GIB == pytest.approx(1000 * 2 * (2048 + 2 * 1024))
