"""How fast a model decodes and prefills: what a step must read, over what a device reaches."""

import functools
import math
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from core.environment import read_toml
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

    def times(self, factor: float) -> "Band":
        """Return so many times as much."""
        expected = None if self.expected is None else self.expected * factor
        return Band(low=self.low * factor, expected=expected, high=self.high * factor)

    def under(self, amount: float) -> "Band":
        """Return an amount over it: of seconds, how much a second."""
        expected = amount / self.expected if self.expected else None
        return Band(low=amount / self.high, expected=expected, high=amount / self.low)


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
def share(name: str) -> Share:
    """Give the share of a roof that is reached in decode, prefill, prefill_parallel or pcie."""
    return valid(Share, read_toml(_FILE)["bands"][name])


@functools.cache
def constants(accelerator: str) -> Constants | None:
    """Give a device's constants, None where nobody measured two models on it."""
    row = read_toml(_FILE)["constants"].get(accelerator)
    return valid(Constants, row) if row else None


@functools.cache
def points() -> tuple[Point, ...]:
    """Return every decode speed that was measured, of one request."""
    return tuple(valid(Point, row) for row in read_toml(_FILE)["points"])


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
_NOT_WHOLE: Final[frozenset[str]] = frozenset(
    {"experts", "embedding", "per_layer_embedding", "lm_head"}
    | {"vision", "audio", "shared_kv", "draft"}
)
"""What a decode step reads in part, once in a special way, or not at all."""
_OFFLOADED: Final = QUANTIZABLE | {"other"}
"""Only decoder layers go to the host."""


class Work(NamedTuple):
    """A model on `tensor_parallel_size` alike accelerators, ready to be reckoned with."""

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
    def experts_share(self) -> float:
        """Of the experts, that one token takes; all of them where that is not known."""
        every, chosen = self.model.num_experts, self.model.experts_per_token
        return chosen / every if every and chosen else 1.0

    def experts_touched(self, tokens: int) -> float:
        """Different experts that some tokens are expected to choose together.

        Each token leaves an expert alone with 1 - k / N, independently.
        """
        return self.model.num_experts * (1 - (1 - self.experts_share) ** tokens)

    def weights(self, tokens: int) -> Iterator[tuple[str, float]]:
        """Bytes of weights that a step of so many tokens reads once, over all accelerators."""
        for group in self.model.groups:
            if group.name not in _NOT_WHOLE and (held := self._resident(group.name)):
                yield group.name, held
        own = 0.0 if self.model.tied else self._resident("lm_head")
        yield "lm_head", own or self._resident("embedding")
        if experts := self._resident("experts"):
            every = self.model.num_experts
            yield "experts", experts * (self.experts_touched(tokens) / every if every else 1)
        if self.model.per_layer_embedding_size:
            row = 2 * len(self.model.layers) * self.model.per_layer_embedding_size
            yield "per-layer embeddings", row * tokens

    def cache(self, concurrency: int, context: int) -> float:
        """Bytes of keys and values that a step reads for requests of this length."""
        element = 1 if (self.flags.kv_cache_dtype or "auto").startswith("fp8") else 2
        # A layer that shares another's cache reads it all the same; too few heads are replicated.
        return concurrency * sum(
            2 * max(layer.kv_heads, self.devices) * layer.head_size * element * seen * count
            for layer, count in self.model.layer_kinds
            if (seen := self._seen(layer, context))
        )

    def flops_per_token(self, context: int, *, output: bool) -> float:
        """Operations of one token that looks back on `context` others."""
        model = self.model
        whole = (group.parameters for group in model.groups if group.name not in _NOT_WHOLE)
        weights = sum(whole) + self.experts_share * self._parameters("experts")
        if output:
            weights += self._parameters("lm_head") or self._parameters("embedding")
        heads = model.num_attention_heads or 0
        attended = sum(
            layer.head_size * self._seen(layer, context) * count
            for layer, count in model.layer_kinds
        )
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


class Prefill(Record):
    """A prompt that is read, alone, before the first token comes."""

    prompt_tokens: int
    seconds: Band
    tokens_per_second: Band
    ttft_seconds: Band
    """With nothing before it in the queue and no network between."""


class Saturation(Record):
    """Where more requests at once stop helping."""

    kv_requests: int
    """Of full length, that the KV cache holds on its low estimate; further ones queue."""
    compute_requests: int | None
    """From here arithmetic takes longer than reading; None: reading always takes longer."""


