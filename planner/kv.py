"""How an engine divides the bytes of a KV cache into blocks, and in which precisions."""

import functools
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from core.environment import read_toml
from core.records import KvPlan, LayerShape, ModelShape, Record, valid
from planner.places import Accelerator


class KvAsk(NamedTuple):
    """What the flags and the platform say of the cache."""

    max_model_len: int
    in_flight_tokens: int
    """Scheduled and not yet settled: batches in flight times tokens of a batch."""
    block_size: int = 16
    element_bytes: int = 2
    tensor_parallel: int = 1
    longest: int | None = None
    """Where the search for the longest length ends; None is `max_model_len`."""
    hybrid: bool = True
    tokens_logged: Literal["blocks", "concurrency"] = "concurrency"
    blocks_override: int | None = None


class Spec(NamedTuple):
    """How one layer caches."""

    window: int | None
    kv_heads: int
    head_size: int
    block_size: int
    page_bytes: int

    def blocks(self, length: int, in_flight_tokens: int) -> int:
        """Blocks that a request of this length may hold in one group of such layers."""
        if self.window is None:
            return ceil_div(length, self.block_size)
        # One more: a window need not begin where a block does.
        seen = min(self.window - 1 + in_flight_tokens, length)
        return ceil_div(seen, self.block_size) + 1


