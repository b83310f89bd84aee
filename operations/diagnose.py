"""A deployment walked through, layer by layer, until the first that is unhealthy."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import anyio

from backends.base import Ends, GoesOn, HasHost, HasLogs, HostState, LogQuery, Scales, Stops
from core.endpoint import Endpoint
from core.errors import (
    EndpointError,
    ModelNotServed,
    NextStep,
    OpsError,
    Throttled,
    Unauthorized,
    Unreachable,
)
from core.metrics import EngineMetrics, MetricsPage
from core.records import Deployment, Failure, State, listed, spent_words
from core.reply import note
from logs.boot import BEGINS
from logs.failures import LINE_CHARACTERS, Finder, Finding, Writer, asked_words
from logs.read import Line
from logs.verdict import UNKNOWN_CAUSE, Judge
from operations.case import (
    LAYERS,
    MOST_EVIDENCE,
    OF_A_SPEC,
    Case,
    Diagnosis,
    Evidence,
    Fault,
    Layer,
    Looked,
    LookedAt,
    Remark,
    ago,
    calls,
    condition,
    failed,
    find_deployment,
    healthy,
    ill,
    is_cause,
    is_end,
    is_vague,
    lasting,
    layer_of,
    lines,
    number,
    restarts,
    skipped,
)
from operations.deployments import (
    after_its_log,
    can_stop,
    following,
    longest_seconds,
    phase_of,
    to_end,
    to_restart,
)
from operations.readings import read_log
from operations.resolve import Found
from operations.runtime import Runtime

_MINUTES: Final = 60
_MOST_LINES: Final = 100_000
_RECENT_SECONDS: Final = 10.0
_MOST_REMARKS: Final = 8


async def recent_logs(case: Case) -> Looked:
    """Tell what the catalogue knows of the last hour; only a full disk makes it unhealthy."""
    if case.deployment.state in {State.STOPPED, State.ASLEEP, State.QUEUED, State.CREATING}:
        return skipped(f"Not read: {case.silent}.")
    if not isinstance(case.backend, HasLogs):
        return skipped("It keeps no logs that can be read from here.")
    finder = Finder(case.writer)
    query = LogQuery(
        since=ago(case, minutes=_MINUTES), contains=asked_words(case.writer or "engine")
    )
    seconds = min(_RECENT_SECONDS, case.left - 1)
    read = await read_log(
        case.found, query, (finder.feed,), most_lines=_MOST_LINES, seconds=seconds
    )
    found = finder.findings()
    full = next((one for one in found if one.failure.code == "DISK_FULL"), None)
    if full and isinstance(case.backend, HasHost):
        # A log that says so and a host that is short of it are one disk that is full.
        host = await case.backend.host()
        if host.health == "short of disk":
            return _disk_full(case, host, *lines([full.line], full.last))
    known = f"{len(found)} of them known failures" if found else "none of them a known failure"
    seen = f"Of the last {_MINUTES} min, {read.lines} lines with a suspicious word, {known}."
    remarks = [
        Remark(
            code=one.failure.code,
            text=f"Its log says so, though it is not unhealthy now: {one.failure.cause}",
            count=one.count,
            first=one.first,
            last=one.last,
        )
        for one in found[:_MOST_REMARKS]
    ]
    return healthy(f"{seen} {read.left_out}".strip(), remarks=remarks)


def _disk_full(case: Case, host: HostState, *seen: Evidence) -> Looked:
    free = number(f"disk free: {host.disk_free_gib:.2f} GiB", case.now)
    return failed(ill("DISK_FULL", free=host.disk_free_gib), *seen, free)


_WATCH: Final = NextStep("status_vllm", {"wait_s": 30})
_UNWATCHED_SECONDS: Final = 300.0
"""A step of a deployment that nobody takes for so long has stopped; a look takes seconds."""


async def settings(case: Case) -> Looked:
    return healthy(f"{case.deployment.target} is configured and answered.")


async def resource(case: Case) -> Looked:
    """Say whether it is there, and whether its making goes on."""
    now = case.deployment
    known = ", ".join(f"{what} {words}" for what, words in now.resources.items())
    if now.state in {State.READY, State.LOADING, State.UNKNOWN, State.ASLEEP, State.STOPPED}:
        return healthy(f"It is {now.state} since {now.since:%F %H:%M} UTC. {known}".strip())
    if now.state in {State.FAILED, State.EXPIRED}:
        return healthy(f"It is there. {known}".strip())
    if stopped := _steps_stopped(case):
        return stopped
    longest = longest_seconds(now)
    if longest is not None and case.for_seconds > longest:
        return _too_long(case)
    what = phase_of(now) or now.state
    goes_on = f"It is {now.state}, {what}, for {lasting(case.for_seconds)}.{_usually(now)}"
    return healthy(f"{goes_on} {known}".strip(), steps=(_WATCH,))


async def revision(case: Case) -> Looked:
    """Name what is meant to run."""
    now = case.deployment
    if now.state in {State.QUEUED, State.CREATING, State.DELETING}:
        return skipped(f"Not looked at: {case.silent}.")
    stands = now.instance or "no instance of its own"
    return healthy(f"Revision {now.revision} of {now.served_model_name}, on {stands}.")


def _steps_stopped(case: Case) -> Looked | None:
    """Of a deployment made in steps, whether anybody still takes them."""
    now, backend = case.deployment, case.backend
    if not isinstance(backend, GoesOn) or phase_of(now) not in backend.waits_in:
        return None
    followed = case.runtime.background.does(following(now))
    if followed or case.for_seconds < _UNWATCHED_SECONDS:
        return None
    failure = ill("STEPS_STOPPED", what=phase_of(now), since=f"{case.since:%F %H:%M} UTC")
    return failed(failure, condition(f"{now.state}: {phase_of(now)}", case.since))


def _too_long(case: Case) -> Looked:
    now = case.deployment
    stopping = now.state is State.STOPPING and can_stop(case.backend)
    failure = ill(
        "TAKES_TOO_LONG",
        state=now.state,
        what=phase_of(now) or str(now.state),
        since=f"{case.since:%F %H:%M} UTC",
        lasts=lasting(case.for_seconds),
        usually=_usually(now),
        end="stop_vllm again" if stopping else "destroy_vllm, then deploy_vllm elsewhere",
    )
    ends = NextStep("stop_vllm" if stopping else "destroy_vllm")
    seen = [number(f"for {case.for_seconds:.0f} s", case.since)]
    if now.phase and now.phase.usual_seconds is not None:
        seen.append(number(f"usually {now.phase.usual_seconds:.0f} s"))
    if now.phase and now.phase.detail:
        seen.append(condition(now.phase.detail, case.now))
    return failed(failure.model_copy(update={"next": (*failure.next, ends)}), *seen)


def _usually(now: Deployment) -> str:
    seconds = now.phase.usual_seconds if now.phase else None
    return "" if seconds is None else f" Here that usually takes {lasting(seconds)}."


_STARTED: Final = "Application startup complete"
"""vLLM writes it once its HTTP server is up (0.6 to 0.33)."""
_BEGINS: Final = ("API server version", " version 0.")
"""Words of the lines that begin a boot."""


_CAUSE_SECONDS: Final = 12.0
_SHARE: Final = 0.4
"""Of the time that is left, that a log is searched: the walk comes after it."""
_BEFORE_THE_END: Final = timedelta(minutes=60)
"""A boot that failed began at most so long before: the longest that any cloud waits for one."""
_AT_THE_END: Final = timedelta(minutes=2)
"""What ends an engine that served stands so shortly before its last words; earlier troubles,
often those of one request, it outlived."""
_LAST_LINES: Final = 8
_ENDED: Final = frozenset((State.FAILED, State.EXPIRED, State.UNKNOWN))


class BootLog:
    """What the log of a last boot tells."""

    def __init__(
        self, findings: Sequence[Finding] = (), lines: Sequence[Line] = (), said: str = ""
    ) -> None:
        """Take what the catalogue knows, the lines, oldest first, and what was not read."""
        began = (
            line.at
            for line in lines
            if not line.platform and BEGINS.search(line.text[:LINE_CHARACTERS])
        )
        begun = max(began, default=datetime.min.replace(tzinfo=UTC))
        up = max((line.at for line in lines if _STARTED in line.text), default=None)
        self.said: Final = said
        self.served: Final = up is not None and up >= begun
        """The newest boot had come up before it ended."""
        self._lines: Final = [line for line in lines if line.at >= begun]
        causes = [one for one in findings if is_cause(one)]
        self._ends: Final = [one for one in findings if is_end(one) and one.last >= begun]
        self.end: Final = next((one for one in self._ends if one.writer == "engine"), None)
        """The first of the engine's own words on how the newest boot ended."""
        self.earlier: Final = max(causes, key=lambda one: one.last, default=None)
        """The newest that says why a boot before it ended."""
        since = begun
        if self.served and self._ends:
            since = max(begun, min(one.last for one in self._ends) - _AT_THE_END)
        found = next((one for one in causes if one.last >= since), None)
        self.cause: Final = found or (None if self._ends else self.earlier)
        """The first that says why the newest boot ended; of one that has not, the one before."""

    def unknown(self, writer: Writer) -> Finding | None:
        """Return what the newest boot says in its own words where the catalogue knows no cause."""
        lines = self._lines
        if self.served and lines:
            end = min((one.last for one in self._ends), default=lines[-1].at)
            lines = [one for one in lines if one.at >= end - _AT_THE_END]
        judge = Judge(writer)
        for index, line in enumerate(lines):
            judge.take(line.text, index, line.platform)
        verdict = judge.verdict()
        if verdict is None or verdict.failure.code != UNKNOWN_CAUSE:
            return None
        same = {"failure": verdict.failure, "writer": verdict.writer, "line": verdict.line}
        at = lines[verdict.number].at
        return Finding(**same, first=at, last=at, count=1)


