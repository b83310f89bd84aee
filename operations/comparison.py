"""Models, targets and clouds side by side: foreseen, and measured where a run is kept."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import Field

from backends.registry import BACKENDS
from benchmark.records import figure
from core.errors import NextStep
from core.records import Record, valid
from operations.evidence import SIMULATED_RUN, Evidence, Measurement, kept, measured
from operations.forecast import Foresight, dollars, load_words, spoken
from operations.runtime import Runtime
from operations.targets import place_called
from planner.advise import Goal
from planner.boot import Span
from planner.catalog import short_name
from planner.compare import Comparison, Row, compare, judged
from planner.places import FIGURES, Place, place, places
from planner.price import price
from planner.speed import Band

T = TypeVar("T")
_CLOUDS: Final = {
    "aws": "aws", "amazon": "aws",
    "gcp": "google", "google": "google", "google cloud": "google",
    "azure": "azure", "microsoft": "azure",
}  # fmt: skip

_SILENT: Final = frozenset({"cloud", "google", "tpu", "gpu", "nvidia", "azure", "a", "the", "on"})
"""Words that do not tell one place from another."""


def widened(targets: Sequence[str]) -> tuple[str, ...]:
    """Give the names of places that these words mean, each once; none for none.

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


def is_one(words: str) -> bool:
    """Whether these words name one place and not a whole cloud or kind."""
    return not tuple(_several(words))


def _meant(words: str) -> Iterator[str]:
    several = tuple(_several(words))
    yield from several or (_worded(words) or place_called(words).name,)


def _worded(words: str) -> str | None:
    """Give the place that has these words in its name, in whatever order: `L4 GPU cloud run`."""
    wanted = _telling(words)
    return next((name for name in places() if wanted and _telling(name) == wanted), None)


def _telling(words: str) -> frozenset[str]:
    return frozenset(words.lower().replace("-", " ").split()) - _SILENT


def _several(words: str) -> Iterator[str]:
    wanted = words.strip().lower()
    cloud = _CLOUDS.get(wanted)
    for name, where in places().items():
        tpu = wanted in {"tpu", "tpus", "cloud tpu"} and _is_tpu(where)
        if tpu or (cloud and where.provider == cloud):
            yield name


def _is_tpu(where: Place) -> bool:
    return where.deployable_by == "tpu"


_MOST: Final = 8
"""Comparisons with the first; the rows have the rest."""


