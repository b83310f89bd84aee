"""How fast a model decodes and prefills: what a step must read and reckon, over what a device does.

Where two measurements fixed a device's constants the answer is a number with its error; everywhere
else it is a band below the data sheet's roof.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from core.records import MemoryPlan, ModelShape, Record
from planner.accelerators import Accelerator
from planner.flags import Flags
from planner.groups import QUANTIZABLE
from planner.reached import Band, Constants, beyond, constants, share
from planner.reads import Part, Work

_SEARCHED: Final = 8192
"""Requests at once, beyond which nobody asks where arithmetic saturates."""


class Decode(Record):
    """One decode step: a token for each of some requests."""

    concurrency: int
    context: int
    """Tokens that each request already holds."""
    bytes_read: int
    roof_tokens_per_second: float
    """All requests together, if the data sheet's bandwidth and TFLOPS were reached."""
    tokens_per_second: Band
    """All requests together."""
    tokens_per_second_per_user: Band
    calibrated: bool
    """From measurements on this device; else a band below the roof."""
    beyond: str | None
    """What was measured nearest, where the band ends above all that was measured there."""
    derivation: tuple[str, ...]


class Prefill(Record):
    """A prompt that is read, alone, before the first token comes."""

    prompt_tokens: int
    seconds: Band
    tokens_per_second: Band
    ttft_seconds: Band
    """With nothing before it in the queue and no network between."""
    derivation: tuple[str, ...]


class Saturation(Record):
    """Where more requests at once stop helping."""

    kv_requests: int
    """Of full length, that the KV cache holds on its low estimate; further ones queue."""
    compute_requests: int | None
    """From here arithmetic takes longer than reading; None: reading always takes longer."""
    derivation: tuple[str, ...]


class _Step(NamedTuple):
    """A step's demands, and whether it is one like those that were measured."""

    work: Work
    concurrency: int
    memory_bytes: float
    """Of the accelerators' own memory."""
    pcie_bytes: float
    flops: float

    @property
    def constants(self) -> Constants | None:
        """The device's, if they speak of such a model on so many of them."""
        known = constants(self.work.accelerator.name)
        if known is None or self.work.model.num_experts:
            return None
        bits, devices = self.work.weight_bits, self.work.devices
        return known if bits in known.weight_bits and devices in known.tensor_parallel else None

    @property
    def fastest(self) -> float:
        """Seconds of a step that was not measured, at best."""
        most = share("decode").high
        known = constants(self.work.accelerator.name)
        # Sharing the work or choosing experts makes no layer quicker to start.
        measured = self._calibrated(known) if known else 0.0
        return max(measured, self._seconds(most, most, share("pcie").high))

    def roof(self) -> float:
        """Seconds, if everything promised were reached."""
        return self._seconds(1, 1, 1)

    def seconds(self) -> Band:
        """Seconds: slow is `high`."""
        known, least, most = self.constants, share("decode").low, share("decode").high
        slow = self._seconds(least, min(least, share("prefill").low), share("pcie").low)
        if known is None:
            return Band(low=self.fastest, high=max(slow, self.fastest * most / least))
        expected = self._calibrated(known)
        # Only steps of one request were measured.
        high = expected * (1 + known.error) if self.concurrency == 1 else max(slow, expected)
        return Band(low=expected * (1 - known.error), expected=expected, high=high)

    def _seconds(self, memory: float, arithmetic: float, pcie: float) -> float:
        device, count = self.work.accelerator, self.work.devices
        reading = self.memory_bytes / ((device.bandwidth_gb_per_s or 1) * 1e9 * count * memory)
        moving = self.pcie_bytes / ((device.pcie_gb_per_s or 32) * 1e9 * count * pcie)
        tflops = self.work.tflops
        reckoning = self.flops / (tflops * 1e12 * arithmetic) if tflops else 0
        return max(reading, reckoning) + moving

    def _calibrated(self, known: Constants) -> float:
        device = self.work.accelerator
        reached = known.effective_gb_per_s / (device.bandwidth_gb_per_s or 1)
        prefill = share("prefill")
        arithmetic = (prefill.low * prefill.high) ** 0.5
        base = self._seconds(reached, arithmetic, share("pcie").high)
        return base + len(self.work.model.layers) * known.layer_microseconds * 1e-6


def decode(
    model: ModelShape,
    accelerator: Accelerator,
    flags: Flags,
    *,
    concurrency: int = 1,
    context: int = 0,
) -> Decode:
    """Foresee a decode step on `flags.tensor_parallel_size` alike accelerators.

    Raises:
        InvalidArgument: The model's shape or the accelerator's bandwidth is not known.
    """
    work = Work(model, accelerator, flags)
    work.check()
    step, how = _step(work, concurrency, context)
    seconds = step.seconds()
    each = _inverse(seconds, 1)
    return Decode(
        concurrency=concurrency,
        context=context,
        bytes_read=round(step.memory_bytes + step.pcie_bytes),
        roof_tokens_per_second=concurrency / step.roof(),
        tokens_per_second=_inverse(seconds, concurrency),
        tokens_per_second_per_user=each,
        calibrated=step.constants is not None,
        beyond=None if step.constants else beyond(accelerator, model.model, each.high),
        derivation=(*how, *_how_fast(step, seconds)),
    )