def ceil_div(number: int, by: int) -> int:
    """Divide upwards.

    >>> ceil_div(17, 16)
    2
    """
    return -(-number // by)


class Groups(NamedTuple):
    """Layers of one kind, dealt into groups."""

    spec: Spec
    layers: int
    number: int


class Layout(NamedTuple):
    """All groups, and what one block takes in every layer of a group together."""

    groups: tuple[Groups, ...]
    bytes_per_block: int

    def blocks(self, length: int, in_flight_tokens: int) -> int:
        """Blocks that one request of this length may hold."""
        return sum(each.number * each.spec.blocks(length, in_flight_tokens) for each in self.groups)


def plan_kv(model: ModelShape, kv_cache_bytes: int, ask: KvAsk) -> KvPlan:
    """Divide a cache as vLLM does, from its bytes alone."""
    layout = divide(model, ask)
    blocks = ask.blocks_override or max(0, kv_cache_bytes) // layout.bytes_per_block
    needed = layout.blocks(ask.max_model_len, ask.in_flight_tokens)
    if ask.tokens_logged == "concurrency":
        # vLLM rounds this way: the quotient first, in floating point.
        tokens = int(blocks / needed * ask.max_model_len)
    else:
        tokens = blocks // sum(each.number for each in layout.groups) * ask.block_size
    return KvPlan(
        kv_cache_bytes=kv_cache_bytes,
        num_blocks=blocks,
        block_size=ask.block_size,
        bytes_per_block=layout.bytes_per_block,
        blocks_per_request=needed,
        kv_tokens=tokens,
        max_concurrency=blocks / needed,
        max_len_that_fits=longest_length(layout, blocks, ask),
        fits=blocks - 1 >= needed,
    )


def divide(model: ModelShape, ask: KvAsk) -> Layout:
    """Deal the layers that have a cache of their own into groups."""
    own = [(layer, count) for layer, count in model.layer_kinds if not layer.shares_kv]
    full = any(layer.attention == "full" for layer, _ in own)
    counts: Counter[Spec] = Counter()
    for layer, count in own:
        counts[_spec(layer, ask, promoted=full and not ask.hybrid)] += count
    if len({spec.window for spec in counts}) == 1:
        total = sum(spec.page_bytes * count for spec, count in counts.items())
        return Layout((Groups(next(iter(counts)), counts.total(), 1),), total)
    return _many_groups(_unified(counts))


def longest_length(layout: Layout, num_blocks: int, ask: KvAsk) -> int:
    """The longest request that fits beside the null block, as vLLM searches for it."""
    lengths = range(1, (ask.longest or ask.max_model_len) + 1)
    return bisect_left(
        lengths, num_blocks, key=lambda length: layout.blocks(length, ask.in_flight_tokens)
    )


def _spec(layer: LayerShape, ask: KvAsk, *, promoted: bool) -> Spec:
    heads = max(1, layer.kv_heads // ask.tensor_parallel)
    return Spec(
        window=None if promoted or layer.attention == "full" else layer.window,
        kv_heads=heads,
        head_size=layer.head_size,
        block_size=ask.block_size,
        page_bytes=ask.block_size * heads * 2 * layer.head_size * ask.element_bytes,
    )


def _unified(counts: Mapping[Spec, int]) -> Counter[Spec]:
    largest = max(spec.page_bytes for spec in counts)
    unified: Counter[Spec] = Counter()
    for spec, count in counts.items():
        # A page that does not divide the largest is padded to it instead.
        ratio = largest // spec.page_bytes if largest % spec.page_bytes == 0 else 1
        wide = spec._replace(block_size=spec.block_size * ratio, page_bytes=largest)
        unified[wide] += count
    return unified


def _many_groups(counts: Mapping[Spec, int]) -> Layout:
    fewest, most = min(counts.values()), max(counts.values())
    size = most if most < 1.5 * fewest else fewest
    groups = tuple(Groups(spec, size, ceil_div(count, size)) for spec, count in counts.items())
    return Layout(groups, bytes_per_block=size * groups[0].spec.page_bytes)


_BLOCK_TABLE_ENTRIES: Final = 524_288
"""Of all requests together, that fit the scalar memory; a quarter is used."""


def plan_kv_tpu(model: ModelShape, kv_cache_bytes: int, ask: KvAsk, *, max_num_seqs: int) -> KvPlan:
    """Divide a cache as tpu-inference does, from the bytes of all chips together."""
    block = block_size(ask.max_model_len, max_num_seqs)
    per_token = _bytes_per_token(model, ask)
    blocks = max(0, kv_cache_bytes) // (per_token * block)
    needed = ceil_div(ask.max_model_len, block)
    return KvPlan(
        kv_cache_bytes=kv_cache_bytes,
        num_blocks=blocks,
        block_size=block,
        bytes_per_block=per_token * block,
        blocks_per_request=needed,
        kv_tokens=blocks * block,
        max_concurrency=blocks / needed,
        max_len_that_fits=min(ask.longest or ask.max_model_len, blocks * block),
        fits=blocks >= needed,
    )


def block_size(max_model_len: int, max_num_seqs: int) -> int:
    """Tokens of a block, so that all block tables fit the scalar memory.

    >>> block_size(32_768, 256)
    64
    """
    natural = 16 if max_model_len > 8192 else max(16, min(256, _power_of_2(max_model_len) // 16))
    entries = max(1, _BLOCK_TABLE_ENTRIES // max_num_seqs // 4)
    return max(natural, _power_of_2(ceil_div(max_model_len, entries)))


def _bytes_per_token(model: ModelShape, ask: KvAsk) -> int:
    """Over all chips: heads are padded to the chips, to 32-bit words and to lanes of 128."""
    packing = 4 // ask.element_bytes
    total = 0
    for layer, count in model.layer_kinds:
        if not layer.shares_kv:
            heads = max(layer.kv_heads, ask.tensor_parallel)
            words = ceil_div(ceil_div(2 * heads, ask.tensor_parallel), packing)
            lanes = ceil_div(layer.head_size, 128) * 128
            total += count * words * packing * lanes * ask.element_bytes * ask.tensor_parallel
    return total


def _power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


_TPU: Final = (
    "tpu-inference stores it and gains nothing with one KV head for each chip; with more nobody"
    " here has measured it, and a v6e that said fp8 was seen to allocate bf16."
)
_FILE: Final = Path(__file__).with_name("kv_precisions.toml")


class KvPrecision(Record):
    """A value of --kv-cache-dtype, on one accelerator."""

    kv_cache_dtype: str
    bits: int
    possible: bool
    """As far as vLLM's own checks say."""
    planned: bool
    """This planner reckons with it; else try it and read vLLM's log."""
    why: str


class _Row(Record):
    bits: int
    needs_sm: float | None = None
    in_triton: bool = True
    """The attention backend that Gemma 4's two head sizes force has it."""
    planned: bool
    note: str


def kv_precisions(accelerator: Accelerator) -> tuple[KvPrecision, ...]:
    """Say of every precision whether Gemma 4 can have it there, and what it means."""
    missing = {name: _missing(name, row, accelerator) for name, row in _rows().items()}
    return tuple(
        KvPrecision(
            kv_cache_dtype=name,
            bits=row.bits,
            possible=not missing[name],
            planned=row.planned,
            why=missing[name] or row.note,
        )
        for name, row in _rows().items()
    )


@functools.cache
def _rows() -> dict[str, _Row]:
    return {name: valid(_Row, row) for name, row in read_toml(_FILE).items()}


def _missing(name: str, row: _Row, accelerator: Accelerator) -> str:
    if name == "auto":
        return ""
    if not row.in_triton and accelerator.kind != "tpu":
        return row.note
    if accelerator.kind == "tpu":
        return _TPU if name.startswith("fp8") else "it is of vLLM's GPU backends."
    if row.needs_sm and not accelerator.fp8_kv:
        return f"needs SM {row.needs_sm}, {accelerator.title} has {accelerator.sm}."
    if not row.needs_sm and accelerator.sm is None:
        return f"not known of {accelerator.title}."
    return ""
