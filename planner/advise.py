"""Where to run a model, with which flags and why; and why not elsewhere."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from pydantic import Field

from core.errors import InvalidArgument, OpsError
from core.records import Answer, MemoryPlan, ModelShape, Record
from planner.boot import Boot, boot, file_bytes
from planner.catalog import entries, find, not_on_hub
from planner.flags import Flags, parsers_for
from planner.layouts import (
    SHORTEST,
    Arrangement,
    Change,
    Ground,
    Layout,
    NearMiss,
    Offload,
    Wish,
    arrange,
    near_misses,
    offload,
)
from planner.model import read_model
from planner.places import FIGURES, Place, Size, accelerator, place, places, unserved
from planner.price import HOURS_PER_MONTH, Load, LoadCost, Price, load_cost, price
from planner.speed import Decode, Prefill, Saturation, decode, prefill, saturation

Quality = Literal["small", "medium", "large"]

_QUALITY: Final[dict[Quality, tuple[str, ...]]] = {
    "small": ("E2B", "E4B"),
    "medium": ("12B",),
    "large": ("26B", "31B"),
}
"""Sizes of the catalog, by how well they answer: parameters that a token passes, and in all."""


class Goal(Record):
    """What is wanted; what is left out does not matter."""

    model: str | None = None
    """A Hub id, a short name such as `12b qat`, or a folder; else `quality` chooses."""
    quality: Quality | None = None
    max_model_len: int = Field(default=8192, ge=SHORTEST)
    """Tokens of the longest prompt and its answer together."""
    users: int = Field(default=1, ge=1)
    """Requests of that length that must be held at once."""
    tokens_per_second_per_user: float | None = Field(default=None, gt=0)
    usd_per_hour: float | None = Field(default=None, gt=0)
    """The most that one replica may cost."""
    usd_per_month: float | None = Field(default=None, gt=0)
    hours_per_month: float = Field(default=HOURS_PER_MONTH, gt=0, le=HOURS_PER_MONTH + 14)
    """In which it runs; 730 is always."""
    scale_to_zero: bool = False
    """It must cost nothing while nobody asks, and wake by itself."""
    layout: Layout | None = None
    """What the flags are tuned for; left out, the plainest that do."""
    text_only: bool = False
    """No images and no sound."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Of a usual request; left out, half the length, at most 1,024."""
    output_tokens: int | None = Field(default=None, ge=1)
    """Left out, a quarter of the length, at most 256."""
    places: tuple[str, ...] = ()
    """Only these; left out, every place."""
    vllm_version: str | None = None

    @property
    def wish(self) -> Wish:
        """What the flags must make possible."""
        return Wish(
            max_model_len=self.max_model_len,
            requests=self.users,
            layout=self.layout,
            text_only=self.text_only,
            usual_tokens=self.load.prompt_tokens + self.load.output_tokens,
            vllm_version=self.vllm_version,
        )

    @property
    def load(self) -> Load:
        """The usual request, from every user at once."""
        return Load(
            prompt_tokens=self.prompt_tokens or min(1024, self.max_model_len // 2),
            output_tokens=self.output_tokens or min(256, self.max_model_len // 4),
            concurrency=self.users,
        )

    @property
    def duty(self) -> float:
        """The share of a month in which it runs."""
        return self.hours_per_month / HOURS_PER_MONTH


def candidates(goal: Goal) -> tuple[ModelShape, ...]:
    """Give the models that the goal allows.

    Raises:
        InvalidArgument: It names neither a model nor a quality, or a model nobody knows.
    """
    if goal.model:
        entry = find(goal.model)
        shape = _shape(entry.model) if entry else read_model(goal.model)
        if not (shape.layers and shape.groups):
            raise InvalidArgument(
                f"{goal.model} cannot be planned.",
                fix="Give a model of the catalog (list_models), or a folder with its files.",
                cause=" ".join(shape.unknown),
            )
        return (shape,)
    if goal.quality is None:
        raise InvalidArgument("Which model?", fix="Give a model, or quality=small|medium|large.")
    return tuple(_of_quality(goal.quality))


def quality_of(model: str) -> Quality | None:
    """Give the quality that a model of the catalog stands for, None for another's."""
    for quality, sizes in _QUALITY.items():
        if any(f"-{size}-" in model for size in sizes):
            return quality
    return None


def siblings(model: ModelShape) -> Iterator[ModelShape]:
    """Give the other models of the catalog, those with the most parameters first."""
    others = (_shape(one.model) for one in entries() if one.model != model.model and not one.absent)
    yield from sorted(others, key=lambda shape: (-shape.parameters, -(shape.weight_bytes or 0)))


def _of_quality(quality: Quality) -> Iterator[ModelShape]:
    for entry in entries():
        if not entry.absent and any(f"-{size}-" in entry.model for size in _QUALITY[quality]):
            yield _shape(entry.model)


@functools.cache
def _shape(model: str) -> ModelShape:
    return read_model(model)


Why = Literal[
    "memory", "host memory", "speed", "price", "scale to zero", "boot", "not known", "accelerator",
]  # fmt: skip


class Offer(Record):
    """A model at a place, with flags that make it fit."""

    place: str
    title: str
    model: str
    deployable: bool
    """This project has the backend that deploys there."""
    size: Size | None
    """The host to ask for; None where the place has no choice or none is known."""
    flags: Flags
    engine_line: str
    memory: MemoryPlan
    changes: tuple[Change, ...]
    """What was changed until it fitted, and what each change bought."""
    decode: Decode
    """With all users at once, half way through a full context."""
    full: Decode
    """With as many users at once as the cache holds and the flags allow."""
    prefill: Prefill
    saturation: Saturation
    boot: Boot
    price: Price
    cost: LoadCost | None
    """None where no price is known."""
    load: Load
    """That speeds and costs are of."""
    reason: str
    limits: tuple[str, ...] = ()
    """What the place forbids or does by itself."""
    doubts: tuple[str, ...] = ()
    """What of the goal is met only if the estimates come out well."""
    warnings: tuple[str, ...] = ()


class Refusal(Record):
    """A model that a place cannot serve as asked, and what it could."""

    place: str
    title: str
    model: str
    why: Why
    reason: str
    weights_gib: float | None = None
    load_peak_gib: float | None = None
    visible_gib: float | None = None
    nearest: tuple[NearMiss, ...] = ()
    """Plans that fit there and ask for less, the nearest first."""
    offload: Offload | None = None
    """What offloading to the host would mean, where only that would load it."""

    @property
    def asked_too_much(self) -> bool:
        """Whether a goal with fewer users, less length or a larger budget would be met there."""
        return self.why in {"speed", "price"} or bool(self.nearest)


class Site(Record):
    """Where and for what an offer is made."""

    place: Place
    load: Load
    context: int
    """Tokens that each request holds, half way."""
    duty: float
    deployable: bool


def make_offer(model: ModelShape, site: Site, arranged: Arrangement, size: Size | None) -> Offer:
    """Put together everything that is known of a plan that fits.

    Raises:
        InvalidArgument: The accelerator's bandwidth is not known.
    """
    place, flags, device = site.place, arranged.flags, site.place.device
    costs = price(place, size, duty=site.duty)
    step = decode(model, device, flags, concurrency=site.load.concurrency, context=site.context)
    full = saturation(model, device, flags, arranged.memory, context=site.context)
    together = max(1, min(full.kv_requests, arranged.memory.max_num_seqs))
    hourly = costs.usd_per_hour
    booting = boot(model, place, flags)
    parsers = parsers_for(model.model_type, place.vllm_version, ())
    named = {"place": place.name, "title": place.title, "model": model.model}
    return Offer(
        **named,
        deployable=site.deployable,
        size=size,
        flags=flags,
        engine_line=" ".join((engine_line(model.model, flags), *parsers.words)),
        memory=arranged.memory,
        changes=arranged.changes,
        decode=step,
        full=decode(model, device, flags, concurrency=together, context=site.context),
        prefill=prefill(model, device, flags, prompt_tokens=site.load.prompt_tokens),
        saturation=full,
        boot=booting,
        price=costs,
        cost=None if hourly is None else load_cost(model, device, flags, site.load, hourly),
        load=site.load,
        reason=_reason(arranged.memory, step, costs, size),
        limits=place.limits,
        warnings=(*arranged.memory.warnings, *_warnings(place, costs, booting)),
    )


def host_gib(model: ModelShape, place: Place, flags: Flags) -> float:
    """Memory that the host must have for weights: its file cache where that counts, and offload."""
    files = file_bytes(model) / 2**30 if place.host_holds_weights else 0.0
    return files + (flags.cpu_offload_gb or 0)


def spare_gib(model: ModelShape, place: Place) -> float | None:
    """Memory that the largest host has for an offload; None where that is not known."""
    return place.spare_gib(file_bytes(model) / 2**30 if place.host_holds_weights else 0.0)


def refuse(model: ModelShape, where: Place, why: Why, reason: str) -> Refusal:
    """Refuse for a reason other than the accelerator's memory."""
    return Refusal(place=where.name, title=where.title, model=model.model, why=why, reason=reason)


def commonest(refusals: Sequence[Refusal]) -> Refusal:
    """Give the first of those whose reason most of them have.

    What the goal asks too much of comes before what no goal would cure.
    """
    asked = [each for each in refusals if each.asked_too_much]
    asleep = [each for each in refusals if each.why == "scale to zero"]
    told = asked or asleep or refusals
    kinds = Counter(each.why for each in told)
    alike = Counter(_without_figures(each.reason) for each in told)
    words = Counter(each.reason for each in told)

    def most(each: Refusal) -> tuple[int, int, int]:
        return kinds[each.why], alike[_without_figures(each.reason)], words[each.reason]

    return max(told, key=most)


def whose(told: Refusal, refusals: Sequence[Refusal]) -> str:
    """Name its place, and its model where another there has another reason."""
    there = [each for each in refusals if each.place == told.place]
    one = len({each.model for each in refusals}) == 1
    if one or all(each.reason == told.reason for each in there):
        return told.place
    return f"{told.model.rsplit('/', 1)[-1]} on {told.place}"


def served(model: ModelShape, where: Place, found: Offer | Refusal) -> Offer | Refusal:
    """Refuse also what published vLLM cannot serve there, if memory alone does not forbid it."""
    if isinstance(found, Refusal) and "memory" in found.why and not found.nearest:
        return found
    why = unserved(model, where.device)
    return refuse(model, where, "accelerator", why) if why else found


def _without_figures(reason: str) -> str:
    """Give a reason without what it rests on, so that those of one kind are alike."""
    return re.sub(r"\d[\d.,]*", "", reason.partition(" (")[0])


def host_too_small(model: ModelShape, where: Place, needed_gib: float) -> Refusal:
    """Refuse because no host of the place holds the weights."""
    return refuse(
        model,
        where,
        "host memory",
        f"Its files are {file_bytes(model) / 2**30:.2f} GiB and the host needs {needed_gib:.2f} "
        f"GiB for weights, of {where.largest_ram_gib} GiB at most: take another place.",
    )


def no_room(
    model: ModelShape,
    where: Place,
    memory: MemoryPlan,
    *,
    reason: str,
    nearest: tuple[NearMiss, ...],
    offload: Offload | None,
) -> Refusal:
    """Refuse for the accelerator's memory, with what would fit."""
    return Refusal(
        place=where.name,
        title=where.title,
        model=model.model,
        why="memory",
        reason=reason,
        weights_gib=memory.weights_gib,
        load_peak_gib=memory.load_peak_gib,
        visible_gib=memory.visible_gib,
        nearest=nearest,
        offload=offload,
    )


def engine_line(model: str, flags: Flags) -> str:
    """Write the flags as a person would type them."""
    return " ".join(["vllm serve", model, *_words(flags)])


def _words(flags: Flags) -> Iterator[str]:
    for name, value in flags.model_dump(exclude={"vllm_version"}, exclude_defaults=True).items():
        flag = f"--{name.replace('_', '-')}"
        yield (
            flag
            if value is True
            else f"{flag} {value:g}"
            if isinstance(value, float)
            else (f"{flag} {value}")
        )


def _reason(memory: MemoryPlan, step: Decode, costs: Price, size: Size | None) -> str:
    kv = memory.kv_low
    whom = "one user" if step.concurrency == 1 else f"each of {step.concurrency} users"
    pooled = memory.count > 1 and accelerator(memory.accelerator).kind == "tpu"
    each, together = (" on each chip", " on all together") if pooled else ("", "")
    host = f" on {size.vcpu} vCPU and {size.ram_gib} GiB" if size else ""
    price_words = "no price known" if costs.usd_per_hour is None else f"${costs.usd_per_hour:.2f}/h"
    return (
        f"{memory.weights_gib:.2f} GiB of weights{each} leave {memory.kv_cache_gib.expected:.2f} "
        f"GiB of KV cache{together}: at least {kv.max_concurrency:.1f} requests of "
        f"{memory.max_model_len:,} tokens; "
        f"{step.tokens_per_second_per_user} tokens/s for {whom}; "
        f"{price_words}{host}."
    )


def _warnings(place: Place, costs: Price, booting: Boot) -> Iterator[str]:
    if costs.disagree:
        yield f"Sources disagree on the price: {costs.short}."
    elif costs.doubt:
        yield f"The price is {costs.doubt}."
    if booting.within_budget != "yes":
        yield f"Boot: {booting.advice}"
    if place.provisioning == "spot":
        yield "Spot capacity may be taken away at any time."
    if place.max_run_hours:
        yield f"It runs for at most {place.max_run_hours} hours."


def examine(
    model: ModelShape,
    where: Place,
    flags: Flags,
    *,
    goal: Goal | None = None,
    backends: Collection[str] = (),
) -> Offer | Refusal:
    """Foresee exactly these flags; the place's accelerators all work together.

    Raises:
        InvalidArgument: A flag is none that vLLM takes, or the place's accelerator is not known.
        Unsupported: The model's shape is not known.
    """
    wanted = goal or Goal(model=model.model)
    asked = _complete(flags, where)
    ground = Ground(model, accelerator(where.accelerator), asked.tensor_parallel_size)
    memory = ground.plan(asked)
    arranged = Arrangement(layout=None, flags=asked, memory=memory, enough=memory.fits)
    if not memory.fits:
        return _refusal(model, where, ground, arranged, wanted)
    needed = host_gib(model, where, asked)
    size = where.size_for(needed)
    if where.sizes and size is None:
        return host_too_small(model, where, needed)
    site = Site(
        place=where,
        load=wanted.load,
        context=memory.max_model_len // 2,
        duty=wanted.duty,
        deployable=where.deployable(backends),
    )
    return make_offer(model, site, arranged, size)


def _complete(flags: Flags, where: Place) -> Flags:
    if flags.tensor_parallel_size != 1:
        return flags
    return flags.model_copy(update={"tensor_parallel_size": where.count})


def _refusal(
    model: ModelShape, where: Place, ground: Ground, arranged: Arrangement, goal: Goal
) -> Refusal:
    memory, device = arranged.memory, ground.accelerator
    loads = memory.load_peak_gib <= (device.memory_gib or 0) * device.free_at_start
    wish = Wish(
        max_model_len=memory.max_model_len,
        requests=1,
        text_only=arranged.flags.language_model_only,
        usual_tokens=goal.load.prompt_tokens + goal.load.output_tokens,
        vllm_version=arranged.flags.vllm_version,
    )
    return no_room(
        model,
        where,
        memory,
        reason=" ".join(memory.reasons),
        nearest=tuple(near_misses(ground, wish)) if loads else (),
        offload=None if loads else offload(ground, wish, spare_gib(model, where)),
    )


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
