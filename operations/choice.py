"""Which model and which target, for somebody who has named neither."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from pydantic import Field

from backends.registry import BACKENDS
from benchmark.records import figure, listed
from core.errors import NextStep
from core.records import Record, valid
from operations.comparison import price_doubts, widened
from operations.forecast import Foresight, dollars, load_words, usd
from operations.targets import in_region
from planner.advise import Goal, Offer, candidates, commonest, consider, quality_of, whose
from planner.catalog import entries, short_name
from planner.compare import Comparison, Row, compare
from planner.places import Place, place, places
from planner.price import price

_CROWD: Final = 32
"""Users at once that share an accelerator in the rule about batches."""


def rules(found: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yield what holds here, the choice of the model first."""
    served = [row for row in found.rows if row.fits and not row.unserved]
    yield from _qualities(served)
    yield from _precision(served)
    yield from _sizes(served, names)
    places_served = {row.place for row in served}
    serving = [name for name in names if name in places_served]
    yield from _provisioning(names, serving)
    yield from _batches(served, found.goal)
    yield from _sleep(serving)


def _qualities(served: Sequence[Row]) -> Iterator[str]:
    """Say what a step up in quality costs, on the place that serves most of them."""
    where = _widest(served)
    for quality, words in (
        ("small", "for classification, extraction and short answers"),
        ("medium", "where small ones answer wrongly"),
        ("large", "for reasoning, code and long documents"),
    ):
        mine = [row for row in served if row.place == where and quality_of(row.model) == quality]
        if mine:
            said = "; ".join(
                f"{_short(row.model)} {_speed_choosing_rules(row)} tokens/s" for row in mine
            )
            yield f"Take a {quality} model {words} (on {where}: {said})."


def _precision(served: Sequence[Row]) -> Iterator[str]:
    """Say what four bits save, of the largest model that has both on one place."""
    by_key = {(row.model, row.place): row for row in served}
    for (model, where), row in reversed(by_key.items()):
        plain = model.removesuffix("-qat-w4a16-ct")
        full = by_key.get((plain, where)) if plain != model else None
        if full and row.weights_gib and full.weights_gib:
            faster = _middle(row) / _middle(full)
            yield (
                "Take the QAT (w4a16) checkpoint unless your own evaluation forbids it:"
                f" {_short(model)} takes {row.weights_gib:.1f} GiB a device against"
                f" {full.weights_gib:.1f}, and decodes about {figure(faster)} times as fast"
                f" on {where}."
            )
            return


