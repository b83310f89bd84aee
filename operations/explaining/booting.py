"""Whether a startup probe is patient enough: what it allows, what is foreseen and measured."""

from collections.abc import Iterator, Sequence
from typing import Final

from backends.base import BootBudget, EndsSlowBoots
from core.journal import Journal
from core.records import Deployment, ModelShape
from logs.boot import PHASES, WARMING, WEIGHTS
from operations.explaining.case import Case
from operations.explaining.records import BootCheck, Verdict
from operations.resolve import Found
from planner.boot import Boot, BootPhase, Span

_HOST: Final = "host and image"
"""The phase that is over before a probe begins to count."""
_WHOLE: Final = frozenset({WEIGHTS, WARMING})
"""Both were seen to end only where a boot was: the longest phase, and the last before ready."""


async def budget_of(found: Found, model: ModelShape, weights: str | None) -> BootBudget:
    """Read what the platform was told; where nothing ends a boot, say what does instead.

    Raises:
        CloudError: The platform cannot be asked.
    """
    if isinstance(found.backend, EndsSlowBoots):
        return await found.backend.boot_budget(found.name, model)
    target = found.backend.target
    source = {None: "hub", "hub": "hub", "baked": "baked"}.get(weights, "hub")
    own = target.backend == "local"
    note = (
        "Nothing ends a slow boot on this machine; destroy_vllm does."
        if own
        else "No probe ends a slow boot there: it is billed until it answers, is deleted, or its"
        " ttl_minutes are over."
    )
    return BootBudget(weights_from="local-disk" if own else source, notes=(note,))


def boot_check(case: Case, budget: BootBudget, journal: Journal, seen: Deployment) -> BootCheck:
    """Hold budget, prediction and measurement against each other."""
    foreseen = case.boot()
    inside = _inside(foreseen.phases) if foreseen else None
    first = _first(case, inside) if budget.fetches_first else None
    measured = _measured(journal, seen)
    total = round(sum(measured.values()), 1) if measured.keys() >= _WHOLE else None
    slowest = first or inside
    answer = _enough(budget.seconds, slowest)
    return BootCheck(
        budget_seconds=budget.seconds,
        probe=budget.probe,
        longest_seconds=budget.longest_seconds,
        predicted_seconds=str(inside) if inside else None,
        predicted_first_seconds=str(first) if first else None,
        cold_start_seconds=str(foreseen.seconds) if foreseen else None,
        phases=tuple(map(_said, foreseen.phases)) if foreseen else (),
        measured_seconds=total,
        measured=measured,
        long_enough=answer,
        verdict=_verdict(answer, budget, slowest, total),
        notes=(*_idle(budget, foreseen, slowest), *budget.notes),
    )


def _idle(budget: BootBudget, foreseen: Boot | None, inside: Span | None) -> Iterator[str]:
    """Say whether a replica that boots is left alone for long enough, where it might not be."""
    if budget.idle_seconds is None:
        return
    head = (
        f"The autoscaler takes a replica away {budget.idle_seconds:,} s after it was scheduled if"
        " nobody asks it, also one that still boots (cooldownPeriod)"
    )
    if foreseen is None or inside is None:
        yield f"{head}."
        return
    host = next(phase.seconds for phase in foreseen.phases if phase.name == _HOST)
    whole = _sum([host, inside])
    answer = _enough(budget.idle_seconds, whole)
    yield f"{head}; until it answers {whole} s are predicted. Long enough: {answer}."


def _inside(phases: Sequence[BootPhase]) -> Span:
    seen = [phase.seconds for phase in phases if phase.name != _HOST]
    return _sum(seen)


def _first(case: Case, inside: Span | None) -> Span | None:
    """Add the download of the first boot."""
    fetched = case.boot(weights_from="hub")
    if inside is None or fetched is None:
        return inside
    hub = next(phase.seconds for phase in fetched.phases if phase.name == "weights")
    return _sum([inside, hub])


def _sum(spans: Sequence[Span]) -> Span:
    return Span(
        low=sum(span.low for span in spans),
        expected=sum(span.expected for span in spans),
        high=sum(span.high for span in spans),
        source="the sum of its phases",
    )


def _measured(journal: Journal, seen: Deployment) -> dict[str, float]:
    """Give the medians of earlier boots, of the phases that a probe sees."""
    told = ((one, journal.usual_seconds(seen.target, seen.engine, one)) for one in PHASES)
    return {one: round(seconds, 1) for one, seconds in told if seconds is not None}


def _enough(budget: int | None, span: Span | None) -> Verdict:
    if budget is None:
        return "nothing ends it"
    if span is None:
        return "not known"
    if span.high <= budget:
        return "yes"
    if span.expected <= budget:
        return "probably"
    return "probably not" if span.low <= budget else "no"


def _verdict(answer: Verdict, budget: BootBudget, span: Span | None, measured: float | None) -> str:
    seen = _earlier(measured) if measured is not None else ""
    what = "with the first boot's download " if budget.fetches_first else ""
    foreseen = f"{what}{span} s are predicted" if span else "how long it takes, nobody can say"
    if answer == "nothing ends it":
        return f"No health check ends a slow boot there; {foreseen}.{seen}"
    most = budget.longest_seconds or budget.seconds or 0
    room = f"; a probe may allow {most:,} s at most" if most > (budget.seconds or 0) else ""
    advice = "" if answer in {"yes", "not known"} else _advice(budget)
    head = f"The startup probe allows {budget.seconds:,} s, {foreseen}{room}"
    words = {"yes": "long enough even for the slowest", "not known": "whether it is long enough"
             " cannot be said"}  # fmt: skip
    return f"{head}: {words.get(answer, f'{answer} long enough')}.{seen}{advice}"


def _earlier(seconds: float) -> str:
    return f" Earlier boots on this target, of any model, took about {seconds:,.0f} s."


def _advice(budget: BootBudget) -> str:
    streamed = budget.weights_from in {"gcs-fuse", "hub"}
    how = "stream them from a bucket in the same region" if streamed else "read them from closer by"
    return f" To boot sooner {how}, or take a smaller checkpoint."


def _said(phase: BootPhase) -> str:
    return f"{phase.name}: {phase.seconds} s ({phase.seconds.source})"