def ratios(rows: Sequence[Row], *, several_models: bool, by_target: bool) -> list[dict[str, Any]]:
    """Hold rows against the first of their target, or of their model; bands by their middles."""
    if several_models:
        first = {row.place: row for row in rows if row.model == rows[0].model}
        others = [row for row in rows if row.model != rows[0].model and row.place in first]
        able = [row for row in others if row.fits or first[row.place].fits]
        most = max(1, _MOST // max(1, len({row.model for row in others})))
        shown = [row for group in alike(able, lambda row: row.model) for row in group[:most]]
        return [_against(row, first[row.place]) for row in others if row in shown][:_MOST]
    return [_against(row, rows[0]) for row in rows[1:]][:_MOST] if by_target else []


def _against(row: Row, base: Row) -> dict[str, Any]:
    """Give how many times as much each figure is, as predicted."""
    names = {"row": _name(row), "times those of": _name(base)}
    unserved = [one.place for one in (row, base) if one.unserved]
    not_served = {"not served by published vLLM": unserved[0]} if unserved else {}
    if missing := next((one for one in (row, base) if not one.fits), None):
        return {**names, "does not fit": _name(missing), "reason": missing.reason, **not_served}
    boots = [one.boot_seconds.expected if one.boot_seconds else None for one in (row, base)]
    pairs = {
        "weights": (row.weights_gib, base.weights_gib),
        "tokens/s each": (_middle(row.tokens_per_second_per_user),
                          _middle(base.tokens_per_second_per_user)),
        "requests held": (row.requests_held, base.requests_held),
        "boot": boots,
        "$/h": (row.usd_per_hour, base.usd_per_hour),
        "$/M tokens": (_middle(row.usd_per_million_tokens), _middle(base.usd_per_million_tokens)),
    }  # fmt: skip
    times = {
        what: float(f"{mine / theirs:.3g}")
        for what, (mine, theirs) in pairs.items()
        if mine is not None and theirs
    }
    return {**names, **times, **not_served}


def _name(row: Row) -> str:
    return f"{short_name(row.model)} on {row.place}"


def _middle(band: Band | None) -> float | None:
    return band.middle if band else None


_TITLES: Final = {"aws": "AWS", "google": "Google Cloud", "azure": "Azure"}


class Cloud(Record):
    """One provider among the rows that are compared."""

    cloud: str
    cheapest_hour: str | None
    cheapest_token: str | None
    """None where all speeds there end above all that was measured; so is the fastest."""
    fastest: str | None
    cannot: str | None
    """Why nothing of it serves the model, where that is so."""
    places: int
    """Of it that the planner knows."""
    deployable: int
    """Of these, by this server."""
    price_from: str | None
    """What the price of its cheapest token rests on."""


def clouds(rows: Sequence[Row]) -> tuple[Cloud, ...]:
    """Give each cloud that has a row, where there are several."""
    by_cloud = {
        name: [row for row in rows if place(row.place).provider == name] for name in _TITLES
    }
    found = {name: mine for name, mine in by_cloud.items() if mine}
    return tuple(_cloud(name, mine) for name, mine in found.items()) if len(found) > 1 else ()


def price_doubts(rows: Sequence[Row]) -> Iterator[str]:
    """Say which prices are in doubt, alike ones once."""
    by_doubt: dict[str, list[str]] = {}
    for name, ram_gib in dict.fromkeys((row.place, row.host_gib) for row in rows if row.fits):
        where = place(name)
        size = next((each for each in where.sizes if each.ram_gib == ram_gib), None)
        if doubt := price(where, size).doubt:
            by_doubt.setdefault(doubt, []).append(name)
    for doubt, names in by_doubt.items():
        yield f"The price of {', '.join(names)} is in doubt: {doubt}."


def _cloud(name: str, rows: Sequence[Row]) -> Cloud:
    served = [row for row in rows if row.fits and not row.unserved]
    known = [row for row in served if row.beyond is None]
    hour = _best(served, lambda row: row.usd_per_hour)
    value = _best(known, lambda row: _middle(row.usd_per_million_tokens))
    speed = _best(known, lambda row: -(_middle(row.tokens_per_second_per_user) or 0.0))
    mine = [each for each in places().values() if each.provider == name]
    quotes = price(place(value.place)).quotes if value else ()
    rates = quotes[0].rates if quotes else ()
    return Cloud(
        cloud=_TITLES[name],
        cheapest_hour=_line(hour, with_tokens=True) if hour else None,
        cheapest_token=_line(value, with_tokens=True) if value else None,
        fastest=_line(speed, with_tokens=True) if speed else None,
        cannot=None if served else (rows[0].unserved or rows[0].reason),
        places=len(mine),
        deployable=sum(where.deployable(BACKENDS) for where in mine),
        price_from="; ".join(f"{rate.source} ({rate.date})" for rate in rates) or None,
    )


def _best(rows: Sequence[Row], of: Callable[[Row], float | None]) -> Row | None:
    known = [(value, number) for number, row in enumerate(rows) if (value := of(row)) is not None]
    return rows[min(known)[1]] if known else None


_ROWS: Final = 14
"""Of a comparison: more are longer than a person reads."""
_NAMED: Final = 6
"""Targets that are each held against the first one where one model is compared."""
_LINES: Final = 6
"""Rows that the summary names one by one."""
_AGAINST: Final = 3
"""Comparisons with the first one that a person reads."""
_SHORT: Final = (
    ("model", "model"), ("target", "place"), ("not", "reason"),
    ("tokens/s each", "tokens_per_second_per_user"), ("users", "requests_held"),
    ("boot s", "boot_seconds"), ("$/h", "usd_per_hour"), ("$/M tokens", "usd_per_million_tokens"),
    ("measured", "measured"),
)  # fmt: skip
"""Columns of the short form."""
_HOST: Final = "host_needs_gib"
_EACH: Final = "tokens_per_second_per_user"
_DIGITS: Final = {"usd_per_hour": 4}
"""Of a row's figures; the others are told with two."""


class TargetComparison(Foresight):
    """Models and targets side by side."""

    load: str
    """That speeds and costs are of."""
    full_length: int
    """Tokens of the requests that `requests_held` counts."""
    basis: str
    """What of it was measured, and what is foreseen."""
    against_first: tuple[dict[str, Any], ...]
    """Every model against the first one, or every named target against the first one."""
    clouds: tuple[Cloud, ...]
    """The best of each cloud, where several are compared."""
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
        """Say which is best at what, and on what that rests."""
        return f"{self.said} {self.basis}"

    def facts(self) -> Mapping[str, Any]:
        """Return a line for each row, and what the first is compared with."""
        return {
            "load": self.load,
            "rows": [{name: row[key] for name, key in _SHORT if key in row} for row in self.rows],
            "against_first": list(self.against_first[:_AGAINST]),
        }

    def warnings(self) -> tuple[str, ...]:
        """Say what is not shown, and what cannot be served though it fits."""
        hidden = f"{self.left_out} rows are left out: name fewer models, or targets."
        return (*((hidden,) if self.left_out else ()), *self.warned)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Price the best value with its sources."""
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
    said = {name: value for name, value in goal.items() if value is not None}
    wanted = valid(Goal, {**said, "model": models[0]})
    found = compare(models, widened(targets), wanted, backends=BACKENDS)
    rows = _shown(found.rows, len(models))
    seen = _seen(kept(runtime), rows, wanted)
    found = _with_measured(found, rows, seen)
    own = _deployable(found)
    dead = dict.fromkeys(f"{row.place}: {row.unserved} {FIGURES}" for row in rows if row.unserved)
    simulated = any(each and each.simulated for each in seen)
    one_by_one = 1 < len(targets) <= _NAMED and all(map(is_one, targets))
    several = () if one_by_one else clouds(found.rows)
    return TargetComparison(
        load=load_words(wanted.load),
        full_length=wanted.max_model_len,
        basis=_basis(rows, seen),
        against_first=tuple(ratios(rows, several_models=len(models) > 1, by_target=one_by_one)),
        clouds=several,
        rows=tuple(_told(rows, seen)),
        left_out=len(found.rows) - len(rows),
        cheapest=found.cheapest,
        best_value=found.best_value,
        fastest=found.fastest,
        own_best=own.best_value,
        said=_said_comparing_targets(found, own, several),
        warned=(
            *dead,
            *_extrapolated(found.rows),
            *price_doubts(rows),
            *((SIMULATED_RUN,) if simulated else ()),
        ),
    )


def _with_measured(
    found: Comparison, rows: Sequence[Row], seen: Sequence[Measurement | None]
) -> Comparison:
    """Judge again where a measurement that is kept bears out what was extrapolated."""
    real = {id(row) for row, each in zip(rows, seen, strict=True) if each and not each.simulated}
    known = [
        row.model_copy(update={"beyond": None}) if id(row) in real else row for row in found.rows
    ]
    return judged(found.goal, known)


def _extrapolated(rows: Sequence[Row]) -> Iterator[str]:
    """Say whose speeds lie above all that was measured, and what was measured nearest."""
    if first := next((row for row in rows if row.beyond), None):
        yield (
            "Speeds with a * end above all that was measured: they make nobody the best"
            f" ({first.place}: {first.beyond})."
        )


def _deployable(found: Comparison) -> Comparison:
    """Judge those alone that this server deploys to."""
    mine = [row for row in found.rows if place(row.place).deployable(BACKENDS)]
    return judged(found.goal, mine)


def _said_comparing_targets(found: Comparison, own: Comparison, named: Sequence[Cloud]) -> str:
    """Say each row where they are few, else the best of each cloud; then which is best at what."""
    rows = [_line(row) for row in found.rows] if len(found.rows) <= _LINES else []
    rows = rows or [f"{one.cloud}: {one.cheapest_hour or 'nothing serves it'}" for one in named]
    best = found.summary()
    if own.summary() != best:
        best = f"Of the targets that this server deploys to: {own.summary()} Of all: {best}"
    dearer = [
        row.times_the_cheapest
        for row in found.rows
        if row.fits and row.times_the_cheapest and row.times_the_cheapest > 1
    ]
    if dearer:
        span = " to ".join(dict.fromkeys(figure(each) for each in (min(dearer), max(dearer))))
        best += f" An hour of the others costs {span} times the cheapest."
    words = " ".join((*([f"{'; '.join(rows)}."] if rows else []), best))
    for model in sorted({row.model for row in found.rows}, key=len, reverse=True):
        words = words.replace(model, short_name(model))
    return words


def _line(row: Row, *, with_tokens: bool = False) -> str:
    """Say how fast and dear a row is, or that it is none."""
    if row.unserved or not row.fits or row.tokens_per_second_per_user is None:
        why = "is not served by published vLLM" if row.unserved else "does not fit"
        return f"{row.model} on {row.place} {why}"
    costs = "" if row.usd_per_hour is None else f", {dollars(row.usd_per_hour)} an hour"
    tokens = row.usd_per_million_tokens if with_tokens else None
    per = f", ${tokens} per million tokens" if tokens and row.usd_per_hour else ""
    speed = spoken(row.tokens_per_second_per_user)
    return f"{row.model} on {row.place}: {speed} tokens/s{costs}{per}"


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
    said = "; ".join(
        f"{kind}: {', '.join(kinds[kind][:6])}" for kind in sorted(kinds, reverse=True)
    )
    rest = len(rows) - len(known)
    others = f"; the other {rest} {'row is' if rest == 1 else 'rows are'} only predicted"
    return f"{said[0].upper()}{said[1:]}{others if rest else ''}."


def _shown(rows: Sequence[Row], models: int) -> list[Row]:
    """Leave out, where there are too many, what does not fit and then what is dear."""
    fitting = [row for row in rows if row.fits]
    refused = alike([row for row in rows if not row.fits], lambda row: (row.model, row.reason))
    if len(fitting) + len(refused) <= _ROWS:
        return list(rows)
    each = len(rows) // models
    asked = [rows[first : first + each] for first in range(0, len(rows), each)]
    return [row for group in asked for row in sorted(group, key=_worth)[: _ROWS // models]]


def _worth(row: Row) -> tuple[bool, float]:
    price = row.usd_per_hour
    return not row.fits, float("inf") if price is None else price


def _told(rows: Sequence[Row], seen: Sequence[Measurement | None]) -> Iterator[dict[str, Any]]:
    """Give what fits each by itself; what does not and for the same reason, together."""
    refused = alike([row for row in rows if not row.fits], lambda row: (row.model, row.reason))
    together = {id(group[0]): group for group in refused}
    for row, each in zip(rows, seen, strict=True):
        if row.fits:
            yield _row(row, each)
        elif group := together.get(id(row)):
            names = ", ".join(one.place for one in group)
            yield {**_row(row, each), "place": names}


def _row(row: Row, seen: Measurement | None) -> dict[str, Any]:
    """Give a row's figures as a person reads them, without what others say already."""
    hidden = {"unserved", "refusal", "usd_per_1000_requests", "beyond"}
    hidden |= {"reason"} if row.fits else {"files_gib"}
    figures = {
        name: _figure(name, value)
        for name, value in row
        if value is not None and name not in hidden and not (name == _HOST and not value)
    }
    if row.beyond:
        figures[_EACH] = f"{figures[_EACH]} *"
    if row.unserved:
        figures["served"] = "only by an image of your own: see the warning"
    return figures | ({"measured": str(seen)} if seen else {})


def _figure(name: str, value: object) -> object:
    if isinstance(value, Band | Span):
        return str(value)
    return round(value, _DIGITS.get(name, 2)) if isinstance(value, float) else value
