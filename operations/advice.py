"""Advice for a goal: what can be deployed from here, best first, and what comes nearest."""

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import Field

from backends.registry import BACKENDS
from benchmark.records import figure, listed
from core.errors import NextStep
from core.records import ModelShape, Record, valid
from operations.comparison import alike, price_doubts, widened
from operations.forecast import (
    Foreseen,
    Foresight,
    Refused,
    at_place,
    dollars,
    foreseen,
    guesses,
    in_short,
    load_words,
    priced,
    refused,
    spoken,
)
from operations.runtime import Runtime
from operations.targets import goes_to, in_region, limited_to, place_named, within
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
from planner.compare import Row, compare
from planner.layouts import NearMiss
from planner.model import catalog_shape
from planner.places import Place, accelerator, place, places
from planner.speed import Band

_MOST: Final = 512
"""Users of one replica, beyond which nobody asks."""
_REPLICAS: Final = {"aca": 1000, "tpu": 1, "local": 1}
"""Of one deployment, by backend; elsewhere only a quota limits them."""


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
    def deployments(self) -> int:
        """How many it takes to have so many replicas."""
        most = _REPLICAS.get(place(self.offer.place).deployable_by, self.replicas)
        return math.ceil(self.replicas / most)

    @property
    def doubt(self) -> str | None:
        """Say what so many replicas need that one does not."""
        if self.replicas == 1:
            return None
        where = place(self.offer.place)
        many = f", in {self.deployments} deployments under names of their own"
        return (
            f"{self.replicas} replicas on {where.name} need a quota of"
            f" {self.replicas * where.count} accelerators{many if self.deployments > 1 else ''};"
            " new projects and subscriptions have a quota of few or none."
        )


def by_price(sized: Sized) -> tuple[bool, bool, float, float]:
    """Order by what can be deployed to, then by price and speed."""
    offer, hourly = sized.offer, sized.usd_per_hour
    return (
        not offer.deployable,
        hourly == 0,  # Hardware of your own, if you have it.
        float("inf") if hourly is None else hourly,
        -offer.decode.tokens_per_second.middle,
    )


