"""A sound run, and every flaw that can be planted in it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmark.records import Code, StopRule, Workload
from benchmark.samples import Finish, Outcome
from tests.benchmark.simulated import Loop, Run, played

SOUND = played(Loop(), rule=StopRule(min_requests=300, max_seconds=1e9))
INTENDED = SOUND.measured.samples.intended
ORDER = np.argsort(INTENDED)
BEGUN = ORDER[
    (INTENDED[ORDER] >= SOUND.measured.window_begin) & (INTENDED[ORDER] < SOUND.measured.window_end)
]


def first_of(share: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows of the first share of the measured requests, one at least."""
    return BEGUN[: max(1, int(share * len(BEGUN)))]


def column(name: str, rows: object, value: object) -> Run:
    values = getattr(SOUND.measured.samples, name).copy()
    values[rows] = value
    return SOUND.with_samples(**{name: values})


def planned(**fields: object) -> Run:
    return SOUND.with_(plan=SOUND.plan.model_copy(update=fields))


def slow_at_first(factor: float, *, decode_too: bool) -> Run:
    samples, rows = SOUND.measured.samples, first_of(0.4)
    first, last = samples.first_token.copy(), samples.last_token.copy()
    if decode_too:
        last[rows] = first[rows] + (last - first)[rows] * factor
    else:
        first[rows] = samples.intended[rows] + (first - samples.intended)[rows] * factor
        last += first - samples.first_token
    return SOUND.with_samples(first_token=first, last_token=last)


def natural(capped: float) -> Run:
    run = column("finish", BEGUN, Finish.STOP)
    finish = run.measured.samples.finish.copy()
    finish[first_of(capped)] = Finish.LENGTH
    return run.with_samples(finish=finish).with_(
        plan=SOUND.plan.model_copy(
            update={"workload": Workload(output_tokens=16, fixed_output=False)}
        )
    )


def uneven(size: float) -> Run:
    slices = SOUND.measured.slices
    half = len(slices) // 2
    more = tuple(s._replace(output_tokens=int(s.output_tokens * (1 + size))) for s in slices[:half])
    return SOUND.with_(measured=replace(SOUND.measured, slices=more + slices[half:]))


def bounded(name: str) -> Callable[[float], Run]:
    return lambda x: SOUND.with_client(error_bounds={name: x})


def ended(outcome: Outcome) -> Callable[[float], Run]:
    return lambda x: column("outcome", first_of(x), outcome)


def hungry(x: float) -> Run:
    return planned(stop=SOUND.plan.stop.model_copy(update={"min_requests": int(1000 * x)}))


FLAWS: dict[str, tuple[Code, float, float, Callable[[float], Run]]] = {
    "hits": (Code.PREFIX_CACHED, 0.011, 1, lambda x: SOUND.with_server(prefix_cache_hit_rate=x)),
    "usage says cached": (
        Code.PREFIX_CACHED, 0.012, 1, lambda x: column("cached_tokens", slice(None), int(x * 513)),
    ),
    "cpu": (Code.CLIENT_SATURATED, 0.901, 1, lambda x: SOUND.with_client(cpu_share=x)),
    "moved medians": (Code.CLIENT_SATURATED, 0.0011, 1, bounded("ttft_p50")),
    "moved means": (Code.CLIENT_SATURATED, 0.00022, 1, bounded("tpot_mean")),
    "moved tails": (Code.CLIENT_NOISE, 0.002, 1, bounded("ttft_p95")),
    "moved gaps": (Code.CLIENT_NOISE, 0.00022, 1, bounded("itl_p50")),
    "unsettled": (
        Code.COLD, 0, 1, lambda _: SOUND.with_(measured=replace(SOUND.measured, settled=False)),
    ),
    "slow prefill at first": (Code.COLD, 1.8, 50, lambda x: slow_at_first(x, decode_too=False)),
    "slow decode at first": (Code.COLD, 1.8, 50, lambda x: slow_at_first(x, decode_too=True)),
    "short": (Code.SHORT_OUTPUT, 0, 1, lambda x: column("output_tokens", first_of(x), 15)),
    "some refused as too long": (Code.LENGTH_CAPPED, 0, 0.009, ended(Outcome.TOO_LONG)),
    "natural ends at the cap": (Code.LENGTH_CAPPED, 0.51, 1, natural),
    "KV full": (
        Code.KV_QUEUED, 0.95, 1,
        lambda x: SOUND.with_server(kv_cache_usage_max=x, requests_waiting_mean=3.0),
    ),
    "late answers": (Code.TIMEOUTS, 0, 0.5, ended(Outcome.TIMEOUT)),
    "cut answers": (Code.TIMEOUTS, 0.02, 0.5, ended(Outcome.CUT)),
    "throttled": (Code.THROTTLED, 0, 0.5, ended(Outcome.THROTTLED)),
    "resets": (Code.ERRORS, 0.02, 0.5, ended(Outcome.RESET)),
    "few": (Code.TOO_FEW_SAMPLES, 1, 9, hungry),
    "restart": (
        Code.SERVER_CHANGED, 2, 1e6, lambda x: SOUND.with_server(process_start_time=1000.0 + x),
    ),
    "clock": (Code.CLOCK_STEPPED, 0.011, 9, lambda x: SOUND.with_client(clock_step_seconds=-x)),
    "uneven": (Code.WIDE_INTERVAL, 0.3, 3, uneven),
    "others": (
        Code.OTHER_LOAD, 0.02, 1,
        lambda x: SOUND.with_server(requests_finished=1000, other_requests=int(1000 * x)),
    ),
    "article": (Code.ARTICLE_METHOD, 0, 1, lambda _: planned(profile="article")),
    "simulated": (
        Code.SIMULATED, 0, 1,
        lambda _: SOUND.with_(subject=SOUND.subject.model_copy(update={"simulated": True})),
    ),
}  # fmt: skip
