"""In which numbers each GPU computes, and what it cannot serve at all."""

from typing import Any

import pytest

from core.errors import InvalidArgument
from core.records import LayerShape, ModelShape
from planner.places import accelerator
from tests.backends.aca.planned import A100, E2B, E4B, PATCHED, SMALL, T4, drawn, planned, small


def _dtype(target: str, **said: Any) -> str | None:
    args = drawn(target, **said).container.args
    return args[args.index("--dtype") + 1] if "--dtype" in args else None


def _shape(**change: Any) -> dict[str, Any]:
    return {"model": "some/model", "shape": SMALL.model_copy(update=change)}


@pytest.mark.parametrize("wanted", [None, "auto", "bfloat16"])
def test_a_t4_computes_in_float16_and_says_so(wanted: str | None) -> None:
    """It has no bfloat16: vLLM refuses it by name, and casts with a warning that nobody reads."""
    assert _dtype(T4, **small(dtype=wanted)) == "float16"
    plan = planned(T4, **small(dtype=wanted))
    assert any("float16" in warning for warning in plan.warnings)
    assert plan.spec.dtype == wanted
    assert plan.memory is None


def test_what_was_chosen_for_a_t4_stays() -> None:
    """Whoever wants float32 knows why; engine_args are theirs, but bfloat16 cannot be."""
    assert _dtype(T4, **small(dtype="float32")) == "float32"
    assert _dtype(T4, **small(dtype="half")) == "half"
    own = drawn(T4, **small(engine_args=("--dtype", "half")))
    assert own.container.args.count("--dtype") == 1
    with pytest.raises(InvalidArgument, match="no bfloat16"):
        drawn(T4, **small(engine_args=("--dtype=bfloat16",)))


def test_an_a100_computes_in_what_the_model_is_kept_in() -> None:
    """Nothing is chosen where nothing must be."""
    assert _dtype(A100, **small()) is None
    assert _dtype(A100, **small(dtype="bfloat16")) == "bfloat16"


def test_an_a100_keeps_its_cache_in_bf16_and_says_why() -> None:
    """An fp8 cache needs SM 8.9."""
    assert "--kv-cache-dtype" not in drawn().container.args
    (said,) = [each for each in planned().warnings if "KV cache is kept" in each]
    assert "SM 8.9" in said
    assert "SM 8.0" in said
    assert "KV cache is kept" not in " ".join(planned(kv_cache_dtype="bfloat16").warnings)


@pytest.mark.parametrize("target", [A100, T4])
@pytest.mark.parametrize(
    "said",
    [
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"engine_args": ("--kv-cache-dtype", "fp8")},
    ],
)
def test_neither_has_an_fp8_cache(target: str, said: dict[str, Any]) -> None:
    """vLLM would start, load for minutes, and die."""
    with pytest.raises(InvalidArgument, match=r"SM 8\.9") as refused:
        drawn(target, **small(**said))
    assert "kv_cache_dtype" in refused.value.fix


def test_a_t4_has_no_bf16_cache_either() -> None:
    """The same attention says so, at the end of the boot."""
    with pytest.raises(InvalidArgument, match="no bfloat16"):
        drawn(T4, **small(kv_cache_dtype="bfloat16"))


@pytest.mark.parametrize(
    "said", [small(quantization="fp8"), _shape(quantization="fp8", quantization_bits=8)]
)
def test_fp8_weights_are_refused_on_a_t4_and_told_on_an_a100(said: dict[str, Any]) -> None:
    """An A100 unpacks them in Marlin; on a T4 nobody is known to have served any."""
    with pytest.raises(InvalidArgument, match="has no fp8") as refused:
        drawn(T4, **said)
    assert "int4" in refused.value.fix
    assert any("Marlin" in warning for warning in planned(A100, **said).warnings)
    assert not any("Marlin" in warning for warning in planned(A100, **small()).warnings)


@pytest.mark.parametrize("model", [E2B, E4B])
def test_gemma_4_is_refused_on_a_t4_with_the_published_image(model: str) -> None:
    """Its heads of 512 need 98,304 bytes of shared memory, and a T4 has 65,536."""
    with pytest.raises(InvalidArgument, match="98,304 bytes") as refused:
        drawn(T4, model=model)
    assert "aca-a100" in refused.value.fix
    assert "image=" in refused.value.fix
    assert "57712" in refused.value.cause


def test_gemma_4_is_a_warning_on_a_t4_with_an_image_of_ones_own() -> None:
    """Its vLLM may have smaller tiles, as a public deployment's has."""
    plan = planned(T4, model=E2B, image=PATCHED, max_model_len=8192)
    assert any("98,304 bytes" in warning for warning in plan.warnings)
    assert plan.memory is not None
    assert plan.memory.fits


def test_the_memory_is_foreseen_for_the_numbers_that_are_chosen() -> None:
    """Asked for bfloat16, it is served in float16: the forecast is of that, and refuses nothing."""
    memory = planned(T4, model=E2B, image=PATCHED, max_model_len=8192, dtype="bfloat16").memory
    assert memory is not None
    assert memory.fits


def test_which_attention_a_t4_has_is_said() -> None:
    """The others want SM 8.0."""
    assert any("Triton attention" in each for each in planned(T4, **small()).warnings)
    assert not any("Triton attention" in each for each in planned(A100).warnings)


@pytest.mark.parametrize("model_type", ["gemma3", "gemma3_text", "gemma2"])
def test_a_model_that_vllm_does_not_run_in_float16_is_run_in_float32(model_type: str) -> None:
    """At twice the memory; and its heads of 256 may then be too long as well."""
    heads = (LayerShape(attention="full", kv_heads=1, head_size=256),)
    said = _shape(model_type=model_type, layers=heads)
    assert _dtype(T4, **said) == "float32"
    warnings = planned(T4, **said).warnings
    assert any("float32" in warning for warning in warnings)
    assert any("98,304 bytes" in warning for warning in warnings)
    with pytest.raises(InvalidArgument, match="does not run") as refused:
        drawn(T4, **said, dtype="float16")
    assert "aca-a100" in refused.value.fix
    assert _dtype(A100, **said) is None


def test_a_model_whose_shape_nobody_knows_is_planned() -> None:
    """Not knowing is no reason to refuse."""
    assert _dtype(T4, shape=ModelShape(model="m"), model="some/model") == "float16"


def test_the_data_says_of_both_what_these_rules_say() -> None:
    """One table for what a card cannot do, and these are read from it."""
    t4, a100 = accelerator("t4"), accelerator("a100-80")
    assert not t4.bf16
    assert a100.bf16
    for card in (t4, a100):
        assert not card.fp8_kv
        assert not card.fp8_compute