async def fault_of(case: Case) -> Fault | None:
    """Give what is wrong as far as it can be known without asking the server; None is nothing."""
    now = case.deployment
    if now.state not in _ENDED and not (now.state is State.ASLEEP and now.failure):
        return None
    failure = now.failure or ill("NO_REASON", target=now.target, state=now.state)
    cloud = case.writer is not None
    layer = layer_of(failure.code, now, cloud=cloud)
    if layer is None:
        return None
    # The line that was recognized comes first; else the last ones tell.
    vague = is_vague(failure.code)
    quoted = failure.evidence[-_LAST_LINES:] if vague else failure.evidence[:1]
    seen = (*lines(quoted), condition(f"{now.state}: {failure.code}", now.since))
    if not vague:
        return layer, failed(failure, *seen)
    return await _by_the_log(case, failure, layer, seen)


async def search(case: Case) -> BootLog:
    """Look through the log of the last boot for what the catalogue knows."""
    finder = Finder(case.writer)
    since = max(case.deployment.created_at, case.deployment.since - _BEFORE_THE_END)
    words = (*asked_words(case.writer or "engine"), _STARTED, *_BEGINS)
    query, pages = LogQuery(since=since, contains=words), list[Sequence[Line]]()
    seconds = min(_CAUSE_SECONDS, case.left * _SHARE)
    try:
        read = await read_log(
            case.found, query, (finder.feed, pages.append), most_lines=_MOST_LINES, seconds=seconds
        )
    except OpsError as exc:
        return BootLog(said=f"Its log could not be read: {exc.summary}")
    lines = [line for page in reversed(pages) for line in page]
    return BootLog(finder.findings(), lines, read.left_out)


