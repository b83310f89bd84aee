"""Where to run: the best load within stated limits, and what a token costs there."""

from collections.abc import Iterator, Sequence
from typing import Final

from benchmark.advising.rows import Row, load_in_words
from benchmark.records import CellResult, Distribution, Limits
from benchmark.runs import Finding, Manifest
from benchmark.wording import PRICED, figure, listed, percent, seconds, usd

_SHOWN: Final = 4


def operating_findings(manifest: Manifest, valid: Sequence[Row]) -> Iterator[Finding]:
    """Say the greatest load within the limits; without limits the most throughput per latency."""
    limits, share = manifest.plan.limits, manifest.plan.attainment
    if limits == Limits():
        yield from _strongest(valid)
        return
    best = {row.context: _best_within(row, limits, share) for row in valid}
    met = {context: cell for context, cell in best.items() if cell is not None}
    limit_words = _limits_in_words(limits)
    if met:
        where = "; ".join(
            f"{load_in_words(cell.spec.load)} at {context:,} prompt tokens ({_speed(cell)})"
            for context, cell in list(met.items())[:_SHOWN]
        )
        more = f" and {len(met) - _SHOWN} more lengths" if len(met) > _SHOWN else ""
        yield Finding(
            kind="operating_point",
            text=f"With {limit_words} for {percent(share)} of requests, run at most {where}{more}.",
            cells=tuple(cell.id for cell in met.values()),
        )
    if missed := [row for row in valid if best[row.context] is None]:
        lengths = listed([row.label for row in missed], most=6)
        yield Finding(
            kind="operating_point",
            text=f"At {lengths} prompt tokens no measured load keeps {limit_words} for "
            f"{percent(share)} of requests.",
            cells=tuple(cell.id for row in missed for cell in row.cells),
        )


def cost_findings(valid: Sequence[Row]) -> Iterator[Finding]:
    """Hold the price of a token at the best load against that of one request at a time."""
    pairs = [(row.cells[0], row.best) for row in valid if row.best is not row.cells[0]]
    known = [(_usd(one), _usd(best), one, best) for one, best in pairs]
    priced = [each for each in known if each[0] and each[1]]
    if not priced:
        return
    dear, cheap, one, best = min(priced, key=lambda each: each[1] or 0)
    what = f"a {PRICED}" if _per_token(best) else "1,000 requests"
    yield Finding(
        kind="cost",
        text=f"At {best.id} {what} cost {usd(cheap or 0)}, at {one.id} {usd(dear or 0)}: "
        f"{figure((dear or 0) / (cheap or 1))} times as much.",
        cells=(best.id, one.id),
    )


def _strongest(valid: Sequence[Row]) -> Iterator[Finding]:
    chosen = [row for row in valid if len(row.cells) > 1] or valid
    found = [row.strongest for row in chosen if row.strongest.e2el]
    if found:
        where = "; ".join(
            f"{load_in_words(cell.spec.load)} at {cell.spec.prompt_words} ({_speed(cell)})"
            for cell in found[:_SHOWN]
        )
        more = f" and {len(found) - _SHOWN} more lengths" if len(found) > _SHOWN else ""
        yield Finding(
            kind="operating_point",
            text=f"No limits of latency were given; throughput per latency is best with "
            f"{where}{more}.",
            cells=tuple(cell.id for cell in found),
        )


def recommended(manifest: Manifest, row: Row) -> CellResult | None:
    """Return the load to run at: the best within the limits, else the most for its latency."""
    if manifest.plan.limits == Limits():
        return row.strongest if row.strongest.e2el else row.best
    return _best_within(row, manifest.plan.limits, manifest.plan.attainment)


def _best_within(row: Row, limits: Limits, share: float) -> CellResult | None:
    within = [cell for cell in row.cells if _meets(cell, limits, share)]
    return max(within, key=row.throughput, default=None)


def _meets(cell: CellResult, limits: Limits, share: float) -> bool:
    if cell.goodput_share is not None:
        return cell.goodput_share >= share
    asked = (
        (limits.ttft_seconds, cell.ttft),
        (limits.tpot_seconds, cell.tpot),
        (limits.e2el_seconds, cell.e2el),
    )
    return all(_below(spread, limit) for limit, spread in asked if limit is not None)


def _below(spread: Distribution | None, limit: float) -> bool:
    """Judge by p95 where requests were not counted one by one."""
    return spread is not None and spread.p95 <= limit


def _limits_in_words(limits: Limits) -> str:
    named = (
        ("TTFT", limits.ttft_seconds),
        ("TPOT", limits.tpot_seconds),
        ("E2EL", limits.e2el_seconds),
    )
    return ", ".join(f"{name} ≤ {seconds(value)}" for name, value in named if value is not None)


def _speed(cell: CellResult) -> str:
    rate = f"{figure(cell.request_throughput or 0)} requests/s"
    if cell.ttft is not None and cell.tpot is not None:
        return f"{rate}, TTFT {seconds(cell.ttft.mean)}, TPOT {seconds(cell.tpot.mean)} on average"
    return f"{rate}, {seconds(cell.e2el.mean)} each" if cell.e2el else rate


def _per_token(cell: CellResult) -> bool:
    return cell.usd_per_million_tokens is not None


def _usd(cell: CellResult) -> float | None:
    return cell.usd_per_million_tokens if _per_token(cell) else cell.usd_per_1000_requests
