"""vLLM's flags, as far as they change how much memory it takes."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

from pydantic import Field

from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape, Record, valid
from planner.overrides import limit, overrides_in

T = TypeVar("T")
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)")
_UNITS: Final = {"": 1} | {
    letter: base**power
    for letters, base in (("kmgt", 10**3), ("KMGT", 2**10))
    for power, letter in enumerate(letters, start=1)
}
_SWITCHES: Final = {
    f"--{no}{name.replace('_', '-')}": (name, not no)
    for name in (
        "async_scheduling",
        "language_model_only",
        "disable_chunked_mm_input",
        "disable_hybrid_kv_cache_manager",
        "enforce_eager",
    )
    for no in ("", "no-")
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
    hf_overrides: str | None = Field(default=None, exclude=True)
    """What of the model's configuration is another, as JSON; of a plan it changes the length."""
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
        return valid(cls, {**values, **engine_flags(spec.engine_args)})

    def computed(self) -> dict[str, Any]:
        """Give what a layout sets; where it says nothing, the word of a person stands."""
        said = self.model_dump(exclude={"vllm_version"}, exclude_none=True)
        return {name: value for name, value in said.items() if value is not False}


def positions(model: ModelShape, flags: Flags) -> int | None:
    """Give the longest sequence that a model takes with these flags; None where nobody knows."""
    return limit(json.loads(flags.hf_overrides or "{}"), model.max_position_embeddings)


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


def _length(size: str) -> int | None:
    """Read a length in tokens; `auto` and -1 are as if nothing was said."""
    return None if size in {"auto", "-1"} else size_in_bytes(size)


_VALUED: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "--max-model-len": ("max_model_len", _length),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--device-memory-utilization": ("gpu_memory_utilization", float),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--kv-cache-memory-bytes": ("kv_cache_memory_bytes", size_in_bytes),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max-num-batched-tokens": ("max_num_batched_tokens", size_in_bytes),
    "--tensor-parallel-size": ("tensor_parallel_size", int),
    "-tp": ("tensor_parallel_size", int),
    "--quantization": ("quantization", str),
    "-q": ("quantization", str),
    "--dtype": ("dtype", str),
    "--cpu-offload-gb": ("cpu_offload_gb", float),
    "--block-size": ("block_size", int),
    "--num-gpu-blocks-override": ("num_gpu_blocks_override", int),
    "--vllm-version": ("vllm_version", str),
}
"""Flags with a value, and how vLLM reads it."""
READ: Final = frozenset({*_SWITCHES, *_VALUED})
"""Flags that change a plan."""


def engine_flags(words: Sequence[str]) -> dict[str, object]:
    """Read those of a deployment's engine_args that change how much memory it takes.

    Raises:
        InvalidArgument: A value cannot be read.
    """
    values: dict[str, object] = {}
    for position, word in enumerate(words):
        given, joined, value = word.partition("=")
        flag = given.replace("_", "-")
        if flag in _SWITCHES:
            name, switch = _SWITCHES[flag]
            if joined:
                raise _switched(flag, on=switch)
            values[name] = switch
        elif flag in _VALUED:
            following = words[position + 1] if position + 1 < len(words) else ""
            name, kind = _VALUED[flag]
            values[name] = _read(flag, value or following, kind)
    overrides = _read("--hf-overrides", words, lambda said: overrides_in(said, size_in_bytes))
    return {**values, "hf_overrides": json.dumps(overrides)} if overrides else values


def _switched(flag: str, *, on: bool) -> InvalidArgument:
    other = flag.replace("--", "--no-", 1) if on else flag.replace("--no-", "--", 1)
    return InvalidArgument(
        f"engine_args gives {flag} a value, and it takes no value.",
        fix=f"Give {flag} alone, or {other}.",
    )


def _read(flag: str, value: T, kind: Callable[[T], object]) -> object:
    try:
        return kind(value)
    except ValueError as exc:
        raise InvalidArgument(
            f"engine_args gives {flag} what is no value for it.",  # nor told: it may be a secret
            fix="Give the value after the flag, as the next word or behind `=`.",
        ) from exc
