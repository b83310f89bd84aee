"""Advice for a goal: what can be deployed from here, best first, and what comes nearest."""

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import NextStep
from core.records import Answer, ModelShape, listed, valid
from core.redaction import one_line
from operations.forecast import (
    Foreseen,
    Refused,
    alike,
    at_place,
    dollars,
    foreseen,
    guesses,
    in_short,
    priced,
    refused,
    spoken,
)
from operations.runtime import Runtime
from operations.targets import goes_to, in_region, limited_to, place_named, widened, within
from planner.advise import (
    Goal,
    Offer,
    Refusal,
    candidates,
    commonest,
    consider,
    considering,
    quality_of,
    refuse,
    served,
    siblings,
    whose,
)
from planner.catalog import QUANTIZED, entries, find, short_name
from planner.layouts import NearMiss
from planner.model import catalog_shape
from planner.places import Place, accelerator, place, places

_MOST_USERS: Final = 512
"""Users of one replica, beyond which nobody asks."""
_QAT: Final = "int4 weights (QAT)"
_MONEY: Final[dict[str, Any]] = {"usd_per_hour": None, "usd_per_month": None}
_SPEED: Final[dict[str, Any]] = {"tokens_per_second_per_user": None}
_SLEEP: Final[dict[str, Any]] = {"scale_to_zero": False}
_NO_LIMITS: Final = {**_MONEY, **_SPEED, **_SLEEP}
_OF_EACH_KIND: Final = 2
_OFFERS: Final = 3
_NEAR: Final = 5
"""What comes nearest that is shown."""
_REFUSED: Final = 8
_REFUSED_SHORT: Final = 3
"""Reasons of the whole answer and of the short one."""
_LONG_REASON: Final = 110
"""Characters of a reason in the short form."""


class Sized(NamedTuple):
    """A model at a place, as often as the users need it."""

    offer: Offer
    replicas: int = 1
    misses: str = ""
    """What of the goal it does not meet."""

    @property
    def usd_per_hour(self) -> float | None:
        """Of all replicas."""
        hourly = self.offer.price.usd_per_hour
        return None if hourly is None else hourly * self.replicas

    @property
    def doubt(self) -> str | None:
        """What so many replicas need that one does not."""
        if self.replicas == 1:
            return None
        where = place(self.offer.place)
        each = ", each a deployment of its own," if where.deployable_by == "tpu" else ""
        return (
            f"{self.replicas} replicas on {where.name}{each} need a quota of"
            f" {self.replicas * where.count} accelerators;"
            " new projects and subscriptions have a quota of few or none."
        )

    def __str__(self) -> str:
        costs = priced(self.offer, replicas=self.replicas, lowest=True)
        return f"{at_place(self.offer, replicas=self.replicas)} ({costs})"


def _by_price(sized: Sized) -> tuple[bool, bool, float, float]:
    """Order by what can be deployed to, then by price and speed; own hardware comes last."""
    offer, hourly = sized.offer, sized.usd_per_hour
    return (
        not offer.deployable,
        hourly == 0,
        math.inf if hourly is None else hourly,
        -offer.decode.tokens_per_second.middle,
    )


def _over_budget(goal: Goal, usd_per_hour: float | None) -> Iterator[tuple[float, float, str]]:
    """Yield what it costs, what is allowed and in which time, of each budget that is exceeded."""
    limits = (
        (goal.usd_per_hour, 1.0, "an hour"),
        (goal.usd_per_month, goal.hours_per_month, "a month"),
    )
    for limit, hours, unit in limits:
        if limit and usd_per_hour is not None and usd_per_hour * hours > limit:
            yield usd_per_hour * hours, limit, unit


