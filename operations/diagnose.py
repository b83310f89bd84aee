"""The walk over the layers of a deployment; it stops at the first that is unhealthy."""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import anyio

from backends.base import HasLogs, Scales
from core.endpoint import Endpoint
from core.errors import OpsError
from core.metrics import EngineMetrics, MetricsPage
from core.records import Deployment, Failure, State, Step
from core.reply import note
from operations.case import (
    LAYERS,
    MOST_EVIDENCE,
    OF_A_SPEC,
    Case,
    Cost,
    Diagnosis,
    Evidence,
    Layer,
    Looked,
    LookedAt,
    Remark,
    calls,
    condition,
    failed,
    healthy,
    ill,
    lasting,
    lines,
    meant,
    number,
    skipped,
)
from operations.deployments import end, end_steps
from operations.layers import (
    boot,
    container,
    fault_of,
    health,
    model,
    recent_logs,
    resource,
    revision,
    settings,
)
from operations.resolve import Found
from operations.runtime import Runtime

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
    if failure := judge(looks):
        return failed(failure, *_figures(looks))
    last, usage = case.seen, case.seen.kv_cache_usage
    full = "not known" if usage is None else f"{usage:.0%}"
    said = f"{last.requests_running} running, {last.requests_waiting} waiting, KV cache use {full}."
    return healthy(said, remarks=_aside(looks))


async def _watch(case: Case, endpoint: Endpoint) -> list[Look]:
    looks = [await _look(endpoint)]
    await anyio.sleep(FIRST_GAP_SECONDS)
    looks.append(await _look(endpoint))
    ends = looks[0].at + min(WATCH_SECONDS, case.left - _KEEP_SECONDS)
    while all(look.metrics.requests_waiting for look in looks) and time.monotonic() < ends:
        await anyio.sleep(min(EVERY_SECONDS, max(0.0, ends - time.monotonic())))
        looks.append(await _look(endpoint))
    if len(looks) > 2:
        note(
            f"Requests waited: watched for {looks[-1].at - looks[0].at:.0f} s, {len(looks)} looks."
        )
    return looks


async def _look(endpoint: Endpoint) -> Look:
    return Look(time.monotonic(), MetricsPage(await endpoint.metrics_text()).engine())


def judge(looks: Sequence[Look]) -> Failure | None:
    """Give the first of the known ills that all looks together show."""
    last, seconds = looks[-1].metrics, looks[-1].at - looks[0].at
    if grown := _grown(looks, lambda one: one.preemptions):
        return ill("PREEMPTING", grown=grown, seconds=seconds)
    usage = [look.metrics.kv_cache_usage or 0.0 for look in looks]
    if seconds >= ENOUGH_SECONDS and all(look.metrics.requests_waiting for look in looks):
        waited = f"{last.requests_waiting} requests wait, at every look for {seconds:.0f} s"
        full = f"the KV cache is {usage[-1]:.0%} full"
        if max(usage) <= KV_HIGH:
            return ill("SATURATED", waited=waited, full=full, running=last.requests_running)
        fits = last.cache.kv_cache_max_concurrency
        room = "" if fits is None else f" ({fits:.2f} requests of full length fit)"
        return ill("KV_CACHE_TOO_SMALL_FOR_LOAD", waited=waited, full=full, room=room)
    if min(usage) > KV_HIGH:
        return ill("KV_CACHE_NEARLY_FULL", usage=usage[-1])
    bad, all_ = _grown(looks, _errors), _grown(looks, _requests)
    all_ = all_ or bad
    # Where so few of all requests since the engine started failed, one now is chance.
    rare = bad == 1 and (_errors(last) or 0) < _ERROR_SHARE * (_requests(last) or 0)
    if bad and bad >= _ERROR_SHARE * all_ and not rare:
        return ill("REQUESTS_FAIL", bad=bad, seconds=seconds, all=all_)
    return None


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


def _aside(looks: Sequence[Look]) -> tuple[Remark, ...]:
    last, said = looks[-1].metrics, []
    if last.preemptions:
        text = f"{last.preemptions} requests were preempted since the engine started."
        said.append(Remark(code="PREEMPTED_BEFORE", text=text, count=last.preemptions))
    if all(look.metrics.requests_waiting for look in looks):
        seconds = looks[-1].at - looks[0].at
        text = f"{last.requests_waiting} requests wait, seen for {seconds:.0f} s only."
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


IDLE_SECONDS: Final = 2 * 3600.0
"""A deployment that was ready for so long has had time to be used."""
_USED_PER_HOUR: Final = 1.0
"""Requests; whoever looks now and then asks for one token each time."""


