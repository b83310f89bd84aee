"""What was predicted beside what came of it; `python -m planner.calibrate` learns from it."""

import argparse
import hashlib
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from math import inf, sqrt
from pathlib import Path
from typing import Final, NamedTuple, Self

from pydantic import ConfigDict, Field

from core.journal import Journal, readable
from core.records import MemoryPlan, ModelShape, Record
from planner.flags import Flags
from planner.places import Accelerator, accelerators
from planner.speed import Band, Constants, Work, constants, decode


class ActualCache(Record):
    """A KV cache as the engine says it; None is what it did not say."""

    kv_cache_gib: float | None = None
    num_blocks: int = Field(ge=0)
    kv_tokens: int = Field(ge=0)


def cache_prediction(plan: MemoryPlan, actual: ActualCache) -> str:
    """Say how far a KV cache is from its plan; of one whose size is not said, by its blocks."""
    kv, gib, tokens = plan.kv_expected, plan.kv_cache_gib, actual.kv_tokens
    error = f"{kv.kv_tokens / tokens - 1:+.2%}".replace("%", " %") if tokens else "none came"
    said = f"{tokens:,} tokens, predicted {kv.kv_tokens:,}: {error}"
    size = actual.kv_cache_gib
    if size is None and kv.num_blocks:
        size = actual.num_blocks * gib.expected / kv.num_blocks
    if size is None:
        return said
    where = _where(size, gib.low, gib.high, ".2f", " GiB")
    return f"KV cache {size:.2f} GiB, predicted {gib.low:.2f}-{gib.high:.2f}: {where}; {said}"


def _where(actual: float, low: float, high: float, form: str, unit: str) -> str:
    if actual < low:
        return f"{low - actual:{form}}{unit} below"
    return f"{actual - high:{form}}{unit} above" if actual > high else "within"


class DecodePair(Record):
    """The time of one token of a single stream, foreseen and real."""

    model_config = ConfigDict(extra="ignore")  # earlier versions kept more

    at: datetime
    target: str
    model: str
    accelerator: str
    """A name of `accelerators.toml`."""
    flags: Flags
    engine_version: str
    simulated: bool = False
    """A rehearsal: its figures come from the plan itself and teach nothing."""
    context: int = Field(ge=0)
    """Tokens that the request held, on average over those that were timed."""
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
            flags=flags,
            engine_version=engine_version,
            simulated=simulated,
            context=context,
            bytes_per_step=step.bytes_read,
            layers=len(model.layers),
            weight_bits=Work(model, accelerator, flags).weight_bits,
            experts=model.num_experts,
            predicted_seconds_per_token=step.tokens_per_second_per_user.under(1),
            actual_seconds_per_token=seconds_per_token,
        )

    @property
    def useless(self) -> str | None:
        """Why constants cannot be learned from it; None where they can."""
        known = accelerators().get(self.accelerator)
        if self.simulated:
            return "a simulated engine runs at the plan's own speed"
        if known is None or known.bandwidth_gb_per_s is None:
            return "the bandwidth of its accelerator is not known"
        if self.experts:
            return "how many experts a step reads is an estimate"
        return "part of it is read over PCIe" if self.flags.cpu_offload_gb else None


_KIND: Final = "decode"


def keep_decode(journal: Journal, pair: DecodePair) -> None:
    """Keep one for each model, accelerator, set of flags and doubling of the context."""
    flags = hashlib.sha256(pair.flags.model_dump_json().encode()).hexdigest()[:12]
    ways, made_up = pair.flags.tensor_parallel_size, "-simulated" if pair.simulated else ""
    where = f"{pair.accelerator}x{ways}{made_up}"
    key = "/".join((pair.model, where, flags, str(pair.context.bit_length())))
    journal.keep_pair(_KIND, key, pair.model_dump_json())


def kept(journal: Journal) -> tuple[DecodePair, ...]:
    """Give every pair, newest last; what another version wrote otherwise is left out."""
    return readable(journal.pairs(_KIND), DecodePair)


CONDITION_MAX: Final = 20.0
"""Above it, an error of 1 % in a measurement may move a constant by 20 %."""
ERROR_MIN: Final = 0.03
"""Two pairs fit exactly and prove nothing: elsewhere a third model was missed by 2-3 %."""


