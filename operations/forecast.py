"""What the planner foresees, said at a glance, and held against what came of it."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import Field

from core.errors import InvalidArgument
from core.records import DeploymentSpec, MemoryPlan, ModelShape, Record
from planner.advise import Offer, Refusal
from planner.boot import Boot, loader
from planner.catalog import short_name
from planner.flags import Flags
from planner.kv import kv_precisions
from planner.layouts import Ground, Wish, offload, offloading
from planner.memory import table, work_gib
from planner.places import Accelerator, accelerator, place
from planner.price import Load, LoadCost, Price
from planner.speed import Band

K = TypeVar("K")
T = TypeVar("T")


class Context(Record):
    """How long a request may be, in tokens of prompt and answer together."""

    max_model_len: int
    """As it is or would be served."""
    model_max_len: int | None
    """The model's own maximum."""
    longest_that_fits: int
    """Of one request, if max_model_len were raised to it and nothing else changed."""


class MemoryTable(Record):
    """Where one accelerator's memory goes."""

    fits: bool
    """Judged on the low estimate."""
    max_model_len: int
    """As asked for; left out, the model's own."""
    weights_gib: float
    load_peak_gib: float
    kv_cache_gib: Mapping[str, float]
    """low, expected, high."""
    kv_tokens: int
    max_concurrency: float
    """Requests of full length at once, on the expected estimate."""
    max_len_that_fits: int
    """The longest single request, on the low estimate."""
    free_gib: float | None
    """Of this machine's memory now, where the model would run on its processor."""
    parts_gib: Mapping[str, float]
    """Everything that is not KV cache."""
    drawing: str


def context_of(plan: MemoryPlan, model: ModelShape) -> Context:
    """Give the length that is served, the model's own, and the one that its memory has room for."""
    return Context(
        max_model_len=plan.max_model_len,
        model_max_len=model.max_position_embeddings,
        longest_that_fits=plan.kv_low.max_len_that_fits,
    )


def each_gib(
    plan: MemoryPlan, measured: Mapping[str, float | int | None] | None = None
) -> dict[str, float]:
    """Say what one accelerator's memory goes to; what the engine's log tells wins.

    The parts make up what the accelerator is sold with; what it lacks is `lacking`.
    """
    device, told = accelerator(plan.accelerator), measured or {}
    chips = plan.count if plan.kv_is_shared else 1
    used = {
        "weights": told.get("weights_gib") or plan.weights_gib,
        "work (profiled)": work_gib(plan),
        "KV cache": told.get("kv_cache_gib") or plan.kv_cache_gib.expected / chips,
    }
    if device.kind == "cpu" and plan.visible_gib and plan.free_gib is not None:
        used |= {"taken by others": plan.visible_gib - plan.free_gib}
    if plan.visible_gib is not None:
        left = plan.visible_gib - sum(used.values())
        name = "left for compiled programs" if device.kind == "tpu" else "left"
        used |= {name: left} if left >= 0 else {"lacking": -left}
        if device.sold_gib is not None:
            used |= {"not visible": device.sold_gib - plan.visible_gib, "sold": device.sold_gib}
    return {name: round(gib, 2) for name, gib in used.items()}


def memory_table(plan: MemoryPlan) -> MemoryTable:
    """Give a memory plan's figures and its drawing."""
    gib = plan.kv_cache_gib
    return MemoryTable(
        fits=plan.fits,
        max_model_len=plan.max_model_len,
        weights_gib=round(plan.weights_gib, 2),
        load_peak_gib=round(plan.load_peak_gib, 2),
        kv_cache_gib={
            "low": round(gib.low, 2),
            "expected": round(gib.expected, 2),
            "high": round(gib.high, 2),
        },
        kv_tokens=plan.kv_expected.kv_tokens,
        max_concurrency=round(plan.kv_expected.max_concurrency, 2),
        max_len_that_fits=plan.kv_low.max_len_that_fits,
        free_gib=round(plan.free_gib, 2) if plan.accelerator == "cpu" and plan.free_gib else None,
        parts_gib={part.name: round(part.gib.expected, 3) for part in plan.parts},
        drawing="\n".join(table(plan)),
    )


