"""What is good practice at a target, computed for the model that runs there, with its source."""

from collections.abc import Iterator
from typing import Final

from core.records import MemoryPlan
from operations.explaining.case import Case, at_once
from operations.explaining.records import BootCheck, Practice
from operations.explaining.running_rows import cold_start, ended, idle_cost
from operations.explaining.serving_rows import together
from planner.advise import engine_line
from planner.boot import Boot
from planner.kv import kv_precisions
from planner.layouts import Wish, arrange, of_weights, utilization

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
    yield _idle(case)
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


def _idle(case: Case) -> Practice:
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
