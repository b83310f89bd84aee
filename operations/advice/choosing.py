"""Which model and which target, for somebody who has named neither: a table and a few rules."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import NextStep
from core.records import Record, valid
from operations.advice.choosing_rules import rules
from operations.advice.clouds import price_doubts
from operations.advice.wide_targets import widened
from operations.plans.foreseeing import Foresight, dollars, load_words, usd
from operations.plans.regions import in_region
from planner.advise import Goal, commonest, quality_of, whose
from planner.catalog import entries, short_name
from planner.compare import Comparison, Row, compare
from planner.places import place, places

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
    tokens = sorted(known, key=_token)
    speed = sorted(known, key=lambda row: -_speed(row))
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
    return row.usd_per_hour or float("inf"), -_speed(row)


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


def _token(row: Row) -> float:
    priced = row.usd_per_million_tokens if row.usd_per_hour else None  # what is yours, is not
    return priced.middle if priced else float("inf")


def _speed(row: Row) -> float:
    return row.tokens_per_second_per_user.middle if row.tokens_per_second_per_user else 0.0
