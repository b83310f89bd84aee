"""What was predicted beside what came of it, kept to learn from."""

import hashlib
from datetime import datetime
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import Field

from core.journal import Journal, readable
from core.records import Gib, MemoryPlan, ModelShape, Record
from planner.accelerators import Accelerator
from planner.flags import Flags
from planner.reached import Band
from planner.reads import Work
from planner.speed import decode


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
