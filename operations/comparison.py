"""Models, targets and clouds side by side: foreseen, and measured where a run is kept."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import NextStep
from core.records import valid
from operations.forecast import Foresight, dollars, load_words, spoken
from operations.measurement import SIMULATED_RUN, Evidence, Measurement, kept, measured
from operations.runtime import Runtime
from operations.targets import place_called
from planner.advise import Comparison, Goal, Row, compare, judged
from planner.boot import Span
from planner.catalog import short_name
from planner.places import FIGURES, place, places
from planner.price import price
from planner.speed import Band

T = TypeVar("T")
_CLOUDS: Final = {
    "aws": "aws", "amazon": "aws",
    "gcp": "google", "google": "google", "google cloud": "google",
    "azure": "azure", "microsoft": "azure",
}  # fmt: skip
_TITLES: Final = {"aws": "AWS", "google": "Google Cloud", "azure": "Azure"}
_TPUS: Final = frozenset({"tpu", "tpus", "cloud tpu"})
_SILENT: Final = frozenset({"cloud", "google", "tpu", "gpu", "nvidia", "azure", "a", "the", "on"})
"""Words that do not tell one place from another."""
_ROWS: Final = 14
"""Of a comparison: more are longer than a person reads."""
_LINES: Final = 6
"""Rows that the summary names one by one."""
_SHORT: Final = {
    "model": "model", "target": "place", "not": "reason",
    "tokens/s each": "tokens_per_second_per_user", "users": "requests_held",
    "boot s": "boot_seconds", "$/h": "usd_per_hour", "$/M tokens": "usd_per_million_tokens",
    "measured": "measured",
}  # fmt: skip
"""Columns of the short form."""
_HIDDEN: Final = frozenset({"unserved", "refusal", "usd_per_1000_requests", "beyond"})


def widened(targets: Sequence[str]) -> tuple[str, ...]:
    """Return the names of places that these words mean, each once; none for none.

    Raises:
        TargetNotFound: No place has that name.
    """
    return tuple(dict.fromkeys(name for words in targets for name in _meant(words)))


def alike(rows: Sequence[T], what: Callable[[T], Hashable]) -> list[list[T]]:
    """Put rows together of which the same is to be said, in the order of the first of each."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(what(row), []).append(row)
    return list(groups.values())


def _meant(words: str) -> tuple[str, ...]:
    """Return a whole cloud's places, or the one with these words in whatever order."""
    if several := _several(words):
        return several
    telling = _telling(words)
    found = (name for name in places() if telling and _telling(name) == telling)
    return (next(found, None) or place_called(words).name,)


def _several(words: str) -> tuple[str, ...]:
    wanted = words.strip().lower()
    cloud = _CLOUDS.get(wanted)
    return tuple(
        name
        for name, where in places().items()
        if (cloud and where.provider == cloud) or (wanted in _TPUS and where.deployable_by == "tpu")
    )


def _telling(words: str) -> frozenset[str]:
    return frozenset(words.lower().replace("-", " ").split()) - _SILENT


class TargetComparison(Foresight):
    """Models and targets side by side."""

    load: str
    """That speeds and costs are of."""
    full_length: int
    """Tokens of the requests that `requests_held` counts."""
    basis: str
    """What of it was measured, and what is foreseen."""
    rows: tuple[dict[str, Any], ...]
    left_out: int
    """Rows that are not shown: of each model what does not fit, then what is dear."""
    cheapest: str | None
    best_value: str | None
    fastest: str | None
    own_best: str | None = Field(exclude=True)
    """By the token, of what this server deploys to."""
    said: str = Field(exclude=True)
    warned: tuple[str, ...] = Field(exclude=True)

    def summary(self) -> str:
        return f"{self.said} {self.basis}"

    def facts(self) -> Mapping[str, Any]:
        return {
            "load": self.load,
            "rows": [
                {name: row[key] for name, key in _SHORT.items() if key in row} for row in self.rows
            ],
        }

    def warnings(self) -> tuple[str, ...]:
        hidden = f"{self.left_out} rows are left out: name fewer models, or targets."
        return (*((hidden,) if self.left_out else ()), *self.warned)

    def next_steps(self) -> tuple[NextStep, ...]:
        best = self.own_best or self.best_value
        if best is None:
            return ()
        model, _, where = best.partition(" on ")
        return (NextStep("estimate_cost", {"target": where, "model": model}),)