async def cost(case: Case) -> Looked:
    """Say what it costs; ill are a time that is over, and hours that nobody used."""
    now = case.deployment
    if now.expires_at and is_overdue(case):
        ends = end(case.backend)
        ended = f"{now.expires_at:%F %H:%M} UTC"
        failure = ill("OVERDUE", ended=ended, price=_price(now), end=ends)
        failure = failure.model_copy(update={"next": end_steps(case.backend)})
        return failed(failure, condition("its ttl ended", now.expires_at))
    return _idle(case) or healthy(_price(now))


def still_bills(now: Deployment) -> tuple[Remark, ...]:
    """Say of one that serves nobody that its machine is paid for all the same."""
    if now.state not in {State.FAILED, State.UNKNOWN} or not now.replicas or not now.usd_per_hour:
        return ()
    text = (
        f"It does not serve and is billed on: {_price(now)} Call destroy_vllm if it is not mended."
    )
    return (Remark(code="BILLED_ALL_THE_SAME", text=text),)


def is_overdue(case: Case) -> bool:
    """Whether its ttl is over and it is not stopped."""
    now = case.deployment
    runs = not (now.state.ended or now.state in {State.STOPPING, State.DELETING})
    return runs and now.expires_at is not None and now.expires_at < case.now


def _idle(case: Case) -> Looked | None:
    now, seen = case.deployment, case.seen
    paid = now.state is State.READY and now.usd_per_hour
    if not paid or seen is None or now.replicas > 1:  # the page is one replica's
        return None
    since = max(now.since, seen.started_at or now.since)  # its counters begin with the engine
    seconds = (case.now - since).total_seconds()
    served = sum((seen.requests_finished or {}).values())
    busy = seen.requests_running or seen.requests_waiting or seen.requests_finished is None
    if busy or seconds < IDLE_SECONDS or served > _USED_PER_HOUR * seconds / 3600:
        return None
    sleeps = "Stop it with stop_vllm, or let it sleep with update_vllm_scaling and min_replicas 0."
    failure = ill(
        "IDLE_AND_BILLED",
        served=served,
        lasts=lasting(seconds),
        price=_price(now),
        end=sleeps if isinstance(case.backend, Scales) else end(case.backend),
    ).model_copy(update={"next": end_steps(case.backend)})
    return failed(failure, number(f"{served} requests finished", since), number(_price(now)))


def _price(now: Deployment) -> str:
    if now.usd_per_hour is None:
        return "Its price is not known."
    so_far = "" if now.usd_so_far is None else f", ${now.usd_so_far:.2f} so far"
    each = {0: " while it runs", 1: ""}.get(now.replicas, f" for each of {now.replicas} replicas")
    return f"${now.usd_per_hour:.2f} an hour{each}{so_far}."


WHOLE_SECONDS: Final = 40.0
"""Clients cut a call at 45 s or 60 s."""
_NO_TIME_SECONDS: Final = 0.5
_MORE_SECONDS: Final = 2.0
"""To fill in the next call where the walk took all the time."""
_ENDED: Final = frozenset((State.FAILED, State.EXPIRED, State.UNKNOWN))


class Row(NamedTuple):
    """One layer, and how it is looked at."""

    layer: Layer
    look: Callable[[Case], Awaitable[Looked]]
    seconds: float
    """At most; less where less is left."""


_MODEL: Final = Row("model answers", model, 20)
WALK: Final = (
    Row("settings and login", settings, 8),
    Row("cloud resource", resource, 8),
    Row("revision or VM", revision, 2),
    Row("container", container, 5),
    Row("engine boot", boot, 15),
    Row("health", health, 22),
    _MODEL,
    Row("metrics", metrics, 38),
    Row("recent logs", recent_logs, 12),
    Row("cost", cost, 2),
)


async def diagnose(runtime: Runtime, target: str | None, name: str | None) -> Diagnosis:
    """Find the layer at fault, in at most 40 s. Changes nothing and wakes nothing.

    Raises:
        InvalidArgument: The name cannot be one.
        TargetNotFound: The target is not configured.
        DeploymentNotFound: Every target that could have it answered, and none has.
        Ambiguous: Several deployments fit; the message lists them.
    """
    ends = anyio.current_time() + WHOLE_SECONDS
    found = await meant(runtime, target, name)
    if isinstance(found, Diagnosis):
        return found
    return await examine(runtime, found, ends=ends)


async def examine(runtime: Runtime, found: Found, *, ends: float) -> Diagnosis:
    """Diagnose a deployment that was just looked at; `ends` is on anyio's clock, in seconds."""
    case = Case(runtime, found, ends=ends)
    with anyio.move_on_after(case.left / 2):
        case.fault = await fault_of(case)
    return await _told(case, await walk(case))


