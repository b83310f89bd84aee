"""When a cell has been measured for long enough: confidence intervals by batch means.

The slices of a window are put into batches in their order. Slices next to each other are alike (a
long batch of prompts slows several of them), batches hardly are: so their scatter says how well the
whole is known. Two intervals are made, of eight and of four batches, and the wider one counts:
eight are less often narrow by chance, four are less alike. Both figures are ratios of sums: output
tokens over seconds, seconds of latency over requests.

Asked again and again until it is narrow, an interval covers the truth less often than the 95 % of
one that is asked once: simulated, 91 to 97 % where slices are independent, 88 to 94 % where each
keeps half of the last one's deviation.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from benchmark.measured import Slice
from benchmark.records import StopRule
from benchmark.samples import Floats

STUDENT_T: Final = {8: 2.3646, 4: 3.1824}
"""Batches, and the 97.5 % quantile of Student's t for one degree of freedom fewer."""
BATCHES: Final = max(STUDENT_T)
"""Slices that an interval needs at least, each with something in it."""


def enough(rule: StopRule) -> Callable[[Sequence[Slice]], bool]:
    """Give the question to ask after each slice: may the window end now?"""

    def ask(slices: Sequence[Slice]) -> bool:
        if not slices:
            return False
        seconds = slices[-1].begin + slices[-1].seconds - slices[0].begin
        if seconds >= rule.max_seconds:
            return True
        if seconds < rule.min_seconds or sum(s.requests for s in slices) < rule.min_requests:
            return False
        return _narrow(slices, rule.relative_half_width)

    return ask


def _narrow(slices: Sequence[Slice], limit: float) -> bool:
    widths = (relative_half_width(slices), e2el_relative_half_width(slices))
    return all(width is not None and width <= limit for width in widths)


def relative_half_width(slices: Sequence[Slice]) -> float | None:
    """Give half the 95 % interval of output throughput, over its mean.

    None where it cannot be known: a batch without a token, and so fewer slices than batches.
    """
    tokens = np.array([s.output_tokens for s in slices], dtype=np.float64)
    return _half_width(tokens, np.array([s.seconds for s in slices], dtype=np.float64))


def e2el_relative_half_width(slices: Sequence[Slice]) -> float | None:
    """Give the same of mean E2EL; None too where no request ended during a batch."""
    seconds = np.array([s.e2el_sum for s in slices], dtype=np.float64)
    return _half_width(seconds, np.array([s.requests for s in slices], dtype=np.float64))


def _half_width(above: Floats, below: Floats) -> float | None:
    if not _batches(above, BATCHES).all():
        return None
    return max(_by_batches(above, below, count) for count in STUDENT_T)


def _by_batches(above: Floats, below: Floats, count: int) -> float:
    above, below = _batches(above, count), _batches(below, count)
    residuals = above - above.sum() / below.sum() * below
    error = np.sqrt(np.square(residuals).sum() / (count - 1) / count)
    return float(STUDENT_T[count] * error / above.mean())


def _batches(values: Floats, count: int) -> Floats:
    return np.array([part.sum() for part in np.array_split(values, count)])
