"""Where to run a model, with which flags and why, and why not elsewhere; places side by side."""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import Field

from core.errors import InvalidArgument, OpsError
from core.records import Answer, MemoryPlan, ModelShape, Record
from planner.boot import Boot, Span, boot, file_bytes
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
from planner.speed import Band, Decode, Prefill, Saturation, decode, prefill, saturation

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
                fix="Give a model of the catalog (list_models), or a folder with its files: to"
                " plan, config.json alone will do for usual kinds.",
                cause=" ".join(shape.unknown).strip(),
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


def make_offer(
    model: ModelShape,
    where: Place,
    arranged: Arrangement,
    goal: Goal,
    *,
    backends: Collection[str] = (),
) -> Offer | Refusal:
    """Put together all that is known of a plan that fits; refuse where no host holds its weights.

    Raises:
        InvalidArgument: The accelerator's bandwidth is not known.
    """
    flags, memory, device, load = arranged.flags, arranged.memory, where.device, goal.load
    needed, context = host_gib(model, where, flags), goal.max_model_len // 2
    size = where.size_for(needed)
    if where.sizes and size is None:
        return host_too_small(model, where, needed)
    costs = price(where, size, duty=goal.duty)
    hourly = costs.usd_per_hour
    step = decode(model, device, flags, concurrency=load.concurrency, context=context)
    most = saturation(model, device, flags, memory, context=context)
    together = max(1, min(most.kv_requests, memory.max_num_seqs))
    booting = boot(model, where, flags)
    parsers = parsers_for(model.model_type, where.vllm_version, ())
    return Offer(
        place=where.name,
        title=where.title,
        model=model.model,
        deployable=where.deployable(backends),
        size=size,
        flags=flags,
        engine_line=" ".join((engine_line(model.model, flags), *parsers.words)),
        memory=memory,
        changes=arranged.changes,
        decode=step,
        full=decode(model, device, flags, concurrency=together, context=context),
        prefill=prefill(model, device, flags, prompt_tokens=load.prompt_tokens),
        saturation=most,
        boot=booting,
        price=costs,
        cost=None if hourly is None else load_cost(model, device, flags, load, hourly),
        load=load,
        reason=_reason(memory, step, costs, size),
        limits=where.limits,
        warnings=(*memory.warnings, *_warnings(where, costs, booting)),
    )


def host_gib(model: ModelShape, where: Place, flags: Flags) -> float:
    """Memory that the host must have for weights: its file cache where that counts, and offload."""
    files = file_bytes(model) / 2**30 if where.host_holds_weights else 0.0
    return files + (flags.cpu_offload_gb or 0) * flags.tensor_parallel_size


def spare_gib(model: ModelShape, where: Place) -> float | None:
    """Memory that the largest host has for an offload; None where that is not known."""
    return where.spare_gib(file_bytes(model) / 2**30 if where.host_holds_weights else 0.0)


def refuse(model: ModelShape, where: Place, why: Why, reason: str, **more: Any) -> Refusal:
    """Refuse a model at a place; `more` are further fields of the refusal."""
    named = {"place": where.name, "title": where.title, "model": model.model}
    return Refusal(**named, why=why, reason=reason, **more)


def host_too_small(model: ModelShape, where: Place, needed_gib: float) -> Refusal:
    """Refuse because no host of the place holds the weights."""
    reason = (
        f"Its files are {file_bytes(model) / 2**30:.2f} GiB and the host needs {needed_gib:.2f} "
        f"GiB for weights, of {where.largest_ram_gib} GiB at most: take another place."
    )
    return refuse(model, where, "host memory", reason)


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


def engine_line(model: str, flags: Flags) -> str:
    """Write the flags as a person would type them."""
    words = ["vllm serve", model]
    for name, value in flags.model_dump(exclude={"vllm_version"}, exclude_defaults=True).items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return " ".join(words)


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


def _warnings(where: Place, costs: Price, booting: Boot) -> Iterator[str]:
    if costs.disagree:
        yield f"Sources disagree on the price: {costs.short}."
    elif costs.doubt:
        yield f"The price is {costs.doubt}."
    if booting.within_budget != "yes":
        yield f"Boot: {booting.advice}"
    if where.provisioning == "spot":
        yield "Spot capacity may be taken away at any time."
    if where.max_run_hours:
        yield f"It runs for at most {where.max_run_hours} hours."