class _Sizing:
    """A goal for some users; what is alike at several places is computed once."""

    def __init__(self, goal: Goal, users: int | None) -> None:
        self._goal, self._users = goal, users
        self._considering = functools.cache(self._consider)

    def at(self, model: ModelShape, where: Place) -> Sized | Refusal:
        """Offer it for all users; for as many as one replica has at the speed, if none are said."""
        users = self._users
        found = self._ask(model, where, users or 1, near=True)
        if users is None and self._goal.tokens_per_second_per_user and isinstance(found, Offer):
            found = self._ask(model, where, self._most(model, where, _MOST_USERS))
        if isinstance(found, Offer):
            return Sized(found)
        alone = users in {None, 1} or where.deployable_by == "local"  # there is one such machine
        if alone or users is None or found.why not in {"memory", "speed"}:
            return found
        most = self._most(model, where, users - 1)
        fewer = self._ask(model, where, most) if most else found
        if isinstance(fewer, Refusal):
            return found
        sized = Sized(fewer, math.ceil(users / most))
        for total, limit, unit in _over_budget(self._goal, sized.usd_per_hour):
            costs = f"{sized.replicas} replicas cost ${total:,.2f} {unit}, ${limit:,.2f} allowed."
            return refuse(model, where, "price", costs)
        return sized

    def _consider(
        self, users: int, *, near: bool
    ) -> Callable[[ModelShape, Place], Offer | Refusal]:
        goal = self._goal.model_copy(update={"users": users})
        return considering(goal, backends=BACKENDS, near=near)

    def _ask(
        self, model: ModelShape, where: Place, users: int, *, near: bool = False
    ) -> Offer | Refusal:
        """Refuse also what is expected to be slower than asked, though its best case may not be."""
        found = served(model, where, self._considering(users, near=near)(model, where))
        wanted = self._goal.tokens_per_second_per_user
        if isinstance(found, Refusal) or wanted is None:
            return found
        speed = found.decode.tokens_per_second_per_user
        if speed.middle >= wanted:
            return found
        whom = "one user" if users == 1 else f"each of {users} users"
        slow = f"{speed} tokens/s are predicted for {whom}, {wanted:g} are wanted."
        return refuse(model, where, "speed", slow)

    def _most(self, model: ModelShape, where: Place, limit: int) -> int:
        """Return the most users that are held at once and each fast enough, 0 if none."""

        def is_too_many(users: int) -> bool:
            return isinstance(self._ask(model, where, users), Refusal)

        return bisect_left(range(1, limit + 1), True, key=is_too_many)  # noqa: FBT003  what is found


class _Asked(NamedTuple):
    """A goal with the models and places that it is about."""

    goal: Goal
    users: int | None
    """As they were said."""
    models: Sequence[ModelShape]
    places: Sequence[Place]
    region: str | None = None

    @property
    def names_model(self) -> bool:
        return bool(self.goal.model or self.goal.quality)

    def find(self, goal: Goal | None = None) -> tuple[list[Sized], list[Refusal]]:
        """Return what meets the goal, the best first, and what does not."""
        sizing = _Sizing(goal or self.goal, self.users)
        found = [sizing.at(model, where) for model in self.models for where in self.places]
        offers = [each for each in found if isinstance(each, Sized)]
        return sorted(offers, key=_by_price), [each for each in found if isinstance(each, Refusal)]

    def quantized(self) -> "_Asked":
        """Return the same of the int4 checkpoints of models that are not quantized."""
        names = [f"{each.model}{QUANTIZED}" for each in self.models if not each.quantization]
        known = {each.model for each in self.models}
        there = [name for name in names if (one := find(name)) and not one.absent]
        return self._replace(models=[catalog_shape(name) for name in there if name not in known])


def _second_best(
    asked: _Asked, refusals: Sequence[Refusal], elsewhere: Sequence[Place]
) -> Iterator[Sized]:
    """Yield what comes nearest: int4 weights, a little over a limit, less, elsewhere, others."""
    small = asked.quantized()
    yield from _because(small.find()[0], _QAT)
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
    yield from (each._replace(misses=why) for each in found[:_OF_EACH_KIND])


def _over(asked: _Asked) -> Iterator[Sized]:
    """Yield what misses one limit, or all of them where it must be, by the least."""
    for way in (_MONEY, _SPEED, _SLEEP, _NO_LIMITS):
        if not any(getattr(asked.goal, name) for name in way):
            continue
        found, _ = asked.find(asked.goal.model_copy(update=way))
        if way is _SPEED:
            found.sort(key=lambda each: -each.offer.decode.tokens_per_second_per_user.middle)
        else:
            found.sort(key=lambda each: each.usd_per_hour or math.inf)
        if found:
            yield from (
                each._replace(misses="; ".join(_misses(asked.goal, each))) for each in found
            )
            return