class Sizing:
    """A goal for some users; what is alike at several places is computed once."""

    def __init__(self, goal: Goal, users: int | None, backends: Collection[str]) -> None:
        self._goal, self._users, self._backends = goal, users, backends
        self._considering = functools.cache(self._consider)

    def at(self, model: ModelShape, where: Place) -> Sized | Refusal:
        """Offer it for all users; for as many as one replica has at the speed, if none are said."""
        users = self._users
        found = self._ask(model, where, users or 1, near=True)
        if users is None and self._goal.tokens_per_second_per_user and isinstance(found, Offer):
            found = self._ask(model, where, self._most(model, where, _MOST))
        if isinstance(found, Offer):
            return Sized(found)
        if users is None or users == 1 or found.why not in {"memory", "speed"}:
            return found
        if where.deployable_by == "local":
            return found  # There is one such machine.
        most = self._most(model, where, users - 1)
        fewer = self._ask(model, where, most) if most else found
        if isinstance(fewer, Refusal):
            return found
        return _within_budget(model, where, self._goal, Sized(fewer, math.ceil(users / most)))

    def _consider(
        self, users: int, *, near: bool
    ) -> Callable[[ModelShape, Place], Offer | Refusal]:
        goal = self._goal.model_copy(update={"users": users})
        return considering(goal, backends=self._backends, near=near)

    def _ask(
        self, model: ModelShape, where: Place, users: int, *, near: bool = False
    ) -> Offer | Refusal:
        found = served(model, where, self._considering(users, near=near)(model, where))
        goal = self._goal.model_copy(update={"users": users})
        return _fast_enough(model, where, goal, found)

    def _most(self, model: ModelShape, where: Place, limit: int) -> int:
        """Return the most users that are held at once and each fast enough, 0 if none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            enough = isinstance(self._ask(model, where, middle), Offer)
            low, high = (middle, high) if enough else (low, middle - 1)
        return low


def _fast_enough(
    model: ModelShape, where: Place, goal: Goal, found: Offer | Refusal
) -> Offer | Refusal:
    """Refuse what is expected to be slower than was asked, though its best case may not be."""
    wanted = goal.tokens_per_second_per_user
    if isinstance(found, Refusal) or wanted is None:
        return found
    speed = found.decode.tokens_per_second_per_user
    if speed.middle >= wanted:
        return found
    whom = "one user" if goal.users == 1 else f"each of {goal.users} users"
    return refuse(
        model, where, "speed", f"{speed} tokens/s are predicted for {whom}, {wanted:g} are wanted."
    )


def _within_budget(model: ModelShape, where: Place, goal: Goal, found: Sized) -> Sized | Refusal:
    total = found.usd_per_hour
    limits = (
        (goal.usd_per_hour, 1.0, "an hour"),
        (goal.usd_per_month, goal.hours_per_month, "a month"),
    )
    for budget, hours, unit in limits:
        if budget and total is not None and total * hours > budget:
            return refuse(
                model,
                where,
                "price",
                f"{found.replicas} replicas cost ${total * hours:,.2f} {unit},"
                f" ${budget:,.2f} are allowed.",
            )
    return found


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
        return sorted(offers, key=by_price), [each for each in found if isinstance(each, Refusal)]

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


_OFFERS: Final = 3
_NAMED: Final = 4
"""Offers that the summary names, with their prices."""
_NEAR: Final = 5
"""What comes nearest that is shown."""
_NOT: Final = 3
_LONG: Final = 110
"""Reasons, and characters of each, in the short form."""
_REFUSED: Final = 8
"""Reasons that are shown: more are longer than a person reads."""


class Option(Foreseen):
    """One model at one place, as often as the users need it."""

    replicas: int = 1
    replicas_doubt: str | None = None
    """What so many need that one does not."""
    users_at_the_speed: int | None = None
    """That one replica answers at the speed asked for."""
    misses: str | None = None
    """What of the goal it does not meet."""
    region: str | None = None
    """Where it would be, and what makes it go there."""

    def row(self) -> dict[str, Any]:
        """Return what decides."""
        return {
            "target": self.target,
            "model": short_name(self.model),
            "replicas": self.replicas if self.replicas > 1 else None,
            "tokens/s": self.tokens_per_second_per_user,
            "at once": self.at_once.partition(":")[0].replace(" at once", ""),
            "$/h": None if self.usd_per_hour is None else self.usd_per_hour * self.replicas,
            "not met": self.misses,
            "region": self.region,
        }


class Recommendation(Foresight):
    """Where to run a model for a goal, best first, and why not elsewhere."""

    said: str = Field(exclude=True)
    offers: tuple[Option, ...]
    refused: tuple[Refused, ...]
    instead: tuple[Option, ...]
    """What comes nearest, where nothing does all that is asked for; and int4 weights that cost
    less on demand, where something does."""
    more_offers: int
    """That are not shown."""
    more_refused: int
    """Reasons that are not shown."""
    asked_region: str | None = Field(exclude=True)

    def summary(self) -> str:
        """Say the best, or what comes nearest and by how much it misses."""
        return self.said

    def facts(self) -> Mapping[str, Any]:
        """Return the options side by side, the best one's flags, and why not elsewhere."""
        shown = (*self.offers, *self.instead)
        return {
            "options": [each.row() for each in shown],
            "engine_line": shown[0].engine_line if shown else None,
            "load": shown[0].load if shown else None,
            "not": [_not(each) for each in self.refused[:_NOT]],
        }

    def warnings(self) -> tuple[str, ...]:
        """Say what the first leaves in doubt, and how sure the speeds are."""
        first = (*self.offers, *self.instead)[:1]
        many = (each.replicas_doubt for each in first if each.replicas_doubt)
        doubts = [f"{offer.target}: {each}" for offer in first for each in offer.doubts]
        return (*many, *dict.fromkeys(doubts), *guesses(first))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Plan the first that can be deployed."""
        there = {"region": self.asked_region} if self.asked_region else {}
        steps = self.steps((*self.offers, *self.instead))
        return tuple(NextStep(step.tool, {**step.arguments, **there}) for step in steps)


def recommend(
    runtime: Runtime, said: Mapping[str, Any], targets: Sequence[str], region: str | None
) -> Recommendation:
    """Rank the places of this server for a goal, or those that are named.

    Raises:
        InvalidArgument: The model is not known, or no place is in the region.
        TargetNotFound: No place has that name.
    """
    given = {name: value for name, value in said.items() if value is not None}
    wanted = valid(Goal, given)
    named = given.get("model") or given.get("quality")
    published = (catalog_shape(one.model) for one in entries() if not one.absent)
    models = candidates(wanted) if named else [*published]
    ours = _ours(runtime, region)
    asked = Asked(
        wanted, given.get("users"), models, _asked_for(runtime, targets, region, ours), region
    )
    offers, refusals = asked.find()
    near = list(_beside(asked, offers, ours))
    if not offers:
        known = {where.name for where in asked.places}
        elsewhere = [where for where in ours if where.name not in known]
        near = _once(second_best(asked, refusals, elsewhere), by_quality=not named)
    why_not = _together(refusals)

    def option(each: Sized) -> Option:
        return _option(runtime, asked, each)

    return Recommendation(
        said=_summary(runtime, asked, offers, near, refusals),
        offers=tuple(map(option, offers[:_OFFERS])),
        refused=why_not[:_REFUSED],
        more_refused=max(0, len(why_not) - _REFUSED),
        instead=tuple(map(option, near)),
        more_offers=max(0, len(offers) - _OFFERS),
        asked_region=region,
    )


def _ours(runtime: Runtime, region: str | None) -> list[Place]:
    """Return every place that this server deploys to; this machine where its GPU is known."""
    here = place_named(runtime, "local")
    found = [
        where
        for where in places().values()
        if where.deployable(BACKENDS) and where.provider != "own"
    ]
    if region:
        found = [limited_to(where, region) for where in found if within(where, region)]
    return found if accelerator(here.accelerator).kind == "cpu" else [here, *found]


def _asked_for(
    runtime: Runtime, targets: Sequence[str], region: str | None, ours: Sequence[Place]
) -> list[Place]:
    """Return the places that are named, else those of this server; in the region, if one is said.

    Raises:
        InvalidArgument: None of them is there.
    """
    named = [place_named(runtime, name) for name in widened(targets)] or list(ours)
    if not named:
        in_region([where.name for where in places().values() if where.regions], region)
    there = in_region([where.name for where in named], region)
    return [limited_to(where, region) for where in named if where.name in there]


def _beside(asked: Asked, offers: Sequence[Sized], ours: Sequence[Place]) -> Iterator[Sized]:
    """Yield int4 weights of the model that was named where they cost less than it does without a
    queue or an interruption, and what can be deployed where nothing of the offers can.
    """
    if not offers or asked.goal.model is None:
        return
    lasting = (one for one in offers if place(one.offer.place).provisioning == "on-demand")
    least = next(lasting, offers[0]).usd_per_hour
    for each in asked.quantized().find()[0][:1]:
        if least and each.usd_per_hour and each.usd_per_hour < least:
            yield each._replace(misses=QAT)
    if not offers[0].offer.deployable:
        for each in asked._replace(places=ours).find()[0][:1]:
            yield each._replace(misses="another target")


def _once(found: Iterator[Sized], *, by_quality: bool) -> list[Sized]:
    """Return each model at each place once, with the first reason; or the first of each quality."""
    first: dict[object, Sized] = {}
    for each in found:
        name = (each.offer.model, each.offer.place)
        first.setdefault(quality_of(each.offer.model) if by_quality else name, each)
        if len(first) == _NEAR:
            break
    return sorted(first.values(), key=lambda each: not each.offer.deployable)


def _option(runtime: Runtime, asked: Asked, each: Sized) -> Option:
    speed = asked.goal.tokens_per_second_per_user
    return Option(
        **dict(foreseen(each.offer)),
        replicas=each.replicas,
        replicas_doubt=each.doubt,
        users_at_the_speed=each.offer.load.concurrency if speed else None,
        misses=each.misses or None,
        region=_where_to(runtime, asked, each),
    )


def _where_to(runtime: Runtime, asked: Asked, each: Sized) -> str | None:
    """Say the region that was asked for, and what makes a deployment go there."""
    where = next((one for one in asked.places if one.name == each.offer.place), None)
    if asked.region is None or where is None or not where.regions:
        return None
    there, todo = goes_to(runtime, where)
    return f"{there}{f': {todo}' if todo else ''}"


def _summary(
    runtime: Runtime,
    asked: Asked,
    offers: Sequence[Sized],
    near: Sequence[Sized],
    refusals: Sequence[Refusal],
) -> str:
    if not offers:
        return _none(asked, near, refusals)
    if not (asked.goal.model or asked.goal.quality):
        return f"{_users(asked, None) or 'At the lowest price'}: {_by_quality(asked, offers)}."
    best, *rest = offers
    words = (
        f"{_users(asked, best)}{at_place(best.offer, replicas=best.replicas)},"
        f" {priced(best.offer, replicas=best.replicas)}: {in_short(best.offer)}"
    )
    if region := _where_to(runtime, asked, best):
        words += f" In {region}."
    if not best.offer.deployable:
        words += " This server does not deploy there."
    if near:
        words += f" With {near[0].misses}: {_named(near[0])}."
    others = [_named(each, best.offer.model) for each in rest]
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{words} Also: {', '.join(others[:_NAMED])}{more}." if others else words


def _users(asked: Asked, best: Sized | None) -> str:
    """Say first what was asked of users: how many, or how many replicas serve them."""
    speed, users = asked.goal.tokens_per_second_per_user, asked.users
    at = f" at {speed:g} tokens/s each" if speed else ""
    if best is None:
        return f"{users} users{at}" if users else at.strip().capitalize()
    load = best.offer.load.concurrency
    if users is None:
        return f"Up to {_people(load)}{at} on one replica: " if at else ""
    if best.replicas > 1:
        each = " (each a deployment)" if best.deployments == best.replicas else ""
        return f"{users} users{at}: {best.replicas} replicas{each}, up to {load} users each: "
    return "" if users == 1 else f"{users} users{at}: one replica: "


def _people(users: int) -> str:
    return f"{users} user{'s' if users > 1 else ''}"


def _by_quality(asked: Asked, offers: Sequence[Sized]) -> str:
    """Say the first of each quality, and for how many users where that was left open."""
    is_open = asked.users is None and asked.goal.tokens_per_second_per_user
    best: dict[str, Sized] = {}
    for each in offers:
        best.setdefault(quality_of(each.offer.model) or "other", each)
    return "; ".join(
        f"{quality}: {_named(each)}{f', {each.misses}' if each.misses else ''}"
        f"{f', up to {_people(each.offer.load.concurrency)}' if is_open else ''}"
        for quality, each in best.items()
    )


def _none(asked: Asked, near: Sequence[Sized], refusals: Sequence[Refusal]) -> str:
    why = commonest(refusals)
    because = f" {whose(why, refusals)}: {_first_sentence(why.reason)}"
    if not near:
        return f"Nothing does that.{because}"
    if not (asked.goal.model or asked.goal.quality):
        return f"Nothing here does that. Nearest: {_by_quality(asked, near)}."
    first, *others = near
    also = f" Or: {', '.join(map(_named, others[:2]))}." if others else ""
    return (
        f"Nothing here does all of that. Nearest:"
        f" {at_place(first.offer, replicas=first.replicas)},"
        f" {priced(first.offer, replicas=first.replicas, lowest=True)}: {first.misses}."
        f" {_upper(in_short(first.offer))}{also}{'' if why.why == 'price' else because}"
    )


def _not(each: Refused) -> str:
    """Say in a line why a place cannot, and how many others cannot for the same reason."""
    first, *others = each.target.split(", ")
    more = f" and {len(others)} more" if others else ""
    reason = _first_sentence(each.reason)
    short = reason if len(reason) <= _LONG else f"{reason[:_LONG].rpartition(' ')[0]} …"
    return f"{short_name(each.model)} on {first}{more}: {short}"


def _upper(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _first_sentence(reason: str) -> str:
    """Return a reason without the figures that it rests on."""
    return reason.partition(" (")[0].partition(". ")[0].rstrip(".") + "."


def _named(each: Sized, known: str = "") -> str:
    """Say place and price, and the model where it is not the one that is known already."""
    many = f"{each.replicas} x " if each.replicas > 1 else ""
    model = "" if each.offer.model == known else f"{short_name(each.offer.model)} on "
    costs = priced(each.offer, replicas=each.replicas, lowest=True)
    return f"{model}{many}{each.offer.place} ({costs})"


def _together(refusals: Sequence[Refusal]) -> tuple[Refused, ...]:
    """Return refusals, those that say the same of one model in one."""
    rows = [refused(each) for each in refusals]
    groups = alike(rows, lambda each: (each.model, each.reason, each.would_fit, each.offload))
    return tuple(
        first.model_copy(update={"target": ", ".join(each.target for each in (first, *rest))})
        for first, *rest in groups
    )


_CROWD: Final = 32
"""Users at once that share an accelerator in the rule about batches."""


class Chosen(Record):
    """One model, and where an hour of it costs least."""

    model: str
    quality: str
    target: str | None
    weights_gib: float | None
    """There."""
    tokens_per_second: str | None
    """For each user there."""
    usd_per_hour: float | None
    usd_per_million_tokens: str | None
    not_on: tuple[str, ...]
    """Targets that do not serve it as asked, spot and flex-start left out."""
    why_not: str | None
    """Of the first of them."""


class Choice(Foresight):
    """Every model, where it is cheapest, for somebody who has named none."""

    load: str
    """That speeds and costs are of."""
    targets: tuple[str, ...]
    """That were looked at, where named; else all rented ones that this server deploys to."""
    rules: tuple[str, ...]
    """Each computed for these targets."""
    options: tuple[Chosen, ...]
    doubts: tuple[str, ...] = Field(exclude=True)
    """Of prices."""
    why_none: str | None = Field(exclude=True)
    """Nothing is served for this reason, the commonest."""
    plan: dict[str, Any] = Field(exclude=True)

    def summary(self) -> str:
        """Say what each quality would be served by."""
        best: dict[str, str] = {}
        priced_ones = [one for one in self.options if one.target and one.usd_per_hour is not None]
        for one in sorted(priced_ones, key=lambda each: each.usd_per_hour or 0.0):
            hourly = dollars(one.usd_per_hour or 0.0)
            where = f"{short_name(one.model)} on {one.target} ({hourly} an hour)"
            best.setdefault(one.quality, f"{one.quality}: {where}")
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
        return {"models": rows, "rules": list(self.rules)}

    def warnings(self) -> tuple[str, ...]:
        """Say how sure the figures are."""
        measure = "All speeds are predicted by the planner; run_benchmark measures them."
        return (measure, *self.doubts)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Ask for one quality, with the flags."""
        return (NextStep("recommend_deployment", {"quality": "medium", **self.plan}),)


