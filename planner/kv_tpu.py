"""How tpu-inference divides the bytes of a KV cache into blocks.

Every layer is cached in full, whatever its window; all chips' memory is one pool.
source: tpu-inference 0.32 runner/kv_cache_manager.py, platforms/tpu_platform.py, read 2026-11-20.
"""

from typing import Final

from core.records import KvPlan, ModelShape
from planner.kv import KvAsk, ceil_div

_BLOCK_TABLE_ENTRIES: Final = 524_288
"""Of all requests together, that fit the scalar memory; a quarter is used."""


def plan_kv_tpu(model: ModelShape, kv_cache_bytes: int, ask: KvAsk, *, max_num_seqs: int) -> KvPlan:
    """Divide a cache as tpu-inference does, from the bytes of all chips together."""
    block = block_size(ask.max_model_len, max_num_seqs)
    per_token = bytes_per_token(model, ask)
    blocks = max(0, kv_cache_bytes) // (per_token * block)
    needed = ceil_div(ask.max_model_len, block)
    longest = min(ask.longest or ask.max_model_len, blocks * block)
    return KvPlan(
        kv_cache_bytes=kv_cache_bytes,
        num_blocks=blocks,
        block_size=block,
        bytes_per_block=per_token * block,
        blocks_per_request=needed,
        kv_tokens=blocks * block,
        max_concurrency=blocks / needed,
        max_len_that_fits=longest,
        fits=blocks >= needed,
        derivation=(
            f"{_own(model)} layers cache in full, whatever their window",
            f"bytes per token = {per_token:,} over {ask.tensor_parallel} chips",
            f"block = {block} tokens for {ask.max_model_len:,} tokens and {max_num_seqs} sequences",
            f"num_blocks = floor({kv_cache_bytes:,} / ({per_token:,} x {block})) = {blocks:,}",
            f"tokens = {blocks:,} x {block} = {blocks * block:,}",
        ),
    )


def block_size(max_model_len: int, max_num_seqs: int) -> int:
    """Tokens of a block, so that all block tables fit the scalar memory.

    >>> block_size(32_768, 256)
    64
    """
    natural = 16 if max_model_len > 8192 else max(16, min(256, _power_of_2(max_model_len) // 16))
    entries = max(1, _BLOCK_TABLE_ENTRIES // max_num_seqs // 4)
    return max(natural, _power_of_2(ceil_div(max_model_len, entries)))


def bytes_per_token(model: ModelShape, ask: KvAsk) -> int:
    """Over all chips: heads are padded to the chips, to 32-bit words and to lanes of 128."""
    packing = 4 // ask.element_bytes
    total = 0
    for layer in model.layers:
        if layer.shares_kv:
            continue
        heads = max(layer.kv_heads, ask.tensor_parallel)
        rows = _align(ceil_div(2 * heads, ask.tensor_parallel), packing)
        lanes = _align(layer.head_size, 128)
        total += rows * lanes * ask.element_bytes * ask.tensor_parallel
    return total


def _own(model: ModelShape) -> int:
    return sum(not layer.shares_kv for layer in model.layers)


def _align(number: int, to: int) -> int:
    return ceil_div(number, to) * to


def _power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
