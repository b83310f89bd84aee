"""What was predicted beside what came of it, and what such pairs say of each accelerator."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from math import inf, sqrt
from statistics import median
from typing import ClassVar, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import Field

from core.journal import Journal, readable
from core.records import Answer, Gib, MemoryPlan, ModelShape, Record
from planner.flags import Flags
from planner.places import Accelerator, accelerators
from planner.speed import Band, Constants, Work, constants, decode


class Pair(Record):
    """What every pair says of where it was seen."""

    kind: ClassVar[str]

    at: datetime
    target: str
    model: str
    accelerator: str
    """A name of `accelerators.toml`."""
    count: int = Field(ge=1)
    flags: Flags
    engine_version: str
    simulated: bool = False
    """A rehearsal: its figures come from the plan itself and teach nothing."""


class PredictedCache(Record):
    """A KV cache as the planner foresaw it; counts of the expected estimate."""

    kv_cache_gib: Gib
    num_blocks: int
    kv_tokens: int
    max_concurrency: float

    @classmethod
    def of(cls, plan: MemoryPlan) -> Self:
        """Take them from a plan."""
        kv = plan.kv_expected
        return cls(
            kv_cache_gib=plan.kv_cache_gib,
            num_blocks=kv.num_blocks,
            kv_tokens=kv.kv_tokens,
            max_concurrency=kv.max_concurrency,
        )


class ActualCache(Record):
    """A KV cache as the engine says it; None is what it did not say."""

    kv_cache_gib: float | None = None
    num_blocks: int = Field(ge=0)
    kv_tokens: int = Field(ge=0)
    max_concurrency: float
    weights_gib: float | None = None


class KvPair(Pair):
    """A KV cache, foreseen and real."""

    kind: ClassVar[str] = "kv"

    name: str
    """Of the deployment."""
    predicted: PredictedCache
    actual: ActualCache

    @property
    def actual_gib(self) -> float | None:
        """What the engine said, else what its blocks come to."""
        if self.actual.kv_cache_gib is not None or not self.predicted.num_blocks:
            return self.actual.kv_cache_gib
        each = self.predicted.kv_cache_gib.expected / self.predicted.num_blocks
        return self.actual.num_blocks * each

    @property
    def offset_gib(self) -> float | None:
        """How much more there is than was expected; None where its size was given, not found."""
        given = self.flags.kv_cache_memory_bytes or self.flags.num_gpu_blocks_override
        if given is not None or self.actual_gib is None:
            return None
        return self.actual_gib - self.predicted.kv_cache_gib.expected

    def sentence(self) -> str:
        """Say how far the two are apart."""
        tokens, foreseen = self.actual.kv_tokens, self.predicted.kv_tokens
        error = f"{foreseen / tokens - 1:+.2%}".replace("%", " %") if tokens else "none came"
        said = f"{tokens:,} tokens, predicted {foreseen:,}: {error}"
        if self.actual_gib is None:
            return said
        gib = self.predicted.kv_cache_gib
        where = _where(self.actual_gib, gib.low, gib.high, ".2f", " GiB")
        return (
            f"KV cache {self.actual_gib:.2f} GiB, predicted {gib.low:.2f}-{gib.high:.2f}: "
            f"{where}; {said}"
        )


class DecodePair(Pair):
    """The time of one token of a single stream, foreseen and real."""

    kind: ClassVar[str] = "decode"

    context: int = Field(ge=0)
    """Tokens that the request held, on average over those that were timed."""
    concurrency: Literal[1] = 1
    bytes_per_step: int = Field(gt=0)
    """That a step reads, of all accelerators together."""
    layers: int = Field(gt=0)
    weight_bits: int
    experts: int = 0
    predicted_seconds_per_token: Band
    actual_seconds_per_token: float = Field(gt=0)

    @classmethod
    def of(
        cls,
        model: ModelShape,
        accelerator: Accelerator,
        flags: Flags,
        *,
        context: int,
        seconds_per_token: float,
        at: datetime,
        target: str,
        engine_version: str,
        simulated: bool = False,
    ) -> Self:
        """Put what was measured beside what is foreseen for it.

        Raises:
            InvalidArgument: The model's shape or the accelerator's bandwidth is not known.
        """
        step = decode(model, accelerator, flags, context=context)
        return cls(
            at=at,
            target=target,
            model=model.model,
            accelerator=accelerator.name,
            count=flags.tensor_parallel_size,
            flags=flags,
            engine_version=engine_version,
            simulated=simulated,
            context=context,
            bytes_per_step=step.bytes_read,
            layers=len(model.layers),
            weight_bits=Work(model, accelerator, flags).weight_bits,
            experts=model.num_experts,
            predicted_seconds_per_token=_inverse(step.tokens_per_second_per_user),
            actual_seconds_per_token=seconds_per_token,
        )

    def sentence(self) -> str:
        """Say how far the two are apart."""
        speed, band = 1 / self.actual_seconds_per_token, _inverse(self.predicted_seconds_per_token)
        where = _where(speed, band.low, band.high, ".3g", " tokens/s")
        return f"{speed:.3g} tokens/s, predicted {band}: {where}"


P = TypeVar("P", bound=Pair)


def keep_kv(journal: Journal, pair: KvPair, *, revision: str, instance: str) -> None:
    """Keep one for each life of a deployment."""
    key = f"{pair.target}/{pair.name}/{revision}/{instance}"
    journal.keep_pair(pair.kind, key, pair.model_dump_json())


def keep_decode(journal: Journal, pair: DecodePair) -> None:
    """Keep one for each model, accelerator, set of flags and doubling of the context."""
    flags = hashlib.sha256(pair.flags.model_dump_json().encode()).hexdigest()[:12]
    where = f"{pair.accelerator}x{pair.count}{'-simulated' if pair.simulated else ''}"
    key = "/".join((pair.model, where, flags, str(pair.context.bit_length())))
    journal.keep_pair(pair.kind, key, pair.model_dump_json())


def kept(journal: Journal, kind: type[P]) -> tuple[P, ...]:
    """Give every pair of a kind, newest last; what another version wrote otherwise is left out."""
    return readable(journal.pairs(kind.kind), kind)


def _where(actual: float, low: float, high: float, form: str, unit: str) -> str:
    if actual < low:
        return f"{low - actual:{form}}{unit} below"
    return f"{actual - high:{form}}{unit} above" if actual > high else "within"


def _inverse(band: Band) -> Band:
    expected = 1 / band.expected if band.expected else None
    return Band(low=1 / band.high, expected=expected, high=1 / band.low)


CONDITION_MAX: Final = 20.0
"""Above it, an error of 1 % in a measurement may move a constant by 20 %."""
ERROR_MIN: Final = 0.03
"""Two pairs fit exactly and prove nothing: elsewhere a third model was missed by 2-3 %."""
_HOW: Final = (
    "Deploy a model on a real engine and look at it with status_vllm once it is ready; measure one "
    "request alone on two models of different size."
)


class Sample(NamedTuple):
    """One measured step."""

    gigabytes: float
    """Read by each accelerator."""
    layers: int
    seconds: float


class Line(NamedTuple):
    """A step's time: `gigabytes * seconds_per_gb + layers * seconds_per_layer`."""

    seconds_per_gb: float
    seconds_per_layer: float
    condition: float
    """How many times an error of the measurements may grow; infinite where both are one."""


