"""Models and places side by side: what each does and what it costs."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from pydantic import Field

from core.records import Answer, ModelShape, Record, valid
from planner.advise import Goal, Offer, Refusal, candidates, considering, host_gib, served
from planner.boot import Span, file_bytes
from planner.places import Place, accelerator, place, places, unserved
from planner.speed import Band

_COLUMNS: Final = (
    "model", "place", "weights GiB", "KV GiB", "requests", "tokens/s user", "tokens/s all",
    "boot s", "$/h", "$/M tokens",
)  # fmt: skip


class Row(Record):
    """One model at one place."""

    model: str
    place: str
    fits: bool
    reason: str
    """Why it does not, or what it does in a sentence."""
    unserved: str | None = None
    """Why only an image of your own would serve it there, though it fits."""
    refusal: Refusal | None = Field(default=None, exclude=True)
    """Why published vLLM does not serve it there as asked."""
    files_gib: float
    host_gib: float | None = None
    """Memory of the smallest host that does; None where the place has no choice."""
    host_needs_gib: float = 0.0
    """That the weights' files take of it."""
    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    requests_held: float | None = None
    """Of full length at once, on the low estimate."""
    tokens_per_second_per_user: Band | None = None
    beyond: str | None = None
    """What was measured nearest, where its speed lies above all that was measured there."""
    output_tokens_per_second: Band | None = None
    """Of all users, under the goal's load."""
    ttft_seconds: Band | None = None
    boot_seconds: Span | None = None
    usd_per_hour: float | None = None
    usd_per_month: float | None = None
    usd_per_1000_requests: Band | None = None
    usd_per_million_tokens: Band | None = None
    times_the_cheapest: float | None = None
    """By the hour, of those that cost anything."""


class Comparison(Answer):
    """A table, in the order asked for."""

    goal: Goal
    rows: tuple[Row, ...]
    cheapest: str | None
    """By the hour: model on place, of those that somebody rents out."""
    best_value: str | None
    """Of the same by the token, under the goal's load."""
    fastest: str | None
    """For each user."""

    def summary(self) -> str:
        """Say which is best at what."""
        if not any(row.fits and not row.unserved for row in self.rows):
            fit = any(row.fits for row in self.rows)
            return f"None of them {'is served by published vLLM' if fit else 'fits'}."
        users = self.goal.users
        whom = "one user" if users == 1 else f"each of {users} users"
        best = (
            (self.cheapest, "cheapest by the hour"),
            (self.best_value, "cheapest by the token"),
            (self.fastest, f"fastest for {whom}"),
        )
        names = dict.fromkeys(name for name, _ in best if name)
        roles = (" and ".join(what for each, what in best if each == name) for name in names)
        said = [f"{name} is {what}" for name, what in zip(names, roles, strict=True)]
        if self.fastest is None:
            said.append("which is fastest nobody can say: their speeds are extrapolated")
        return "; ".join(said) + "."


def compare(
    models: Sequence[str], where: Sequence[str], goal: Goal, *, backends: Collection[str] = ()
) -> Comparison:
    """Hold models and places against each other for the same goal; no place named is every one.

    Raises:
        InvalidArgument: A model or a place is not known.
    """
    sites = [place(name) for name in where] or list(places().values())
    consider = considering(goal, backends=backends)
    rows = _priced(
        [
            _row(shape, site, consider(shape, site))
            for name in models
            for shape in candidates(goal.model_copy(update={"model": name}))
            for site in sites
        ]
    )
    return judged(goal, rows)


def judged(goal: Goal, rows: Sequence[Row]) -> Comparison:
    """Say which rows are best at what; hardware of one's own is never cheap, it costs nothing.

    A speed above all that was measured makes nobody the best.
    """
    fitting = [row for row in rows if row.fits and not row.unserved]
    rented = [row for row in fitting if row.usd_per_hour]
    known = [row for row in fitting if row.beyond is None]
    return Comparison(
        goal=goal,
        rows=tuple(rows),
        cheapest=_best(rented, lambda row: row.usd_per_hour),
        best_value=_best(
            [row for row in known if row.usd_per_hour],
            lambda row: _middle(row.usd_per_million_tokens),
        ),
        fastest=_best(known, lambda row: -(_middle(row.tokens_per_second_per_user) or 0)),
    )


def table(comparison: Comparison) -> str:
    """Write it for a terminal, or as Markdown: it is both; * is above all that was measured."""
    rows = [_cells(row) for row in comparison.rows]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    lines = [_COLUMNS, tuple("-" * width for width in widths), *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def _row(shape: ModelShape, site: Place, found: Offer | Refusal) -> Row:
    known = {"model": shape.model, "place": site.name, "files_gib": file_bytes(shape) / 2**30}
    judged = served(shape, site, found)
    known |= {"refusal": judged if isinstance(judged, Refusal) else None}
    if isinstance(found, Refusal):
        return valid(Row, {**known, "fits": False, "reason": found.reason})
    return valid(Row, {**known, "fits": True, **_figures(shape, site, found)})


def _figures(shape: ModelShape, site: Place, offer: Offer) -> dict[str, Any]:
    cost = offer.cost
    return {
        "reason": offer.reason,
        "unserved": unserved(shape, accelerator(site.accelerator)),
        "host_gib": offer.size.ram_gib if offer.size else None,
        "host_needs_gib": host_gib(shape, site, offer.flags),
        "weights_gib": offer.memory.weights_gib,
        "kv_cache_gib": offer.memory.kv_cache_gib.expected,
        "requests_held": offer.memory.kv_low.max_concurrency,
        "tokens_per_second_per_user": offer.decode.tokens_per_second_per_user,
        "beyond": offer.decode.beyond,
        "output_tokens_per_second": cost.output_tokens_per_second if cost else None,
        "ttft_seconds": offer.prefill.ttft_seconds,
        "boot_seconds": offer.boot.seconds,
        "usd_per_hour": offer.price.usd_per_hour,
        "usd_per_month": offer.price.usd_per_month,
        "usd_per_1000_requests": cost.usd_per_1000_requests if cost else None,
        "usd_per_million_tokens": cost.usd_per_million_tokens if cost else None,
    }


def _priced(rows: Sequence[Row]) -> list[Row]:
    least = min((row.usd_per_hour for row in rows if row.usd_per_hour), default=None)
    return [
        row.model_copy(update={"times_the_cheapest": row.usd_per_hour / least})
        if least and row.usd_per_hour
        else row
        for row in rows
    ]


def _best(rows: Sequence[Row], of: Callable[[Row], float | None]) -> str | None:
    known = [(value, row) for row in rows if (value := of(row)) is not None]
    if not known:
        return None
    _, row = min(known, key=lambda pair: pair[0])
    return f"{row.model} on {row.place}"


def _middle(band: Band | None) -> float | None:
    return band.middle if band else None


def _cells(row: Row) -> tuple[str, ...]:
    if not row.fits:
        return (row.model, row.place, "no", *[""] * (len(_COLUMNS) - 4), row.reason)
    return (
        row.model,
        row.place,
        f"{row.weights_gib:.2f}",
        f"{row.kv_cache_gib:.2f}",
        f"{row.requests_held:.1f}",
        f"{row.tokens_per_second_per_user}{' *' if row.beyond else ''}",
        str(row.output_tokens_per_second or "?"),
        str(row.boot_seconds),
        "?" if row.usd_per_hour is None else f"{row.usd_per_hour:.3f}",
        str(row.usd_per_million_tokens or "?"),
    )
