"""In which numbers each GPU computes, and what it cannot serve at all."""

from typing import Any, Final

import pytest

from core.errors import InvalidArgument
from core.records import LayerShape, ModelShape
from planner.places import accelerator
from tests.backends.aca.planned import A100, E2B, E4B, PATCHED, SMALL, T4, drawn, planned, small


def _shape(**change: Any) -> dict[str, Any]:
    return {"model": "some/model", "shape": SMALL.model_copy(update=change)}


LONG_HEADS: Final = (LayerShape(attention="full", kv_heads=1, head_size=256),)
GEMMA_3: Final = _shape(model_type="gemma3", layers=LONG_HEADS)
FP8: Final = _shape(quantization="fp8", quantization_bits=8)
OWN_IMAGE: Final[dict[str, Any]] = {"model": E2B, "image": PATCHED, "max_model_len": 8192}


@pytest.mark.parametrize(
    ("target", "said", "dtype", "told", "untold"),
    [
        (T4, small(), "float16", "values beyond 65,504", ""),
        (T4, small(dtype="auto"), "float16", "no bfloat16", ""),
        (T4, small(dtype="bfloat16"), "float16", "no bfloat16", ""),
        (T4, small(dtype="float32"), "float32", "Triton attention", "no bfloat16, and"),
        (T4, small(dtype="half"), "half", "Triton attention", ""),
        (T4, small(engine_args=("--dtype", "half")), "half", "", ""),
        (T4, GEMMA_3, "float32", "98,304 bytes", ""),
        (T4, _shape(model_type="gemma2", layers=LONG_HEADS), "float32", "twice the memory", ""),
        (T4, {"model": "some/model", "shape": ModelShape(model="m")}, "float16", "", ""),
        (T4, OWN_IMAGE, "float16", "98,304 bytes", ""),
        (A100, small(), None, "KV cache is kept in bf16", "Triton attention"),
        (A100, small(dtype="bfloat16"), "bfloat16", "SM 8.0", ""),
        (A100, small(kv_cache_dtype="bfloat16"), None, "", "KV cache is kept"),
        (A100, GEMMA_3, None, "", "float32"),
        (A100, small(quantization="fp8"), None, "Marlin", ""),
        (A100, FP8, None, "Marlin", ""),
        (A100, {}, None, "", "Marlin"),
    ],
)
def test_each_gpu_computes_in_what_it_has_and_says_so(
    target: str, said: dict[str, Any], dtype: str | None, told: str, untold: str
) -> None:
    """vLLM would refuse it by name, or cast it with a warning that nobody reads."""
    args = drawn(target, **said).container.args
    assert (args[args.index("--dtype") + 1] if "--dtype" in args else None) == dtype
    assert args.count("--dtype") == (dtype is not None)
    assert "--kv-cache-dtype" not in args or "kv_cache_dtype" in said
    plan = planned(target, **said)
    warnings = " ".join(plan.warnings)
    assert told in warnings
    assert not untold or untold not in warnings
    assert plan.spec.dtype == said.get("dtype")


@pytest.mark.parametrize(
    ("targets", "said", "why", "fix"),
    [
        ((A100, T4), small(kv_cache_dtype="fp8"), r"SM 8\.9", "kv_cache_dtype"),
        ((A100, T4), small(kv_cache_dtype="fp8_e5m2"), r"SM 8\.9", "kv_cache_dtype"),
        ((A100, T4), small(engine_args=("--kv-cache-dtype", "fp8")), r"SM 8\.9", "kv_cache_dtype"),
        ((T4,), small(kv_cache_dtype="bfloat16"), "no bfloat16", "kv_cache_dtype"),
        ((T4,), small(engine_args=("--dtype=bfloat16",)), "no bfloat16", "--dtype"),
        ((T4,), small(quantization="fp8"), "has no fp8", "int4"),
        ((T4,), FP8, "has no fp8", "int4"),
        ((T4,), {**GEMMA_3, "dtype": "float16"}, "does not run", "aca-a100"),
        ((T4,), {"model": E2B}, "98,304 bytes", "image="),
        ((T4,), {"model": E4B}, "98,304 bytes", "aca-a100"),
    ],
)
def test_what_a_gpu_cannot_serve_is_refused(
    targets: tuple[str, ...], said: dict[str, Any], why: str, fix: str
) -> None:
    """vLLM would start, load for minutes, and die."""
    for target in targets:
        with pytest.raises(InvalidArgument, match=why) as refused:
            drawn(target, **said)
        assert fix in refused.value.fix
        assert ("57712" in refused.value.cause) == ("98,304" in why)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_memory_is_foreseen_for_the_numbers_that_are_chosen(dtype: str | None) -> None:
    """Asked for bfloat16, it is served in float16: the forecast is of that, and refuses nothing."""
    memory = planned(T4, **OWN_IMAGE, dtype=dtype).memory
    assert memory is not None
    assert memory.fits


def test_the_data_says_of_both_what_these_rules_say() -> None:
    """One table for what a card cannot do, and these are read from it."""
    t4, a100 = accelerator("t4"), accelerator("a100-80")
    assert not t4.bf16
    assert a100.bf16
    for card in (t4, a100):
        assert not card.fp8_kv
        assert not card.fp8_compute