async def _by_the_log(
    case: Case, failure: Failure, layer: Layer, seen: tuple[Evidence, ...]
) -> Fault:
    found = await search(case)
    own = None if failure.code == "KILLED" else found.unknown(case.writer or "engine")
    told = found.cause or own or found.end
    if told is None and failure.code == UNKNOWN_CAUSE:
        return _where(layer, served=found.served), failed(failure, *seen)
    if told is None:
        unknown = f"{failure.cause} No line of its log is one that the catalogue of failures knows."
        left_out = f" {found.said}" if found.said else ""
        update = {"cause": f"{unknown}{_before(found)}{left_out}"}
        changed = failure.model_copy(update=update)
        return _where(layer, served=found.served), failed(changed, *seen)
    cloud = case.writer is not None
    blamed = layer_of(told.failure.code, case.deployment, cloud=cloud) or layer
    where = _where(blamed, served=found.served)
    said = failure if failure.code == told.failure.code else told.failure
    cause = f"{'It served before it ended. ' if found.served else ''}{said.cause}"
    cause += _before(found) if told is not found.cause else ""
    why = told.failure.model_copy(update={"cause": cause})
    evidence = Evidence(kind="line", text=told.line[:400], at=told.last)
    return where, failed(why, evidence, *seen)


def _before(found: BootLog) -> str:
    """Tell what is known and may be over: of an earlier boot, or long before the end."""
    one = found.earlier
    return f" Before, at {one.last:%F %H:%M} UTC: {one.failure.cause}" if one else ""


