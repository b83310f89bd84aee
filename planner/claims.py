"""Published figures, held against what the hardware can do."""

from typing import Final

from core.records import ModelShape, Record
from planner.accelerators import Accelerator
from planner.flags import Flags
from planner.reached import Band
from planner.speed import decode

_ROUNDING: Final = 1.005
"""A claim this little above the roof may be the roof, rounded."""


class Verdict(Record):
    """What to think of a claimed decode speed of one request."""

    claimed_tokens_per_second: float
    roof_tokens_per_second: float
    """No implementation can be faster: each token reads every active weight once."""
    likely_tokens_per_second: Band
    verdict: str
    """impossible, doubtful (above the band), plausible, or slow (below it)."""
    reason: str
    derivation: tuple[str, ...]


def judge(
    claimed_tokens_per_second: float, model: ModelShape, accelerator: Accelerator, flags: Flags
) -> Verdict:
    """Judge a claimed decode speed of a single stream, without speculative decoding.

    Raises:
        InvalidArgument: The model's shape or the accelerator's bandwidth is not known.
    """
    foreseen = decode(model, accelerator, flags)
    likely, roof = foreseen.tokens_per_second, foreseen.roof_tokens_per_second
    verdict = _verdict(claimed_tokens_per_second, likely, roof)
    read = f"{foreseen.bytes_read / 1e9:.2f} GB"
    bandwidth = (accelerator.bandwidth_gb_per_s or 0) * flags.tensor_parallel_size
    return Verdict(
        claimed_tokens_per_second=claimed_tokens_per_second,
        roof_tokens_per_second=roof,
        likely_tokens_per_second=likely,
        verdict=verdict,
        reason=(
            f"{claimed_tokens_per_second:g} tokens/s of {model.model} on "
            f"{flags.tensor_parallel_size} x {accelerator.title} is {verdict}: a token reads "
            f"{read} at {bandwidth:,.0f} GB/s, so the roof is {roof:.3g} and {likely} is likely."
        ),
        derivation=foreseen.derivation,
    )


def _verdict(claimed: float, likely: Band, roof: float) -> str:
    if claimed > roof * _ROUNDING:
        return "impossible"
    if claimed > likely.high:
        return "doubtful"
    return "plausible" if claimed >= likely.low else "slow"
