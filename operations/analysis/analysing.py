"""Three analyses: of what a cloud logged, of an accelerator, and of what to do."""

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import anyio
from pydantic import Field

from backends.base import LogQuery
from backends.common.concurrency import in_time
from core.errors import NotFound, OpsError
from core.records import Record
from operations.analysis import accelerator, evidence, kept
from operations.analysis.evidence import Seen
from operations.analysis.records import Analysis, Tool
from operations.analyst.candidates import candidates
from operations.analyst.words import Case, Row
from operations.diagnosis.first import FIND_SECONDS
from operations.diagnosis.records import Call, Diagnosis
from operations.diagnosis.walk import diagnose
from operations.resolve import Found, find
from operations.runtime import Runtime

CALL_SECONDS: Final = 43.0
"""Clients cut a call at 45 s or 60 s."""
_TELL_SECONDS: Final = 2.0
"""Of them, for what is made of all that was seen."""
READ_SECONDS: Final = 18.0
_DIAGNOSIS_SECONDS: Final = 30.0
_REMEDY_LINES: Final = 20_000
_UNHEALTHY: Final = frozenset({"container", "engine boot", "health", "model answers"})
"""Layers that a model stands on: where one is unhealthy, it is not asked."""
_HARM: Final = ("destroy", "delete", "stop", "manage")

_CLOUD_TASK: Final = "Say what goes wrong in these logs, the root cause first."
_GPU_TASK: Final = "Say what the lines show of the accelerator: memory, kernels, links, errors."
_REMEDY_TASK: Final = "Say the most likely root cause, and which offered tool to call first."


class Asked(Record):
    """What a call asks for."""

    filter: str | None = None
    """Text that lines must hold."""
    minutes: int
    limit: int
    """Lines that are read at most."""
    wait_s: float
    """How long a call waits for words, in seconds."""
    ends: float = Field(default_factory=lambda: anyio.current_time() + CALL_SECONDS)
    """Of the call, on anyio's clock; finding the deployment takes of it as well."""

    @property
    def left(self) -> float:
        """Seconds for what is still to be looked at."""
        return max(1.0, self.ends - _TELL_SECONDS - anyio.current_time())


class _Until(NamedTuple):
    """How long a call may still wait."""

    wait_s: float
    ends: float
    """Of the call, on anyio's clock."""

    @property
    def left(self) -> float:
        return max(0.0, min(self.wait_s, self.ends - anyio.current_time()))


async def cloud_log(runtime: Runtime, found: Found, asked: Asked) -> Analysis:
    """Analyse what container and platform wrote.

    Raises:
        Unsupported: The target keeps no logs that can be read from here.
        OpsError: Its platform cannot be asked.
    """
    until = _until(asked)
    seen = await _read(runtime, found, asked, platform=True)
    base = _analysis("analyze_cloud_logging", found, seen)
    return await _worded(
        runtime, found, base, _case(runtime, found, base, seen.rows, _CLOUD_TASK), until
    )


async def gpu_log(runtime: Runtime, found: Found, asked: Asked) -> Analysis:
    """Analyse what the engine wrote of its accelerator.

    Raises:
        Unsupported: The target keeps no logs that can be read from here.
        OpsError: Its platform cannot be asked.
    """
    until = _until(asked)
    seen = await _read(runtime, found, asked, platform=False)
    with anyio.move_on_after(min(10, asked.left)) as limit:
        memory = await accelerator.memory(found)
    if limit.cancelled_caught:
        memory = ("The memory is not known: its platform did not answer in time.",)
    quiet = tuple(evidence.quiet(runtime, one, 400) for one in memory)
    base = _analysis("analyze_gpu_logs", found, seen).model_copy(update={"memory": quiet})
    return await _worded(
        runtime, found, base, _case(runtime, found, base, seen.rows, _GPU_TASK), until
    )