def _where(layer: Layer, *, served: bool) -> Layer:
    """What served and ended did not fail to boot: its container is gone."""
    return "container" if served and layer == "engine boot" else layer


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
    # What runs well needs no room now, and a reason that is known is the better one.
    known = case.fault[1].failure if case.fault else None
    vague = known is None or is_vague(known.code)
    if host.health == "short of disk" and vague and now.state is not State.READY:
        return _disk_full(case, host)
    code = "HOST_SHORT_OF_DISK" if host.health == "short of disk" else "HOST_SHORT_OF_MEMORY"
    return healthy(seen, remarks=(Remark(code=code, text=f"The host is {host.health}: {seen}"),))


async def boot(case: Case) -> Looked:
    """Say how far its boot is, or how it ended."""
    now = case.deployment
    if now.state in _WAITING:
        return skipped(f"Not looked at: {case.silent}.")
    if now.state is not State.LOADING or case.silent is None:
        return healthy(f"Its engine has started{f'; {now.last_boot}' if now.last_boot else ''}.")
    longest = longest_seconds(now)
    if longest is not None and case.for_seconds > longest:
        return await _slow_booting(case)
    said = f"{_progress(case)}.{_usually(now)} Wait for it."
    return healthy(said, steps=(_WATCH,))


def _progress(case: Case) -> str:
    phase = case.deployment.phase
    if phase is None:
        return f"Booting for {lasting(case.for_seconds)}"
    percent = "" if phase.percent is None else f" {phase.percent} %"
    spent = f" (so far: {spent_words(phase.spent)})" if phase.spent else ""
    return f"Still {phase.name}{percent}, for {lasting(case.for_seconds)}{spent}"


async def _slow_booting(case: Case) -> Looked:
    """Say that it takes longer than it should, and what its log knows of it."""
    found = await search(case)
    known = found.cause
    usually = case.deployment.phase.usual_seconds if case.deployment.phase else None
    often = "no boot was seen here before" if usually is None else f"usually {lasting(usually)}"
    cause = f"{_progress(case)}, {often}."
    seen = (number(f"in this phase for {case.for_seconds:.0f} s", case.since), condition(often))
    if known:
        line = Evidence(kind="line", text=known.line[:400], at=known.last)
        words = {"cause": f"{cause} {known.failure.cause}"}
        return failed(known.failure.model_copy(update=words), line, *seen)
    failure = ill("BOOT_TAKES_TOO_LONG", case, progress=cause.rstrip("."))
    return failed(failure, *seen)


_HEALTH_SECONDS: Final = 10.0
_NAMED: Final = 10
"""Models of a sentence."""
_ANSWER_SECONDS: Final = 12.0
"""For one token: a warm engine needs a tenth of a second, a busy one some."""