class _Arranged:
    """A goal on some accelerators: alike at every place that has them."""

    def __init__(self, model: ModelShape, where: Place, wish: Wish) -> None:
        self.ground = Ground(model, where.device, where.count)
        self._wish = wish

    @functools.cached_property
    def flags(self) -> Arrangement:
        return arrange(self.ground, self._wish)

    @functools.cached_property
    def nearest(self) -> tuple[NearMiss, ...]:
        return tuple(near_misses(self.ground, self._wish))

    def offload(self, where: Place) -> Offload | None:
        """Say what it would mean, where nothing else gets the weights onto the accelerator."""
        if self.ground.loads(self.flags.flags) and where.device.memory_gib is not None:
            return None
        return offload(self.ground, self._wish, spare_gib(self.ground.model, where))


def consider(
    model: ModelShape, where: Place, goal: Goal, *, backends: Collection[str] = ()
) -> Offer | Refusal:
    """Offer or refuse one model at one place; a flag that vLLM does not take is a refusal."""
    return considering(goal, backends=backends)(model, where)


def considering(
    goal: Goal, *, backends: Collection[str] = (), near: bool = True
) -> Callable[[ModelShape, Place], Offer | Refusal]:
    """Do the same for many: what is alike at several places is reckoned once.

    Without `near` nobody looks for what would come near, which takes most of the time.
    """
    known: dict[tuple[str, str, int, str | None], _Arranged] = {}

    def look(model: ModelShape, where: Place) -> Offer | Refusal:
        if goal.scale_to_zero and not where.scale_to_zero:
            return refuse(model, where, "scale to zero", "It does not scale to zero.")
        if where.device.bandwidth_gb_per_s is None:
            return refuse(model, where, "not known", " ".join(where.limits))
        version = goal.vllm_version or where.vllm_version
        key = (model.model, where.accelerator, where.count, version)
        if key not in known:
            known[key] = _Arranged(model, where, goal.wish._replace(vllm_version=version))
        try:
            found = known[key].flags
        except OpsError as exc:
            return refuse(model, where, "not known", exc.summary)
        if not found.enough:
            return _does_not_fit(goal, where, known[key], near=near)
        offer = make_offer(model, where, found, goal, backends=backends)
        return _judged(goal, model, where, offer) if isinstance(offer, Offer) else offer

    return look


def _does_not_fit(goal: Goal, where: Place, arranged: _Arranged, *, near: bool) -> Refusal:
    memory = arranged.flags.memory
    return refuse(
        arranged.ground.model,
        where,
        "memory",
        _too_many(goal, arranged) or " ".join(memory.reasons),
        weights_gib=memory.weights_gib,
        load_peak_gib=memory.load_peak_gib,
        visible_gib=memory.visible_gib,
        nearest=arranged.nearest if near else (),
        offload=arranged.offload(where) if near else None,
    )


def _too_many(goal: Goal, arranged: _Arranged) -> str | None:
    """Say how many requests are held, where fewer would fit: sequences take memory themselves."""
    memory, most = arranged.flags.memory, ""
    if not memory.fits:
        alone = arranged.flags.flags.model_copy(update={"max_num_seqs": 1})
        memory, most = arranged.ground.plan(alone), "At most "
    held = memory.kv_low.max_concurrency
    if not memory.fits or held >= goal.users:
        return None
    return (
        f"{most}{held:.2f} requests of {memory.max_model_len:,} tokens are held at once on the low"
        f" estimate, {goal.users} are wanted."
    )


def _judged(goal: Goal, model: ModelShape, where: Place, offer: Offer) -> Offer | Refusal:
    if too_slow := _too_slow(goal, offer):
        return refuse(model, where, "speed", too_slow)
    if too_dear := _too_dear(goal, offer.price):
        return refuse(model, where, "price", too_dear)
    if offer.boot.within_budget == "no":
        return refuse(model, where, "boot", offer.boot.advice)
    return offer.model_copy(update={"doubts": tuple(_doubts(goal, model, where, offer))})


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
        yield goal.usd_per_hour, usual, most, "an hour"
    if goal.usd_per_month:
        hours = goal.hours_per_month
        yield goal.usd_per_month, usual * hours, most * hours, "a month"


