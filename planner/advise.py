"""Where to run a model, with which flags and why; and why not elsewhere."""

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from core.errors import OpsError
from core.records import Answer, MemoryPlan, ModelShape
from planner.catalog import not_on_hub
from planner.goal import Goal, candidates, siblings
from planner.layouts import Arrangement, Ground, Wish, arrange
from planner.near import NearMiss, Offload, near_misses, offload
from planner.offers import (
    Offer,
    Refusal,
    Site,
    commonest,
    host_gib,
    host_too_small,
    make_offer,
    no_room,
    refuse,
    served,
    spare_gib,
    whose,
)
from planner.places import Place, place, places
from planner.price import Price
from planner.published import FIGURES, unserved

_INSTEAD: Final = 3
"""Alternatives of each kind that are shown."""


class Advice(Answer):
    """Every place for a goal: the feasible ones ranked, the others with the reason."""

    goal: Goal
    offers: tuple[Offer, ...]
    """The best first: rented before your own, sure before doubtful, then by price and speed."""
    refused: tuple[Refusal, ...]
    elsewhere: tuple[Offer, ...] = ()
    """The same model at other places, where the goal's places all refuse."""
    instead: tuple[Offer, ...] = ()
    """Other models at the goal's places, where they all refuse, the largest first."""

    def summary(self) -> str:
        """Say what to do, or why nothing can be done."""
        if self.offers:
            best = self.offers[0]
            return f"{best.model} on {best.place}: {best.reason}"
        said = f"Nothing fits. {self._why_not()}" if self.refused else "Nothing was asked of."
        other = [f"{offer.model} on {offer.place}" for offer in (*self.elsewhere, *self.instead)]
        return f"{said} Instead: {', '.join(other)}." if other else said

    def warnings(self) -> tuple[str, ...]:
        """What the first offer leaves in doubt."""
        return (*self.offers[0].doubts, *self.offers[0].warnings) if self.offers else ()

    def _why_not(self) -> str:
        """Say the commonest reason, the first of those, and the length that it leaves."""
        why = commonest(self.refused)
        alike = {each.place for each in self.refused if each.reason == why.reason}
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        lengths = (near.arrangement.memory.max_model_len for near in why.nearest)
        shorter = next((each for each in lengths if each < self.goal.max_model_len), None)
        cure = f" It fits {why.place} with max_model_len={shorter}." if shorter else ""
        return f"{whose(why, self.refused)}{more}: {why.reason}{cure}"


class _Ask(NamedTuple):
    """One goal and the backends that there are; remembers plans over places."""

    goal: Goal
    backends: Collection[str]
    grounds: dict[tuple[str, str, int], Ground]
    arranged: dict[tuple[str, str, int, str | None], Arrangement]
    misses: dict[
        tuple[str, str, int, int | None, str | None], tuple[tuple[NearMiss, ...], Offload | None]
    ]
    near: bool = True
    """Look for what comes near, where something does not fit."""

    def wish(self, where: Place) -> Wish:
        version = self.goal.vllm_version or where.vllm_version
        return self.goal.wish._replace(vllm_version=version)

    def ground(self, model: ModelShape, where: Place) -> Ground:
        key = (model.model, where.accelerator, where.count)
        if key not in self.grounds:
            self.grounds[key] = Ground(model, where.device, where.count)
        return self.grounds[key]

    def arrangement(self, model: ModelShape, where: Place) -> Arrangement:
        wish = self.wish(where)
        key = (model.model, where.accelerator, where.count, wish.vllm_version)
        if key not in self.arranged:
            self.arranged[key] = arrange(self.ground(model, where), wish)
        return self.arranged[key]

    def missed(
        self, model: ModelShape, where: Place, memory: MemoryPlan
    ) -> tuple[tuple[NearMiss, ...], Offload | None]:
        wish = self.wish(where)
        size = where.largest_ram_gib
        key = (model.model, where.accelerator, where.count, size, wish.vllm_version)
        if key not in self.misses:
            ground = self.ground(model, where)
            loads = memory.load_peak_gib <= _free_gib(where)
            self.misses[key] = (
                tuple(near_misses(ground, wish)),
                None if loads else offload(ground, wish, spare_gib(model, where)),
            )
        return self.misses[key]

    def site(self, where: Place) -> Site:
        return Site(
            place=where,
            load=self.goal.load,
            context=self.goal.max_model_len // 2,
            duty=self.goal.duty,
            deployable=where.deployable(self.backends),
        )


