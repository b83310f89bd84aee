"""Advice for a goal over every place a model could run."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import NextStep
from core.records import valid
from operations.advice.wide_targets import alike, widened
from operations.plans.foreseeing import (
    Foreseen,
    Foresight,
    Refused,
    foreseen,
    guesses,
    refused,
)
from planner.advise import Advice, advise, consider
from planner.goal import Goal, candidates
from planner.near import NearMiss
from planner.offers import Offer, Refusal, commonest
from planner.places import place

_OFFERS: Final = 3
_NAMED: Final = 6
"""Offers that the summary names, with their prices."""
_REFUSED: Final = 8
"""Reasons that are told: more are longer than a person reads."""


class Recommendation(Foresight):
    """Where to run a model for a goal, best first, and why not elsewhere."""

    said: str = Field(exclude=True)
    offers: tuple[Foreseen, ...]
    refused: tuple[Refused, ...]
    instead: tuple[Foreseen, ...]
    """The same model elsewhere, or other models, where everything asked for refuses."""
    cures: tuple[Foreseen, ...] = Field(exclude=True)
    """What would fit where everything refuses, and asks for less: `would_fit` says it in words."""
    more_offers: int
    """That are not shown."""
    more_refused: int
    """Reasons that are not shown."""

    def summary(self) -> str:
        """Say the best, or why nothing can be done."""
        return self.said

    def warnings(self) -> tuple[str, ...]:
        """Say what the first leaves in doubt, and how sure the speeds are."""
        doubts = [f"{offer.target}: {each}" for offer in self.offers for each in offer.doubts]
        return (*dict.fromkeys(doubts), *guesses((*self.offers, *self.instead)))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Plan the first that can be deployed; where nothing fits, first what would there."""
        cures = (step for each in self.cures for step in self.steps((each,)))
        return (*cures, *self.steps((*self.offers, *self.instead)))


def recommend(goal: dict[str, Any]) -> Recommendation:
    """Rank every place for a goal."""
    wanted = valid(Goal, _said(goal))
    advice = advise(wanted.model_copy(update={"places": widened(wanted.places)}), backends=BACKENDS)
    others = (*advice.elsewhere, *advice.instead) if not advice.offers else ()
    why_not = _together(advice.refused)
    return Recommendation(
        said=_told(advice),
        offers=tuple(foreseen(offer) for offer in _first(advice.offers)),
        refused=why_not[:_REFUSED],
        more_refused=max(0, len(why_not) - _REFUSED),
        instead=tuple(foreseen(offer) for offer in others),
        cures=() if advice.offers else tuple(map(foreseen, _cured(wanted, advice.refused))),
        more_offers=max(0, len(advice.offers) - _OFFERS),
    )


def _first(offers: Sequence[Offer]) -> Sequence[Offer]:
    """Give the best, one of them to deploy to from here, where there is one."""
    able = next((offer for offer in offers if offer.deployable), None)
    shown = list(offers[:_OFFERS])
    return shown if able is None or able in shown else [*shown[:-1], able]


def _cured(wanted: Goal, refusals: Sequence[Refusal]) -> Sequence[Offer]:
    """Offer what fits and asks for less: of the refusal that is told, else of the first that can.

    What fits the memory may still be too dear or too slow: then it is none.
    """
    shapes = {shape.model: shape for shape in candidates(wanted)}
    for each in (commonest(refusals), *refusals) if refusals else ():
        shape, where = shapes[each.model], place(each.place)
        less = (_less(wanted, near) for near in each.nearest)
        found = [consider(shape, where, goal, backends=BACKENDS) for goal in less]
        if offers := [offer for offer in found if isinstance(offer, Offer)]:
            return offers
    return ()


def _less(wanted: Goal, near: NearMiss) -> Goal:
    """Ask for as much as a plan that fits gives."""
    flags, length = near.arrangement.flags, near.arrangement.memory.max_model_len
    if length < wanted.max_model_len:
        return wanted.model_copy(update={"max_model_len": length})
    if flags.language_model_only and not wanted.text_only:
        return wanted.model_copy(update={"text_only": True})
    return wanted.model_copy(update={"users": flags.max_num_seqs})


def _told(advice: Advice) -> str:
    """Say the best, what this server deploys to, and the other options with their prices."""
    said, (best, *rest) = advice.summary(), advice.offers or (None,)
    if best is None:
        return said
    if best.price.usd_per_hour == 0:
        said += " It is hardware of your own, if you have it."
    able = next((offer for offer in advice.offers if offer.deployable), None)
    if not best.deployable:
        own = f"; the best that it does deploy to is {_priced(able, best.model)}" if able else ""
        said += f" This server does not deploy there{own}."
    others = [_priced(offer, best.model) for offer in rest if offer is not able or best.deployable]
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{said} Also: {', '.join(others[:_NAMED])}{more}." if others else said


def _priced(offer: Offer, known: str) -> str:
    """Say place and price, and the model where it is not the one that is known already."""
    hourly = offer.price.usd_per_hour
    costs = "price not known" if hourly is None else f"${hourly:.2f}/h"
    model = "" if offer.model == known else f"{offer.model.rsplit('/', 1)[-1]} on "
    return f"{model}{offer.place} ({'hardware of your own' if hourly == 0 else costs})"


def _together(refusals: Sequence[Refusal]) -> tuple[Refused, ...]:
    """Give refusals, those that say the same of one model in one."""
    told = [refused(each) for each in refusals]
    groups = alike(told, lambda each: (each.model, each.reason, each.would_fit, each.offload))
    return tuple(
        first.model_copy(update={"target": ", ".join(each.target for each in (first, *rest))})
        for first, *rest in groups
    )


def _said(goal: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in goal.items() if value is not None}
