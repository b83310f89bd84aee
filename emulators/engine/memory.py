"""How many KV-cache blocks fit, by vLLM 0.32's own rules.

source: facts/vllm-sizing.md section 2, read 2026-11-20. The scheduler's blocks are those of one
full-attention group, so many that they hold the logged number of tokens: a short request on a model
with sliding layers takes a little less here than in the real engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from emulators.engine.boot_errors import BootError
from emulators.engine.model import Layer, Model

GIB: Final = 2**30
_CACHE_BYTES: Final = {"fp8": 1.0, "int8": 1.0, "int4": 0.5, "nvfp4": 0.5}
"""Bytes per element by the start of `--kv-cache-dtype`; everything else is 16 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAsk:
    """What the flags say about the KV cache."""

    max_model_len: int
    auto_length: bool = False
    """`--max-model-len auto`: as long as fits, up to `max_model_len`."""
    block_size: int
    batched_tokens: int
    kv_cache_dtype: str
    tensor_parallel: int
    available_bytes: int
    blocks_override: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What vLLM logs about its KV cache."""

    num_blocks: int
    tokens: int
    max_concurrency: float
    bytes_per_token: float
    max_model_len: int

    def scheduler_blocks(self, block_size: int) -> int:
        """Blocks of one full-attention group that hold as many tokens."""
        return max(self.tokens // block_size, _divide(self.max_model_len, block_size))


@dataclass(frozen=True, slots=True)
class _Groups:
    bytes_per_block: int
    blocks_for: Callable[[int], int]


def plan_cache(model: Model, ask: CacheAsk) -> CachePlan:
    """Divide the available bytes into blocks; refuse what cannot hold one full-length request."""
    groups = _group(model, ask)
    num_blocks = ask.blocks_override or ask.available_bytes // groups.bytes_per_block
    available = num_blocks * groups.bytes_per_block if ask.blocks_override else ask.available_bytes
    if available <= 0:
        raise no_memory()
    length = _longest_fitting(groups, ask, num_blocks) if ask.auto_length else ask.max_model_len
    needed = groups.blocks_for(length)
    if num_blocks - 1 < needed or length < 1:
        raise too_small(
            length=ask.max_model_len,
            needed_bytes=groups.blocks_for(ask.max_model_len) * groups.bytes_per_block,
            available_bytes=available,
            longest=_longest_fitting(groups, ask, num_blocks),
        )
    concurrency = num_blocks / needed
    return CachePlan(
        num_blocks=num_blocks,
        tokens=int(concurrency * length),
        max_concurrency=concurrency,
        bytes_per_token=needed * groups.bytes_per_block / length,
        max_model_len=length,
    )


def no_memory() -> BootError:
    """Nothing is left for a cache."""
    return BootError(
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine (this flag also controls CPU "
        "memory reservation on the CPU backend, despite its name). See https://docs.vllm.ai/"
        "en/latest/configuration/conserving_memory/ for more details.",
        process="EngineCore",
    )


def too_small(*, length: int, needed_bytes: int, available_bytes: int, longest: int) -> BootError:
    """One request of full length does not fit; `longest` would."""
    hint = f"the estimated maximum model length is {longest}. "
    return BootError(
        "ValueError: To serve at least one request with the model's max seq len "
        f"({length}), ({_gib(needed_bytes)} GiB KV cache is needed, which is larger than the "
        f"available KV cache memory ({_gib(available_bytes)} GiB). "
        f"{'Based on the available memory, ' + hint if longest else ''}"
        "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
        "backend) or decreasing `max_model_len` when initializing the engine. See https://"
        "docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        process="EngineCore",
    )


def _gib(size: int) -> float:
    return round(size / GIB, 2)


def _longest_fitting(groups: _Groups, ask: CacheAsk, num_blocks: int) -> int:
    low, high = 0, ask.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        fits = groups.blocks_for(middle) < num_blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _page(layer: Layer, ask: CacheAsk) -> int:
    element = next(
        (size for kind, size in _CACHE_BYTES.items() if ask.kv_cache_dtype.startswith(kind)), 2.0
    )
    heads = max(1, layer.kv_heads // ask.tensor_parallel)
    return int(ask.block_size * heads * 2 * layer.head_dim * element)


def _group(model: Model, ask: CacheAsk) -> _Groups:
    full = [layer for layer in model.layers if layer.is_full]
    sliding = [layer for layer in model.layers if not layer.is_full]
    largest = max(_page(layer, ask) for layer in model.layers)
    counts = sorted(len(layers) for layers in (full, sliding) if layers)
    size = counts[-1] if counts[-1] < 1.5 * counts[0] else counts[0]

    def blocks_for(length: int) -> int:
        needed = 0
        if full:
            block = ask.block_size * largest // _page(full[0], ask)
            needed += _divide(len(full), size) * _divide(length, block)
        if sliding:
            block = ask.block_size * largest // _page(sliding[0], ask)
            seen = min(model.sliding_window - 1 + ask.batched_tokens, length)
            needed += _divide(len(sliding), size) * (_divide(seen, block) + 1)
        return needed

    return _Groups(bytes_per_block=size * largest, blocks_for=blocks_for)


def _divide(count: int, size: int) -> int:
    return -(-count // size)
