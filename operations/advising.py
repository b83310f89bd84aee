"""Advice, costs and comparisons over every place a model could run."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import DoesNotFit, InvalidArgument, NextStep
from core.records import valid
from operations.foreseeing import (
    Bill,
    Foreseen,
    Foresight,
    Refused,
    bill,
    foreseen,
    guesses,
    load_words,
    refused,
)
from operations.places import place_called
from planner.advise import advise, consider
from planner.boot import Span
from planner.compare import Row, compare
from planner.goal import Goal, candidates
from planner.offers import Offer
from planner.places import Place
from planner.price import price
from planner.reached import Band

_OFFERS: Final = 3
_ROWS: Final = 40
"""Of a comparison: more are longer than an answer may be."""
_DIGITS: Final = {"usd_per_hour": 4}
"""Of a row's figures; the others are told with two."""


class Recommendation(Foresight):
    """Where to run a model for a goal, best first, and why not elsewhere."""

    said: str = Field(exclude=True)
    offers: tuple[Foreseen, ...]
    refused: tuple[Refused, ...]
    instead: tuple[Foreseen, ...]
    """The same model elsewhere, or other models, where everything asked for refuses."""
    more_offers: int
    """That are not shown."""

    def summary(self) -> str:
        """Say the best, or why nothing can be done."""
        return self.said

    def warnings(self) -> tuple[str, ...]:
        """Say what the first leaves in doubt, and how sure the speeds are."""
        first = self.offers[0].doubts if self.offers else ()
        return (*first, *guesses((*self.offers, *self.instead)))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Plan the first that can be deployed."""
        return self.steps((*self.offers, *self.instead))


class CostEstimate(Foresight):
    """What a target costs, standing still and under a load."""

    target: str
    model: str | None
    hours_per_month: float
    load: str
    bill: Bill
    warned: tuple[str, ...] = Field(exclude=True)

    def summary(self) -> str:
        """Say the price by the hour and the month."""
        hour, month = self.bill.usd_per_hour, self.bill.usd_per_month
        if hour is None or month is None:
            return f"No price is known for {self.target}."
        tokens = self.bill.usd_per_million_tokens
        per = f"; ${tokens} per million tokens under the load" if tokens else ""
        return (
            f"{self.target} costs ${hour:.2f} an hour, ${month:,.0f} a month at "
            f"{self.hours_per_month:g} hours{per}."
        )

    def warnings(self) -> tuple[str, ...]:
        """Say where sources disagree."""
        disagree = ("Sources disagree on the price; all are shown.",)
        return (*(disagree if self.bill.sources_disagree else ()), *self.warned)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Ask what else there is."""
        arguments = {"model": self.model} if self.model else {"quality": "medium"}
        return (NextStep("recommend_deployment", arguments),)


class TargetComparison(Foresight):
    """Models and targets side by side."""

    load: str
    """That speeds and costs are of."""
    rows: tuple[dict[str, Any], ...]
    left_out: int
    """Rows that are not shown: of each model what does not fit, then what is dear."""
    cheapest: str | None
    best_value: str | None
    fastest: str | None
    said: str = Field(exclude=True)

    def summary(self) -> str:
        """Say which is best at what."""
        return self.said

    def warnings(self) -> tuple[str, ...]:
        """Say what is not shown."""
        hidden = f"{self.left_out} rows are left out: name fewer models, or targets."
        return (hidden,) if self.left_out else ()


def recommend(goal: dict[str, Any]) -> Recommendation:
    """Rank every place for a goal."""
    wanted = valid(Goal, _said(goal))
    advice = advise(wanted.model_copy(update={"places": _called(wanted.places)}), backends=BACKENDS)
    others = (*advice.elsewhere, *advice.instead) if not advice.offers else ()
    return Recommendation(
        said=advice.summary(),
        offers=tuple(foreseen(offer) for offer in advice.offers[:_OFFERS]),
        refused=tuple(refused(each) for each in advice.refused),
        instead=tuple(foreseen(offer) for offer in others),
        more_offers=max(0, len(advice.offers) - _OFFERS),
    )


def cost(where: Place, model: str | None, goal: dict[str, Any]) -> CostEstimate:
    """Price a place, and a load on it where a model is named."""
    wanted = valid(Goal, _said({**goal, "model": model, "places": (where.name,)}))
    wanted = wanted.model_copy(update={"max_model_len": _long_enough(wanted)})
    found = _offered(wanted, where) if model else None
    rate = found.price if found else price(where, duty=wanted.duty)
    return CostEstimate(
        target=where.name,
        model=found.model if found else None,
        hours_per_month=wanted.hours_per_month,
        load=load_words(wanted.load),
        bill=bill(rate, found.cost if found else None),
        warned=tuple(guesses((foreseen(found),))) if found else (),
    )


def _long_enough(wanted: Goal) -> int:
    """Give a length that holds the load's prompt and answer."""
    return max(wanted.max_model_len, wanted.load.prompt_tokens + wanted.load.output_tokens)


def _offered(wanted: Goal, where: Place) -> Offer:
    (shape,) = candidates(wanted)
    offer = consider(shape, where, wanted, backends=BACKENDS)
    if isinstance(offer, Offer):
        return offer
    error = DoesNotFit if "memory" in offer.why else InvalidArgument
    raise error(
        f"{shape.model} cannot be served on {where.name}: {offer.reason}",
        fix="Call recommend_deployment for targets that can.",
        next_steps=(NextStep("recommend_deployment", {"model": shape.model}),),
    )


def comparison(
    models: Sequence[str], targets: Sequence[str], goal: dict[str, Any]
) -> TargetComparison:
    """Hold models and targets against each other for the same goal."""
    wanted = valid(Goal, _said({**goal, "model": models[0]}))
    found = compare(models, _called(targets), wanted, backends=BACKENDS)
    rows = _shown(found.rows, len(models))
    return TargetComparison(
        load=load_words(wanted.load),
        rows=tuple(map(_row, rows)),
        left_out=len(found.rows) - len(rows),
        cheapest=found.cheapest,
        best_value=found.best_value,
        fastest=found.fastest,
        said=found.summary(),
    )


def _called(targets: Sequence[str]) -> tuple[str, ...]:
    return tuple(place_called(name).name for name in targets)


def _said(goal: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in goal.items() if value is not None}


def _shown(rows: Sequence[Row], models: int) -> list[Row]:
    """Leave out, where there are too many, what does not fit and then what is dear."""
    if len(rows) <= _ROWS:
        return list(rows)
    each = len(rows) // models
    asked = [rows[first : first + each] for first in range(0, len(rows), each)]
    return [row for group in asked for row in sorted(group, key=_worth)[: _ROWS // models]]


def _worth(row: Row) -> tuple[bool, float]:
    price = row.usd_per_hour
    return not row.fits, float("inf") if price is None else price


def _row(row: Row) -> dict[str, Any]:
    """Give a row's figures as a person reads them, without what others say already."""
    hidden = "reason" if row.fits else "host_needs_gib"
    return {
        name: _figure(name, value) for name, value in row if value is not None and name != hidden
    }


def _figure(name: str, value: object) -> object:
    if isinstance(value, Band | Span):
        return str(value)
    return round(value, _DIGITS.get(name, 2)) if isinstance(value, float) else value