def advise(goal: Goal, *, backends: Collection[str] = ()) -> Advice:
    """Rank every place for a goal; `backends` are those that this project has.

    Raises:
        InvalidArgument: The model or a place is not known.
    """
    models = candidates(goal)
    ask = _Ask(goal, backends, {}, {}, {})
    asked = [place(name) for name in goal.places] or list(places().values())
    offers, refused = _split(ask, models, asked)
    elsewhere, instead = ([], []) if offers else _alternatives(ask, models, asked)
    return Advice(
        goal=goal,
        offers=tuple(sorted(offers, key=_rank)),
        refused=tuple(refused),
        elsewhere=tuple(sorted(elsewhere, key=_rank)[:_INSTEAD]),
        instead=tuple(instead[:_INSTEAD]),
    )


def consider(
    model: ModelShape, where: Place, goal: Goal, *, backends: Collection[str] = ()
) -> Offer | Refusal:
    """Offer or refuse one model at one place.

    Raises:
        InvalidArgument: A flag of the goal is none that vLLM takes.
    """
    return _consider(_Ask(goal, backends, {}, {}, {}), model, where)


def considering(
    goal: Goal, *, backends: Collection[str] = (), near: bool = True
) -> Callable[[ModelShape, Place], Offer | Refusal]:
    """Do the same for many: what is alike at several places is reckoned once.

    Without `near` nobody looks for what would come near, which takes most of the time.
    """
    return functools.partial(_consider, _Ask(goal, backends, {}, {}, {}, near))


def _split(
    ask: _Ask, models: Collection[ModelShape], asked: Collection[Place]
) -> tuple[list[Offer], list[Refusal]]:
    pairs = [(model, where) for model in models for where in asked]
    found = [served(model, where, _consider(ask, model, where)) for model, where in pairs]
    offers = [each for each in found if isinstance(each, Offer)]
    return offers, [each for each in found if isinstance(each, Refusal)]


def _alternatives(
    ask: _Ask, models: Collection[ModelShape], asked: Collection[Place]
) -> tuple[list[Offer], list[Offer]]:
    others = [where for where in places().values() if where not in asked]
    elsewhere, _ = _split(ask, models, others)
    instead = []
    for sibling in siblings(next(iter(models))):
        offers, _ = _split(ask, [sibling], asked)
        instead += sorted(offers, key=_rank)[:1]
        if len(instead) == _INSTEAD:
            break
    return elsewhere, instead


def _consider(ask: _Ask, model: ModelShape, where: Place) -> Offer | Refusal:
    if ask.goal.scale_to_zero and not where.scale_to_zero:
        return refuse(model, where, "scale to zero", "It does not scale to zero.")
    if where.device.bandwidth_gb_per_s is None:
        return refuse(model, where, "not known", " ".join(where.limits))
    try:
        arranged = ask.arrangement(model, where)
    except OpsError as exc:
        return refuse(model, where, "not known", exc.summary)
    if not arranged.enough:
        return _does_not_fit(ask, model, where, arranged)
    return _with_host(ask, model, where, arranged)


def _does_not_fit(ask: _Ask, model: ModelShape, where: Place, arranged: Arrangement) -> Refusal:
    memory = arranged.memory
    nearest, offloaded = ask.missed(model, where, memory) if ask.near else ((), None)
    why = _too_many(ask, model, where, arranged) or " ".join(memory.reasons)
    return no_room(model, where, memory, reason=why, nearest=nearest, offload=offloaded)


def _too_many(ask: _Ask, model: ModelShape, where: Place, arranged: Arrangement) -> str | None:
    """Say how many requests are held, where fewer would fit: sequences take memory themselves."""
    memory, most = arranged.memory, ""
    if not memory.fits:
        alone = arranged.flags.model_copy(update={"max_num_seqs": 1})
        memory, most = ask.ground(model, where).plan(alone), "At most "
    held = memory.kv_low.max_concurrency
    if not memory.fits or held >= ask.goal.users:
        return None
    return (
        f"{most}{held:.2f} requests of {memory.max_model_len:,} tokens are held at once on the low"
        f" estimate, {ask.goal.users} are wanted."
    )