def _misses(goal: Goal, found: Sized) -> Iterator[str]:
    for total, limit, unit in _over_budget(goal, found.usd_per_hour):
        over = total - limit
        words = f"{over * 100:.0f} cents" if 0.01 <= over < 1 else dollars(over)
        yield f"{words} over {dollars(limit)} {unit}"
    speed, wanted = found.offer.decode.tokens_per_second_per_user, goal.tokens_per_second_per_user
    if wanted and speed.middle < wanted:
        yield f"{spoken(speed)} tokens/s of the {wanted:g} asked for"
    if goal.scale_to_zero and not place(found.offer.place).scale_to_zero:
        yield "it does not sleep: it bills until it is deleted"


def _less(asked: _Asked, refusals: Sequence[Refusal]) -> Iterator[Sized]:
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
            yield from offers[:_OF_EACH_KIND]
            return


def _asks(wanted: Goal, near: NearMiss) -> Goal:
    """Return a goal that asks for as much as a plan that fits gives."""
    flags, length = near.arrangement.flags, near.arrangement.memory.max_model_len
    if length < wanted.max_model_len:
        return wanted.model_copy(update={"max_model_len": length})
    if flags.language_model_only and not wanted.text_only:
        return wanted.model_copy(update={"text_only": True})
    return wanted.model_copy(update={"users": flags.max_num_seqs})


class Option(Foreseen):
    """One model at one place, as often as the users need it."""

    replicas: int = 1
    replicas_doubt: str | None = None
    """What so many need that one does not."""
    misses: str | None = None
    """What of the goal it does not meet."""
    region: str | None = None
    """Where it would be, and what makes it go there."""

    def row(self) -> dict[str, Any]:
        """Return what decides."""
        row = {
            "target": self.target,
            "model": short_name(self.model),
            "replicas": self.replicas if self.replicas > 1 else None,
            "tokens/s": self.tokens_per_second_per_user,
            "at once": self.at_once.partition(":")[0].replace(" at once", ""),
            "$/h": self.usd_per_hour and round(self.usd_per_hour * self.replicas, 4),
            "not met": self.misses,
            "region": self.region,
        }
        return {name: value for name, value in row.items() if value is not None}


