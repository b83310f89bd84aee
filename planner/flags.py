"""vLLM's flags, as far as they change how much memory it takes."""

import re
from collections.abc import Sequence
from typing import Final, Self

from pydantic import Field

from core.errors import InvalidArgument
from core.records import DeploymentSpec, Record

_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)")
_UNITS: Final = {"": 1} | {
    letter: base**power
    for letters, base in (("kmgt", 10**3), ("KMGT", 2**10))
    for power, letter in enumerate(letters, start=1)
}
_ALSO: Final = {
    "--block-size": ("block_size", int),
    "--vllm-version": ("vllm_version", str),
    "--num-gpu-blocks-override": ("num_gpu_blocks_override", int),
}
"""Flags that a spec has no field for, in its engine_args."""
_SWITCHES: Final = {
    "--async-scheduling": ("async_scheduling", True),
    "--no-async-scheduling": ("async_scheduling", False),
    "--language-model-only": ("language_model_only", True),
    "--disable-chunked-mm-input": ("disable_chunked_mm_input", True),
    "--disable-hybrid-kv-cache-manager": ("disable_hybrid_kv_cache_manager", True),
    "--enforce-eager": ("enforce_eager", True),
}


class Flags(Record):
    """What vLLM is started with; names and defaults are vLLM's."""

    max_model_len: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_dtype: str | None = None
    kv_cache_memory_bytes: int | None = Field(default=None, ge=0)
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    quantization: str | None = None
    dtype: str | None = None
    cpu_offload_gb: float | None = Field(default=None, ge=0)
    enforce_eager: bool = False
    block_size: int | None = Field(default=None, ge=1)
    num_gpu_blocks_override: int | None = Field(default=None, ge=1)
    async_scheduling: bool | None = None
    language_model_only: bool = False
    """No vision or audio tower is loaded."""
    disable_chunked_mm_input: bool = False
    disable_hybrid_kv_cache_manager: bool = False
    vllm_version: str | None = None
    """Left out, the newest that is known."""

    @classmethod
    def of(cls, spec: DeploymentSpec, *, vllm_version: str | None = None) -> Self:
        """Read the flags of a deployment, its engine_args last so that they win.

        Raises:
            InvalidArgument: A size or number in it cannot be read.
        """
        values = {name: getattr(spec, name) for name in cls.model_fields if hasattr(spec, name)}
        values["kv_cache_memory_bytes"] = size_in_bytes(spec.kv_cache_memory_bytes)
        values["vllm_version"] = vllm_version
        return cls.model_validate({**values, **engine_flags(spec.engine_args)})


def size_in_bytes(size: str | None) -> int | None:
    """Read a size as vLLM does: 25k is 25,000 and 25K is 25,600.

    >>> size_in_bytes("64M")
    67108864

    Raises:
        InvalidArgument: It is no size.
    """
    if size is None:
        return None
    match = _SIZE.fullmatch(size)
    if not match:
        raise InvalidArgument(f"{size} is not a size.", fix="Give bytes, or a number with K, M, G.")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def engine_flags(words: Sequence[str]) -> dict[str, object]:
    """Read those of a deployment's engine_args that change how much memory it takes."""
    values: dict[str, object] = {}
    pairs = [word.split("=", 1) for word in words]
    for position, (flag, *rest) in enumerate(pairs):
        if flag in _SWITCHES:
            name, switch = _SWITCHES[flag]
            values[name] = switch
        elif flag in _ALSO:
            name, kind = _ALSO[flag]
            values[name] = kind((rest or words[position + 1 : position + 2] or ["0"])[0])
    return values
