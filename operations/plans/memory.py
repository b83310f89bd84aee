"""A memory plan, as figures and as a drawing."""

from collections.abc import Mapping

from core.records import MemoryPlan, ModelShape, Record
from planner.commandline import table, work_gib
from planner.places import accelerator


class Context(Record):
    """How long a request may be, in tokens of prompt and answer together."""

    max_model_len: int
    """As it is or would be served."""
    model_max_len: int | None
    """The model's own maximum."""
    longest_that_fits: int
    """Of one request, if max_model_len were raised to it and nothing else changed."""


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
    free_gib: float | None
    """Of this machine's memory now, where the model would run on its processor."""
    parts_gib: Mapping[str, float]
    """Everything that is not KV cache."""
    drawing: str


def context_of(plan: MemoryPlan, model: ModelShape) -> Context:
    """Give the length that is served, the model's own, and the one that its memory has room for."""
    return Context(
        max_model_len=plan.max_model_len,
        model_max_len=model.max_position_embeddings,
        longest_that_fits=plan.kv_low.max_len_that_fits,
    )


def each_gib(
    plan: MemoryPlan, measured: Mapping[str, float | int | None] | None = None
) -> dict[str, float]:
    """Say what one accelerator's memory goes to; what the engine's log tells wins.

    The parts make up what the accelerator is sold with; what it lacks is `lacking`.
    """
    device, told = accelerator(plan.accelerator), measured or {}
    chips = plan.count if plan.kv_is_shared else 1
    used = {
        "weights": told.get("weights_gib") or plan.weights_gib,
        "work (profiled)": work_gib(plan),
        "KV cache": told.get("kv_cache_gib") or plan.kv_cache_gib.expected / chips,
    }
    if device.kind == "cpu" and plan.visible_gib and plan.free_gib is not None:
        used |= {"taken by others": plan.visible_gib - plan.free_gib}
    if plan.visible_gib is not None:
        left = plan.visible_gib - sum(used.values())
        name = "left for compiled programs" if device.kind == "tpu" else "left"
        used |= {name: left} if left >= 0 else {"lacking": -left}
        if device.sold_gib is not None:
            used |= {"not visible": device.sold_gib - plan.visible_gib, "sold": device.sold_gib}
    return {name: round(gib, 2) for name, gib in used.items()}


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
        free_gib=round(plan.free_gib, 2) if plan.accelerator == "cpu" and plan.free_gib else None,
        parts_gib={part.name: round(part.gib.expected, 3) for part in plan.parts},
        drawing="\n".join(table(plan)),
    )