def choose(targets: Sequence[str], goal: dict[str, Any], region: str | None) -> Choice:
    """Lay out every model of the catalog over these targets, or over those that can be deployed to.

    Raises:
        InvalidArgument: None of them has a region there.
        TargetNotFound: No place has that name.
    """
    said = {name: value for name, value in goal.items() if value}
    rented = (
        name
        for name, where in places().items()
        if where.deployable(BACKENDS) and where.provider != "own"
    )
    names = in_region(widened(targets) or tuple(rented), region)
    models = [entry.model for entry in entries() if not entry.absent]
    wanted = valid(Goal, {**said, "model": models[0], "places": names})
    found = compare(models, names, wanted, backends=BACKENDS)
    missing = [row.refusal for row in found.rows if row.refusal]
    first = commonest(missing) if missing else None
    reason = "" if first is None else _NO_TILES if first.why == "accelerator" else first.reason
    return Choice(
        load=load_words(wanted.load),
        targets=names if targets else (),
        rules=tuple(_rules(found.rows, wanted, names)),
        options=tuple(_chosen([row for row in found.rows if row.model == one]) for one in models),
        doubts=tuple(price_doubts(found.rows)),
        why_none=f"{whose(first, missing)}: {reason}" if first else None,
        plan={
            **said,
            **({"targets": list(targets)} if targets else {}),
            **({"region": region} if region else {}),
        },
    )


