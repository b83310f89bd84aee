"""Whether money is spent on what nobody uses."""

from typing import Final

from backends.base import Scales
from core.records import Deployment, Failure, State
from operations.diagnosis.case import Case, Looked, condition, failed, healthy, lasting, number
from operations.diagnosis.records import Remark
from operations.lives.ending import end, end_steps

IDLE_SECONDS: Final = 2 * 3600.0
"""A deployment that was ready for so long has had time to be used."""
_USED_PER_HOUR: Final = 1.0
"""Requests; whoever looks now and then asks for one token each time."""


async def cost(case: Case) -> Looked:
    """Say what it costs; ill are a time that is over, and hours that nobody used."""
    now = case.deployment
    if over := _overdue(case):
        return over
    if idle := _idle(case):
        return idle
    return healthy(_price(now))


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


def _overdue(case: Case) -> Looked | None:
    now = case.deployment
    if not is_overdue(case) or now.expires_at is None:
        return None
    failure = Failure(
        code="OVERDUE",
        cause=f"Its time was over at {now.expires_at:%F %H:%M} UTC, and it runs on. {_price(now)}",
        fix=end(case.backend, stops=case.stops),
        next=end_steps(stops=case.stops),
    )
    return failed(failure, condition("its ttl ended", now.expires_at))


def _idle(case: Case) -> Looked | None:
    now, seen = case.deployment, case.seen
    if now.state is not State.READY or not now.usd_per_hour or seen is None:
        return None
    since = max(now.since, seen.started_at or now.since)  # its counters begin with the engine
    seconds = (case.now - since).total_seconds()
    served = sum((seen.requests_finished or {}).values())
    if now.replicas > 1:  # the page is one replica's
        return None
    busy = seen.requests_running or seen.requests_waiting or seen.requests_finished is None
    if busy or seconds < IDLE_SECONDS or served > _USED_PER_HOUR * seconds / 3600:
        return None
    failure = Failure(
        code="IDLE_AND_BILLED",
        cause=f"It is billed and hardly used: {served} requests in {lasting(seconds)}."
        f" {_price(now)}",
        fix="Stop it with stop_vllm, or let it sleep with update_vllm_scaling and min_replicas 0."
        if isinstance(case.backend, Scales)
        else end(case.backend, stops=case.stops),
        next=end_steps(stops=case.stops),
    )
    return failed(failure, number(f"{served} requests finished", since), number(_price(now)))


def _price(now: Deployment) -> str:
    if now.usd_per_hour is None:
        return "Its price is not known."
    so_far = "" if now.usd_so_far is None else f", ${now.usd_so_far:.2f} so far"
    each = {0: " while it runs", 1: ""}.get(now.replicas, f" for each of {now.replicas} replicas")
    return f"${now.usd_per_hour:.2f} an hour{each}{so_far}."