class Recommendation(Answer):
    """Where to run a model for a goal, best first, and why not elsewhere."""

    said: str = Field(exclude=True)
    offers: tuple[Option, ...]
    """Of a model that is named, the best places; else the best of each quality."""
    models: tuple[dict[str, Any], ...]
    """Where none is named: each at its best place."""
    refused: tuple[Refused, ...]
    instead: tuple[Option, ...]
    """What comes nearest, where nothing does all that is asked for; and int4 weights that cost
    less on demand, where something does."""
    asked_region: str | None = Field(exclude=True)

    def summary(self) -> str:
        return self.said

    def facts(self) -> Mapping[str, Any]:
        shown = (*self.offers, *self.instead)
        return {
            "options": list(self.models) or [each.row() for each in shown],
            "engine_line": shown[0].engine_line if shown else None,
            "load": shown[0].load if shown else None,
            "not": [_not(each) for each in self.refused[:_REFUSED_SHORT]],
        }

    def warnings(self) -> tuple[str, ...]:
        first = self.offers if self.models else (*self.offers, *self.instead)[:1]
        many = (each.replicas_doubt for each in first if each.replicas_doubt)
        doubts = [f"{offer.target}: {each}" for offer in first for each in offer.doubts]
        return (*many, *dict.fromkeys(doubts), *guesses(first))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Plan the first that this server can deploy, else the best, with its flags."""
        shown = (*self.offers, *self.instead)
        there = {"region": self.asked_region} if self.asked_region else {}
        best = next(iter(sorted(shown, key=lambda each: not each.deployable)), None)
        if best is None:
            return ()
        named = {"target": best.target, "model": best.model}
        return (NextStep("plan_deployment", {**named, **best.arguments, **there}),)


def recommend(
    runtime: Runtime, said: Mapping[str, Any], targets: Sequence[str], region: str | None
) -> Recommendation:
    """Rank the places of this server for a goal, or those that are named.

    Raises:
        InvalidArgument: The model is not known, or no place is in the region.
        TargetNotFound: No place has that name.
    """
    wanted = valid(Goal, said)
    published = (catalog_shape(one.model) for one in entries() if not one.absent)
    models = candidates(wanted) if wanted.model or wanted.quality else [*published]
    ours = _ours(runtime, region)
    named = [place_named(runtime, name) for name in widened(targets)] or ours
    there = in_region([where.name for where in named or places().values()], region)
    sites = [limited_to(where, region) for where in named if where.name in there]
    asked = _Asked(wanted, said.get("users"), models, sites, region)
    found, refusals = asked.find()
    near = list(_beside(asked, found, ours))
    if not found:
        known = {where.name for where in sites}
        elsewhere = [where for where in ours if where.name not in known]
        near = _nearest(asked, refusals, elsewhere)
    offers, of_models = found[:_OFFERS], list[Sized]()
    if not asked.names_model:
        offers = list(_first(found, lambda each: quality_of(each.offer.model)).values())
        of_models = list(_first(found, lambda each: each.offer.model).values())
    return Recommendation(
        said=_summary(runtime, asked, found, near, refusals, compared=len(targets) > 1),
        offers=tuple(_option(runtime, asked, each) for each in offers),
        models=tuple(_option(runtime, asked, each).row() for each in of_models),
        refused=_together(refusals)[:_REFUSED],
        instead=tuple(_option(runtime, asked, each) for each in near),
        asked_region=region,
    )


def _ours(runtime: Runtime, region: str | None) -> list[Place]:
    """Return every place that this server deploys to; this machine where its GPU is known."""
    here = place_named(runtime, "local")
    found = [
        limited_to(where, region)
        for where in places().values()
        if where.deployable(BACKENDS)
        and where.provider != "own"
        and (not region or within(where, region))
    ]
    return found if accelerator(here.accelerator).kind == "cpu" else [here, *found]


def _beside(asked: _Asked, offers: Sequence[Sized], ours: Sequence[Place]) -> Iterator[Sized]:
    """Yield int4 weights of the model that was named where they cost less than it does without a
    queue or an interruption, and what can be deployed where nothing of the offers can.
    """
    if not offers or asked.goal.model is None:
        return
    lasting = (one for one in offers if place(one.offer.place).provisioning == "on-demand")
    least = next(lasting, offers[0]).usd_per_hour
    for each in asked.quantized().find()[0][:1]:
        if least and each.usd_per_hour and each.usd_per_hour < least:
            yield each._replace(misses=_QAT)
    if not offers[0].offer.deployable:
        for each in asked._replace(places=ours).find()[0][:1]:
            yield each._replace(misses="another target")


def _nearest(asked: _Asked, refusals: Sequence[Refusal], elsewhere: Sequence[Place]) -> list[Sized]:
    """Return each model at each place once, with the first reason; or the first of each quality."""

    def what(each: Sized) -> object:
        model = each.offer.model
        return (model, each.offer.place) if asked.names_model else quality_of(model)

    first = _first(_second_best(asked, refusals, elsewhere), what, most=_NEAR)
    return sorted(first.values(), key=lambda each: not each.offer.deployable)


def _first(
    found: Iterable[Sized], what: Callable[[Sized], object], most: int = 99
) -> dict[object, Sized]:
    """Return the first of each kind."""
    first: dict[object, Sized] = {}
    for each in found:
        first.setdefault(what(each), each)
        if len(first) == most:
            break
    return first


def _option(runtime: Runtime, asked: _Asked, each: Sized) -> Option:
    return Option(
        **dict(foreseen(each.offer)),
        replicas=each.replicas,
        replicas_doubt=each.doubt,
        misses=each.misses or None,
        region=_region_of(runtime, asked, each),
    )


def _region_of(runtime: Runtime, asked: _Asked, each: Sized) -> str | None:
    """Return the region that was asked for, and what makes a deployment go there."""
    where = next((one for one in asked.places if one.name == each.offer.place), None)
    if asked.region is None or where is None or not where.regions:
        return None
    there, todo = goes_to(runtime, where)
    return f"{there}{f': {todo}' if todo else ''}"


def _summary(
    runtime: Runtime,
    asked: _Asked,
    offers: Sequence[Sized],
    near: Sequence[Sized],
    refusals: Sequence[Refusal],
    *,
    compared: bool,
) -> str:
    """Say the best, and where several targets are to be `compared` what the others cost."""
    if not offers:
        return _none(asked, near, refusals)
    best = offers[0]
    if not asked.names_model:
        return f"{_users(asked, None) or 'At the lowest price'}: {_by_quality(asked, offers)}."
    words = (
        f"{_users(asked, best)}{at_place(best.offer, replicas=best.replicas)},"
        f" {priced(best.offer, replicas=best.replicas)}: {in_short(best.offer)}"
    )
    if region := _region_of(runtime, asked, best):
        words += f" In {region}."
    if not best.offer.deployable:
        words += " This server does not deploy there."
    others = [*_first(offers, lambda each: each.offer.place).values()][1:]
    if compared and others:
        words += f" Elsewhere: {listed([str(each) for each in others])}."
    return f"{words} With {near[0].misses}: {near[0]}." if near else words


def _none(asked: _Asked, near: Sequence[Sized], refusals: Sequence[Refusal]) -> str:
    why = commonest(refusals)
    because = f" {whose(why, refusals)}: {_first_sentence(why.reason)}"
    if not near:
        return f"Nothing does that.{because}"
    if not asked.names_model:
        return f"Nothing here does that. Nearest: {_by_quality(asked, near)}."
    first, also = near[0], f" Or: {near[1]}." if len(near) > 1 else ""
    short = in_short(first.offer)
    return (
        f"Nothing here does all of that. Nearest:"
        f" {at_place(first.offer, replicas=first.replicas)},"
        f" {priced(first.offer, replicas=first.replicas, lowest=True)}: {first.misses}."
        f" {short[0].upper()}{short[1:]}{also}{'' if why.why == 'price' else because}"
    )


def _users(asked: _Asked, best: Sized | None) -> str:
    """Say first what was asked of users: how many, or how many replicas serve them."""
    speed, users = asked.goal.tokens_per_second_per_user, asked.users
    at = f" at {speed:g} tokens/s each" if speed else ""
    if best is None:
        return f"{users} users{at}" if users else at.strip().capitalize()
    load = best.offer.load.concurrency
    if users is None:
        return f"Up to {_people(load)}{at} on one replica: " if at else ""
    if best.replicas > 1:
        return f"{users} users{at}: {best.replicas} replicas, up to {load} users each: "
    return "" if users == 1 else f"{users} users{at}: one replica: "


def _people(users: int) -> str:
    return f"{users} user{'s' if users > 1 else ''}"


def _by_quality(asked: _Asked, offers: Sequence[Sized]) -> str:
    """Say the first of each quality, and for how many users where that was left open."""
    is_open = asked.users is None and asked.goal.tokens_per_second_per_user
    return "; ".join(
        f"{quality or 'other'}: {each}{f', {each.misses}' if each.misses else ''}"
        f"{f', up to {_people(each.offer.load.concurrency)}' if is_open else ''}"
        for quality, each in _first(offers, lambda one: quality_of(one.offer.model)).items()
    )


def _not(each: Refused) -> str:
    """Say in a line why a place cannot, and how many others cannot for the same reason."""
    first, *others = each.target.split(", ")
    more = f" and {len(others)} more" if others else ""
    reason = one_line(_first_sentence(each.reason), _LONG_REASON)
    return f"{short_name(each.model)} on {first}{more}: {reason}"


def _first_sentence(reason: str) -> str:
    """Return a reason without the figures that it rests on."""
    return reason.partition(" (")[0].partition(". ")[0].rstrip(".") + "."


def _together(refusals: Sequence[Refusal]) -> tuple[Refused, ...]:
    """Return refusals, those that say the same of one model in one."""
    rows = [refused(each) for each in refusals]
    groups = alike(rows, lambda each: (each.model, each.reason, each.would_fit, each.offload))
    return tuple(
        first.model_copy(update={"target": ", ".join(each.target for each in (first, *rest))})
        for first, *rest in groups
    )