_NO_TILES: Final = "published vLLM cannot serve it there, whatever the memory"


def _is_served(row: Row) -> bool:
    return row.fits and not row.unserved


def _chosen(rows: Sequence[Row]) -> Chosen:
    """Give one model at the lowest price, of equal ones the fastest."""
    hourly = sorted(
        filter(_is_served, rows),
        key=lambda row: (
            row.usd_per_hour or float("inf"),
            -_middle(row.tokens_per_second_per_user),
        ),
    )
    best = hourly[0] if hourly else None
    missing = [
        row for row in rows if not _is_served(row) and place(row.place).provisioning == "on-demand"
    ]
    why = (
        f"{missing[0].place}: {_NO_TILES if missing[0].unserved else missing[0].reason}"
        if missing
        else None
    )
    tokens = best.usd_per_million_tokens if best and best.usd_per_hour else None
    return Chosen(
        model=rows[0].model,
        quality=quality_of(rows[0].model) or "other",
        target=best.place if best else None,
        weights_gib=round(best.weights_gib or 0, 2) if best else None,
        tokens_per_second=str(best.tokens_per_second_per_user) if best else None,
        usd_per_hour=best.usd_per_hour if best else None,
        usd_per_million_tokens=str(tokens) if tokens else None,
        not_on=tuple(row.place for row in missing),
        why_not=why,
    )