class _Step(NamedTuple):
    """What a step demands."""

    work: Work
    concurrency: int
    memory_bytes: float
    """Of the accelerators' own memory."""
    pcie_bytes: float
    flops: float

    @classmethod
    def of(cls, work: Work, concurrency: int, context: int) -> Self:
        """Count it; only layers are offloaded, and of experts only those chosen are read."""
        weights = list(work.weights(concurrency))
        read = sum(size for name, size in weights if name in _OFFLOADED)
        held = sum(group.resident_bytes for group in work.model.groups if group.name in _OFFLOADED)
        gib = (work.flags.cpu_offload_gb or 0) * work.devices  # vLLM counts it per GPU
        offloaded = gib * 2**30 * min(1.0, read / held)
        moved = min(read, offloaded)
        return cls(
            work=work,
            concurrency=concurrency,
            memory_bytes=sum(size for _, size in weights)
            - moved
            + work.cache(concurrency, context),
            pcie_bytes=moved,
            flops=concurrency * work.flops_per_token(context, output=True),
        )

    @property
    def constants(self) -> Constants | None:
        """The device's, if they speak of such a model on so many of them."""
        known = constants(self.work.accelerator.name)
        if known is None or self.work.model.num_experts:
            return None
        bits, devices = self.work.weight_bits, self.work.devices
        return known if bits in known.weight_bits and devices in known.tensor_parallel else None

    @property
    def is_arithmetic(self) -> bool:
        """Whether arithmetic takes longer than reading, by the data sheet."""
        device, count = self.work.accelerator, self.work.devices
        peak = (self.work.tflops or 1e9) * 1e12
        bandwidth = (device.bandwidth_gb_per_s or 1) * 1e9 * count
        return self.flops / peak >= self.memory_bytes / bandwidth

    def roof(self) -> float:
        """Seconds, if everything promised were reached."""
        return self._seconds(1, 1, 1)

    def seconds(self) -> Band:
        """Seconds: slow is `high`."""
        known, reached, pcie = self.constants, share("decode"), share("pcie")
        slow = self._seconds(reached.low, min(reached.low, share("prefill").low), pcie.low)
        if known is None:
            # Sharing the work or choosing experts makes no layer quicker to start.
            own = constants(self.work.accelerator.name)
            measured = self._calibrated(own) if own else 0.0
            fast = max(measured, self._seconds(reached.high, reached.high, pcie.high))
            return Band(low=fast, high=max(slow, fast * reached.high / reached.low))
        expected = self._calibrated(known)
        # Only steps of one request were measured.
        high = expected * (1 + known.error) if self.concurrency == 1 else max(slow, expected)
        return Band(low=expected * (1 - known.error), expected=expected, high=high)

    def _seconds(self, memory: float, arithmetic: float, pcie: float) -> float:
        """Return how long it takes where such shares of what is promised are reached."""
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
    step = _Step.of(work, concurrency, context)
    seconds = step.seconds()
    each = seconds.under(1)
    return Decode(
        concurrency=concurrency,
        context=context,
        bytes_read=round(step.memory_bytes + step.pcie_bytes),
        roof_tokens_per_second=concurrency / step.roof(),
        tokens_per_second=seconds.under(concurrency),
        tokens_per_second_per_user=each,
        calibrated=step.constants is not None,
        beyond=None if step.constants else beyond(accelerator, model.model, each.high),
    )


def prefill(
    model: ModelShape, accelerator: Accelerator, flags: Flags, *, prompt_tokens: int
) -> Prefill:
    """Foresee how long one prompt is read, and when its first token comes, a step later.

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
        tokens_per_second=seconds.under(prompt_tokens),
        ttft_seconds=Band(low=seconds.low + 1 / first.high, high=seconds.high + 1 / first.low),
    )


def saturation(
    model: ModelShape, accelerator: Accelerator, flags: Flags, plan: MemoryPlan, *, context: int
) -> Saturation:
    """Say at how many requests the KV cache and the arithmetic are full."""
    work = Work(model, accelerator, flags)
    work.check()
    requests = range(1, _SEARCHED + 1)
    reading = bisect_left(
        requests, 1, key=lambda together: _Step.of(work, together, context).is_arithmetic
    )
    return Saturation(
        kv_requests=int(plan.kv_low.max_concurrency) if plan.fits else 0,
        compute_requests=requests[reading] if reading < _SEARCHED else None,
    )
