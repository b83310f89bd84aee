"""A deployment explained: its flags, its boot, its trade-offs, and what else would do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import anyio

from backends.base import Backend, BootBudget, EndsSlowBoots, KnowsEngine, Predicts, RemembersSpec
from backends.container import vllm_flags
from core.errors import InvalidArgument, OpsError, Unsupported
from core.journal import Journal
from core.records import Deployment, DeploymentSpec, MemoryPlan, ModelShape
from core.reply import note
from logs.boot import PHASES, WARMING, WEIGHTS
from operations.explain_case import (
    LIVE,
    BootCheck,
    Case,
    Comparison,
    Difference,
    Explanation,
    FlagRow,
    Practice,
    TradeOff,
    Verdict,
    at_once,
    changed,
    plain,
    usd,
)
from operations.explain_rows import (
    asleep_cost,
    cold_start,
    ended,
    idle_cost,
    memory_rows,
    resting_cost,
    running_rows,
    serving_rows,
    together,
)
from operations.forecast import precision
from operations.planning import check_startable
from operations.resolve import Found, everything, find, find_among
from operations.runtime import Runtime
from operations.targets import place_named
from planner.advise import engine_line
from planner.boot import Boot, BootPhase, Span
from planner.kv import kv_precisions
from planner.layouts import Wish, arrange, difference, of_weights, utilization
from planner.model import read_model

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
    measured = _measured_booting(journal, seen)
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
        phases=tuple(map(_said_booting, foreseen.phases)) if foreseen else (),
        measured_seconds=total,
        measured=measured,
        long_enough=answer,
        verdict=_verdict(answer, budget, slowest, total),
        notes=(*_idle_booting(budget, foreseen, slowest), *budget.notes),
    )


def _idle_booting(budget: BootBudget, foreseen: Boot | None, inside: Span | None) -> Iterator[str]:
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


def _measured_booting(journal: Journal, seen: Deployment) -> dict[str, float]:
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


def _said_booting(phase: BootPhase) -> str:
    return f"{phase.name}: {phase.seconds} s ({phase.seconds.source})"


def trade_offs(case: Case, long_enough: Verdict) -> Iterator[TradeOff]:
    """Give those that the planner can put in numbers here, and how its cost is spent."""
    plan = case.memory
    if plan:
        yield _context(case, plan)
        yield from _latency(case, plan)
        yield _precision(case, plan)
    if case.place.scale_to_zero:
        yield _sleep(case)
    else:
        yield _stop(case)
    yield _boot(case, long_enough)


def _context(case: Case, plan: MemoryPlan) -> TradeOff:
    half = plan.max_model_len // 2
    return TradeOff(
        between="context against requests at once",
        here=f"{plan.max_model_len:,} tokens, {at_once(plan)} such requests at once",
        to_move=f"max_model_len={half}: {at_once(case.plan(max_model_len=half))} of that length;"
        f" one alone may have {plan.kv_low.max_len_that_fits:,}",
    )


def _latency(case: Case, plan: MemoryPlan) -> Iterator[TradeOff]:
    context, many = plan.max_model_len // 2, together(plan)
    alone, crowd = case.decode(1, context=context), case.decode(many, context=context)
    if alone and crowd:
        yield TradeOff(
            between="latency of each against throughput of all",
            here=f"up to {plan.max_num_seqs} decode together, {many} of them at full length:"
            f" {crowd.tokens_per_second_per_user} tokens/s each,"
            f" {crowd.tokens_per_second} together",
            to_move=f"max_num_seqs=1: {alone.tokens_per_second_per_user} tokens/s for the one, and"
            " everybody else waits",
        )


def _precision(case: Case, plan: MemoryPlan) -> TradeOff:
    now = f"{precision(case.model, case.flags, case.device)}: {plan.weights_gib:.2f} GiB of weights"
    return TradeOff(
        between="precision against memory",
        here=f"{now}, {at_once(plan)} requests of full length",
        to_move=_smaller(case),
    )


def _smaller(case: Case) -> str:
    if case.fp8_kv:
        return f"kv_cache_dtype=auto: {at_once(case.plan(kv_cache_dtype=None))} at once"
    if case.ground.fp8_kv:
        return f"kv_cache_dtype=fp8: {at_once(case.plan(kv_cache_dtype='fp8'))} at once"
    fp8 = next((one for one in kv_precisions(case.device) if one.kv_cache_dtype == "fp8"), None)
    if fp8 is None or fp8.possible:
        return "only smaller weights"
    return f"only smaller weights: fp8 for the cache {fp8.why.rstrip('.')}"


def _sleep(case: Case) -> TradeOff:
    start, kept = cold_start(case), idle_cost(case, 1)
    asleep = f"{asleep_cost(case)}, and {start} until the first answer after it"
    awake = f"{idle_cost(case, case.spec.min_replicas)} while idle, and no cold start"
    sleeps = case.spec.min_replicas == 0
    return TradeOff(
        between="scale to zero against cold start",
        here=f"min_replicas={case.spec.min_replicas}: {asleep if sleeps else awake}",
        to_move=f"min_replicas=1: {kept}, and no cold start"
        if sleeps
        else f"min_replicas=0: {asleep}",
    )


def _stop(case: Case) -> TradeOff:
    start, how = cold_start(case), ended(case)
    return TradeOff(
        between="readiness against cost",
        here=f"it runs until it is {how}, for {idle_cost(case, 1)}",
        to_move=f"stop_vllm or a ttl_minutes; bringing it back takes {start}"
        if how == "stopped"
        else f"destroy_vllm or a ttl_minutes, for most TPUs cannot be stopped; deployed again it"
        f" takes {start}",
    )


def _boot(case: Case, long_enough: Verdict) -> TradeOff:
    now, changed = case.boot(), case.boot(enforce_eager=not case.flags.enforce_eager)
    other = "off" if case.flags.enforce_eager else "on"
    return TradeOff(
        between="a quick boot against speed once it runs",
        here=f"a boot takes {cold_start(case)}; within the health check: {long_enough}",
        to_move=f"enforce_eager {other}: {changed.seconds} s"
        if now and changed and changed.seconds != now.seconds
        else "weights from closer by",
    )


_PLANNER: Final = "computed by the planner for this model and accelerator"
_SEQUENCES: Final = "vLLM's scheduler: what the cache cannot hold is preempted and computed again"
_MORE: Final = 1.05
"""Times: what is less apart than that is the same."""
_CLOSE: Final = 0.01
"""Of gpu_memory_utilization, that makes no difference."""


def practices(case: Case, boot: BootCheck) -> Iterator[Practice]:
    """Give what to set there and why, and whether this deployment does."""
    plan = case.memory
    if plan:
        yield from _flags_for_many(case, plan)
        yield from _cache(case, plan)
        yield from _share(case, plan)
        yield _sequences(plan)
    yield from _weights(case)
    yield _probe(boot)
    yield _idle_practising(case)
    if case.place.limits:
        yield Practice(
            rule=f"Mind what {case.place.title} is like: {' '.join(case.place.limits)}",
            why="no flag of vLLM changes that",
            followed="look at each",
            source="planner/places.toml, with what each rests on",
        )


def _flags_for_many(case: Case, plan: MemoryPlan) -> Iterator[Practice]:
    if case.device.memory_gib is None:
        return
    wish = Wish(max_model_len=plan.max_model_len, layout="concurrency")
    found = arrange(case.ground, of_weights(wish, case.flags))
    if not found.enough:
        return
    line = engine_line("", found.flags).removeprefix("vllm serve").strip()
    theirs, ours = together(found.memory), together(plan)
    if theirs <= ours * _MORE:
        yield Practice(
            rule=f"For many requests of {plan.max_model_len:,} tokens: leave the flags as they are",
            why=f"{ours} run at once, {theirs} with the layout for concurrency",
            followed="yes",
            source=_PLANNER,
        )
        return
    yield Practice(
        rule=f"For many requests of {plan.max_model_len:,} tokens: {line}",
        why=f"{theirs} run at once, now {ours}",
        followed="no",
        source=_PLANNER,
    )


def _cache(case: Case, plan: MemoryPlan) -> Iterator[Practice]:
    row = next((one for one in kv_precisions(case.device) if one.kv_cache_dtype == "fp8"), None)
    if row is None or case.device.kind == "cpu":
        return
    if not row.possible:
        yield Practice(
            rule="Leave kv_cache_dtype at auto",
            why=f"fp8 {row.why}",
            followed="no" if case.fp8_kv else "yes",
            source="vLLM's own checks, as planner/kv_precisions.toml has them",
        )
        return
    fp8, auto = case.plan(kv_cache_dtype="fp8"), case.plan(kv_cache_dtype=None)
    yield Practice(
        rule="Set kv_cache_dtype=fp8 where room is short",
        why=f"{at_once(fp8)} requests of {plan.max_model_len:,} tokens with it, {at_once(auto)}"
        f" without; {row.why}",
        followed="yes" if case.fp8_kv else "no",
        source="vLLM's own checks, as planner/kv_precisions.toml has them",
    )


def _share(case: Case, plan: MemoryPlan) -> Iterator[Practice]:
    good = utilization(case.device)
    if good is None:
        return
    held = at_once(case.plan(gpu_memory_utilization=good))
    same = abs(plan.gpu_memory_utilization - good) <= _CLOSE
    why = (
        "compiled programs live outside the budget"
        if case.device.kind == "tpu"
        else f"deployments that worked used 0.95; {case.device.free_at_start:.0%} is free when vLLM"
        " starts"
    )
    yield Practice(
        rule=f"Set gpu_memory_utilization={good:g}, and no higher",
        why=f"{why}; it holds {held} requests of full length, now {at_once(plan)}",
        followed="yes" if same else "no",
        source=_PLANNER,
    )


def _sequences(plan: MemoryPlan) -> Practice:
    held = max(1, int(plan.kv_low.max_concurrency))
    return Practice(
        rule=f"Keep max_num_seqs near {held} if most requests use the whole length; leave it higher"
        " if they are short",
        why=f"the cache holds {at_once(plan)} of {plan.max_model_len:,} tokens, and up to"
        f" {plan.max_num_seqs} are let in",
        followed="yes" if plan.max_num_seqs <= 2 * held else "by how long your requests are",
        source=_SEQUENCES,
    )


def _weights(case: Case) -> Iterator[Practice]:
    others = {"google": ("gcs-streamed",), "azure": ("azure-files",)}
    if not case.place.scale_to_zero:
        return
    now = case.boot()
    for source in others.get(case.place.provider, ()):
        best = case.boot(weights_from=source)
        quicker = now and best and best.seconds.expected < now.seconds.expected
        if now and best and quicker and case.weights_from != source:
            yield Practice(
                rule=f"Read the weights from {_loading(best)[0]}",
                why=f"a boot reads them in {_loading(best)[1]}, now {_loading(now)[1]}",
                followed="no",
                source=_loading(best)[2],
            )


def _loading(boot: Boot) -> tuple[str, str, str]:
    """Give where from, how long, and who says so."""
    span = next(phase.seconds for phase in boot.phases if phase.name == "weights")
    where = span.source.partition(" from ")[2].partition(" at ")[0]
    return where, f"{span} s", span.source


def _probe(boot: BootCheck) -> Practice:
    slowest = boot.predicted_first_seconds or boot.predicted_seconds
    foreseen = f"{slowest} s are predicted" if slowest else "how long it takes, nobody can say"
    first = ", with the first boot's download" if boot.predicted_first_seconds else ""
    return Practice(
        rule="Give the health check more time than the slowest boot takes",
        why=f"its own allows {boot.budget_seconds:,} s; {foreseen}{first}"
        if boot.budget_seconds
        else "nothing ends a slow boot there",
        followed={"yes": "yes", "nothing ends it": "yes"}.get(boot.long_enough, boot.long_enough),
        source="its own startup probe, and planner/boot.toml",
    )


def _idle_practising(case: Case) -> Practice:
    if case.place.scale_to_zero:
        return Practice(
            rule="Let it scale to zero unless nobody can wait for a boot",
            why=f"one that idles costs {idle_cost(case, 1)}; a cold start takes {cold_start(case)}",
            followed="yes" if case.spec.min_replicas == 0 else "no",
            source="planner/prices.toml and planner/boot.toml",
        )
    end = {"stopped": "stop", "destroyed": "destroy"}[ended(case)]
    return Practice(
        rule=f"Give it a ttl_minutes, or {end} it when it is not needed",
        why=f"whether anybody asks or not, it costs {idle_cost(case, 1)}",
        followed="yes" if case.spec.ttl_minutes or not case.usd_per_hour else "no",
        source="planner/prices.toml",
    )


_MEMORY: Final = {
    f"--{name.replace('_', '-')}": name
    for name in (
        "max_model_len", "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes",
        "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "quantization", "dtype",
        "cpu_offload_gb", "enforce_eager",
    )
}  # fmt: skip
_WHERE: Final = ("model", "target", "price")


def compared(
    before: Case, after: Case, rows: tuple[Sequence[FlagRow], Sequence[FlagRow]], words: str
) -> Comparison:
    """Say what differs, what each difference does alone, and what all do together."""
    differences = (*_places(before, after), *_flags(before, after, *rows))
    changed = frozenset(one.flag for one in differences)
    plan = after.memory
    return Comparison(
        compared_with=words,
        differences=differences,
        together=tuple(_together(before, after)) if differences else (),
        fits=False if after.no_host else plan.fits if plan else None,
        why_not=(*(plan.reasons if plan else ()), *((after.no_host,) if after.no_host else ())),
        restarts=_restarts(before, after, changed),
    )


def _places(before: Case, after: Case) -> Iterator[Difference]:
    told = (
        (before.model.model, after.model.model),
        (before.place.title, after.place.title),
        (_hourly(before), _hourly(after)),
    )
    for name, (was, now) in zip(_WHERE, told, strict=True):
        if was != now:
            yield Difference(flag=name, before=was, after=now, does=_elsewhere(name, after))


def _elsewhere(name: str, after: Case) -> str:
    if name == "model":
        plan = after.memory
        return f"{plan.weights_gib:.2f} GiB of weights" if plan else "another model"
    return after.device.title if name == "target" else "for each replica"


def _hourly(case: Case) -> str:
    return "not known" if case.usd_per_hour is None else f"{usd(case.usd_per_hour)}/h"


def _flags(
    before: Case, after: Case, was: Sequence[FlagRow], now: Sequence[FlagRow]
) -> Iterator[Difference]:
    old, new = ({row.flag: row for row in rows} for rows in (was, now))
    for flag in dict.fromkeys((*old, *new)):
        one, other = old.get(flag), new.get(flag)
        values = [row.value if row else "left out" for row in (one, other)]
        if values[0] == values[1] or not (_said_differing(one) or _said_differing(other)):
            continue
        does = _alone(before, after, flag) or (other.does if other else "It is left out again.")
        yield Difference(flag=flag, before=values[0], after=values[1], does=does)


def _said_differing(row: FlagRow | None) -> bool:
    """Whether somebody said it; what only follows from another flag is told with that."""
    return row is not None and row.differs


def _alone(before: Case, after: Case, flag: str) -> str:
    """Say what this flag does alone, to the deployment as it is."""
    name = _MEMORY.get(flag)
    if name is None or before.model.model != after.model.model or before.place != after.place:
        return ""
    change: dict[str, Any] = {name: getattr(after.flags, name)}
    if name == "max_model_len":  # Together with what makes such a length possible.
        change["hf_overrides"] = after.flags.hf_overrides
    one, other = before.memory, before.plan(**change)
    if one is None or other is None:
        return ""
    words = [difference(one, other)]
    if name == "enforce_eager" and (boots := (before.boot(), before.boot(**change))):
        words += [f"boot {a.seconds} s -> {b.seconds} s" for a, b in [boots] if a and b]
    return "; ".join(words) + ("" if other.fits else f"; it does not fit: {other.reasons[0]}")


def _together(before: Case, after: Case) -> Iterator[str]:
    one, other = before.memory, after.memory
    if one and other and one != other and other.fits:
        yield f"{difference(one, other)}, on the low estimate"
        lengths = one.max_model_len, other.max_model_len
        held = _with_tokens((at_once(one), at_once(other)), "of", lengths)
        fewer = (
            "fewer " if other.kv_expected.max_concurrency < one.kv_expected.max_concurrency else ""
        )
        yield from _moved(f"{fewer}requests of full length at once", *held)
        yield from _speeds(before, after, lengths[0] // 2, lengths[1] // 2)
    yield from _moved("cold start", cold_start(before), cold_start(after))
    yield from _moved("idle", resting_cost(before), resting_cost(after))
    yield from _moved("host", before.host, after.host)
    most = [idle_cost(case, case.spec.max_replicas) for case in (before, after)]
    if before.spec.max_replicas != after.spec.max_replicas:
        yield from _moved("with all replicas", *most)


def _moved(what: str, was: str, now: str) -> Iterator[str]:
    """Say what is another now, and nothing of what is not."""
    if was != now:
        yield f"{what}: {was} -> {now}"


def _speeds(before: Case, after: Case, context: int, later: int) -> Iterator[str]:
    was, now = before.decode(1, context=context), after.decode(1, context=later)
    if was and now:
        speeds = str(was.tokens_per_second_per_user), str(now.tokens_per_second_per_user)
        told = _with_tokens(speeds, "at", (context, later))
        yield from _moved("tokens/s of one request, half way through its length", *told)


def _with_tokens(pair: tuple[str, str], word: str, lengths: tuple[int, int]) -> tuple[str, str]:
    """Name the lengths that two figures hold for, where they are not the same."""
    if lengths[0] == lengths[1]:
        return pair
    return f"{pair[0]} {word} {lengths[0]:,} tokens", f"{pair[1]} {word} {lengths[1]:,}"


def _restarts(before: Case, after: Case, changed: frozenset[str]) -> str:
    if not changed:
        return "Nothing differs."
    if before.spec.name != after.spec.name or changed & {"model", "target"}:
        return "They are two deployments: nothing is restarted."
    if changed <= LIVE:
        return "update_vllm_scaling changes that."
    return f"The engine is started anew with it: {cold_start(after)} until it answers again."


class _Seen(NamedTuple):
    """One deployment, read."""

    case: Case
    explanation: Explanation
    asked: DeploymentSpec
    """As it was given, before its engine_args were read as flags."""


async def explain(
    runtime: Runtime,
    target: str | None,
    name: str | None,
    *,
    other: str | None = None,
    flags: Sequence[str] | None = None,
) -> Explanation:
    """Explain a deployment; against another one, or against itself with some flags changed.

    Raises:
        InvalidArgument: Both are to be compared with, or a flag cannot be.
        Unsupported: What was asked for it is not known here.
        OpsError: It cannot be found or read.
    """
    if other and flags:
        raise InvalidArgument(
            "Two things to compare with are one too many.", fix="Give one of other and flags."
        )
    flags = [words for words in flags or () if words.strip()]
    found = await _meant(runtime, target, name, other)
    seen = await _read(runtime, found)
    if flags:
        return _with_flags(found.backend, seen, flags)
    if not other:
        return seen.explanation
    return _beside(seen, await _read(runtime, await _second(runtime, other, found)))


async def _second(runtime: Runtime, other: str, first: Found) -> Found:
    """Give the other one, as NAME or as NAME on TARGET; of one name, not the first."""
    name, _, where = (part.strip() for part in other.partition(" on "))
    if where:
        return await find(runtime.stage, place_named(runtime, where).name, name)
    there = [one for one in await everything(runtime.stage, None) if one.name == name]
    mine = (first.deployment.target, first.name)
    rest = [one for one in there if (one.deployment.target, one.name) != mine]
    if len(rest) == 1:
        return rest[0]
    return await find_among(runtime.stage, runtime.stage.usable, name)


async def _meant(
    runtime: Runtime, target: str | None, name: str | None, other: str | None
) -> Found:
    """Give the deployment; beside another one, the one that is not it."""
    if name is None and other:
        there = await everything(runtime.stage, target)
        rest = [one for one in there if one.name != other]
        if len(rest) == 1:
            return rest[0]
    return await find(runtime.stage, target, name)


async def _read(runtime: Runtime, found: Found) -> _Seen:
    asked = await _spec(found)
    spec = plain(asked)
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    budget = await budget_of(found, model, spec.weights)
    deployment = found.deployment
    case = Case(
        spec,
        model,
        place_named(runtime, deployment.target),
        usd_per_hour=deployment.usd_per_hour,
        vllm_version=await _version(found),
        weights_from=budget.weights_from,
        stays_seconds=budget.stays_seconds,
    )
    boot = boot_check(case, budget, runtime.stage.journal, deployment)
    explanation = Explanation(
        target=deployment.target,
        name=found.name,
        model=spec.model,
        place=case.place.title,
        state=deployment.state,
        flags=_rows(case),
        trade_offs=tuple(trade_offs(case, boot.long_enough)),
        boot=boot,
        practices=tuple(practices(case, boot)),
        measured_capacity=await _measured(found),
    )
    return _Seen(case, explanation, asked)


def _rows(case: Case) -> tuple[FlagRow, ...]:
    if case.spec.engine != "vllm":
        note(f"It is served by {case.spec.engine}: vLLM's flags do not apply to it.")
        return tuple(_short(running_rows(case)))
    rows = (*memory_rows(case), *serving_rows(case), *running_rows(case))
    return tuple(_short(rows))


def _short(rows: Iterable[FlagRow]) -> Iterator[FlagRow]:
    """Leave the default out where it is the value."""
    for row in rows:
        yield row if row.differs else row.model_copy(update={"default": None})


async def _spec(found: Found) -> DeploymentSpec:
    backend = found.backend
    spec = await backend.spec(found.name) if isinstance(backend, RemembersSpec) else None
    if spec is None:
        raise Unsupported(
            f"What was asked for {found.name} on {found.deployment.target} is not known here.",
            fix="Call get_model_details for what its engine says of itself.",
        )
    return spec


async def _version(found: Found) -> str | None:
    """Give the version that its image is known to hold."""
    backend = found.backend
    try:
        known = await backend.predicted(found.name) if isinstance(backend, Predicts) else None
    except OpsError:
        return None  # its model cannot be read any more
    return known.flags.vllm_version if known else None


async def _measured(found: Found) -> str | None:
    """Say what the log of its boot tells of the KV cache; nothing is asked of the engine."""
    if not isinstance(found.backend, KnowsEngine):
        return None
    try:
        memory = (await found.backend.engine_facts(found.name)).memory
    except OpsError as exc:
        note(f"Its log could not be read: {exc.summary}")
        return None
    tokens, requests = memory.get("kv_cache_tokens"), memory.get("max_concurrency")
    if tokens is None:
        return None
    at_once = f", {requests:g} requests of full length" if requests is not None else ""
    return f"{tokens:,} tokens{at_once}"


def _with_flags(backend: Backend, seen: _Seen, words: Sequence[str]) -> Explanation:
    spec = changed(seen.case.spec, words)
    vllm_flags(spec)  # refuses what this project sets itself, such as keys
    case = seen.case.of(spec)
    if spec.engine == "vllm":
        check_startable(case.model, case.place, case.flags)
    if case.no_host is None:  # else the comparison says so, beside all that the change does
        backend.plan(spec, case.model)  # refuses what deploying would
    rows = seen.explanation.flags, _rows(case)
    comparison = compared(seen.case, case, rows, f"itself with {' '.join(words)}")
    said = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name", "model"})
    # Left out, the least is the target's; a call that scales needs both.
    said |= {"min_replicas": spec.min_replicas, "max_replicas": spec.max_replicas}
    # What a call leaves out stays as it is: what is left out again has to be reset.
    before = seen.asked.model_dump(exclude_defaults=True, exclude={"name", "model"})
    if left_out := [name for name in before if name not in said]:
        said["reset"] = left_out
    return _shortened(seen.explanation, comparison, said)


def _beside(one: _Seen, two: _Seen) -> Explanation:
    rows = one.explanation.flags, two.explanation.flags
    words = f"{two.explanation.name} on {two.explanation.target}"
    comparison = compared(one.case, two.case, rows, words)
    return _shortened(one.explanation, comparison, {})


def _shortened(whole: Explanation, found: Comparison, new: Mapping[str, Any]) -> Explanation:
    """Leave out what the two have in common."""
    differ = {one.flag for one in found.differences}
    rows = tuple(row for row in whole.flags if row.flag in differ)
    update = {"flags": rows, "trade_offs": (), "practices": (), "comparison": found, "new": new}
    return whole.model_copy(update=update)
