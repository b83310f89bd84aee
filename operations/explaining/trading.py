"""The trade-offs of a deployment: where it stands between two good things, and what moves it."""

from collections.abc import Iterator

from core.records import MemoryPlan
from operations.explaining.case import Case, at_once
from operations.explaining.records import TradeOff, Verdict
from operations.explaining.running_rows import asleep_cost, cold_start, ended, idle_cost
from operations.explaining.serving_rows import together
from operations.plans.precisions import precision
from planner.kv import kv_precisions


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