async def walk(case: Case) -> dict[Layer, Looked]:
    """Look at each layer until one is unhealthy."""
    seen: dict[Layer, Looked] = {}
    for row in WALK:
        seen[row.layer] = await _at(row, case)
        if seen[row.layer].verdict == "failed":
            return seen
        if row.layer == "metrics" and case.unheard and (silent := await _silent(case, seen)):
            return silent
    return _unproved(case.deployment, seen)


async def _silent(case: Case, seen: dict[Layer, Looked]) -> dict[Layer, Looked] | None:
    """Ask once more where the load does not explain that the model was silent; None is healthy."""
    again = await _at(_MODEL, case)
    if again.verdict == "skipped" and case.unheard:
        again = failed(case.unheard)
    if again.verdict == "healthy":
        seen[_MODEL.layer] = again
        return None
    before = {row.layer: seen[row.layer] for row in WALK[: LAYERS.index(_MODEL.layer)]}
    return {**before, _MODEL.layer: again}


async def _at(row: Row, case: Case) -> Looked:
    """Look at one layer in its share of the time."""
    if case.fault and case.fault.layer == row.layer:
        return failed(case.fault.failure, *case.fault.evidence)
    seconds = min(row.seconds, case.left)
    if seconds < _NO_TIME_SECONDS:
        return skipped("Not looked at: the time was over.")
    with anyio.move_on_after(seconds):
        try:
            return await row.look(case)
        except OpsError as exc:
            return skipped(f"Could not be looked at: {exc.summary}")
    return skipped(f"Not looked at: {seconds:.0f} s were not enough.")


def _unproved(now: Deployment, seen: dict[Layer, Looked]) -> dict[Layer, Looked]:
    """What its platform does not call well is so only once its model has answered."""
    if now.state not in _ENDED or seen["model answers"].verdict == "healthy":
        return seen
    failure = now.failure or ill("NOT_KNOWN", name=now.name)
    before = {row.layer: seen[row.layer] for row in WALK[: LAYERS.index("health")]}
    return {**before, "health": failed(failure, *lines(failure.evidence[-MOST_EVIDENCE:]))}


async def _told(case: Case, seen: dict[Layer, Looked]) -> Diagnosis:
    now = case.deployment
    wrong = next(((layer, one) for layer, one in seen.items() if one.verdict == "failed"), None)
    failure = wrong[1].failure if wrong else None
    steps = (failure.next or _otherwise(case)) if failure else _anyway(case, seen)
    spec = None  # without it a call asks for the model alone
    if any(step.tool in OF_A_SPEC for step in steps):
        with anyio.move_on_after(case.left + _MORE_SECONDS):
            spec = await case.spec()
    remarks = [remark for one in seen.values() for remark in one.remarks]
    return Diagnosis(
        target=now.target,
        name=now.name,
        healthy=wrong is None,
        layer=wrong[0] if wrong else None,
        code=failure.code if failure else None,
        cause=failure.cause if failure else _state(now, seen),
        fix=failure.fix if failure else None,
        evidence=tuple(dict.fromkeys(wrong[1].evidence))[:MOST_EVIDENCE] if wrong else (),
        remarks=(*remarks, *still_bills(now)),
        looked_at=tuple(
            LookedAt(layer=layer, verdict=one.verdict, detail=one.detail)
            for layer, one in seen.items()
        ),
        next=calls(steps, now, spec),
        cost=Cost(usd_per_hour=now.usd_per_hour, usd_so_far=now.usd_so_far),
        simulated=now.simulated,
        overdue_since=now.expires_at if is_overdue(case) else None,
    )


def _state(now: Deployment, seen: dict[Layer, Looked]) -> str | None:
    """Say of what is healthy and does not answer what it does instead."""
    if now.state is State.READY:
        return None
    if now.state in {State.ASLEEP, State.STOPPED}:
        return f"It is {now.state} since {now.since:%F %H:%M} UTC, by design."
    busy = (one.detail for one in seen.values() if one.next)
    return next(busy, f"It is {now.state}.")


def _otherwise(case: Case) -> Sequence[Step]:
    """Name what helps with a failure that names no tool."""
    log = (Step(tool="get_logs"),) if isinstance(case.backend, HasLogs) else ()
    failed = case.deployment.state in {State.FAILED, State.EXPIRED}
    return (*log, Step(tool="deploy_vllm" if failed else "status_vllm"))


def _anyway(case: Case, seen: dict[Layer, Looked]) -> Sequence[Step]:
    """Name what a person would do with what is healthy."""
    now = case.deployment
    if now.state is State.STOPPED:
        return (Step(tool="start_vllm"), Step(tool="destroy_vllm"))
    if now.state is State.ASLEEP:
        return (Step(tool="verify_model_health", arguments={"wake": True}),)
    if now.state is State.READY:
        return (Step(tool="get_metrics"),)
    return tuple(step for one in seen.values() for step in one.next)