async def health(case: Case) -> Looked:
    """Ask /health."""
    if case.silent:
        return skipped(f"Not asked: {case.silent}.")
    began = time.perf_counter()
    try:
        async with case.endpoint(timeout=_HEALTH_SECONDS) as endpoint:
            says = await endpoint.healthy()
    except EndpointError as exc:
        return failed(_unreachable(case, exc), condition(f"{exc.summary} {exc.cause}", case.now))
    seconds = time.perf_counter() - began
    if not says:
        known = case.deployment.failure
        said = f" {known.cause}" if known and known.code != "UNHEALTHY" else ""
        wrote = lines(known.evidence[-8:]) if known else ()
        took = number(f"/health took {seconds:.2f} s", case.now)
        says_no = condition("/health says no", case.now)
        return failed(ill("UNHEALTHY", case, said=said), says_no, took, *wrote)
    return healthy(f"/health said yes in {seconds:.2f} s.")


async def model(case: Case) -> Looked:
    """Let the model say one token."""
    if case.silent:
        return skipped(f"Not asked: {case.silent}.")
    async with case.endpoint(timeout=_ANSWER_SECONDS) as endpoint:
        try:
            return await _one_token(case, endpoint)
        except EndpointError as exc:
            failure = await _refused(case, endpoint, exc)
            return failed(failure, condition(f"{exc.summary} {exc.cause}".strip(), case.now))


async def _one_token(case: Case, endpoint: Endpoint) -> Looked:
    name = await endpoint.model_meant(case.deployment.served_model_name)
    began = time.perf_counter()
    await endpoint.answer(name, max_tokens=1, timeout=_ANSWER_SECONDS)
    seconds = time.perf_counter() - began
    spec = await case.spec()
    if spec and not spec.min_replicas:
        note(f"{case.found.name} was asked for one token, which keeps its replica a while longer.")
    return healthy(f"{name} answered in {seconds:.2f} s.")


async def _refused(case: Case, endpoint: Endpoint, exc: EndpointError) -> Failure:
    words = f"{exc.summary} {exc.cause}".strip()
    if isinstance(exc, Unreachable):
        waiting = case.seen.requests_waiting if case.seen else 0
        waits = f", while {waiting} requests wait" if waiting else ""
        return ill("MODEL_SILENT", case, seconds=_ANSWER_SECONDS, waits=waits)
    if isinstance(exc, Unauthorized):
        remedy, fix = to_restart(case.backend), exc.fix
        if remedy.steps:
            fix = f"Its engine began with another key than is kept now: {remedy.words} mend it."
        return Failure(code=exc.code, cause=words, fix=fix, next=remedy.steps)
    if isinstance(exc, ModelNotServed):
        served, wanted = "another model", case.deployment.served_model_name
        with suppress(EndpointError):
            names = [row.id for row in await endpoint.models()]
            served = listed(names, most=_NAMED) or "no model"
        cause = f"It serves {served}, and not {wanted}."
        fix = f"Ask for {served}, or deploy {wanted} anew with deploy_vllm."
        step = NextStep("get_model_details")
        return Failure(code=exc.code, cause=cause, fix=fix, next=(step, NextStep("deploy_vllm")))
    if isinstance(exc, Throttled):  # it works as it should: to start it anew would help nobody
        return Failure(code=exc.code, cause=words, fix=exc.fix, next=(NextStep("get_metrics"),))
    fix = exc.fix if exc.code != "ENDPOINT_ERROR" else after_its_log(case.backend)
    return Failure(code=exc.code, cause=words, fix=fix, next=restarts(case))


def _unreachable(case: Case, exc: EndpointError) -> Failure:
    silent = ill("HEALTH_SILENT", case, seconds=_HEALTH_SECONDS)
    if exc.cause.endswith("Timeout"):
        return silent
    cause = f"Nothing answers at its address: {exc.summary} {exc.cause}".strip()
    mine = isinstance(case.backend, Stops | Ends)
    where = "Start it where it runs, or correct VLLM_BASE_URL; a firewall may stand between."
    fix = silent.fix if mine else where
    return silent.model_copy(update={"code": exc.code, "cause": cause, "fix": fix})


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
    runs = not (now.state.ended or now.state in {State.STOPPING, State.DELETING})
    if runs and now.expires_at and now.expires_at < case.now:
        ends = to_end(case.backend)
        ended = f"{now.expires_at:%F %H:%M} UTC"
        failure = ill("OVERDUE", ended=ended, price=_price(now), end=ends.words)
        failure = failure.model_copy(update={"next": ends.steps})
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
        end=sleeps if isinstance(case.backend, Scales) else to_end(case.backend).words,
    ).model_copy(update={"next": to_end(case.backend).steps})
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