def _too_dear(goal: Goal, price: Price) -> str | None:
    for budget, usual, _, unit in _limits(goal, price):
        if usual > budget:
            return f"It costs ${usual:,.2f} {unit}, ${budget:,.2f} are allowed ({price})."
    return None


def _doubts(goal: Goal, model: ModelShape, where: Place, offer: Offer) -> Iterator[str]:
    if why := unserved(model, where.device):
        yield f"{why} {FIGURES}"
    if why := not_on_hub(model.model):
        yield f"{why} It is for whoever has its files in a bucket: weights=gs://BUCKET/FOLDER."
    for budget, _, most, unit in _limits(goal, offer.price):
        if most > budget:
            yield f"One source says ${most:,.2f} {unit}, more than the ${budget:,.2f} allowed."
    if (goal.usd_per_hour or goal.usd_per_month) and offer.price.usd_per_hour is None:
        yield "Its price is not known."
    wanted, each = goal.tokens_per_second_per_user, offer.decode.tokens_per_second_per_user
    if wanted and each.low >= wanted and offer.decode.beyond:
        yield f"{wanted:g} tokens/s for each user is extrapolated: {offer.decode.beyond}."
    if wanted and each.low < wanted:
        yield f"{wanted:g} tokens/s for each user lies within the predicted range, {each}."


class Row(Record):
    """One model at one place."""

    model: str
    place: str
    fits: bool
    reason: str
    """Why it does not, or what it does in a sentence."""
    unserved: str | None = None
    """Why only an image of your own would serve it there, though it fits."""
    refusal: Refusal | None = Field(default=None, exclude=True)
    """Why published vLLM does not serve it there as asked."""
    files_gib: float
    host_gib: float | None = None
    """Memory of the smallest host that does; None where the place has no choice."""
    host_needs_gib: float = 0.0
    """That the weights' files take of it."""
    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    requests_held: float | None = None
    """Of full length at once, on the low estimate."""
    tokens_per_second_per_user: Band | None = None
    beyond: str | None = None
    """What was measured nearest, where its speed lies above all that was measured there."""
    output_tokens_per_second: Band | None = None
    """Of all users, under the goal's load."""
    ttft_seconds: Band | None = None
    boot_seconds: Span | None = None
    usd_per_hour: float | None = None
    usd_per_month: float | None = None
    usd_per_1000_requests: Band | None = None
    usd_per_million_tokens: Band | None = None
    times_the_cheapest: float | None = None
    """By the hour, of those that cost anything."""


class Comparison(Answer):
    """A table, in the order asked for."""

    goal: Goal
    rows: tuple[Row, ...]
    cheapest: str | None
    """By the hour: model on place, of those that somebody rents out; of equals by the token."""
    best_value: str | None
    """Of the same by the token, under the goal's load."""
    fastest: str | None
    """For each user; of equals by the hour."""

    def summary(self) -> str:
        """Say which is best at what."""
        if not any(row.fits and not row.unserved for row in self.rows):
            fit = any(row.fits for row in self.rows)
            return f"None of them {'is served by published vLLM' if fit else 'fits'}."
        users = self.goal.users
        whom = "one user" if users == 1 else f"each of {users} users"
        best = (
            (self.cheapest, "cheapest by the hour", _by_the_hour, "cost the same by the hour"),
            (self.best_value, "cheapest by the token", _by_the_token, "cost the same by the token"),
            (self.fastest, f"fastest for {whom}", _by_speed, f"are equally fast for {whom}"),
        )
        roles: dict[str, list[str]] = {}
        shared = []
        for name, role, of, alike in best:
            if (equal := _equal(self.rows, of)) > 1:
                shared.append(
                    f"{'they' if equal == len(self.rows) else f'{equal} of them'} {alike}"
                )
            elif name:
                roles.setdefault(name, []).append(role)
        said = [f"{name} is {' and '.join(each)}" for name, each in roles.items()] + shared
        if self.fastest is None:
            said.append("which is fastest nobody can say: their speeds are extrapolated")
        return "; ".join(said) + "."