def _middle(band: Band | None) -> float:
    return band.middle if band else 0.0


def _rules(rows: Sequence[Row], goal: Goal, names: Sequence[str]) -> Iterator[str]:
    """Yield what holds here: what four bits save, what a batch does, and where idle hours bill."""
    served_ones = list(filter(_is_served, rows))
    by_key = {(row.model, row.place): row for row in served_ones}
    for (model, where), row in reversed(by_key.items()):
        full = by_key.get((model.removesuffix(QUANTIZED), where))
        if full and full is not row and row.weights_gib and full.weights_gib:
            faster = _middle(row.tokens_per_second_per_user) / _middle(
                full.tokens_per_second_per_user
            )
            yield (
                "Take the QAT (w4a16) checkpoint unless your own evaluation forbids it:"
                f" {short_name(model)} takes {row.weights_gib:.1f} GiB a device against"
                f" {full.weights_gib:.1f}, {figure(faster)} times as fast."
            )
            break
    priced_ones = [row for row in served_ones if row.usd_per_million_tokens and row.usd_per_hour]
    if priced_ones:
        row = min(priced_ones, key=lambda one: _middle(one.usd_per_million_tokens))
        crowd = goal.model_copy(update={"model": row.model, "users": _CROWD, "max_model_len": 2048})
        (shape,) = candidates(crowd)
        offer = consider(shape, place(row.place), crowd, backends=BACKENDS)
        if isinstance(offer, Offer) and offer.cost:
            yield (
                f"Fill it: {short_name(row.model)} on {row.place} costs"
                f" ${row.usd_per_million_tokens} per million tokens with {goal.users} at once and"
                f" ${offer.cost.usd_per_million_tokens} with {_CROWD} of 2,048 tokens."
            )
    there = {row.place for row in served_ones}
    serving = [place(name) for name in names if name in there]
    if sleeping := [where.name for where in serving if where.scale_to_zero]:
        yield f"{listed(sleeping)} bill no accelerator while nobody asks."
    if staying := [where.name for where in serving if not where.scale_to_zero]:
        yield f"{listed(staying)} bill until deleted: give ttl_minutes."
