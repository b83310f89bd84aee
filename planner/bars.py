"""A memory plan as text that a person reads at a glance."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from core.records import MemoryPlan

_WIDTH: Final = 60


class _Share(NamedTuple):
    mark: str
    name: str
    gib: float


def table(plan: MemoryPlan) -> Iterator[str]:
    """Give the verdict, a bar, what it is made of, and what the cache would hold."""
    head = f"{plan.model} on {plan.count} x {plan.accelerator}, vLLM {plan.vllm_version}"
    yield f"{head}: {'fits' if plan.fits else 'DOES NOT FIT'}"
    yield from (f"  ! {reason}" for reason in plan.reasons)
    yield ""
    yield f"  {bar(plan)}"
    for share in _shares(plan):
        yield f"  {share.mark} {share.name:<22}{share.gib:8.2f} GiB"
    if plan.visible_gib is not None:
        requested = plan.requested_gib or 0.0
        yield f"    {'visible':<22}{plan.visible_gib:8.2f} GiB, of which {requested:.2f} requested"
    yield f"    {'at the loading peak':<22}{plan.load_peak_gib:8.2f} GiB"
    yield ""
    yield from _cache(plan)
    yield from (f"  note: {warning}" for warning in plan.warnings)


def bar(plan: MemoryPlan) -> str:
    """Draw one accelerator's memory, from weights to what nobody uses."""
    shares = list(_shares(plan))
    total = max(plan.visible_gib or 0.0, sum(share.gib for share in shares)) or 1.0
    ends, at = [], 0.0
    for share in shares:
        at += share.gib
        ends.append(round(at / total * _WIDTH))
    begins = [0, *ends[:-1]]
    drawn = "".join(
        share.mark * (end - begin) for share, begin, end in zip(shares, begins, ends, strict=True)
    )
    return f"[{drawn:.<{_WIDTH}}]"


def work_gib(plan: MemoryPlan) -> float:
    """Give what one accelerator needs beside weights and cache, as vLLM profiles it."""
    return sum(part.gib.expected for part in plan.parts if part.name in _WORK)


def _shares(plan: MemoryPlan) -> Iterator[_Share]:
    chips = plan.count if plan.kv_is_shared else 1
    yield _Share("#", "weights", plan.weights_gib)
    yield _Share("+", "work (profiled)", work_gib(plan))
    yield _Share("=", "KV cache", plan.kv_cache_gib.expected / chips)


_WORK: Final = frozenset(
    {"activations", "sampler", "vision encoder", "experts' workspace"}
    | {"CUDA graphs", "libraries", "fused all-reduce", "processes"}
)


def _cache(plan: MemoryPlan) -> Iterator[str]:
    kv, gib = plan.kv_expected, plan.kv_cache_gib
    yield f"  KV cache {gib.low:.2f} to {gib.high:.2f} GiB, expected {gib.expected:.2f}:"
    yield f"    {kv.num_blocks:,} blocks, {kv.kv_tokens:,} tokens"
    yield f"    {kv.max_concurrency:.2f} requests of {plan.max_model_len:,} tokens at once"
    yield f"    longest request that surely fits: {plan.kv_low.max_len_that_fits:,} tokens"