class Residual(Record):
    """How far the fitted constants miss one of their pairs."""

    model: str
    count: int
    context: int
    actual_seconds_per_token: float
    error: float
    """Of the fitted time: 0.01 is 1 % too long."""


class Fitted(Record):
    """An accelerator's constants, from pairs measured on it."""

    accelerator: str
    constants: Constants
    today: Constants | None
    """What `speed.toml` says, None where it says nothing."""
    condition: float
    residuals: tuple[Residual, ...]


class Offset(Record):
    """How much larger KV caches are than expected; less than 0 is smaller."""

    accelerator: str
    offset_gib: float
    """The median."""
    lowest_gib: float
    highest_gib: float
    pairs: int
    within: int
    """Pairs that lie in their foreseen band."""
    source: str


class LeftOut(Record):
    """What could not be learned from, and why."""

    what: str
    why: str


class Calibration(Answer):
    """Everything that kept pairs say."""

    fitted: tuple[Fitted, ...]
    kv_offsets: tuple[Offset, ...]
    left_out: tuple[LeftOut, ...]

    def summary(self) -> str:
        """Say what was found, or how to find something."""
        if not (self.fitted or self.kv_offsets or self.left_out):
            return f"No pairs are kept yet. {_HOW}"
        if not (self.fitted or self.kv_offsets):
            return f"Nothing can be learned from the pairs that are kept. {_HOW}"
        return (
            f"Learned the constants of {len(self.fitted)} and the KV offsets of "
            f"{len(self.kv_offsets)} accelerators; {len(self.left_out)} left out."
        )


def least_squares(samples: Sequence[Sample]) -> Line:
    """Fit both constants so that relative errors are least; noise grows with what is timed."""
    reads = [sample.gigabytes / sample.seconds for sample in samples]
    layers = [sample.layers / sample.seconds for sample in samples]
    rr, ll = sum(x * x for x in reads), sum(x * x for x in layers)
    rl = sum(x * y for x, y in zip(reads, layers, strict=True))
    alike = rl / sqrt(rr * ll)
    if 1 - alike < 1e-9:
        return Line(inf, inf, inf)
    determinant = rr * ll - rl * rl
    return Line(
        seconds_per_gb=(sum(reads) * ll - sum(layers) * rl) / determinant,
        seconds_per_layer=(sum(layers) * rr - sum(reads) * rl) / determinant,
        condition=sqrt((1 + alike) / (1 - alike)),
    )


