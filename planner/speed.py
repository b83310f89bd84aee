"""How fast a model decodes and prefills: what a step must read, over what a device reaches."""

import functools
import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from core.errors import InvalidArgument
from core.records import GroupName, LayerShape, MemoryPlan, ModelShape, Record, valid
from planner.catalog import short_name
from planner.flags import Flags
from planner.places import Accelerator, accelerators
from planner.tensors import QUANTIZABLE

_FILE: Final = Path(__file__).with_name("speed.toml")


class Band(Record):
    """A figure as far as it can be foreseen; `expected` only where measurements allow one."""

    low: float
    expected: float | None = None
    high: float

    def __str__(self) -> str:
        """Say it for a person."""
        ends = f"{_short(self.low)}-{_short(self.high)}"
        return ends if self.expected is None else f"{_short(self.expected)} ({ends})"

    @property
    def middle(self) -> float:
        """The expected figure, else the geometric middle; to rank by, not to show."""
        return self.expected or (self.low * self.high) ** 0.5


class Share(Record):
    """What part of a roof is reached."""

    low: float
    high: float
    source: str


class Constants(Record):
    """Two constants of a device, from measurements on it."""

    effective_gb_per_s: float
    layer_microseconds: float
    tensor_parallel: tuple[int, ...]
    """How many of them worked together when it was measured."""
    weight_bits: tuple[int, ...]
    """Of the models that were measured."""
    error: float
    """Of a third model's prediction."""
    source: str


class Point(Record):
    """A decode speed that somebody measured, of one request."""

    accelerator: str
    count: int
    model: str
    tokens_per_second: float

    def __str__(self) -> str:
        """Say it for a person."""
        many = f"{self.count} x " if self.count > 1 else ""
        title = accelerators()[self.accelerator].title
        return f"{self.tokens_per_second:g} tokens/s, {short_name(self.model)} on {many}{title}"


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text("utf-8"))


@functools.cache
def share(name: str) -> Share:
    """Give the share of a roof that is reached in decode, prefill, prefill_parallel or pcie."""
    return valid(Share, _data()["bands"][name])


@functools.cache
def constants(accelerator: str) -> Constants | None:
    """Give a device's constants, None where nobody measured two models on it."""
    row = _data()["constants"].get(accelerator)
    return valid(Constants, row) if row else None


@functools.cache
def points() -> tuple[Point, ...]:
    """Return every decode speed that was measured, of one request."""
    return tuple(valid(Point, row) for row in _data()["points"])


def beyond(device: Accelerator, model: str, tokens_per_second: float) -> str | None:
    """Say what was measured nearest to a request's speed that nobody has seen; else None."""
    own = [point for point in points() if point.accelerator == device.name]
    if any(point.model == model for point in own):
        return None
    if own:
        most = max(own, key=lambda point: point.tokens_per_second)
        fast = tokens_per_second > most.tokens_per_second
        return f"the most that was measured there is {most}" if fast else None
    known = accelerators()

    def apart(point: Point) -> tuple[float, float]:
        there = known[point.accelerator].bandwidth_gb_per_s or 1
        return abs(math.log(there / (device.bandwidth_gb_per_s or 1))), -point.tokens_per_second

    return f"nothing was measured there; the nearest is {min(points(), key=apart)}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


_FP8_NAMES: Final = ("fp8", "fbgemm_fp8", "modelopt")
_NOT_WHOLE: Final[frozenset[GroupName]] = frozenset(
    {"experts", "embedding", "per_layer_embedding", "lm_head", "vision", "audio", "shared_kv"}
)
"""What a decode step reads in part, once in a special way, or not at all."""


class Part(NamedTuple):
    """One thing that a decode step reads, over all accelerators together."""

    name: str
    bytes_read: float
    how: str


