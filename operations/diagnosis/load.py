"""Whether an engine keeps up with its load."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import anyio

from core.endpoint import Endpoint
from core.errors import OpsError
from core.metrics import EngineMetrics, MetricsPage
from core.records import Failure, Step
from core.reply import note
from operations.diagnosis.case import Case, Looked, failed, healthy, number, skipped
from operations.diagnosis.records import Evidence, Remark

KV_HIGH: Final = 0.85
"""Share of KV blocks in use beyond which the next long request is preempted or waits."""
WATCH_SECONDS: Final = 30.0
"""Requests that wait for so long are no burst."""
EVERY_SECONDS: Final = 5.0
FIRST_GAP_SECONDS: Final = 1.0
"""Between the first two looks: what grows in it grows now."""
_KEEP_SECONDS: Final = 3.0
"""Of the time that is left, for what is said of it."""
ENOUGH_SECONDS: Final = 15.0
"""A watch that other slow layers have cut shorter than this proves no lasting queue."""
_ERROR_SHARE: Final = 0.05
_FEW_REQUESTS: Final = 20


class Look(NamedTuple):
    """One look at the metrics."""

    at: float
    metrics: EngineMetrics


async def metrics(case: Case) -> Looked:
    """Look twice; where requests wait, go on for up to half a minute."""
    if case.silent:
        return skipped(f"Not read: {case.silent}.")
    async with case.endpoint(timeout=5.0) as endpoint:
        try:
            looks = await _watch(case, endpoint)
        except OpsError as exc:
            return skipped(f"/metrics cannot be read: {exc.summary}")
    case.seen = looks[-1].metrics
    failure = judge(looks)
    return (
        failed(failure, *_figures(looks))
        if failure
        else healthy(_said(looks), remarks=_aside(looks))
    )


async def _watch(case: Case, endpoint: Endpoint) -> list[Look]:
    looks = [await _look(endpoint)]
    await anyio.sleep(FIRST_GAP_SECONDS)
    looks.append(await _look(endpoint))
    ends = looks[0].at + min(WATCH_SECONDS, case.left - _KEEP_SECONDS)
    while all(look.metrics.requests_waiting for look in looks) and time.monotonic() < ends:
        await anyio.sleep(min(EVERY_SECONDS, max(0.0, ends - time.monotonic())))
        looks.append(await _look(endpoint))
    if len(looks) > 2:
        note(f"Requests waited: watched for {_seconds(looks):.0f} s, {len(looks)} looks.")
    return looks


async def _look(endpoint: Endpoint) -> Look:
    return Look(time.monotonic(), MetricsPage(await endpoint.metrics_text()).engine())


def judge(looks: Sequence[Look]) -> Failure | None:
    """Give the first of the known ills that all looks together show."""
    found = (one(looks) for one in _ILLS)
    return next((failure for failure in found if failure), None)


def _preempting(looks: Sequence[Look]) -> Failure | None:
    grown = _grown(looks, lambda one: one.preemptions)
    if not grown:
        return None
    return _overloaded(
        "PREEMPTING",
        f"Its KV cache is too small for the load: {grown:.0f} requests were preempted in"
        f" {_seconds(looks):.0f} s, and begin anew.",
    )


def _waiting(looks: Sequence[Look]) -> Failure | None:
    if not all(look.metrics.requests_waiting for look in looks):
        return None
    if _seconds(looks) < ENOUGH_SECONDS:
        return None
    last = looks[-1].metrics
    waited = f"{last.requests_waiting} requests wait, at every look for {_seconds(looks):.0f} s"
    full = f"the KV cache is {last.kv_cache_usage or 0:.0%} full"
    if _kv_is_short(looks):
        cause = f"Its KV cache is too small for the load: {waited}, and {full}{_room(last)}."
        return _overloaded("KV_CACHE_TOO_SMALL_FOR_LOAD", cause)
    cause = f"It is saturated: {waited}, {last.requests_running} run, and {full}."
    return _overloaded("SATURATED", cause)


def _nearly_full(looks: Sequence[Look]) -> Failure | None:
    usage = [look.metrics.kv_cache_usage or 0.0 for look in looks]
    if min(usage) <= KV_HIGH:
        return None
    cause = f"Its KV cache is {usage[-1]:.0%} full: the next long request waits or is preempted."
    return _overloaded("KV_CACHE_NEARLY_FULL", cause)


def _failing(looks: Sequence[Look]) -> Failure | None:
    bad, all_ = _grown(looks, _errors), _grown(looks, _requests)
    if not bad or bad < _ERROR_SHARE * (all_ or bad):
        return None
    if bad == 1 and _is_rare(looks[-1].metrics):
        return None
    return Failure(
        code="REQUESTS_FAIL",
        cause=f"{bad:.0f} requests failed in {_seconds(looks):.0f} s, of {all_ or bad:.0f}.",
        fix="Read what the engine says of them with get_logs.",
        next=(Step(tool="get_logs", arguments={"contains": "ERROR"}),),
    )


def _is_rare(last: EngineMetrics) -> bool:
    """Whether so few of all requests since the engine started failed that one now is chance."""
    return (_errors(last) or 0) < _ERROR_SHARE * (_requests(last) or 0)


_ILLS: Final[tuple[Callable[[Sequence[Look]], Failure | None], ...]] = (
    _preempting, _waiting, _nearly_full, _failing,
)  # fmt: skip


def _overloaded(code: str, cause: str) -> Failure:
    return Failure(
        code=code,
        cause=cause,
        fix="Send fewer or shorter requests at once; or lower max_model_len, take kv_cache_dtype"
        " fp8, more replicas (update_vllm_scaling) or a larger accelerator: recommend_deployment.",
        next=(Step(tool="get_metrics"), Step(tool="recommend_deployment")),
    )


def _kv_is_short(looks: Sequence[Look]) -> bool:
    return max(look.metrics.kv_cache_usage or 0.0 for look in looks) > KV_HIGH


def _room(last: EngineMetrics) -> str:
    fits = last.cache.kv_cache_max_concurrency
    return "" if fits is None else f" ({fits:.2f} requests of full length fit)"


def _figures(looks: Sequence[Look]) -> tuple[Evidence, ...]:
    """Give each look's figures, the newest last."""
    rows, ended = [], datetime.now(UTC)
    for look in looks[-8:]:
        one = look.metrics
        usage = "?" if one.kv_cache_usage is None else f"{one.kv_cache_usage:.2f}"
        rows.append(
            number(
                f"waiting {one.requests_waiting}, running {one.requests_running}, KV cache use"
                f" {usage}, preemptions {one.preemptions}",
                ended - timedelta(seconds=looks[-1].at - look.at),
            )
        )
    return tuple(rows)