def precision(shape: ModelShape, flags: Flags, device: Accelerator) -> str:
    """Say in what type weights, KV cache and arithmetic are."""
    compute = compute_type(shape, flags, device)
    weights = weights_type(shape, shape.quantization or flags.quantization)
    cache = cache_type(flags.kv_cache_dtype, compute)
    return f"weights {weights}; KV cache {cache}; computes in {compute}"


def weights_type(shape: ModelShape, method: str | None) -> str:
    """Say in what type the weights are, quantized by a method or not."""
    kind = shape.dtype or "bfloat16"
    bits = shape.quantization_bits or 8
    return f"{bits}-bit {method}, the rest {kind}" if method else kind


def cache_type(kind: str | None, compute: str) -> str:
    """Say in what type keys and values are cached.

    >>> cache_type("auto", "bfloat16")
    'bfloat16 (auto), 16 bits'
    """
    if kind in {None, "auto"}:
        return f"{compute} (auto), 16 bits"
    return f"{kind}, 8 bits" if str(kind).startswith("fp8") else str(kind)


def compute_type(shape: ModelShape, flags: Flags, device: Accelerator) -> str:
    """Say in what type activations are: the model's own, or float16 where there is no bf16."""
    asked = flags.dtype if flags.dtype not in {None, "auto"} else None
    kind = asked or shape.dtype or "bfloat16"
    return "float16" if kind == "bfloat16" and not device.bf16 else kind


def check_cache_type(kind: str | None, device: Accelerator) -> None:
    """Refuse a type of the KV cache that no plan reckons with, and say what is known of it.

    Raises:
        InvalidArgument: It is one of those.
    """
    known = {each.kv_cache_dtype: each for each in kv_precisions(device)}
    found = known.get(kind or "auto")
    if found is None or found.planned:
        return
    able = "vLLM has it for Gemma 4" if found.possible else "vLLM has none for Gemma 4"
    raise InvalidArgument(
        f"{kind} is not planned with on {device.title}: {able} there ({found.bits} bits): "
        f"{found.why}.",
        fix="Take fp8 where the accelerator has it, else auto.",
        data={"kv_precisions": dict(cache_precisions(device))},
    )


def cache_precisions(device: Accelerator) -> Iterator[tuple[str, str]]:
    """Say of each --kv-cache-dtype whether it is there and what it means."""
    if device.kind == "cpu":
        return  # Nobody has read what vLLM's CPU backend has.
    for each in kv_precisions(device):
        able = "yes" if each.possible else "no"
        planned = "" if each.planned or not each.possible else " (not planned with here)"
        yield each.kv_cache_dtype, f"{able}, {each.bits} bits{planned}: {each.why}"


_GUESSED: Final = (
    "Speeds and token costs are wide bands: nobody has measured such a model on such hardware."
)
_EXAMPLE_GIB: Final = 4.0
"""An offload that is spoken of where none is needed."""
PLANNED: Final = tuple(one for one in Flags.model_fields if one in DeploymentSpec.model_fields)
"""Fields of a deployment of which the planner can say what each does."""
_TEXT_ONLY: Final = "--language-model-only"
_PROVISIONING: Final = {
    "on-demand": "",
    "spot": "Spot: it may be taken away at any time, and bills until it is deleted.",
    "flex-start": "Flex-start: it waits in a queue and runs for 7 days at most.",
}


