"""A memory plan, as figures and as a drawing."""

from collections.abc import Mapping

from core.plans import MemoryPlan
from core.records import Record
from planner.bars import table


class MemoryTable(Record):
    """Where one accelerator's memory goes."""

    fits: bool
    """Judged on the low estimate."""
    max_model_len: int
    """As asked for; left out, the model's own."""
    weights_gib: float
    load_peak_gib: float
    kv_cache_gib: Mapping[str, float]
    """low, expected, high."""
    kv_tokens: int
    max_concurrency: float
    """Requests of full length at once, on the expected estimate."""
    max_len_that_fits: int
    """The longest single request, on the low estimate."""
    parts_gib: Mapping[str, float]
    """Everything that is not KV cache."""
    drawing: str


def memory_table(plan: MemoryPlan) -> MemoryTable:
    """Give a memory plan's figures and its drawing."""
    gib = plan.kv_cache_gib
    return MemoryTable(
        fits=plan.fits,
        max_model_len=plan.max_model_len,
        weights_gib=round(plan.weights_gib, 2),
        load_peak_gib=round(plan.load_peak_gib, 2),
        kv_cache_gib={
            "low": round(gib.low, 2),
            "expected": round(gib.expected, 2),
            "high": round(gib.high, 2),
        },
        kv_tokens=plan.kv_expected.kv_tokens,
        max_concurrency=round(plan.kv_expected.max_concurrency, 2),
        max_len_that_fits=plan.kv_low.max_len_that_fits,
        parts_gib={part.name: round(part.gib.expected, 3) for part in plan.parts},
        drawing="\n".join(table(plan)),
    )