def _sizes(served: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Say what more chips of one kind are good for."""
    sizes = sorted(
        (each for each in map(place, names) if each.provisioning == "on-demand"),
        key=lambda each: each.count,
    )
    tpus = [each for each in sizes if each.deployable_by == "tpu"]
    for small, large in pairwise(tpus):
        yield from _step(small, large, {(row.model, row.place): row for row in served})


def _step(small: Place, large: Place, rows: dict[tuple[str, str], Row]) -> Iterator[str]:
    models = dict.fromkeys(model for model, _ in rows)
    both = [
        model for model in models if (model, small.name) in rows and (model, large.name) in rows
    ]
    only = [model for model in models if (model, large.name) in rows and model not in both]
    needs = f"only it serves {listed([_short(m) for m in only])}; " if only else ""
    if not both:
        return
    model = both[-1]
    one, two = rows[model, small.name], rows[model, large.name]
    dearer = (two.usd_per_hour or 0) / (one.usd_per_hour or 1)
    worth = _token_choosing_rules(two) / _token_choosing_rules(one)
    yield (
        f"{large.name} against {small.name}: {needs}{_short(model)} answers each user about"
        f" {figure(_middle(two) / _middle(one))} times as fast and holds"
        f" {figure((two.requests_held or 0) / (one.requests_held or 1))} times the requests, for"
        f" {figure(dearer)} times the price of an hour and {figure(worth)} times that of tokens:"
        " take more chips for what does not fit or must be quick, and more replicas for throughput."
    )


def _provisioning(names: Sequence[str], serving: Sequence[str]) -> Iterator[str]:
    """Say what cheaper capacity that serves costs in certainty."""
    known = {name: price(place(name)).usd_per_hour for name in names}
    for name in serving:
        where = place(name)
        base = known.get(name.removesuffix(f"-{where.provisioning.partition('-')[0]}"))
        mine = known[name]
        if where.provisioning != "on-demand" and where.count == 1 and base and mine:
            limits = " ".join(where.limits)
            yield f"{name} costs {figure(mine / base)} times its on-demand price. {limits}"


def _batches(served: Sequence[Row], goal: Goal) -> Iterator[str]:
    """Say how the price of a token falls with users who share the accelerator."""
    priced = [row for row in served if row.usd_per_million_tokens and row.usd_per_hour]
    if not priced:
        return
    row = min(priced, key=_token_choosing_rules)
    crowd = goal.model_copy(update={"model": row.model, "users": _CROWD, "max_model_len": 2048})
    (shape,) = candidates(crowd)
    offer = consider(shape, place(row.place), crowd, backends=BACKENDS)
    if isinstance(offer, Offer) and offer.cost:
        yield (
            f"Fill it: {_short(row.model)} on {row.place} costs ${row.usd_per_million_tokens} per"
            f" million tokens with {goal.users} at once and"
            f" ${offer.cost.usd_per_million_tokens} with {_CROWD} of 2,048 tokens. Set"
            " max_model_len to what you need: requests at once share the KV cache."
        )


def _sleep(names: Sequence[str]) -> Iterator[str]:
    """Say where idle hours cost nothing."""
    sleeping = [name for name in names if place(name).scale_to_zero]
    staying = [name for name in names if not place(name).scale_to_zero]
    if sleeping:
        yield (
            f"For a few hours a day: {listed(sleeping)} bill no accelerator while nobody asks;"
            " where the weights are stored is billed on."
        )
    if staying:
        yield f"{listed(staying)} bill until deleted: give ttl_minutes."


def _widest(served: Sequence[Row]) -> str | None:
    counts: dict[str, int] = {}
    for row in served:
        counts[row.place] = counts.get(row.place, 0) + 1
    return max(counts, key=lambda name: counts[name], default=None)


def _middle(row: Row) -> float:
    return row.tokens_per_second_per_user.middle if row.tokens_per_second_per_user else 1.0


def _speed_choosing_rules(row: Row) -> str:
    return str(row.tokens_per_second_per_user)


def _token_choosing_rules(row: Row) -> float:
    return row.usd_per_million_tokens.middle if row.usd_per_million_tokens else float("inf")


def _short(model: str) -> str:
    return model.rsplit("/", 1)[-1].removeprefix("gemma-4-")


_NO_TILES: Final = "published vLLM cannot serve it there, whatever the memory"
_RULES: Final = 4
"""That a person reads."""
_FIRST: Final = "e4b"
"""Of the catalog: only that a goal names a model."""


class Option(Record):
    """One model, and where it is served best."""

    model: str
    quality: str
    weights_gib: float | None
    """On the smallest target that serves it."""
    target: str | None
    """Where an hour of it costs least."""
    tokens_per_second: str | None
    """For each user there."""
    cheapest_hour: str | None
    cheapest_token: str | None
    """None where it is that of the cheapest hour; so is the fastest."""
    fastest: str | None
    not_on: tuple[str, ...]
    """Targets that do not serve it as asked, spot and flex-start left out."""
    why_not: str | None
    """Of the first of them."""
    usd_per_hour: float | None
    """Of the cheapest."""
    rank: tuple[float, float] = Field(exclude=True)
    """By that price, then by speed."""


class Choice(Foresight):
    """What to choose from, and how."""

    load: str
    """That speeds and costs are of."""
    targets: tuple[str, ...]
    """That were looked at, where named; else all rented ones that this server deploys to."""
    rules: tuple[str, ...]
    """Each computed for these targets."""
    options: tuple[Option, ...]
    doubts: tuple[str, ...] = Field(exclude=True)
    """Of prices."""
    why_none: str | None = Field(exclude=True)
    """Nothing is served for this reason, the commonest."""
    plan: dict[str, Any] = Field(exclude=True)

    def summary(self) -> str:
        """Say what each quality would be served by."""
        best: dict[str, str] = {}
        for option in sorted(self.options, key=lambda each: each.rank):
            if option.target and option.usd_per_hour is not None:
                best.setdefault(
                    option.quality,
                    f"{option.quality}: {short_name(option.model)} on {option.target}"
                    f" ({dollars(option.usd_per_hour)} an hour)",
                )
        if best:
            return f"By quality, at the lowest price: {'; '.join(best.values())}."
        which = "named" if self.targets else "that this server deploys to"
        return f"None of the targets {which} meets this. {self.why_none}"

    def facts(self) -> Mapping[str, Any]:
        """Return each model where it is cheapest, and the rules for choosing."""
        rows = [
            {
                "quality": each.quality,
                "model": short_name(each.model),
                "target": each.target,
                "tokens/s each": each.tokens_per_second,
                "$/h": each.usd_per_hour,
            }
            for each in self.options
            if each.target
        ]
        return {"models": rows, "rules": [_without_figures(rule) for rule in self.rules[:_RULES]]}

    def warnings(self) -> tuple[str, ...]:
        """Say how sure the figures are."""
        measure = "All speeds are predicted by the planner; run_benchmark measures them."
        return (measure, *self.doubts)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Ask for one quality, with the flags."""
        return (NextStep("recommend_deployment", {"quality": "medium", **self.plan}),)


def _without_figures(rule: str) -> str:
    return re.sub(r" \(on [^)]*\)", "", rule)


def choose(targets: Sequence[str], goal: dict[str, Any], region: str | None) -> Choice:
    """Lay out every model of the catalog over these targets, or over those that can be deployed to.

    Raises:
        InvalidArgument: None of them has a region there.
        TargetNotFound: No place has that name.
    """
    said = {name: value for name, value in goal.items() if value}
    names = in_region(widened(targets) or _deployable(), region)
    wanted = valid(Goal, {**said, "model": _FIRST, "places": names})
    models = [entry.model for entry in entries() if not entry.absent]
    found = compare(models, names, wanted, backends=BACKENDS)
    return Choice(
        load=load_words(wanted.load),
        targets=names if targets else (),
        rules=tuple(rules(found, names)),
        options=tuple(_option(model, found) for model in models),
        doubts=tuple(price_doubts(found.rows)),
        why_none=_commonest(found.rows),
        plan={
            **said,
            **({"targets": list(targets)} if targets else {}),
            **({"region": region} if region else {}),
        },
    )


def _deployable() -> tuple[str, ...]:
    """Give every place that this server deploys to and that somebody rents out."""
    return tuple(
        name
        for name, where in places().items()
        if where.deployable(BACKENDS) and where.provider != "own"
    )


def _option(model: str, found: Comparison) -> Option:
    mine = [row for row in found.rows if row.model == model]
    served = [row for row in mine if _is_served(row)]
    missing = [
        row for row in mine if row not in served and place(row.place).provisioning == "on-demand"
    ]
    hourly = sorted(served, key=_rank)
    known = [row for row in served if row.beyond is None]
    tokens = sorted(known, key=_token_choosing)
    speed = sorted(known, key=lambda row: -_speed_choosing(row))
    first = hourly[:1]
    return Option(
        model=model,
        quality=quality_of(model) or "other",
        weights_gib=round(hourly[0].weights_gib or 0, 2) if hourly else None,
        cheapest_hour=_said(hourly),
        cheapest_token=None if tokens[:1] == first else _said(tokens),
        fastest=None if speed[:1] == first else _said(speed),
        not_on=tuple(row.place for row in missing),
        why_not=_why(missing),
        usd_per_hour=hourly[0].usd_per_hour if hourly else None,
        rank=_rank(hourly[0]) if hourly else (float("inf"), 0.0),
        target=hourly[0].place if hourly else None,
        tokens_per_second=str(hourly[0].tokens_per_second_per_user) if hourly else None,
    )


def _rank(row: Row) -> tuple[float, float]:
    return row.usd_per_hour or float("inf"), -_speed_choosing(row)


def _why(missing: Sequence[Row]) -> str | None:
    """Say why the first of them does not serve it, in a sentence: plan_deployment says all."""
    if not missing:
        return None
    row = missing[0]
    return f"{row.place}: {_reason(row)}"


def _commonest(rows: Sequence[Row]) -> str | None:
    """Say the reason that is told of all that do not serve."""
    missing = [row.refusal for row in rows if row.refusal]
    if not missing:
        return None
    first = commonest(missing)
    reason = _NO_TILES if first.why == "accelerator" else first.reason
    return f"{whose(first, missing)}: {reason}"


def _reason(row: Row) -> str:
    return _NO_TILES if row.unserved else row.reason


def _is_served(row: Row) -> bool:
    return row.fits and not row.unserved


def _said(ranked: Sequence[Row]) -> str | None:
    if not ranked:
        return None
    row = ranked[0]
    cost = "" if row.usd_per_hour is None else f", ${usd(row.usd_per_hour)} an hour"
    tokens = row.usd_per_million_tokens
    per = f", ${tokens} per million tokens" if tokens else ""
    return f"{row.place} ({row.tokens_per_second_per_user} tokens/s each{cost}{per})"


def _token_choosing(row: Row) -> float:
    priced = row.usd_per_million_tokens if row.usd_per_hour else None  # what is yours, is not
    return priced.middle if priced else float("inf")


def _speed_choosing(row: Row) -> float:
    return row.tokens_per_second_per_user.middle if row.tokens_per_second_per_user else 0.0
