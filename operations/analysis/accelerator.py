"""What the engine says of its accelerator's memory, beside what was planned."""

import re
from typing import Final

from backends.base import KnowsEngine, Predicts
from core.errors import OpsError
from core.records import MemoryPlan
from operations.resolve import Found
from operations.watching.memory_check import compare

WORDS: Final = re.compile(
    r"cuda|cublas|cudnn|nccl|\bgpus?\b|\bxid\b|nvrm|nvidia|nvlink|\becc\b|triton|torch\.OutOf"
    r"|\bxla\b|\bhbm\b|\btpus?\b|libtpu|jax|pallas|resource_exhausted|RuntimeProgramAllocation"
    r"|out of (?:memory|resource)|outofmemory|\boom\b|\bGiB\b|memory|kv cache|cache blocks"
    r"|flash.?attn|attention backend|kernel|compute capability",
    re.IGNORECASE,
)
"""What a line about an accelerator holds. Source: vLLM 0.10 to 0.33, tpu-inference 0.26, NVIDIA's
driver ("NVRM: Xid"), read 2026-11."""
_UNSEEN: Final = "Its log says nothing of memory, or its boot is no longer there."


async def memory(found: Found) -> tuple[str, ...]:
    """Give each part as the log has it and as it was foreseen, in GiB of one accelerator."""
    backend = found.backend
    try:
        known = await backend.engine_facts(found.name) if isinstance(backend, KnowsEngine) else None
        foreseen = await backend.predicted(found.name) if isinstance(backend, Predicts) else None
    except OpsError as exc:
        return (f"The memory is not known: {exc.summary}",)
    told = {name: value for name, value in (known.memory if known else {}).items() if value}
    plan = foreseen.memory if foreseen else None
    if not told:
        return (_UNSEEN, *(_verdict(plan),)) if plan else (_UNSEEN,)
    return (*_beside(told, plan), *((_verdict(plan),) if plan else ()))


def _beside(told: dict[str, float | int], plan: MemoryPlan | None) -> list[str]:
    if plan is None:
        return [f"{name}: {value:g}" for name, value in told.items()]
    return [str(part) for part in compare(plan, told) if part.measured is not None]


def _verdict(plan: MemoryPlan) -> str:
    said = "fits" if plan.fits else f"does not fit: {' '.join(plan.reasons)}"
    return f"The plan for {plan.count} of {plan.accelerator}: {said}"