async def remedy(runtime: Runtime, found: Found, asked: Asked) -> Analysis:
    """Walk over the layers and read the log at the same time, then name what to do. Never acts.

    Raises:
        OpsError: Nothing can be looked at.
    """
    until = _until(asked)
    walked: list[Diagnosis] = []
    read: list[Seen] = []

    async def walk() -> None:
        with contextlib.suppress(OpsError):  # the log may still tell
            walked.append(await diagnose(runtime, found.deployment.target, found.name))

    async def look() -> None:
        read.append(await _read_or_say(runtime, found, asked))

    with anyio.move_on_after(min(_DIAGNOSIS_SECONDS, asked.left)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(walk)
            tasks.start_soon(look)
    seen = read[0] if read else _unread("The log was not read in time.")
    diagnosis = walked[0] if walked else None
    base = _with_diagnosis(runtime, _analysis("suggest_sre_remediation", found, seen), diagnosis)
    unhealthy = diagnosis.layer if diagnosis and diagnosis.layer in _UNHEALTHY else None
    why = f"{found.name} is unhealthy at the layer '{unhealthy}'" if unhealthy else ""
    case = _case(runtime, found, base, seen.rows, _REMEDY_TASK, more=_verdict(diagnosis))
    return await _worded(runtime, found, base, case, until, unhealthy=why)


async def rest(
    runtime: Runtime, operation: str, wait_s: float, target: str | None, name: str | None
) -> Analysis:
    """Give the rest of an analysis that was begun before.

    Raises:
        NotFound: There is none of that id, or it is of another deployment than is named.
    """
    found = await kept.find(runtime, operation, wait_s)
    if (target or found.target, name or found.name) != (found.target, found.name):
        raise NotFound(
            f"{operation} is of {found.name} on {found.target}.",
            fix="Leave target and name out, or `operation` for a new analysis.",
        )
    return found


async def found_of(runtime: Runtime, target: str | None, name: str | None) -> Found:
    """Give the deployment that is meant.

    Raises:
        CloudTimeout: Its target does not say in time what it runs.
        OpsError: It cannot be found.
    """
    again = "Call diagnose: it says what hangs."
    with in_time(target or "A target", "find the deployment", FIND_SECONDS, fix=again):
        return await find(runtime.stage, target, name)


async def _read(runtime: Runtime, found: Found, asked: Asked, *, platform: bool) -> Seen:
    query = LogQuery(
        since=datetime.now(UTC) - timedelta(minutes=asked.minutes),
        contains=(asked.filter,) if asked.filter else (),
        platform=platform,
    )
    return await evidence.read(
        runtime,
        found,
        query,
        most_lines=asked.limit,
        seconds=min(READ_SECONDS, asked.left),
        only=None if platform else accelerator.WORDS,
    )


async def _read_or_say(runtime: Runtime, found: Found, asked: Asked) -> Seen:
    limited = asked.model_copy(update={"limit": min(asked.limit, _REMEDY_LINES)})
    try:
        return await _read(runtime, found, limited, platform=True)
    except OpsError as exc:
        return _unread(f"The log was not read: {exc.summary}")


def _unread(why: str) -> Seen:
    return Seen(findings=(), rows=(), steps=(), looked_at=(why,))


def _analysis(tool: Tool, found: Found, seen: Seen) -> Analysis:
    return Analysis(
        target=found.deployment.target,
        name=found.name,
        tool=tool,
        looked_at=seen.looked_at,
        findings=seen.findings,
        rows=tuple(map(str, seen.rows)),
        steps=_harmless(seen.steps),
    )


def _harmless(steps: Sequence[Call]) -> tuple[Call, ...]:
    """Leave out what takes something away: that is for a person to think of."""
    return tuple(step for step in steps if not step.tool.startswith(_HARM))


def _with_diagnosis(runtime: Runtime, base: Analysis, diagnosis: Diagnosis | None) -> Analysis:
    if diagnosis is None:
        why = f"The walk over the layers had not ended after {_DIAGNOSIS_SECONDS:.0f} s."
        return base.model_copy(update={"diagnosis": (why,)})
    said = [diagnosis.summary(), *([f"Fix: {diagnosis.fix}"] if diagnosis.fix else [])]
    said += [f"{row.layer}: {row.verdict}. {row.detail}" for row in diagnosis.looked_at]
    steps = {step.tool: step for step in (*diagnosis.next, *base.steps)}
    quiet = tuple(evidence.quiet(runtime, one, 400) for one in said)
    return base.model_copy(update={"diagnosis": quiet, "steps": _harmless(tuple(steps.values()))})


async def _worded(
    runtime: Runtime,
    found: Found,
    base: Analysis,
    case: Case,
    until: _Until,
    *,
    unhealthy: str = "",
) -> Analysis:
    """Let a model read it, and wait for its words while there is time."""
    those, why_not = candidates(runtime, found, unhealthy=unhealthy)
    if not those or not case.rows:
        nothing = "There is no line for a model to read."
        return base.model_copy(update={"silence": why_not if case.rows else nothing})
    return await kept.waited(kept.begin(runtime, base, case, those), until.left)


def _until(asked: Asked) -> _Until:
    return _Until(asked.wait_s, asked.ends)


def _case(
    runtime: Runtime,
    found: Found,
    base: Analysis,
    rows: Sequence[Row],
    task: str,
    *,
    more: Sequence[str] = (),
) -> Case:
    return Case(
        task=task,
        facts=(*_facts(found, base), *more, *base.memory),
        rows=tuple(rows),
        tools=base.steps,
        others=frozenset(runtime.listed) - {step.tool for step in base.steps},
    )


def _verdict(diagnosis: Diagnosis | None) -> tuple[str, ...]:
    """Say the layer and the code: their words may hold text of the log."""
    if diagnosis is None:
        return ()
    if diagnosis.healthy:
        return ("A walk over all layers found none that is unhealthy.",)
    return (f"The layer '{diagnosis.layer}' is unhealthy: {diagnosis.code}.",)


def _facts(found: Found, base: Analysis) -> Sequence[str]:
    """Say what is ours to say: states, codes and counts, and no word of a log."""
    one = found.deployment
    said = [f"The deployment is {one.state} on {one.target}, engine {one.engine}."]
    said += [f"{row.row} is the known failure {row.code}." for row in base.findings]
    return said
