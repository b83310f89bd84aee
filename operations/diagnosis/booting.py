"""What runs an engine, and how its boot went."""

from typing import Final

from backends.base import HasHost, HostState
from core.records import Failure, State, Step
from operations.diagnosis.blame import is_vague
from operations.diagnosis.case import (
    Case,
    Looked,
    condition,
    failed,
    healthy,
    lasting,
    number,
    skipped,
)
from operations.diagnosis.cause import search
from operations.diagnosis.flags import as_asked
from operations.diagnosis.records import Evidence, Remark
from operations.diagnosis.standing import longest_of
from operations.lives.ending import anew, anew_steps

_LONG_SECONDS: Final = 45 * 60.0
"""Of one phase where no boot was seen before: 62 GB from the Hub at 30 MB/s take 35 minutes."""
_AT_LEAST_SECONDS: Final = 60.0
_WAITING: Final = frozenset(
    (State.QUEUED, State.CREATING, State.ASLEEP, State.STOPPED, State.STOPPING, State.DELETING)
)


async def container(case: Case) -> Looked:
    """Say whether it runs, and whether its host has room."""
    now = case.deployment
    if now.state in _WAITING:
        return skipped(f"Not looked at: {case.silent}.")
    runs = f"{now.replicas} replica{'s' * (now.replicas != 1)} run{'s' * (now.replicas == 1)}"
    if not isinstance(case.backend, HasHost):
        return healthy(f"{runs}.")
    host = await case.backend.host()
    seen = f"{runs}; the host has {host.disk_free_gib:.1f} GiB of disk and"
    seen += f" {host.memory_available_gib:.1f} GiB of memory free."
    if host.health == "ok":
        return healthy(seen)
    if host.health == "short of disk" and _may_be_the_disk(case):
        return failed(disk_full(host), *disk_evidence(case, host))
    code = "HOST_SHORT_OF_DISK" if host.health == "short of disk" else "HOST_SHORT_OF_MEMORY"
    return healthy(seen, remarks=(Remark(code=code, text=f"The host is {host.health}: {seen}"),))


def disk_full(host: HostState) -> Failure:
    """Say that there is no room to write."""
    return Failure(
        code="DISK_FULL",
        cause=f"Its host has {host.disk_free_gib:.2f} GiB of disk left: what writes there fails.",
        fix="Make room: delete what destroy_vllm and benchmarks left, old logs, or weights of the"
        " Hub's cache; then start_vllm.",
        next=(Step(tool="start_vllm"),),
    )


def disk_evidence(case: Case, host: HostState) -> tuple[Evidence, ...]:
    """Give the figure."""
    return (number(f"disk free: {host.disk_free_gib:.2f} GiB", case.now),)


async def boot(case: Case) -> Looked:
    """Say how far its boot is, or whether what came of it is what was asked for."""
    now = case.deployment
    if now.state in _WAITING:
        return skipped(f"Not looked at: {case.silent}.")
    if now.state is State.READY:
        return await as_asked(case)
    if now.state is not State.LOADING or case.silent is None:
        return healthy("Its engine had started.")
    longest, usually = longest_of(case, _AT_LEAST_SECONDS)
    if case.for_seconds > (longest or _LONG_SECONDS):
        return await _slow(case, usually)
    often = "" if usually is None else f" Here that usually takes {lasting(usually)}."
    watch = Step(tool="status_vllm", arguments={"wait_s": 30})
    return healthy(f"{_progress(case)}.{often} Wait for it.", next=(watch,))


def _progress(case: Case) -> str:
    phase = case.deployment.phase
    if phase is None:
        return f"Booting for {lasting(case.for_seconds)}"
    percent = "" if phase.percent is None else f" {phase.percent} %"
    return f"Still {phase.name}{percent}, for {lasting(case.for_seconds)}"


async def _slow(case: Case, usually: float | None) -> Looked:
    """Say that it takes longer than it should, and what its log knows of it."""
    found = await search(case)
    known = found.cause
    often = "no boot was seen here before" if usually is None else f"usually {lasting(usually)}"
    cause = f"{_progress(case)}, {often}."
    seen = (number(f"in this phase for {case.for_seconds:.0f} s", case.since), condition(often))
    if known:
        line = Evidence(kind="line", text=known.line[:400], at=known.last)
        words = {"cause": f"{cause} {known.failure.cause}"}
        return failed(known.failure.model_copy(update=words), line, *seen)
    failure = Failure(
        code="BOOT_TAKES_TOO_LONG",
        cause=cause,
        fix="Call get_logs for what it writes; if nothing moves,"
        f" {anew(case.backend, stops=case.stops)}.",
        next=(Step(tool="get_logs"), *anew_steps(case.backend, stops=case.stops)),
    )
    return failed(failure, *seen)


def _may_be_the_disk(case: Case) -> bool:
    """What runs well needs no room now; a reason that is known is the better one."""
    if case.deployment.state is State.READY:
        return False
    return case.fault is None or is_vague(case.fault.failure.code)
