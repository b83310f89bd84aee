"""A spec, written in the flags of `vllm serve`."""

from typing import Final

from core.records import DeploymentSpec
from planner.engine_words import check_words

_VALUED: Final = {
    "max_model_len": "--max-model-len",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "quantization": "--quantization",
    "dtype": "--dtype",
    "cpu_offload_gb": "--cpu-offload-gb",
}


def vllm_flags(spec: DeploymentSpec) -> tuple[str, ...]:
    """Give every flag that the spec asks for, its engine_args last so that they win.

    Raises:
        InvalidArgument: engine_args holds a flag that this project sets itself, or an abbreviation.
    """
    check_words(spec.engine_args)
    flags = [
        word
        for field, flag in _VALUED.items()
        if (value := getattr(spec, field)) is not None
        for word in (flag, f"{value:.12g}" if isinstance(value, float) else str(value))
    ]
    if spec.tensor_parallel_size > 1:
        flags += ["--tensor-parallel-size", str(spec.tensor_parallel_size)]
    if spec.enforce_eager:
        flags.append("--enforce-eager")
    return (*flags, *spec.engine_args)