class Foreseen(Record):
    """One model at one place, with flags that fit."""

    target: str
    title: str
    model: str
    deployable: bool
    """This server can deploy there."""
    reason: str
    engine_line: str
    host: str | None
    """vCPU and memory to ask for."""
    weights_from: str
    loader: str
    """How vLLM is told to read them, and why."""
    load: str
    """That speeds and costs are of."""
    tokens_per_second_per_user: str
    tokens_per_second: str
    """Of all users together."""
    ttft_seconds: str
    boot_seconds: str
    """Of a first one; from the second that was seen there, as they took."""
    boot_again_seconds: str | None
    """Where the disk stays: files and compiled code are there already."""
    boot_within_probe: str | None
    """Whether the boot ends before the target's startup probe gives up."""
    kv_saturates_at_requests: int
    at_once: str
    """Users with full-length requests that are answered together, and their speed."""
    usd_per_hour: float | None
    usd_per_month: float | None
    usd_per_million_tokens: str | None
    usd_per_1000_requests: str | None
    changes: tuple[str, ...]
    """What was changed until it fitted, what that buys and costs."""
    doubts: tuple[str, ...]
    guessed: bool = Field(exclude=True)
    beyond: str | None = Field(exclude=True)
    """Speeds are bands that no measurement narrows."""
    arguments: Mapping[str, Any] = Field(exclude=True)
    """The flags, as a next call takes them."""


class Refused(Record):
    """A place that cannot, with the true reason and what it could."""

    target: str
    model: str
    why: str
    reason: str
    would_fit: tuple[str, ...] = ()
    offload: str | None = None


class Bill(Record):
    """What something costs, by every source."""

    usd_per_hour: float | None
    usd_per_hour_highest: float | None
    usd_per_month: float | None
    sources: tuple[str, ...]
    sources_disagree: bool
    requests_per_second: str | None = None
    usd_per_1000_requests: str | None = None
    usd_per_million_tokens: str | None = None
    usd_per_active_user_hour: float | None = None


def arguments(flags: Flags, engine_args: Sequence[str] = ()) -> dict[str, Any]:
    """Give flags as plan_deployment and deploy_vllm take them; others only in `engine_args`."""
    said = flags.model_dump(include={*PLANNED} - {"dtype"}, exclude_defaults=True)
    size = said.get("kv_cache_memory_bytes")
    text_only = flags.language_model_only and _TEXT_ONLY not in engine_args
    words = [*engine_args, *([_TEXT_ONLY] if text_only else [])]
    others = {"engine_args": words} if words else {}
    return said | others | ({} if size is None else {"kv_cache_memory_bytes": str(size)})


def guesses(offers: Collection[Foreseen]) -> Iterator[str]:
    """Warn where a speed that is told is no more than a share of a roof."""
    beyond = next((offer.beyond for offer in offers if offer.beyond), None)
    if beyond:
        yield f"{_GUESSED} They end above all that was measured: {beyond}."
    elif any(offer.guessed for offer in offers):
        yield _GUESSED


def load_words(load: Load) -> str:
    """Say a load."""
    return (
        f"{load.concurrency} at once, {load.prompt_tokens:,} tokens in, {load.output_tokens:,} out"
    )


def accelerator_name(device: Accelerator) -> str:
    """Return what people call an accelerator, and its memory.

    >>> accelerator_name(accelerator("l4")), accelerator_name(accelerator("a100-80"))
    ('L4 24 GiB', 'A100 80 GB')
    """
    name = device.title.partition(" (")[0].removeprefix("NVIDIA ").removeprefix("Google ")
    known = "GB" in name or device.sold_gib is None
    return name if known else f"{name} {device.sold_gib:g} GiB"


def dollars(amount: float) -> str:
    """Write an amount as people say it.

    >>> dollars(1.0465), dollars(1234.5), dollars(0.004)
    ('$1.05', '$1,234', '$0.004')
    """
    if 0 < amount < 0.1:
        return f"${amount:.2g}"
    if amount == round(amount):
        return f"${amount:,.0f}"
    return f"${amount:,.0f}" if amount >= 100 else f"${amount:.2f}"


