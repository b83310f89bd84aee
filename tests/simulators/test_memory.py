"""The KV cache, against what real engines logged."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.engine.flags import BootError
from simulators.engine.model import CacheAsk, Layer, Model, load_model, plan_cache

TINY = Model(
    name="tiny",
    folder=None,
    architecture="Gemma4ForCausalLM",
    dtype="bfloat16",
    vocab_size=2048,
    max_position_embeddings=4096,
    max_length_key="max_position_embeddings",
    sliding_window=512,
    layers=tuple(Layer(is_full=full, kv_heads=2, head_dim=32) for full in (False, True)) * 2,
    weights_gib=0.0,
    eos_tokens=frozenset({1}),
    multimodal=False,
)
ASK = CacheAsk(
    max_model_len=2048,
    block_size=128,
    batched_tokens=4096,
    kv_cache_dtype="auto",
    tensor_parallel=1,
    available_bytes=64 * 2**20,
    blocks_override=None,
)


def test_the_tiny_model_gets_the_blocks_that_vllm_gave_it() -> None:
    """vLLM 0.32 logged 1,024 blocks, 63,550 tokens, 31.03x. (seen 2026-11-20)"""
    plan = plan_cache(TINY, ASK)
    assert (plan.num_blocks, plan.tokens, round(plan.max_concurrency, 2)) == (1024, 63550, 31.03)


@pytest.mark.parametrize(
    ("available_bytes", "override", "longest"), [(2**20, None, 896), (2**26, 4, 128)]
)
def test_too_small_a_cache_names_the_length_that_vllm_named(
    available_bytes: int, override: int | None, longest: int
) -> None:
    """vLLM 0.32 said 896 for 1 MiB and 128 for four blocks. (seen 2026-11-20)"""
    ask = replace(
        ASK, max_model_len=4096, available_bytes=available_bytes, blocks_override=override
    )
    with pytest.raises(BootError) as refused:
        plan_cache(TINY, ask)
    assert f"estimated maximum model length is {longest}." in str(refused.value)
    assert refused.value.process == "EngineCore"


def test_auto_length_takes_what_fits() -> None:
    """`--max-model-len auto` shrinks the length in place of refusing."""
    ask = replace(ASK, max_model_len=4096, auto_length=True, available_bytes=2**20)
    assert plan_cache(TINY, ask).max_model_len == 896


def test_no_memory_at_all_is_said_in_other_words() -> None:
    """Then there is no length to name."""
    with pytest.raises(BootError, match="No available memory for the cache blocks"):
        plan_cache(TINY, replace(ASK, available_bytes=-1))


def test_fp8_doubles_the_blocks() -> None:
    """Half the bytes per element."""
    plan = plan_cache(TINY, replace(ASK, kv_cache_dtype="fp8_e4m3"))
    assert plan.num_blocks == 2048


def test_the_built_in_model_is_gemma_4_e4b() -> None:
    """One group of its four full layers, five of its sliding ones, 256 KiB per block."""
    ask = replace(ASK, block_size=16, available_bytes=2**30)
    assert plan_cache(load_model("google/gemma-4-E4B-it"), ask).num_blocks == 4096


@settings(deadline=None)
@given(st.integers(1, 4096), st.integers(1, 200))
def test_the_scheduler_can_hold_one_longest_request(length: int, mebibytes: int) -> None:
    """Whatever boots can serve a request of full length."""
    ask = replace(ASK, max_model_len=length, available_bytes=mebibytes * 2**20, block_size=16)
    try:
        plan = plan_cache(TINY, ask)
    except BootError:
        return
    assert plan.scheduler_blocks(16) * 16 >= length