def calibrate(decodes: Collection[DecodePair], caches: Collection[KvPair]) -> Calibration:
    """Fit what can be fitted, for each accelerator by itself."""
    left = [LeftOut(what=_name(pair), why=why) for pair in decodes if (why := _unfit(pair))]
    left += [LeftOut(what=_name(pair), why=why) for pair in caches if (why := _no_offset(pair))]
    usable = _by_accelerator([pair for pair in decodes if not _unfit(pair)])
    fits = [fit_constants(name, pairs) for name, pairs in usable.items()]
    offsets = _by_accelerator([pair for pair in caches if not _no_offset(pair)])
    return Calibration(
        fitted=tuple(each for each in fits if isinstance(each, Fitted)),
        kv_offsets=tuple(_offset(name, pairs) for name, pairs in offsets.items()),
        left_out=(*left, *(each for each in fits if isinstance(each, LeftOut))),
    )


def fit_constants(accelerator: str, pairs: Sequence[DecodePair]) -> Fitted | LeftOut:
    """Fit the two constants of an accelerator, or say why they cannot be told."""
    samples = [_sample(pair) for pair in pairs]
    line = least_squares(samples)
    if why := _impossible(accelerator, line):
        return LeftOut(what=f"{accelerator}: {_count(pairs)} of decode", why=why)
    residuals = tuple(
        _residual(pair, sample, line) for pair, sample in zip(pairs, samples, strict=True)
    )
    found = Constants(
        effective_gb_per_s=round(1 / line.seconds_per_gb, 1),
        layer_microseconds=round(line.seconds_per_layer * 1e6, 2),
        tensor_parallel=tuple(sorted({pair.flags.tensor_parallel_size for pair in pairs})),
        weight_bits=tuple(sorted({pair.weight_bits for pair in pairs})),
        error=round(max(ERROR_MIN, *(abs(each.error) for each in residuals)), 3),
        source=_source(pairs),
    )
    return Fitted(
        accelerator=accelerator,
        constants=found,
        today=constants(accelerator),
        condition=round(line.condition, 1),
        residuals=residuals,
    )


def _unfit(pair: DecodePair) -> str | None:
    known = accelerators().get(pair.accelerator)
    if pair.simulated:
        return "a simulated engine runs at the plan's own speed"
    if known is None or known.bandwidth_gb_per_s is None:
        return "the bandwidth of its accelerator is not known"
    if pair.experts:
        return "how many experts a step reads is an estimate"
    return "part of it is read over PCIe" if pair.flags.cpu_offload_gb else None


def _no_offset(pair: KvPair) -> str | None:
    if pair.simulated:
        return "a simulated engine has the plan's own KV cache"
    if pair.accelerator not in accelerators():
        return "its accelerator is not known"
    return "its KV cache was given, not found" if pair.offset_gib is None else None


def _impossible(accelerator: str, line: Line) -> str | None:
    if line.condition > CONDITION_MAX:
        return (
            f"bandwidth and time per layer cannot be separated (condition {line.condition:.3g}, "
            f"at most {CONDITION_MAX:g}): measure a model with other bytes per layer"
        )
    roof = accelerators()[accelerator].bandwidth_gb_per_s or inf
    if line.seconds_per_gb <= 0 or 1 / line.seconds_per_gb > roof:
        reached = "no" if line.seconds_per_gb <= 0 else f"{1 / line.seconds_per_gb:,.0f} GB/s of"
        return f"they mean {reached} bandwidth, the data sheet says {roof:,.0f} GB/s"
    if line.seconds_per_layer < 0:
        return f"they mean {line.seconds_per_layer * 1e6:.3g} us a layer"
    return None


def _sample(pair: DecodePair) -> Sample:
    each = pair.bytes_per_step / 1e9 / pair.flags.tensor_parallel_size
    return Sample(each, pair.layers, pair.actual_seconds_per_token)


def _residual(pair: DecodePair, sample: Sample, line: Line) -> Residual:
    seconds = sample.gigabytes * line.seconds_per_gb + sample.layers * line.seconds_per_layer
    return Residual(
        model=pair.model,
        count=pair.flags.tensor_parallel_size,
        context=pair.context,
        actual_seconds_per_token=sample.seconds,
        error=seconds / sample.seconds - 1,
    )


def _offset(accelerator: str, pairs: Sequence[KvPair]) -> Offset:
    found = [pair.offset_gib or 0.0 for pair in pairs]
    bands = [(pair.actual_gib or 0.0, pair.predicted.kv_cache_gib) for pair in pairs]
    return Offset(
        accelerator=accelerator,
        offset_gib=round(median(found), 3),
        lowest_gib=round(min(found), 3),
        highest_gib=round(max(found), 3),
        pairs=len(pairs),
        within=sum(gib.low <= actual <= gib.high for actual, gib in bands),
        source=_source(pairs),
    )


def _by_accelerator(pairs: Collection[P]) -> Mapping[str, list[P]]:
    found: dict[str, list[P]] = defaultdict(list)
    for pair in pairs:
        found[pair.accelerator].append(pair)
    return dict(sorted(found.items()))


def _source(pairs: Sequence[Pair]) -> str:
    return f"measured here, {_count(pairs)}, {max(pair.at for pair in pairs).date()}"


def _count(pairs: Sequence[Pair]) -> str:
    return f"{len(pairs)} pair{'s' if len(pairs) > 1 else ''}"


def _name(pair: Pair) -> str:
    return f"{pair.kind} of {pair.model} on {pair.count} x {pair.accelerator}"