def spoken(band: Band) -> str:
    """Write a band as people say it: `14 to 32`, or `about 77`."""
    if band.expected is not None:
        return f"about {_two(band.expected)}"
    ends = [_two(end) for end in (band.low, band.high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _two(number: float) -> str:
    return f"{float(f'{number:.2g}'):,.10g}"


def at_once(offer: Offer) -> str:
    """Say how many users are answered together, and how fast."""
    full, length = offer.full, offer.memory.max_model_len
    if full.concurrency == 1:
        return f"1 user at once with {length:,} tokens"
    each, together = map(spoken, (full.tokens_per_second_per_user, full.tokens_per_second))
    return (
        f"{full.concurrency} users at once with {length:,} tokens each: {each} tokens/s each,"
        f" {together} together"
    )


def priced(offer: Offer, *, replicas: int = 1, lowest: bool = False) -> str:
    """Say what an hour of all replicas costs, in the words of a sentence.

    Where sources disagree that is a range, unless only the lowest is meant.
    """
    hourly, highest = offer.price.usd_per_hour, offer.price.usd_per_hour_highest
    if hourly is None:
        return "price not known"
    if hourly == 0:
        return "your own machine, no bill"
    most = (
        f" to {dollars(highest * replicas)}"
        if offer.price.disagree and highest and not lowest
        else ""
    )
    return f"{dollars(hourly * replicas)}{most if highest != hourly else ''} an hour"


def at_place(offer: Offer, *, replicas: int = 1) -> str:
    """Say which model is where, and how often."""
    many = f"{replicas} x " if replicas > 1 else ""
    return f"{short_name(offer.model)} on {many}{offer.place}"


def in_short(offer: Offer) -> str:
    """Say how fast it is, for how many users, and what is special about its hours."""
    whom = "one user" if offer.load.concurrency == 1 else f"each of {offer.load.concurrency} users"
    speed = f"{spoken(offer.decode.tokens_per_second_per_user)} tokens/s for {whom}"
    together = f"; {at_once(offer)}" if offer.full.concurrency != offer.load.concurrency else ""
    where = place(offer.place)
    hours = _PROVISIONING[where.provisioning] or (
        "Asleep it costs nothing." if where.scale_to_zero else "It bills until it is deleted."
    )
    return f"{speed}{together}.{'' if offer.price.usd_per_hour == 0 else f' {hours}'}"


def foreseen(offer: Offer) -> Foreseen:
    """Shorten an offer to what decides."""
    return Foreseen(
        target=offer.place,
        title=offer.title,
        model=offer.model,
        deployable=offer.deployable,
        reason=offer.reason,
        engine_line=offer.engine_line,
        host=f"{offer.size.vcpu} vCPU, {offer.size.ram_gib} GiB" if offer.size else None,
        weights_from=offer.boot.weights_from,
        loader=str(loader(offer.boot.weights_from)),
        load=load_words(offer.load),
        tokens_per_second_per_user=str(offer.decode.tokens_per_second_per_user),
        tokens_per_second=str(offer.decode.tokens_per_second),
        ttft_seconds=str(offer.prefill.ttft_seconds),
        boot_seconds=str(offer.boot.seconds),
        boot_again_seconds=str(offer.boot.again) if offer.boot.again else None,
        boot_within_probe=_probe(offer.boot),
        kv_saturates_at_requests=offer.saturation.kv_requests,
        at_once=at_once(offer),
        changes=tuple(f"{c.flag}: {c.buys}; costs {c.costs}" for c in offer.changes),
        doubts=(*offer.doubts, *offer.warnings),
        guessed=offer.decode.tokens_per_second.expected is None,
        beyond=offer.decode.beyond,
        arguments=arguments(offer.flags),
        usd_per_hour=usd(offer.price.usd_per_hour),
        usd_per_month=usd(offer.price.usd_per_month),
        usd_per_million_tokens=str(offer.cost.usd_per_million_tokens) if offer.cost else None,
        usd_per_1000_requests=str(offer.cost.usd_per_1000_requests) if offer.cost else None,
    )


def refused(refusal: Refusal) -> Refused:
    """Shorten a refusal to its reason and what would fit instead."""
    return Refused(
        target=refusal.place,
        model=refusal.model,
        why=refusal.why,
        reason=refusal.reason,
        would_fit=tuple(near.gives_up for near in refusal.nearest[:3]),
        offload=refusal.offload.why_not if refusal.offload else None,
    )


def bill(price: Price, cost: LoadCost | None) -> Bill:
    """Give a price with its sources, and what a load costs."""
    return Bill(
        usd_per_hour=usd(price.usd_per_hour),
        usd_per_hour_highest=usd(price.usd_per_hour_highest),
        usd_per_month=usd(price.usd_per_month),
        sources=tuple(quote.derivation for quote in price.quotes),
        sources_disagree=price.disagree,
        requests_per_second=str(cost.requests_per_second) if cost else None,
        usd_per_1000_requests=str(cost.usd_per_1000_requests) if cost else None,
        usd_per_million_tokens=str(cost.usd_per_million_tokens) if cost else None,
        usd_per_active_user_hour=usd(cost.usd_per_active_user_hour) if cost else None,
    )


def usd(amount: float | None) -> float | None:
    """Round as a price is read: cents of a hundred dollars and more, else a hundredth of them."""
    return None if amount is None else round(amount, 2 if amount >= 100 else 4)


def _probe(boot: Boot) -> str | None:
    if boot.budget_seconds is None:
        return None
    head = f"{boot.within_budget}, of the {boot.budget_seconds:,} s that a probe may allow"
    return f"{head}: {boot.advice}" if boot.advice else f"{head}."


def loads(ground: Ground, memory: MemoryPlan) -> bool:
    """Whether the weights get onto the accelerator."""
    return memory.load_peak_gib <= ground.accelerator.free_gib


def why_not_offload(
    ground: Ground, memory: MemoryPlan, wish: Wish, host_gib: float | None = None
) -> str | None:
    """Say what offloading would mean, where the weights alone are too much."""
    device = ground.accelerator
    if device.kind != "gpu" or device.memory_gib is None or loads(ground, memory):
        return None
    modest = wish._replace(max_model_len=min(wish.max_model_len, MODEST))
    found = offload(ground, modest, host_gib)
    return f"With {modest.max_model_len:,} tokens: {found.why_not}" if found else None


def what_offloading_costs(
    ground: Ground, memory: MemoryPlan, flags: Flags, wish: Wish, host_gib: float | None
) -> str | None:
    """Say it of every plan on a GPU: asked for, needed to load, or not needed at all."""
    device = ground.accelerator
    if device.kind == "tpu":
        return "--cpu-offload-gb is CUDA's; on TPUs more chips share the weights instead."
    if device.kind != "gpu" or device.bandwidth_gb_per_s is None:
        return None
    if flags.cpu_offload_gb:
        return f"With --cpu-offload-gb {flags.cpu_offload_gb:g} {offloading(ground, flags)}"
    if needed := why_not_offload(ground, memory, wish, host_gib):
        return needed
    some = flags.model_copy(update={"cpu_offload_gb": _EXAMPLE_GIB})
    return (
        f"Not needed: the weights fit. With --cpu-offload-gb {_EXAMPLE_GIB:g}, say,"
        f" {offloading(ground, some)}"
    )


MODEST: Final = 8192
"""Tokens: a length that is of use, for what is computed beside what was asked."""


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Put together what has the same key, in the order of the first of each."""
    groups: dict[K, list[T]] = {}
    for key, one in pairs:
        groups.setdefault(key, []).append(one)
    return groups


def alike(rows: Sequence[T], what: Callable[[T], Hashable]) -> list[list[T]]:
    """Put rows together of which the same is to be said."""
    return list(grouped((what(row), row) for row in rows).values())
