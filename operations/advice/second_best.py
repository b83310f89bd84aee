"""What comes nearest to a goal that nothing meets, and by how much it misses."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from backends.registry import BACKENDS
from core.records import ModelShape
from operations.advice.sizing import Sized, Sizing, rank
from operations.plans.foreseeing import dollars, spoken
from planner.advise import Goal, Offer, Refusal, commonest, consider, siblings
from planner.catalog import QUANTIZED, find
from planner.layouts import NearMiss
from planner.model import catalog_shape
from planner.places import Place, place

QAT: Final = "int4 weights (QAT)"
_MONEY: Final[dict[str, Any]] = {"usd_per_hour": None, "usd_per_month": None}
_SPEED: Final[dict[str, Any]] = {"tokens_per_second_per_user": None}
_SLEEP: Final[dict[str, Any]] = {"scale_to_zero": False}
_NO_LIMITS: Final = {**_MONEY, **_SPEED, **_SLEEP}
_SHOWN: Final = 2
"""Of each kind."""


class Asked(NamedTuple):
    """A goal with the models and places that it is about."""

    goal: Goal
    users: int | None
    """As they were said."""
    models: Sequence[ModelShape]
    places: Sequence[Place]
    region: str | None = None

    def find(self, goal: Goal | None = None) -> tuple[list[Sized], list[Refusal]]:
        """Return what meets the goal, the best first, and what does not."""
        wanted = goal or self.goal
        sizing = Sizing(wanted, self.users, BACKENDS)
        found = [sizing.at(model, where) for model in self.models for where in self.places]
        offers = [each for each in found if isinstance(each, Sized)]
        return sorted(offers, key=rank), [each for each in found if isinstance(each, Refusal)]

    def quantized(self) -> "Asked":
        """Return the same of the int4 checkpoints of models that are not quantized."""
        names = [f"{each.model}{QUANTIZED}" for each in self.models if not each.quantization]
        known = {each.model for each in self.models}
        there = [name for name in names if (one := find(name)) and not one.absent]
        return self._replace(models=[catalog_shape(name) for name in there if name not in known])


def second_best(
    asked: Asked, refusals: Sequence[Refusal], elsewhere: Sequence[Place]
) -> Iterator[Sized]:
    """Yield what comes nearest: int4 weights, a little over a limit, less, elsewhere, others."""
    small = asked.quantized()
    yield from _because(small.find()[0], QAT)
    yield from _over(asked._replace(models=[*asked.models, *small.models]))
    yield from _less(asked, refusals)
    if elsewhere:
        away = asked._replace(places=elsewhere)
        yield from _because([*away.find()[0], *away.quantized().find()[0]], "another target")
    if len(asked.models) == 1:
        for shape in siblings(asked.models[0]):
            found, _ = asked._replace(models=[shape]).find()
            yield from _because(found[:1], "another model")


def _because(found: Sequence[Sized], why: str) -> Iterator[Sized]:
    for each in found[:_SHOWN]:
        yield each._replace(misses=why)


def _over(asked: Asked) -> Iterator[Sized]:
    """Yield what misses one limit, or all of them where it must be, by the least."""
    ways = (_MONEY, _SPEED, _SLEEP, _NO_LIMITS)
    for way in ways:
        if not any(getattr(asked.goal, name) for name in way):
            continue
        found, _ = asked.find(asked.goal.model_copy(update=way))
        if way is _SPEED:
            found.sort(key=lambda each: -each.offer.decode.tokens_per_second_per_user.middle)
        else:
            found.sort(key=lambda each: each.usd_per_hour or float("inf"))
        if found:
            for each in found:
                yield each._replace(misses="; ".join(_misses(asked.goal, each)))
            return


def _misses(goal: Goal, found: Sized) -> Iterator[str]:
    hourly = found.usd_per_hour
    limits = (
        (goal.usd_per_hour, 1.0, "an hour"),
        (goal.usd_per_month, goal.hours_per_month, "a month"),
    )
    for limit, hours, unit in limits:
        if limit and hourly is not None and hourly * hours > limit:
            over = hourly * hours - limit
            words = f"{over * 100:.0f} cents" if 0.01 <= over < 1 else dollars(over)
            yield f"{words} over {dollars(limit)} {unit}"
    speed = found.offer.decode.tokens_per_second_per_user
    wanted = goal.tokens_per_second_per_user
    if wanted and speed.middle < wanted:
        yield f"{spoken(speed)} tokens/s of the {wanted:g} asked for"
    if goal.scale_to_zero and not place(found.offer.place).scale_to_zero:
        yield "it does not sleep: it bills until it is deleted"


def _less(asked: Asked, refusals: Sequence[Refusal]) -> Iterator[Sized]:
    """Yield what fits and asks for less, of the refusal that is named, else the first that can."""
    shapes = {shape.model: shape for shape in asked.models}
    sites = {where.name: where for where in asked.places}
    for each in (commonest(refusals), *refusals) if refusals else ():
        offers = []
        for near in each.nearest:
            goal = _asks(asked.goal.model_copy(update=_NO_LIMITS), near)
            found = consider(shapes[each.model], sites[each.place], goal, backends=BACKENDS)
            if isinstance(found, Offer):
                less = f"only with {near.gives_up.partition(': ')[2]}"
                misses = (less, *_misses(asked.goal, Sized(found)))
                offers.append(Sized(found, misses="; ".join(misses)))
        if offers:
            yield from offers[:_SHOWN]
            return


def _asks(wanted: Goal, near: NearMiss) -> Goal:
    """Return a goal that asks for as much as a plan that fits gives."""
    flags, length = near.arrangement.flags, near.arrangement.memory.max_model_len
    if length < wanted.max_model_len:
        return wanted.model_copy(update={"max_model_len": length})
    if flags.language_model_only and not wanted.text_only:
        return wanted.model_copy(update={"text_only": True})
    return wanted.model_copy(update={"users": flags.max_num_seqs})