def comparison(
    runtime: Runtime, models: Sequence[str], targets: Sequence[str], goal: dict[str, Any]
) -> TargetComparison:
    """Hold models and targets against each other for the same goal.

    Raises:
        InvalidArgument: A model is not known.
        TargetNotFound: A target is not known.
    """
    wanted = valid(Goal, {**goal, "model": models[0]})
    found = compare(models, widened(targets), wanted, backends=BACKENDS)
    rows = _shown(found.rows, len(models))
    seen = _seen(kept(runtime), rows, wanted)
    # What was extrapolated is as good as measured where a run that is kept bears it out.
    real = {id(row) for row, each in zip(rows, seen, strict=True) if each and not each.simulated}
    known = [
        row.model_copy(update={"beyond": None}) if id(row) in real else row for row in found.rows
    ]
    found = judged(wanted, known)
    own = judged(wanted, [row for row in known if place(row.place).deployable(BACKENDS)])
    return TargetComparison(
        load=load_words(wanted.load),
        full_length=wanted.max_model_len,
        basis=_basis(rows, seen),
        rows=tuple(_told(rows, seen)),
        left_out=len(found.rows) - len(rows),
        cheapest=found.cheapest,
        best_value=found.best_value,
        fastest=found.fastest,
        own_best=own.best_value,
        said=_said(wanted, found, own),
        warned=tuple(_warnings(found.rows, rows, seen)),
    )


def _warnings(
    every: Sequence[Row], rows: Sequence[Row], seen: Sequence[Measurement | None]
) -> Iterator[str]:
    """Say what is not served, extrapolated, of a price in doubt, or simulated; alike ones once."""
    yield from dict.fromkeys(
        f"{row.place}: {row.unserved} {FIGURES}" for row in rows if row.unserved
    )
    if first := next((row for row in every if row.beyond), None):
        yield (
            "Speeds with a * end above all that was measured: they make nobody the best"
            f" ({first.place}: {first.beyond})."
        )
    by_doubt: dict[str, list[str]] = {}
    for name, ram_gib in dict.fromkeys((row.place, row.host_gib) for row in rows if row.fits):
        where = place(name)
        size = next((each for each in where.sizes if each.ram_gib == ram_gib), None)
        if doubt := price(where, size).doubt:
            by_doubt.setdefault(doubt, []).append(name)
    for doubt, names in by_doubt.items():
        yield f"The price of {', '.join(names)} is in doubt: {doubt}."
    if any(each and each.simulated for each in seen):
        yield SIMULATED_RUN


def _said(goal: Goal, found: Comparison, own: Comparison) -> str:
    """Say each row where they are few, else the cheapest of each cloud; then the best of all."""
    by_name = {f"{row.model} on {row.place}": row for row in found.rows}
    lines = [_line(row) for row in found.rows] if len(found.rows) <= _LINES else []
    for provider, title in _TITLES.items() if not lines else ():
        if mine := [row for row in found.rows if place(row.place).provider == provider]:
            cheapest = judged(goal, mine).cheapest
            best = _line(by_name[cheapest]) if cheapest else "nothing serves it"
            lines.append(f"{title}: {best}")
    best = found.summary()
    if own.summary() != best:
        best = f"Of the targets that this server deploys to: {own.summary()} Of all: {best}"
    words = f"{'; '.join(lines)}. {best}" if lines else best
    for model in sorted({row.model for row in found.rows}, key=len, reverse=True):
        words = words.replace(model, short_name(model))
    return words


