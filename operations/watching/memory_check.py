"""A deployment's memory as its engine's log says it, held against the plan, part by part."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from backends.base import KnowsEngine, Predicts
from core.errors import OpsError
from core.records import Answer, Gib, MemoryPart, MemoryPlan, Record
from operations.resolve import Found

Verdict = Literal["inside", "below", "above", "not in the log"]
Measured = Mapping[str, float | int | None]
"""As `logs.boot.BootMemory` names it."""

_PRINTED_GIB: Final = 0.005
"""The log prints two decimals."""
_BLOCKS: Final = 0.005
"""Share by which tokens and requests may differ: a cache is divided into whole blocks."""
_GRAPHS: Final = "CUDA graphs"
_OUTSIDE: Final = frozenset({"libraries", "fused all-reduce"})
_PROFILED: Final = frozenset({"activations", "sampler", "vision encoder", "experts' workspace"})
_WORK: Final = _PROFILED | _OUTSIDE | {_GRAPHS}


class Component(Record):
    """One part of the memory, predicted and real."""

    name: str
    unit: Literal["GiB", "tokens", "requests"]
    low: float
    expected: float
    high: float
    measured: float | None = None
    """As the engine's log says it; of one accelerator."""
    verdict: Verdict
    """Where what was measured lies, of what was foreseen."""

    def __str__(self) -> str:
        """Say both."""
        form = ",.2f" if self.unit == "GiB" else ",.0f" if self.unit == "tokens" else ",.1f"
        foreseen = f"{self.low:{form}}-{self.high:{form}} {self.unit}"
        if self.measured is None:
            return f"{self.name} not in the log, predicted {foreseen}"
        return f"{self.name} {self.measured:{form}}, predicted {foreseen}: {self.verdict}"


class MemoryCheck(Answer):
    """What was foreseen of a deployment's memory, and what came of it."""

    accelerator: str
    vllm_version: str
    """The profile that was reckoned with."""
    simulated: bool = False
    components: tuple[Component, ...]

    @property
    def outside(self) -> tuple[Component, ...]:
        """What came out otherwise than was foreseen."""
        return tuple(each for each in self.components if each.verdict in {"below", "above"})

    def summary(self) -> str:
        """Say what is outside, else that all that is told is inside."""
        told = sum(each.measured is not None for each in self.components)
        if not told:
            return "The engine's log says nothing of its memory."
        if self.outside:
            return "Otherwise than predicted: " + "; ".join(map(str, self.outside)) + "."
        return f"All {told} figures of memory that the log has are as predicted."


async def memory_check(found: Found) -> MemoryCheck | None:
    """Compare a deployment's memory with its plan; None where nothing could be foreseen.

    Nothing is asked of the engine itself: its log and its platform tell.

    Raises:
        OpsError: Its log cannot be read.
    """
    backend = found.backend
    if not isinstance(backend, Predicts) or not isinstance(backend, KnowsEngine):
        return None
    try:
        predicted = await backend.predicted(found.name)
    except OpsError:
        return None  # its model cannot be read any more, or it was never planned
    if predicted is None:
        return None
    plan, facts = predicted.memory, await backend.engine_facts(found.name)
    return MemoryCheck(
        accelerator=plan.accelerator,
        vllm_version=plan.vllm_version,
        simulated=found.deployment.simulated,
        components=compare(plan, facts.memory),
    )


def compare(plan: MemoryPlan, measured: Measured) -> tuple[Component, ...]:
    """Put what was measured beside what was foreseen for it."""
    return (*_parts(plan, measured), *_cache(plan, measured))


def _parts(plan: MemoryPlan, measured: Measured) -> Iterator[Component]:
    weights = _weights(plan)
    yield _gib("weights", weights, measured.get("weights_gib"))
    work = [part for part in plan.parts if part.name in _PROFILED]
    if work:
        yield _gib("peak activation", _sum(work), measured.get("peak_activation_gib"))
    for part in plan.parts:
        if part.name == _GRAPHS:
            yield _gib(_GRAPHS, part.gib, measured.get("graphs_gib"))
    if outside := [part for part in plan.parts if part.name in _OUTSIDE]:
        yield _gib("outside PyTorch", _sum(outside), measured.get("non_torch_gib"))


def _cache(plan: MemoryPlan, measured: Measured) -> Iterator[Component]:
    """Give what is of the KV cache; concurrency only for requests as long as were planned."""
    chips = plan.count if plan.kv_is_shared else 1
    gib = plan.kv_cache_gib
    each = Gib(low=gib.low / chips, expected=gib.expected / chips, high=gib.high / chips)
    low, expected, high = plan.kv_low, plan.kv_expected, plan.kv_high
    yield _gib("KV cache", each, measured.get("kv_cache_gib"))
    tokens = Gib(low=low.kv_tokens, expected=expected.kv_tokens, high=high.kv_tokens)
    yield _counted("KV cache tokens", "tokens", tokens, measured.get("kv_cache_tokens"))
    same_length = measured.get("max_concurrency_tokens") in {None, plan.max_model_len}
    requests = Gib(
        low=low.max_concurrency, expected=expected.max_concurrency, high=high.max_concurrency
    )
    held = measured.get("max_concurrency") if same_length else None
    yield _counted("full-length requests at once", "requests", requests, held)


def _weights(plan: MemoryPlan) -> Gib:
    """Give them with their doubts; on TPUs the cache's are the weights'."""
    apart = sum(part.gib.high - part.gib.expected for part in plan.parts if part.name not in _WORK)
    if plan.kv_is_shared:
        apart = (plan.kv_cache_gib.high - plan.kv_cache_gib.expected) / plan.count
    weights = plan.weights_gib
    return Gib(low=weights - apart, expected=weights, high=weights + apart)


def _sum(parts: list[MemoryPart]) -> Gib:
    return Gib(
        low=sum(part.gib.low for part in parts),
        expected=sum(part.gib.expected for part in parts),
        high=sum(part.gib.high for part in parts),
    )


def _gib(name: str, foreseen: Gib, measured: float | None) -> Component:
    return _component(name, "GiB", foreseen, measured, slack=_PRINTED_GIB)


def _counted(
    name: str, unit: Literal["tokens", "requests"], foreseen: Gib, measured: float | None
) -> Component:
    return _component(name, unit, foreseen, measured, slack=_BLOCKS * foreseen.expected)


def _component(
    name: str,
    unit: Literal["GiB", "tokens", "requests"],
    foreseen: Gib,
    measured: float | None,
    *,
    slack: float,
) -> Component:
    return Component(
        name=name,
        unit=unit,
        low=round(foreseen.low, 3),
        expected=round(foreseen.expected, 3),
        high=round(foreseen.high, 3),
        measured=measured,
        verdict=_verdict(foreseen, measured, slack),
    )


def _verdict(foreseen: Gib, measured: float | None, slack: float) -> Verdict:
    if measured is None:
        return "not in the log"
    if measured < foreseen.low - slack:
        return "below"
    return "above" if measured > foreseen.high + slack else "inside"