def _said(looks: Sequence[Look]) -> str:
    last = looks[-1].metrics
    usage = "not known" if last.kv_cache_usage is None else f"{last.kv_cache_usage:.0%}"
    return (
        f"{last.requests_running} running, {last.requests_waiting} waiting, KV cache use {usage}."
    )


def _aside(looks: Sequence[Look]) -> tuple[Remark, ...]:
    last, said = looks[-1].metrics, []
    if last.preemptions:
        text = (
            f"{last.preemptions} requests were preempted since the engine started; none just now."
        )
        said.append(Remark(code="PREEMPTED_BEFORE", text=text, count=last.preemptions))
    if all(look.metrics.requests_waiting for look in looks):
        text = f"{last.requests_waiting} requests wait, seen for {_seconds(looks):.0f} s only."
        said.append(Remark(code="REQUESTS_WAIT", text=text))
    bad, all_ = _errors(last) or 0, _requests(last) or 0
    if all_ >= _FEW_REQUESTS and bad > _ERROR_SHARE * all_:
        text = f"{bad} of {all_} requests since the engine started failed; none just now."
        said.append(Remark(code="REQUESTS_FAILED_BEFORE", text=text, count=bad))
    return tuple(said)


def _grown(looks: Sequence[Look], figure: Callable[[EngineMetrics], int | None]) -> int:
    first, last = figure(looks[0].metrics), figure(looks[-1].metrics)
    return 0 if first is None or last is None else max(0, last - first)


def _errors(one: EngineMetrics) -> int | None:
    """Whichever of the two counts more; neither knows all: a crash finishes nothing."""
    finished = (one.requests_finished or {}).get("error", 0)
    return max(finished, (one.http_requests or {}).get("5xx", 0))


def _requests(one: EngineMetrics) -> int | None:
    return max(sum((one.requests_finished or {}).values()), sum((one.http_requests or {}).values()))


def _seconds(looks: Sequence[Look]) -> float:
    return looks[-1].at - looks[0].at
