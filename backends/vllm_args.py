"""A spec, written in the flags of `vllm serve`."""

from typing import Final

from core.errors import InvalidArgument
from core.records import DeploymentSpec

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
_OURS: Final = {
    "--host": "it listens where the target can protect it",
    "--port": "give it as `port`",
    "--api-key": "every deployment gets a random key of its own",
    "--served-model-name": "it follows from the model",
    "--model": "give it as `model`",
    "--hf-token": "set HF_TOKEN; no secret belongs on a command line",
}


def vllm_flags(spec: DeploymentSpec) -> tuple[str, ...]:
    """Give every flag that the spec asks for, its engine_args last so that they win.

    Raises:
        InvalidArgument: engine_args holds a flag that this project sets itself.
    """
    _refuse_ours(spec.engine_args)
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


def _refuse_ours(engine_args: tuple[str, ...]) -> None:
    for word in engine_args:
        flag = word.split("=", 1)[0].replace("_", "-")
        # argparse takes --api-k for --api-key as well.
        ours = next((name for name in _OURS if flag[2:] and name.startswith(flag)), None)
        if ours:
            raise InvalidArgument(
                f"engine_args may not hold {flag}: {_OURS[ours]}.", fix=f"Leave {flag} out."
            )
