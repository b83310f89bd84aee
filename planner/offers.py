"""One model at one place: offered with everything that is known, or refused with the reason."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from core.records import MemoryPlan, ModelShape, Record
from planner.accelerators import accelerator
from planner.boot import Boot, boot, file_bytes
from planner.flags import Flags
from planner.layouts import Arrangement, Change
from planner.near import NearMiss, Offload
from planner.parsers import parsers_for
from planner.places import Place, Size
from planner.price import Load, LoadCost, Price, load_cost, price
from planner.published import unserved
from planner.speed import Decode, Prefill, Saturation, decode, prefill, saturation

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