def _with_host(
    ask: _Ask, model: ModelShape, where: Place, arranged: Arrangement
) -> Offer | Refusal:
    needed = host_gib(model, where, arranged.flags)
    size = where.size_for(needed)
    if where.sizes and size is None:
        return host_too_small(model, where, needed)
    offer = make_offer(model, ask.site(where), arranged, size)
    return _judged(ask.goal, model, where, offer)


def _judged(goal: Goal, model: ModelShape, where: Place, offer: Offer) -> Offer | Refusal:
    if too_slow := _too_slow(goal, offer):
        return refuse(model, where, "speed", too_slow)
    if too_dear := _too_dear(goal, offer.price):
        return refuse(model, where, "price", too_dear)
    if offer.boot.within_budget == "no":
        return refuse(model, where, "boot", offer.boot.advice)
    doubts = (*_unserved(model, where), *_not_on_hub(model), *_doubts(goal, offer))
    return offer.model_copy(update={"doubts": doubts})


def _too_slow(goal: Goal, offer: Offer) -> str | None:
    wanted, each = goal.tokens_per_second_per_user, offer.decode.tokens_per_second_per_user
    if wanted is None or each.high >= wanted:
        return None
    return (
        f"{wanted:g} tokens/s for each of {goal.users} is more than the {each.high:.3g} that can "
        f"be expected; the roof is {offer.decode.roof_tokens_per_second / goal.users:.3g}."
    )


def _limits(goal: Goal, price: Price) -> Iterator[tuple[float, float, float, str]]:
    """Yield every budget with the first and the dearest price beside it."""
    usual, most = price.usd_per_hour, price.usd_per_hour_highest
    if usual is None or most is None:
        return
    if goal.usd_per_hour:
        yield goal.usd_per_hour, usual, most, "hour"
    if goal.usd_per_month:
        hours = goal.hours_per_month
        yield goal.usd_per_month, usual * hours, most * hours, "month"


def _too_dear(goal: Goal, price: Price) -> str | None:
    for budget, usual, _, unit in _limits(goal, price):
        if usual > budget:
            return f"It costs ${usual:,.2f} a {unit}, ${budget:,.2f} are allowed ({price})."
    return None


def _unserved(model: ModelShape, where: Place) -> Iterator[str]:
    if why := unserved(model, where.device):
        yield f"{why} {FIGURES}"


def _not_on_hub(model: ModelShape) -> Iterator[str]:
    if why := not_on_hub(model.model):
        yield f"{why} It is for whoever has its files in a bucket: weights=gs://BUCKET/FOLDER."


def _doubts(goal: Goal, offer: Offer) -> Iterator[str]:
    for budget, _, most, unit in _limits(goal, offer.price):
        if most > budget:
            yield f"One source says ${most:,.2f} a {unit}, more than the ${budget:,.2f} allowed."
    if (goal.usd_per_hour or goal.usd_per_month) and offer.price.usd_per_hour is None:
        yield "Its price is not known."
    wanted, each = goal.tokens_per_second_per_user, offer.decode.tokens_per_second_per_user
    if wanted and each.low >= wanted and offer.decode.beyond:
        yield f"{wanted:g} tokens/s for each user is extrapolated: {offer.decode.beyond}."
    if wanted and each.low < wanted:
        yield f"{wanted:g} tokens/s for each user lies within the predicted range, {each}."


def _rank(offer: Offer) -> tuple[bool, int, float, float]:
    price = offer.price.usd_per_hour
    return (
        offer.price.usd_per_hour == 0,  # Hardware of your own, if you have it.
        len(offer.doubts),
        float("inf") if price is None else price,
        -offer.decode.tokens_per_second.middle,
    )


def _free_gib(where: Place) -> float:
    device = where.device
    return (device.memory_gib or 0) * device.free_at_start
