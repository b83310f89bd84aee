"""Models and places side by side: what each does and what it costs."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pydantic import Field

from core.records import Answer, ModelShape, Record
from planner.advise import Goal, Offer, Refusal, candidates, considering, host_gib, served
from planner.boot import Span, file_bytes
from planner.places import Place, accelerator, place, places, unserved
from planner.speed import Band


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
    rows = [
        _row(shape, site, consider(shape, site))
        for name in models
        for shape in candidates(goal.model_copy(update={"model": name}))
        for site in sites
    ]
    least = min((row.usd_per_hour for row in rows if row.usd_per_hour), default=None)
    return judged(
        goal,
        [
            row.model_copy(update={"times_the_cheapest": row.usd_per_hour / least})
            if least and row.usd_per_hour
            else row
            for row in rows
        ],
    )


def judged(goal: Goal, rows: Sequence[Row]) -> Comparison:
    """Say which rows are best at what; hardware of one's own is never cheap, it costs nothing.

    A speed above all that was measured makes nobody the best.
    """
    fitting = [row for row in rows if row.fits and not row.unserved]
    rented = [row for row in fitting if row.usd_per_hour]
    known = [row for row in fitting if row.beyond is None]
    per_token = [row for row in known if row.usd_per_hour]
    return Comparison(
        goal=goal,
        rows=tuple(rows),
        cheapest=_best(rented, lambda row: row.usd_per_hour),
        best_value=_best(per_token, lambda row: _middle(row.usd_per_million_tokens)),
        fastest=_best(known, lambda row: -(_middle(row.tokens_per_second_per_user) or 0)),
    )


def _row(shape: ModelShape, site: Place, found: Offer | Refusal) -> Row:
    known: dict[str, Any] = {
        "model": shape.model,
        "place": site.name,
        "files_gib": file_bytes(shape) / 2**30,
        "reason": found.reason,
    }
    if isinstance(refusal := served(shape, site, found), Refusal):
        known["refusal"] = refusal
    if isinstance(found, Refusal):
        return Row(**known, fits=False)
    cost = found.cost
    return Row(
        **known,
        fits=True,
        unserved=unserved(shape, accelerator(site.accelerator)),
        host_gib=found.size.ram_gib if found.size else None,
        host_needs_gib=host_gib(shape, site, found.flags),
        weights_gib=found.memory.weights_gib,
        kv_cache_gib=found.memory.kv_cache_gib.expected,
        requests_held=found.memory.kv_low.max_concurrency,
        tokens_per_second_per_user=found.decode.tokens_per_second_per_user,
        beyond=found.decode.beyond,
        output_tokens_per_second=cost.output_tokens_per_second if cost else None,
        ttft_seconds=found.prefill.ttft_seconds,
        boot_seconds=found.boot.seconds,
        usd_per_hour=found.price.usd_per_hour,
        usd_per_month=found.price.usd_per_month,
        usd_per_1000_requests=cost.usd_per_1000_requests if cost else None,
        usd_per_million_tokens=cost.usd_per_million_tokens if cost else None,
    )


def _best(rows: Sequence[Row], of: Callable[[Row], float | None]) -> str | None:
    known = [(value, row) for row in rows if (value := of(row)) is not None]
    if not known:
        return None
    _, row = min(known, key=lambda pair: pair[0])
    return f"{row.model} on {row.place}"


def _middle(band: Band | None) -> float | None:
    return band.middle if band else None