def prefill(
    model: ModelShape, accelerator: Accelerator, flags: Flags, *, prompt_tokens: int
) -> Prefill:
    """Foresee how long one prompt is read, and when its first token comes.

    Raises:
        InvalidArgument: The model's shape or the accelerator's bandwidth is not known.
    """
    work = Work(model, accelerator, flags)
    work.check()
    flops = prompt_tokens * work.flops_per_token(prompt_tokens // 2, output=False)
    reached = share("prefill" if work.devices == 1 else "prefill_parallel")
    peak = (work.tflops or 1) * 1e12
    seconds = Band(low=flops / (peak * reached.high), high=flops / (peak * reached.low))
    first = decode(model, accelerator, flags, context=prompt_tokens).tokens_per_second
    return Prefill(
        prompt_tokens=prompt_tokens,
        seconds=seconds,
        tokens_per_second=_inverse(seconds, prompt_tokens),
        ttft_seconds=Band(low=seconds.low + 1 / first.high, high=seconds.high + 1 / first.low),
        derivation=(
            f"{flops / 1e12:.3g} TFLOP for {prompt_tokens:,} tokens, attention counted",
            f"{peak / 1e12:,.0f} TFLOPS x {reached.low}-{reached.high}: {seconds} s",
            reached.source,
            "the first token comes one decode step later",
        ),
    )


def saturation(
    model: ModelShape, accelerator: Accelerator, flags: Flags, plan: MemoryPlan, *, context: int
) -> Saturation:
    """Say at how many requests the KV cache and the arithmetic are full."""
    work = Work(model, accelerator, flags)
    work.check()
    held = int(plan.kv_low.max_concurrency) if plan.fits else 0
    bound = _compute_bound(work, context)
    return Saturation(
        kv_requests=held,
        compute_requests=bound,
        derivation=(_held(plan), _bound_in_words(bound, context)),
    )


def _step(work: Work, concurrency: int, context: int) -> tuple[_Step, Sequence[str]]:
    weights = list(work.weights(concurrency))
    cache = work.cache(concurrency, context)
    active = sum(part.bytes_read for part in weights)
    offloaded = _offloaded(work, weights)
    step = _Step(
        work=work,
        concurrency=concurrency,
        memory_bytes=active - offloaded + cache.bytes_read,
        pcie_bytes=offloaded,
        flops=concurrency * work.flops_per_token(context, output=True),
    )
    read = [f"{name}: {size / 1e9:.3f} GB, {how}" for name, size, how in (*weights, cache)]
    moved = [f"of that {offloaded / 1e9:.2f} GB over PCIe, each step"] if offloaded else []
    return step, [*read, *moved]


def _offloaded(work: Work, weights: Sequence[Part]) -> float:
    """Bytes over PCIe: only layers are offloaded, and of experts only those chosen are read."""
    layers = QUANTIZABLE | {"other"}
    read = sum(part.bytes_read for part in weights if part.name in layers)
    held = sum(group.resident_bytes for group in work.model.groups if group.name in layers)
    return min(read, (work.flags.cpu_offload_gb or 0) * 2**30 * min(1.0, read / held))


def _how_fast(step: _Step, seconds: Band) -> Sequence[str]:
    device, count, known = step.work.accelerator, step.work.devices, step.constants
    roof = f"roof: {step.roof() * 1e3:.2f} ms at {count} x {device.bandwidth_gb_per_s:,.0f} GB/s"
    took = f"a step takes {seconds.low * 1e3:.3g}-{seconds.high * 1e3:.3g} ms"
    if known:
        constants_used = f"{known.effective_gb_per_s:,.0f} GB/s, {known.layer_microseconds:g} us"
        return roof, f"{took}: {constants_used} a layer, {known.source}"
    reached = share("decode")
    return roof, f"{took}: {reached.low}-{reached.high} of the roof ({reached.source})"


def _held(plan: MemoryPlan) -> str:
    kv = plan.kv_low
    each = f"{kv.blocks_per_request:,} for a request of {plan.max_model_len:,} tokens"
    return f"KV cache: {kv.num_blocks:,} blocks / {each} = {kv.max_concurrency:.2f}"


def _bound_in_words(bound: int | None, context: int) -> str:
    if bound is None:
        return f"arithmetic: at {context:,} tokens each, reading always takes longer"
    return f"arithmetic: takes longer than reading from {bound} requests of {context:,} tokens on"


def _inverse(seconds: Band, amount: float) -> Band:
    expected = amount / seconds.expected if seconds.expected else None
    return Band(low=amount / seconds.high, expected=expected, high=amount / seconds.low)


def _compute_bound(work: Work, context: int) -> int | None:
    bandwidth = (work.accelerator.bandwidth_gb_per_s or 1) * 1e9 * work.devices
    peak = (work.tflops or 1e9) * 1e12

    def bound(concurrency: int) -> bool:
        step, _ = _step(work, concurrency, context)
        return step.flops / peak >= step.memory_bytes / bandwidth

    if not bound(_SEARCHED):
        return None
    low, high = 1, _SEARCHED
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) else (middle + 1, high)
    return low
