"""What the planner foresees, said so that an agent can read it at a glance."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pydantic import Field

from core.errors import NextStep
from core.plans import MemoryPlan
from core.records import Answer, ModelShape, Record
from operations.memory import MemoryTable
from planner.accelerators import Accelerator, accelerator
from planner.boot import Boot
from planner.flags import Flags
from planner.kv_precisions import kv_precisions
from planner.layouts import Ground, Wish
from planner.near import offload
from planner.offers import Offer, Refusal
from planner.places import Place
from planner.price import Load, LoadCost, Price

_GUESSED: Final = (
    "Speeds, and what tokens cost, are wide bands: nobody has measured such a model on"
    " such hardware. Deploy it and measure it to know."
)
MODEST: Final = 8192
"""Tokens: a length that is of use, for what is computed beside what was asked."""
_WIDE: Final = 0.75
"""A low estimate below this share of the expected one is said to be far from it."""
_ARGUMENTS: Final = (
    "max_model_len", "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes",
    "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "quantization",
    "cpu_offload_gb", "enforce_eager",
)  # fmt: skip
"""Flags that plan_deployment and deploy_vllm take."""


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
    load: str
    """That speeds and costs are of."""
    tokens_per_second_per_user: str
    tokens_per_second: str
    """Of all users together."""
    ttft_seconds: str
    boot_seconds: str
    boot_within_probe: str | None
    """Whether the boot ends before the target's startup probe gives up."""
    kv_saturates_at_requests: int
    usd_per_hour: float | None
    usd_per_month: float | None
    usd_per_million_tokens: str | None
    usd_per_1000_requests: str | None
    changes: tuple[str, ...]
    """What was changed until it fitted, what that buys and costs."""
    doubts: tuple[str, ...]
    guessed: bool = Field(exclude=True)
    """Speeds are bands that no measurement narrows."""
    arguments: Mapping[str, Any] = Field(exclude=True)
    """The flags, as a next call takes them."""


class Machine(Record):
    """What a target gives to one replica."""

    title: str
    accelerator: str
    memory_gib_each: float | None
    """That CUDA or XLA sees."""
    bandwidth_gb_per_s: float | None
    hosts: tuple[str, ...]
    disk: str | None
    network: str
    regions: tuple[str, ...]
    limits: tuple[str, ...]


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


class Foresight(Answer):
    """An answer whose next step is a deployment."""

    def steps(self, offers: Collection[Foreseen]) -> tuple[NextStep, ...]:
        """Plan the first that this server can deploy, else the best, with its flags."""
        able = (offer for offer in offers if offer.deployable)
        best = next(able, None) or next(iter(offers), None)
        if best is None:
            return ()
        named = {"target": best.target, "model": best.model}
        return (NextStep("plan_deployment", {**named, **best.arguments}),)


def arguments(flags: Flags) -> dict[str, Any]:
    """Give flags as plan_deployment and deploy_vllm take them; others are left out."""
    said = flags.model_dump(include=set(_ARGUMENTS), exclude_defaults=True)
    size = said.get("kv_cache_memory_bytes")
    return said | ({} if size is None else {"kv_cache_memory_bytes": str(size)})


def guesses(offers: Collection[Foreseen]) -> Iterator[str]:
    """Warn where a speed that is told is no more than a share of a roof."""
    if any(offer.guessed for offer in offers):
        yield _GUESSED


def uncertain(memory: MemoryTable) -> Iterator[str]:
    """Warn where the KV cache may be much smaller than expected."""
    low, expected = memory.kv_cache_gib["low"], memory.kv_cache_gib["expected"]
    if low < _WIDE * expected:
        yield (
            f"KV cache: {low:.2f} GiB at worst, {expected:.2f} expected; whether it fits is"
            " judged on the worst."
        )


def load_words(load: Load) -> str:
    """Say a load."""
    return (
        f"{load.concurrency} at once, {load.prompt_tokens:,} tokens in, {load.output_tokens:,} out"
    )


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
        load=load_words(offer.load),
        tokens_per_second_per_user=str(offer.decode.tokens_per_second_per_user),
        tokens_per_second=str(offer.decode.tokens_per_second),
        ttft_seconds=str(offer.prefill.ttft_seconds),
        boot_seconds=str(offer.boot.seconds),
        boot_within_probe=_probe(offer.boot),
        kv_saturates_at_requests=offer.saturation.kv_requests,
        changes=tuple(f"{c.flag}: {c.buys}; costs {c.costs}" for c in offer.changes),
        doubts=(*offer.doubts, *offer.warnings),
        guessed=offer.decode.tokens_per_second.expected is None,
        arguments=arguments(offer.flags),
        **_costs(offer.price, offer.cost),
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


def _costs(price: Price, cost: LoadCost | None) -> dict[str, Any]:
    return {
        "usd_per_hour": usd(price.usd_per_hour),
        "usd_per_month": usd(price.usd_per_month),
        "usd_per_million_tokens": str(cost.usd_per_million_tokens) if cost else None,
        "usd_per_1000_requests": str(cost.usd_per_1000_requests) if cost else None,
    }


def _probe(boot: Boot) -> str | None:
    if boot.budget_seconds is None:
        return None
    return f"{boot.within_budget}: {boot.advice}" if boot.advice else str(boot.within_budget)


def loads(ground: Ground, memory: MemoryPlan) -> bool:
    """Whether the weights get onto the accelerator."""
    device = ground.accelerator
    return memory.load_peak_gib <= (device.memory_gib or float("inf")) * device.free_at_start


def why_not_offload(
    ground: Ground, memory: MemoryPlan, wish: Wish, host_gib: int | None = None
) -> str | None:
    """Say what offloading would mean, where the weights alone are too much."""
    if ground.accelerator.memory_gib is None or loads(ground, memory):
        return None
    modest = wish._replace(max_model_len=min(wish.max_model_len, MODEST))
    found = offload(ground, modest, host_gib)
    return f"With {modest.max_model_len:,} tokens: {found.why_not}" if found else None


def cache_precisions(device: Accelerator) -> Iterator[tuple[str, str]]:
    """Say of each --kv-cache-dtype whether it is there and what it means."""
    if device.kind == "cpu":
        return  # Nobody has read what vLLM's CPU backend has.
    for each in kv_precisions(device):
        able = "yes" if each.possible else "no"
        planned = "" if each.planned or not each.possible else " (not planned with here)"
        yield each.kv_cache_dtype, f"{able}, {each.bits} bits{planned}: {each.why}"


def precision(shape: ModelShape, flags: Flags) -> str:
    """Say in what type weights and KV cache are."""
    kind = shape.dtype or "bfloat16"
    method = shape.quantization or flags.quantization
    bits = shape.quantization_bits or (8 if method else 16)
    weights = f"{bits}-bit {method}, the rest {kind}" if method else kind
    return f"weights {weights}; KV cache {flags.kv_cache_dtype or 'auto'}"


def machine_of(where: Place) -> Machine:
    """Say what a place gives."""
    device = accelerator(where.accelerator)
    return Machine(
        title=where.title,
        accelerator=f"{where.count} x {device.title}",
        memory_gib_each=device.memory_gib,
        bandwidth_gb_per_s=device.bandwidth_gb_per_s,
        hosts=tuple(f"{size.vcpu} vCPU, {size.ram_gib} GiB" for size in where.sizes),
        disk=where.disk or None,
        network=where.network,
        regions=where.regions,
        limits=(*where.limits, *device.cannot),
    )
