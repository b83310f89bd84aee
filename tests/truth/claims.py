"""Claims of a client held against the endpoint's truth, request by request."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from benchmark.records import Measured
from benchmark.samples import Outcome, Samples
from tests.truth.recorded import HEAD_BYTES, Floats, Ints, Truth

P50_SECONDS: Final = 0.0002
P99_SECONDS: Final = 0.002
SHARE: Final = 0.02
FLOOR_SECONDS: Final = 0.0002
"""A figure that is moved no further is worth as much as the truth."""
COUNT_SHARE: Final = 0.01


class Errors(NamedTuple):
    """Claim minus truth, in seconds, of the measured requests; counts as shares of the truth."""

    ttft: Floats
    itl: Floats
    e2el: Floats
    claimed: Mapping[str, Floats]
    """TTFT, ITL and E2EL themselves."""
    requests: float
    tokens: float
    lost: int
    """Answers that the endpoint finished and the client neither had nor cut itself."""
    miscounted: int
    """Answers whose tokens or events are not as many as were written."""

    def words(self) -> str:
        """Give p50 and p99 of each in ms."""
        parts = (
            f"{name} {np.median(np.abs(one)) * 1e3:.3f}/{_p99(one) * 1e3:.3f}"
            for name, one in (("TTFT", self.ttft), ("ITL", self.itl), ("E2EL", self.e2el))
        )
        return f"{', '.join(parts)} ms; {self._counts()}"

    def _counts(self) -> str:
        shares = f"requests {self.requests:.2%}, tokens {self.tokens:.2%}"
        return f"{shares}, {self.lost} lost, {self.miscounted} miscounted"

    @property
    def complete(self) -> bool:
        """Whether every answer is there with all its tokens, however late it was stamped."""
        return self.lost == 0 and self.miscounted == 0

    @property
    def unbiased(self) -> bool:
        """Whether the best tenth is exact: stalls spare it, what is stamped wrong does not."""
        return all(
            np.percentile(np.abs(one), 10) <= P50_SECONDS
            for one in (self.ttft, self.itl, self.e2el)
        )

    def beyond(self, bounds: Mapping[str, float]) -> list[str]:
        """Name figures that are further from the truth than the limit and than the client says."""
        return [
            f"{name} {point} {value * 1e3:.3f} off by {off * 1e3:.3f}, bound {bound * 1e3:.3f} ms"
            for name, claimed in self.claimed.items()
            for point, value, true in figures(claimed, claimed - getattr(self, name))
            if (off := abs(value - true)) > max(FLOOR_SECONDS, SHARE * value)
            and off > (bound := bounds[f"{name}_{point}"])
        ]

    def within(self) -> bool:
        """Say whether all keep to the bounds that the benchmark promises."""
        return (
            self.complete
            and self.requests <= COUNT_SHARE
            and self.tokens <= COUNT_SHARE
            and all(
                np.median(np.abs(one)) <= P50_SECONDS and _p99(one) <= P99_SECONDS
                for one in (self.ttft, self.itl, self.e2el)
            )
        )


def compare(measured: Measured, truth: Truth, body: Callable[[int], bytes]) -> Errors:
    """Pair every measured answer with its request by the bytes of its prompt, which are unique.

    Of requests and tokens all are counted that the endpoint finished in the window, paired or
    not; what was lost or miscounted is of the whole run.
    """
    samples = measured.samples
    whole = samples.rows(samples.outcome == Outcome.OK)
    cut = samples.rows(samples.outcome == Outcome.CUT)
    known = _rows(truth, whole, body)
    is_mine = _inside(whole.intended, measured)
    mine, rows = whole.rows(is_mine), known[is_mine]
    waited = truth.received[rows]
    done = _inside(truth.last_token, measured)
    claimed = _inside(whole.last_token, measured)
    gaps = _gaps(truth, rows)
    finished = set(np.flatnonzero(~np.isnan(truth.last_token)).tolist())
    wrong = (whole.output_tokens != truth.tokens[known]) | (whole.events != truth.events[known])
    ttft, e2el = mine.first_token - mine.intended, mine.last_token - mine.intended
    # One event too many or too few, such as a role counted as a token, and no gap is right.
    itl = mine.gaps - gaps if len(mine.gaps) == len(gaps) else np.full(len(mine.gaps), np.inf)
    return Errors(
        ttft=ttft - (truth.first_token[rows] - waited),
        itl=itl,
        e2el=e2el - (truth.last_token[rows] - waited),
        claimed={"ttft": ttft, "itl": mine.gaps.astype(np.float64), "e2el": e2el},
        requests=_share(int(claimed.sum()), int(done.sum())),
        tokens=_share(int(whole.output_tokens[claimed].sum()), int(truth.tokens[done].sum())),
        lost=len(finished.difference(known.tolist(), _rows(truth, cut, body).tolist())),
        miscounted=int(wrong.sum()),
    )


def figures(claimed: Floats, true: Floats) -> Iterator[tuple[str, float, float]]:
    """Yield each point with its value by the claims and by the truth, as far as it has meaning."""
    if not len(claimed):
        return
    yield "mean", float(claimed.mean()), float(true.mean())
    for percent in (50, 90, 95, 99):
        if percent == 50 or len(claimed) * (100 - percent) >= 100:
            one, two = (
                float(np.percentile(each, percent, method="inverted_cdf"))
                for each in (claimed, true)
            )
            yield f"p{percent}", one, two


def _rows(truth: Truth, samples: Samples, body: Callable[[int], bytes]) -> Ints:
    """Give the endpoint's row of each sample; a request that never came has none: KeyError."""
    place = {head: row for row, head in enumerate(truth.head)}
    return np.array([place[_head(body(int(number)))] for number in samples.request], dtype=np.int64)


def _gaps(truth: Truth, rows: Ints) -> Floats:
    """Between events, for each row in turn; an event's time is that of its send."""
    order = np.argsort(truth.sends["request"], kind="stable")
    sends = truth.sends[order]
    times = np.repeat(sends["ns"], sends["events"])
    bounds = np.concatenate([[0], np.cumsum(truth.events)])
    parts = [np.diff(times[bounds[row] : bounds[row + 1]]) for row in rows]
    return np.concatenate(parts or [np.zeros(0)]) / 1e9


def _head(body: bytes) -> bytes:
    """As the endpoint keeps it: a completion's prompt or the first content of a chat."""
    name = b'"prompt":' if b'"prompt":' in body else b'"content":'
    rest = body[body.index(name) + len(name) :].lstrip(b" ")
    return rest[:HEAD_BYTES]


def _inside(times: Floats, measured: Measured) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    inside: np.ndarray[tuple[int], np.dtype[np.bool_]] = (times >= measured.window_begin) & (
        times < measured.window_end
    )
    return inside


def _share(claimed: int, true: int) -> float:
    return abs(claimed - true) / max(true, 1)


def _p99(values: Floats) -> float:
    return float(np.percentile(np.abs(values), 99)) if len(values) else 0.0