class Work(NamedTuple):
    """A model on `accelerators` alike ones, ready to be reckoned with."""

    model: ModelShape
    accelerator: Accelerator
    flags: Flags

    @property
    def devices(self) -> int:
        """Accelerators that share the work."""
        return self.flags.tensor_parallel_size

    @property
    def weight_bits(self) -> int:
        """Of most weights, as they are read."""
        online = 8 if self.flags.quantization == "fp8" else 16
        return self.model.quantization_bits or online

    @property
    def kv_bytes(self) -> int:
        """Of one cached number."""
        return 1 if (self.flags.kv_cache_dtype or "auto").startswith("fp8") else 2

    def experts_touched(self, tokens: int) -> float:
        """Different experts that some tokens are expected to choose together.

        Each token leaves an expert alone with 1 - k / N, independently.
        """
        every, chosen = self.model.num_experts, self.model.experts_per_token
        return every * (1 - (1 - chosen / every) ** tokens) if every else 0.0

    def weights(self, tokens: int) -> Iterator[Part]:
        """Weights that a step of so many tokens reads once."""
        for group in self.model.groups:
            if group.name not in _NOT_WHOLE and (held := self._resident(group.name)):
                yield Part(group.name, held, "all of it")
        yield from self._output()
        yield from self._experts(tokens)
        if self.model.per_layer_embedding_size:
            row = 2 * len(self.model.layers) * self.model.per_layer_embedding_size
            yield Part("per-layer embeddings", row * tokens, f"{tokens} rows of {row:,} bytes")

    def cache(self, concurrency: int, context: int) -> Part:
        """Keys and values that a step reads for requests of this length."""
        each = sum(self._layer_cache(layer, context) for layer in self.model.layers)
        what = f"{concurrency} x {each:,} bytes at {context:,} tokens"
        return Part("KV cache", concurrency * each, what)

    def flops_per_token(self, context: int, *, output: bool) -> float:
        """Operations of one token that looks back on `context` others."""
        model = self.model
        share = model.experts_per_token / model.num_experts if model.num_experts else 0
        whole = (group.parameters for group in model.groups if group.name not in _NOT_WHOLE)
        weights = sum(whole) + share * self._parameters("experts")
        if output:
            weights += self._parameters("lm_head") or self._parameters("embedding")
        heads = model.num_attention_heads or 0
        attended = sum(layer.head_size * self._seen(layer, context) for layer in model.layers)
        return 2 * weights + 4 * heads * attended

    @property
    def tflops(self) -> float | None:
        """What the data sheet promises for this precision, on all accelerators."""
        method = self.flags.quantization or self.model.quantization or ""
        fp8 = method in _FP8_NAMES and self.accelerator.fp8_compute
        peak = (fp8 and self.accelerator.tflops_fp8) or self.accelerator.tflops_bf16
        return peak * self.devices if peak else None

    def check(self) -> None:
        """Refuse what cannot be reckoned.

        Raises:
            InvalidArgument: The model's shape or the accelerator's bandwidth is not known.
        """
        if not (self.model.layers and self.model.groups):
            raise InvalidArgument(
                f"The shape of {self.model.model} is not known.",
                fix="Give a model of the catalog, or a folder with config.json and safetensors.",
            )
        if self.accelerator.bandwidth_gb_per_s is None:
            raise InvalidArgument(
                f"The memory bandwidth of {self.accelerator.title} is not known here.",
                fix="Ask for another accelerator, or measure it there.",
            )

    def _output(self) -> Iterator[Part]:
        own = self._resident("lm_head")
        if own and not self.model.tied:
            yield Part("lm_head", own, "all of it; of the embedding only rows")
        else:
            yield Part("lm_head", self._resident("embedding"), "the whole tied embedding table")

    def _experts(self, tokens: int) -> Iterator[Part]:
        if not self.model.num_experts:
            return
        touched, every = self.experts_touched(tokens), self.model.num_experts
        how = (
            f"{touched:.1f} of {every} experts, top-{self.model.experts_per_token}, {tokens} tokens"
        )
        yield Part("experts", self._resident("experts") * touched / every, how)

    def _resident(self, name: GroupName) -> float:
        group = self.model.group(name)
        if group is None:
            return 0.0
        # An unquantized checkpoint that vLLM quantizes itself, which leaves embeddings alone.
        online = self.flags.quantization == "fp8" and not self.model.quantization
        return group.resident_bytes * (0.5 if online and name in QUANTIZABLE else 1)

    def _parameters(self, name: GroupName) -> int:
        group = self.model.group(name)
        return group.parameters if group else 0

    def _seen(self, layer: LayerShape, context: int) -> int:
        # tpu-inference attends in full, whatever the window.
        windowed = layer.window is not None and self.accelerator.kind != "tpu"
        return min(layer.window or context, context) if windowed else context

    def _layer_cache(self, layer: LayerShape, context: int) -> int:
        # A layer that shares another's cache reads it all the same; too few heads are replicated.
        heads = max(layer.kv_heads, self.devices)
        return 2 * heads * layer.head_size * self.kv_bytes * self._seen(layer, context)


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


_ROUNDING: Final = 1.005
"""A claim this little above the roof may be the roof, rounded."""


class Verdict(Record):
    """What to think of a claimed decode speed of one request."""

    claimed_tokens_per_second: float
    roof_tokens_per_second: float
    """No implementation can be faster: each token reads every active weight once."""
    likely_tokens_per_second: Band
    verdict: str
    """impossible, doubtful (above the band), plausible, or slow (below it)."""
    reason: str
    derivation: tuple[str, ...]


def judge(
    claimed_tokens_per_second: float, model: ModelShape, accelerator: Accelerator, flags: Flags
) -> Verdict:
    """Judge a claimed decode speed of a single stream, without speculative decoding.

    Raises:
        InvalidArgument: The model's shape or the accelerator's bandwidth is not known.
    """
    foreseen = decode(model, accelerator, flags)
    likely, roof = foreseen.tokens_per_second, foreseen.roof_tokens_per_second
    verdict = _verdict(claimed_tokens_per_second, likely, roof)
    read = f"{foreseen.bytes_read / 1e9:.2f} GB"
    bandwidth = (accelerator.bandwidth_gb_per_s or 0) * flags.tensor_parallel_size
    return Verdict(
        claimed_tokens_per_second=claimed_tokens_per_second,
        roof_tokens_per_second=roof,
        likely_tokens_per_second=likely,
        verdict=verdict,
        reason=(
            f"{claimed_tokens_per_second:g} tokens/s of {model.model} on "
            f"{flags.tensor_parallel_size} x {accelerator.title} is {verdict}: a token reads "
            f"{read} at {bandwidth:,.0f} GB/s, so the roof is {roof:.3g} and {likely} is likely."
        ),
        derivation=foreseen.derivation,
    )


def _verdict(claimed: float, likely: Band, roof: float) -> str:
    if claimed > roof * _ROUNDING:
        return "impossible"
    if claimed > likely.high:
        return "doubtful"
    return "plausible" if claimed >= likely.low else "slow"