class Row(NamedTuple):
    """One layer, and how it is looked at."""

    layer: Layer
    look: Callable[[Case], Awaitable[Looked]]
    seconds: float
    """At most; less where less is left."""


WALK: Final = (
    Row("settings and login", settings, 8),
    Row("cloud resource", resource, 8),
    Row("revision or VM", revision, 2),
    Row("container", container, 5),
    Row("engine boot", boot, 15),
    Row("health", health, 22),
    Row("metrics", metrics, 38),
    Row("model answers", model, 20),
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
    found = await find_deployment(runtime, target, name)
    if isinstance(found, Diagnosis):
        return found
    return await examine(runtime, found, ends=ends)


async def examine(runtime: Runtime, found: Found, *, ends: float) -> Diagnosis:
    """Diagnose a deployment that was just looked at; `ends` is on anyio's clock, in seconds."""
    case = Case(runtime, found, ends=ends)
    with anyio.move_on_after(case.left / 2):
        case.fault = await fault_of(case)
    return await _diagnosis(case, await walk(case))


async def walk(case: Case) -> dict[Layer, Looked]:
    """Look at each layer until one is unhealthy."""
    seen: dict[Layer, Looked] = {}
    for row in WALK:
        seen[row.layer] = await _at(row, case)
        if seen[row.layer].verdict == "failed":
            return seen
    return _unproved(case.deployment, seen)


async def _at(row: Row, case: Case) -> Looked:
    """Look at one layer in its share of the time."""
    if case.fault and case.fault[0] == row.layer:
        return case.fault[1]
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


async def _diagnosis(case: Case, seen: dict[Layer, Looked]) -> Diagnosis:
    now = case.deployment
    wrong = next(((layer, one) for layer, one in seen.items() if one.verdict == "failed"), None)
    failure = wrong[1].failure if wrong else None
    busy = [step for one in seen.values() for step in one.next]
    steps = (failure.next or _otherwise(case)) if failure else _ANYWAY.get(now.state, busy)
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
        next=calls(steps, now, spec, failure),
        usd_per_hour=now.usd_per_hour,
        usd_so_far=now.usd_so_far,
    )


def _state(now: Deployment, seen: dict[Layer, Looked]) -> str | None:
    """Say of what is healthy and does not answer what it does instead."""
    if now.state is State.READY:
        return None
    if now.state in {State.ASLEEP, State.STOPPED}:
        then = "a question wakes it" if now.state is State.ASLEEP else "start_vllm starts it"
        return f"It is {now.state} since {now.since:%F %H:%M} UTC, by design: {then}."
    busy = (one.detail for one in seen.values() if one.next)
    return next(busy, f"It is {now.state}.")


def _otherwise(case: Case) -> Sequence[NextStep]:
    """Name what helps with a failure that names no tool."""
    has_log = isinstance(case.backend, HasLogs) and case.deployment.has_log
    log = (NextStep("get_logs"),) if has_log else ()
    failed = case.deployment.state in {State.FAILED, State.EXPIRED}
    return (*log, NextStep("deploy_vllm" if failed else "status_vllm"))


_ANYWAY: Final[Mapping[State, Sequence[NextStep]]] = {
    State.STOPPED: (NextStep("start_vllm"), NextStep("destroy_vllm")),
    State.ASLEEP: (NextStep("verify_model_health", {"wake": True}),),
    State.READY: (NextStep("get_metrics"),),
}
"""What a person would do with what is healthy; of the others, what their layers say."""
