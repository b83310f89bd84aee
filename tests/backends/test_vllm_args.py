"""Specs as flags of `vllm serve`."""

from typing import Any

import pytest

from backends.container import vllm_flags
from core.errors import InvalidArgument
from core.records import DeploymentSpec


def spec(**wanted: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate(
        {"name": "one", "model": "google/gemma-4-E2B-it", **wanted}
    )


def test_what_is_not_wanted_is_left_to_vllm() -> None:
    """Its defaults are its own."""
    assert vllm_flags(spec()) == ()
    assert vllm_flags(spec(tensor_parallel_size=1, enforce_eager=False, port=8000)) == ()


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [
        ({"max_model_len": 4096}, "--max-model-len 4096"),
        ({"gpu_memory_utilization": 0.9}, "--gpu-memory-utilization 0.9"),
        ({"gpu_memory_utilization": 1}, "--gpu-memory-utilization 1"),
        ({"gpu_memory_utilization": 0.123456789}, "--gpu-memory-utilization 0.123456789"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8"),
        ({"kv_cache_memory_bytes": "64M"}, "--kv-cache-memory-bytes 64M"),
        ({"max_num_seqs": 8}, "--max-num-seqs 8"),
        ({"max_num_batched_tokens": 2048}, "--max-num-batched-tokens 2048"),
        ({"quantization": "awq"}, "--quantization awq"),
        ({"dtype": "bfloat16"}, "--dtype bfloat16"),
        ({"cpu_offload_gb": 0}, "--cpu-offload-gb 0"),
        ({"cpu_offload_gb": 2.5}, "--cpu-offload-gb 2.5"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size 2"),
        ({"enforce_eager": True}, "--enforce-eager"),
    ],
)
def test_what_is_wanted_is_a_flag(wanted: dict[str, Any], flags: str) -> None:
    """By vLLM's own name, with the value as it was given."""
    assert vllm_flags(spec(**wanted)) == tuple(flags.split())


def test_further_words_come_last_and_stay_as_they_are() -> None:
    """So that they win; JSON and spaces are one word each."""
    words = (
        "--limit-mm-per-prompt",
        '{"image": 4}',
        "--max-model-len",
        "8192",
        "--model-impl=auto",
    )
    assert vllm_flags(spec(max_model_len=1, engine_args=words)) == ("--max-model-len", "1", *words)


@pytest.mark.parametrize(
    "word",
    [
        "--host",
        "--port=80",
        "--api-key",
        "--api_key=sk-x",
        "--api-k",
        "--served-model-name",
        "--served_model_name=x",
        "--model",
        "--hf-token=hf_x",
        "--hos",
    ],
)
def test_flags_that_are_set_here_are_refused(word: str) -> None:
    """In every spelling that vLLM's parser takes, abbreviations included."""
    with pytest.raises(InvalidArgument) as caught:
        vllm_flags(spec(engine_args=("--seed", "1", word)))
    assert "sk-x" not in f"{caught.value.summary}{caught.value.fix}"