def compare(
    models: Sequence[str], where: Sequence[str], goal: Goal, *, backends: Collection[str] = ()
) -> Comparison:
    """Hold models and places against each other for the same goal; no place named is every one.

    Raises:
        InvalidArgument: A model or a place is not known.
    """
    sites = [place(name) for name in where] or list(places().values())
    look = considering(goal, backends=backends)
    rows = [
        _row(shape, site, look(shape, site))
        for name in models
        for shape in candidates(goal.model_copy(update={"model": name}))
        for site in sites
    ]
    least = min((row.usd_per_hour for row in rows if row.usd_per_hour), default=None)
    return judged(
        goal,
        [
            row.model_copy(update={"times_the_cheapest": row.usd_per_hour / least})
            if least and row.usd_per_hour
            else row
            for row in rows
        ],
    )


def judged(goal: Goal, rows: Sequence[Row]) -> Comparison:
    """Say which rows are best at what; hardware of one's own is never cheap, it costs nothing.

    A speed above all that was measured makes nobody the best.
    """
    return Comparison(
        goal=goal,
        rows=tuple(rows),
        cheapest=_best(rows, _by_the_hour, _by_the_token),
        best_value=_best(rows, _by_the_token, _by_the_hour),
        fastest=_best(rows, _by_speed, _by_the_hour),
    )


def _row(shape: ModelShape, site: Place, found: Offer | Refusal) -> Row:
    known: dict[str, Any] = {
        "model": shape.model,
        "place": site.name,
        "files_gib": file_bytes(shape) / 2**30,
        "reason": found.reason,
    }
    if isinstance(refusal := served(shape, site, found), Refusal):
        known["refusal"] = refusal
    if isinstance(found, Refusal):
        return Row(**known, fits=False)
    cost = found.cost
    return Row(
        **known,
        fits=True,
        unserved=unserved(shape, accelerator(site.accelerator)),
        host_gib=found.size.ram_gib if found.size else None,
        host_needs_gib=host_gib(shape, site, found.flags),
        weights_gib=found.memory.weights_gib,
        kv_cache_gib=found.memory.kv_cache_gib.expected,
        requests_held=found.memory.kv_low.max_concurrency,
        tokens_per_second_per_user=found.decode.tokens_per_second_per_user,
        beyond=found.decode.beyond,
        output_tokens_per_second=cost.output_tokens_per_second if cost else None,
        ttft_seconds=found.prefill.ttft_seconds,
        boot_seconds=found.boot.seconds,
        usd_per_hour=found.price.usd_per_hour,
        usd_per_month=found.price.usd_per_month,
        usd_per_1000_requests=cost.usd_per_1000_requests if cost else None,
        usd_per_million_tokens=cost.usd_per_million_tokens if cost else None,
    )


_Criterion = Callable[[Row], float | None]
"""What of a row is the better the less it is; None of a row that cannot be the best."""


def _by_the_hour(row: Row) -> float | None:
    return (row.usd_per_hour or None) if row.fits and not row.unserved else None


def _by_the_token(row: Row) -> float | None:
    rented = _by_the_hour(row) and row.beyond is None
    return _middle(row.usd_per_million_tokens) if rented else None


def _by_speed(row: Row) -> float | None:
    """Return it below zero: the least is the best."""
    known = row.fits and not row.unserved and row.beyond is None
    return -(_middle(row.tokens_per_second_per_user) or 0) if known else None


def _best(rows: Sequence[Row], of: _Criterion, then: _Criterion) -> str | None:
    known = [row for row in rows if of(row) is not None]
    if not known:
        return None
    row = min(
        known, key=lambda row: [math.inf if (v := by(row)) is None else v for by in (of, then)]
    )
    return f"{row.model} on {row.place}"


def _equal(rows: Sequence[Row], of: _Criterion) -> int:
    """Return how many share the best of it."""
    known = [value for row in rows if (value := of(row)) is not None]
    return known.count(min(known, default=0.0))


def _middle(band: Band | None) -> float | None:
    return band.middle if band else None