def _line(row: Row) -> str:
    """Say how fast and dear a row is, or that it is none."""
    if row.unserved or not row.fits or row.tokens_per_second_per_user is None:
        why = "is not served by published vLLM" if row.unserved else "does not fit"
        return f"{row.model} on {row.place} {why}"
    costs = "" if row.usd_per_hour is None else f", {dollars(row.usd_per_hour)} an hour"
    speed = spoken(row.tokens_per_second_per_user)
    return f"{row.model} on {row.place}: {speed} tokens/s{costs}"


def _seen(
    runs: Sequence[Evidence], rows: Sequence[Row], wanted: Goal
) -> tuple[Measurement | None, ...]:
    known = {run.model for run in runs}
    return tuple(
        measured(runs, row.model, place(row.place), wanted.load, row.usd_per_hour)
        if row.model in known
        else None
        for row in rows
    )


def _basis(rows: Sequence[Row], seen: Sequence[Measurement | None]) -> str:
    known = [(row, each) for row, each in zip(rows, seen, strict=True) if each]
    if not known:
        return "Nothing of this was measured here: all figures are predicted by the planner."
    kinds: dict[str, list[str]] = {}
    for row, each in known:
        kind = "imported, not measured here" if each.imported else "measured here"
        where = f" (run on {each.elsewhere})" if each.elsewhere else ""
        kinds.setdefault(kind, []).append(f"{row.model} on {row.place}{where}")
    said = "; ".join(f"{kind}: {', '.join(kinds[kind][:6])}" for kind in sorted(kinds)[::-1])
    rest = len(rows) - len(known)
    others = f"; the other {rest} {'row is' if rest == 1 else 'rows are'} only predicted"
    return f"{said[0].upper()}{said[1:]}{others if rest else ''}."


def _refused(rows: Sequence[Row]) -> list[list[Row]]:
    """Return what does not fit, together where the reason is the same."""
    return alike([row for row in rows if not row.fits], lambda row: (row.model, row.reason))


def _shown(rows: Sequence[Row], models: int) -> list[Row]:
    """Leave out, where there are too many, what does not fit and then what is dear."""
    if sum(row.fits for row in rows) + len(_refused(rows)) <= _ROWS:
        return list(rows)

    def worth(row: Row) -> tuple[bool, float]:
        hourly = row.usd_per_hour
        return not row.fits, float("inf") if hourly is None else hourly

    each = len(rows) // models
    asked = [rows[first : first + each] for first in range(0, len(rows), each)]
    return [row for group in asked for row in sorted(group, key=worth)[: _ROWS // models]]


def _told(rows: Sequence[Row], seen: Sequence[Measurement | None]) -> Iterator[dict[str, Any]]:
    """Yield what fits each by itself; what does not and for the same reason, together."""
    together = {id(group[0]): group for group in _refused(rows)}
    for row, each in zip(rows, seen, strict=True):
        if row.fits:
            yield _row(row, each)
        elif group := together.get(id(row)):
            yield {**_row(row, each), "place": ", ".join(one.place for one in group)}


def _row(row: Row, seen: Measurement | None) -> dict[str, Any]:
    """Return a row's figures as a person reads them, without what others say already."""
    hidden = _HIDDEN | ({"reason"} if row.fits else {"files_gib"})
    figures: dict[str, Any] = {}
    for name, value in row:
        if value is None or name in hidden or (name == "host_needs_gib" and not value):
            continue
        if isinstance(value, Band | Span):
            figures[name] = str(value)
        else:
            digits = 4 if name == "usd_per_hour" else 2
            figures[name] = round(value, digits) if isinstance(value, float) else value
    if row.beyond:
        figures["tokens_per_second_per_user"] += " *"
    if row.unserved:
        figures["served"] = "only by an image of your own: see the warning"
    return figures | ({"measured": str(seen)} if seen else {})