class Line(NamedTuple):
    """A step's time: `gigabytes * seconds_per_gb + layers * seconds_per_layer`."""

    seconds_per_gb: float
    seconds_per_layer: float
    condition: float
    """How many times an error of the measurements may grow; infinite where both are one."""

    @classmethod
    def through(cls, pairs: Sequence[DecodePair]) -> Self:
        """Fit both so that relative errors are least; noise grows with what is timed."""
        reads = [_gigabytes(pair) / pair.actual_seconds_per_token for pair in pairs]
        layers = [pair.layers / pair.actual_seconds_per_token for pair in pairs]
        rr, ll = sum(x * x for x in reads), sum(x * x for x in layers)
        rl = sum(x * y for x, y in zip(reads, layers, strict=True))
        alike = rl / sqrt(rr * ll)
        if 1 - alike < 1e-9:
            return cls(inf, inf, inf)
        determinant = rr * ll - rl * rl
        return cls(
            seconds_per_gb=(sum(reads) * ll - sum(layers) * rl) / determinant,
            seconds_per_layer=(sum(layers) * rr - sum(reads) * rl) / determinant,
            condition=sqrt((1 + alike) / (1 - alike)),
        )

    def error(self, pair: DecodePair) -> float:
        """How far it misses a pair: 0.01 is 1 % too long."""
        seconds = _gigabytes(pair) * self.seconds_per_gb + pair.layers * self.seconds_per_layer
        return seconds / pair.actual_seconds_per_token - 1

    def impossible(self, accelerator: str) -> str | None:
        """Why it cannot be an accelerator's; None where it can."""
        if self.condition > CONDITION_MAX:
            return (
                f"bandwidth and time per layer cannot be separated (condition {self.condition:.3g},"
                f" at most {CONDITION_MAX:g}): measure a model with other bytes per layer"
            )
        roof = accelerators()[accelerator].bandwidth_gb_per_s or inf
        reached = 1 / self.seconds_per_gb if self.seconds_per_gb > 0 else inf
        if reached > roof:
            return f"they mean {reached:,.0f} GB/s of bandwidth, the data sheet says {roof:,.0f}"
        if self.seconds_per_layer < 0:
            return f"they mean {self.seconds_per_layer * 1e6:.3g} us a layer"
        return None


def _gigabytes(pair: DecodePair) -> float:
    """Return what each accelerator reads in a step."""
    return pair.bytes_per_step / 1e9 / pair.flags.tensor_parallel_size


def fit_constants(accelerator: str, pairs: Sequence[DecodePair]) -> Constants | str:
    """Fit the two constants of an accelerator, or say why they cannot be told."""
    line = Line.through(pairs)
    if why := line.impossible(accelerator):
        return why
    newest = max(pair.at for pair in pairs).date()
    return Constants(
        effective_gb_per_s=round(1 / line.seconds_per_gb, 1),
        layer_microseconds=round(line.seconds_per_layer * 1e6, 2),
        tensor_parallel=tuple(sorted({pair.flags.tensor_parallel_size for pair in pairs})),
        weight_bits=tuple(sorted({pair.weight_bits for pair in pairs})),
        error=round(max(ERROR_MIN, *(abs(line.error(pair)) for pair in pairs)), 3),
        source=f"measured here, {len(pairs)} pairs, {newest}",
    )


def calibration(pairs: Collection[DecodePair]) -> Iterator[str]:
    """Yield the rows that replace those of `speed.toml`; what is no row is a comment."""
    usable: dict[str, list[DecodePair]] = defaultdict(list)
    for pair in pairs:
        if why := pair.useless:
            yield f"# left out: {pair.model} on {pair.accelerator}: {why}"
        else:
            usable[pair.accelerator].append(pair)
    for accelerator, measured in sorted(usable.items()):
        found = fit_constants(accelerator, measured)
        if isinstance(found, str):
            yield f"# left out: {len(measured)} pairs of {accelerator}: {found}"
            continue
        if old := constants(accelerator):
            was = f"{old.effective_gb_per_s:g} GB/s, {old.layer_microseconds:g} us a layer"
            yield f"# instead of {was}"
        yield f"[constants.{accelerator}]"
        for name, value in found:
            said = f'"{value}"' if isinstance(value, str) else value
            yield f"{name} = {list(value) if isinstance(value, tuple) else said}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m planner.calibrate", description=__doc__)
    parser.add_argument("journal", type=Path, help="journal.db, in a folder of the state folder")
    journal = Journal(parser.parse_args().journal.resolve(), read_only=True)
    sys.stdout.writelines(f"{line}\n" for line in calibration(kept(journal)))
