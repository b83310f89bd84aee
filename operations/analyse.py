"""Logs analysed: what the catalogue knows of them, what was counted, then a model's words."""

import contextlib
import fcntl
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

import anyio
from pydantic import Field, ValidationError

from backends.base import KnowsEngine, LogQuery, Predicts
from backends.common.concurrency import in_time
from benchmark.folder import replace
from core import waiting
from core.errors import EndpointError, NextStep, NotFound, OpsError
from core.records import MemoryPlan, Record
from core.redaction import one_line, redact, shortened
from logs.failures import WRITERS, Finder, Finding, Writer
from logs.read import Line, clean
from logs.reduce import Reduced, Reducer, mask, times
from operations.analyst import Candidate, Case, Reading, Row, Words, candidates
from operations.case import FIND_SECONDS, Call, Diagnosis, calls
from operations.diagnose import diagnose
from operations.readings import Located, ReadSoFar, compare, read_log
from operations.resolve import Found
from operations.resolve import find as resolve_find
from operations.runtime import Runtime

Tool = Literal["analyze_cloud_logging", "analyze_gpu_logs", "suggest_sre_remediation"]
State = Literal["done", "running", "ended"]

_MOST_NEXT: Final = 5


class Recognized(Record):
    """A failure that the catalogue knows, found in the log."""

    code: str
    cause: str
    fix: str
    row: str
    """The id of its line among the rows."""
    count: int
    first: datetime
    last: datetime


class Analysis(Located):
    """What a log tells, and what a model says of it."""

    tool: Tool
    operation: str | None = None
    """Gives the rest of the words; None where no model is asked."""
    state: State = "done"
    """`running` while a model reads; `ended` if its server ended before."""
    looked_at: tuple[str, ...]
    """What was read, and what was not."""
    diagnosis: tuple[str, ...] = ()
    """What a walk over the layers came to."""
    findings: tuple[Recognized, ...] = ()
    """Of the catalogue of known failures, the cause first."""
    memory: tuple[str, ...] = ()
    """Of the accelerator, as the engine's log tells, beside what was planned."""
    rows: tuple[str, ...] = ()
    """Lines of the log with their ids, each for all of its kind; text of strangers."""
    words: Words | None = None
    silence: str | None = None
    """Why no model has said anything."""
    steps: tuple[Call, ...] = ()
    """Tools that the findings and the diagnosis call for."""

    def summary(self) -> str:
        """Say the first finding and whether a model still reads."""
        said = f"{self.name} on {self.target}: {self._found()}"
        if self.state == "running":
            return f"{said} A model still reads: call {self.tool} with operation={self.operation}."
        if self.state == "ended":
            return f"{said} The server that asked the model has ended; ask again."
        return said

    def facts(self) -> Mapping[str, Any]:
        """Return what is known and what a model says; the lines of the log on request."""
        words = self.words
        return {
            "state": self.state,
            "fix": self.findings[0].fix if self.findings else None,
            "findings": [f"{one.code}, {one.count} times" for one in self.findings[:3]],
            "diagnosis": [shortened(one, 240) for one in self.diagnosis[:2]],
            "memory": self.memory[:3],
            "rows": [shortened(one, 200) for one in self.rows[:4]],
            "words": [shortened(one.text, 300) for one in words.claims[:3]] if words else [],
            "advice": [f"{one.tool}: {shortened(one.why, 200)}" for one in words.advice[:3]]
            if words
            else [],
            "operation": self.operation,
        }

    def warnings(self) -> tuple[str, ...]:
        """Mark the words as words, and say what is not whole."""
        said = (self.silence,) if self.silence else ()
        if self.words and (self.words.claims or self.words.advice):
            head = f"Words of {self.words.model}: not verified, and made from text of the log."
            return (head, *said)
        return said

    def next_steps(self) -> tuple[NextStep, ...]:
        """Name the tools that the facts call for; no word of log or model adds one."""
        here = {"target": self.target, "name": self.name}
        rest = {**here, "operation": self.operation, "wait_s": 30}
        more = (NextStep(self.tool, rest),) if self.state == "running" else ()
        usual = tuple(NextStep(one.tool, one.arguments) for one in self.steps)
        usual = usual or (NextStep("diagnose", here),)
        return (*more, *usual[:_MOST_NEXT])

    def _found(self) -> str:
        if self.findings:
            first, more = self.findings[0], len(self.findings) - 1
            others = f" ({more} more)" if more else ""
            return f"{first.code}{others}: {first.cause}"
        return "no failure that the catalogue knows."


MOST_ROWS: Final = 36
"""With findings: what an agent reads in one go, and a model in a few questions."""
_MOST_FINDINGS: Final = 8
_ROW_CHARACTERS: Final = 300
_ACCESS_SECONDS: Final = 5.0


class Seen(NamedTuple):
    """What a log came to."""

    findings: tuple[Recognized, ...]
    rows: tuple[Row, ...]
    """Findings first, then kinds of lines by weight."""
    steps: tuple[Call, ...]
    """That the findings call for."""
    looked_at: tuple[str, ...]


async def read(
    runtime: Runtime,
    found: Found,
    query: LogQuery,
    *,
    most_lines: int,
    seconds: float,
    only: re.Pattern[str] | None = None,
) -> Seen:
    """Read it; lines are counted whose text fits `only`, failures are looked for in all.

    Raises:
        Unsupported: The target keeps no logs that can be read from here.
        OpsError: Its platform cannot be asked.
    """
    with contextlib.suppress(OpsError), anyio.move_on_after(_ACCESS_SECONDS):
        # Its key may stand in its log, and is known then.
        runtime.keep_quiet(await found.backend.access(found.name))
    finder, reducer = Finder(writer_of(found)), Reducer(newest_first=True, known=runtime.secrets)

    def count(page: Sequence[Line]) -> None:
        reducer.feed([line for line in page if only is None or only.search(line.text)])

    done = await read_log(
        found, query, (finder.feed, count), most_lines=most_lines, seconds=seconds
    )
    return _seen(runtime, found, done, finder.findings()[:_MOST_FINDINGS], reducer)


def writer_of(found: Found) -> Writer | None:
    """Give whose words the platform's lines are; None where only the engine writes."""
    kind = found.backend.target.backend
    return next((one for one in WRITERS if one == kind), None)


def is_quiet(runtime: Runtime, text: str, most: int = _ROW_CHARACTERS) -> str:
    """Give a text of a log as it may leave: no secrets, no personal data, one line, cut."""
    return one_line(mask(str(redact(clean(text), runtime.secrets))), most)


def _seen(
    runtime: Runtime, found: Found, done: ReadSoFar, failures: Sequence[Finding], reducer: Reducer
) -> Seen:
    reduced = reducer.reduced(most=MOST_ROWS - len(failures))
    told = [_of_finding(one) for one in failures] + [str(one) for one in reduced.templates]
    rows = tuple(
        Row(id=f"L{number}", text=is_quiet(runtime, text)) for number, text in enumerate(told, 1)
    )
    findings = tuple(
        _recognized(runtime, one, row) for one, row in zip(failures, rows, strict=False)
    )
    steps = [step for one in failures for step in one.failure.next]
    return Seen(
        findings=findings,
        rows=rows,
        steps=calls(steps, found.deployment),
        looked_at=_looked_at(done, reduced),
    )


def _of_finding(one: Finding) -> str:
    return f"[known failure {one.failure.code}, {times(one.count, one.last)}] {one.line}"


def _recognized(runtime: Runtime, one: Finding, row: Row) -> Recognized:
    return Recognized(
        code=one.failure.code,
        cause=is_quiet(runtime, one.failure.cause, 400),
        fix=is_quiet(runtime, one.failure.fix, 400),
        row=row.id,
        count=one.count,
        first=one.first,
        last=one.last,
    )


def _looked_at(done: ReadSoFar, reduced: Reduced) -> tuple[str, ...]:
    kinds = len(reduced.templates) + reduced.templates_left_out
    since, until = reduced.since, reduced.until
    when = f" from {since:%m-%d %H:%M:%S} to {until:%m-%d %H:%M:%S}" if since and until else ""
    said = [f"{done.lines} lines were read; {reduced.lines} were counted, of {kinds} kinds{when}."]
    if reduced.templates_left_out:
        said.append(
            f"{reduced.templates_left_out} kinds of less weight, {reduced.lines_left_out} lines, "
            "are not shown."
        )
    if reduced.masked:
        kinds_of = ", ".join(f"{name} {count}" for name, count in sorted(reduced.masked.items()))
        said.append(f"Personal data and secrets were masked: {kinds_of}.")
    return (*said, *((done.left_out,) if done.left_out else ()))


WORDS: Final = re.compile(
    r"cuda|cublas|cudnn|nccl|\bgpus?\b|\bxid\b|nvrm|nvidia|nvlink|\becc\b|triton|torch\.OutOf"
    r"|\bxla\b|\bhbm\b|\btpus?\b|libtpu|jax|pallas|resource_exhausted|RuntimeProgramAllocation"
    r"|out of (?:memory|resource)|outofmemory|\boom\b|\bGiB\b|memory|kv cache|cache blocks"
    r"|flash.?attn|attention backend|kernel|compute capability",
    re.IGNORECASE,
)
"""What a line about an accelerator holds. Source: vLLM 0.10 to 0.33, tpu-inference 0.26, NVIDIA's
driver ("NVRM: Xid"), read 2026-11."""
_UNSEEN: Final = "Its log says nothing of memory, or its boot is no longer there."


async def accelerator_memory(found: Found) -> tuple[str, ...]:
    """Give each part as the log has it and as it was foreseen, in GiB of one accelerator."""
    backend = found.backend
    try:
        known = await backend.engine_facts(found.name) if isinstance(backend, KnowsEngine) else None
        foreseen = await backend.predicted(found.name) if isinstance(backend, Predicts) else None
    except OpsError as exc:
        return (f"The memory is not known: {exc.summary}",)
    told = {name: value for name, value in (known.memory if known else {}).items() if value}
    plan = foreseen.memory if foreseen else None
    if not told:
        return (_UNSEEN, *(_verdict_accelerator(plan),)) if plan else (_UNSEEN,)
    return (*_beside(told, plan), *((_verdict_accelerator(plan),) if plan else ()))


def _beside(told: dict[str, float | int], plan: MemoryPlan | None) -> list[str]:
    if plan is None:
        return [f"{name}: {value:g}" for name, value in told.items()]
    return [str(part) for part in compare(plan, told) if part.measured is not None]


def _verdict_accelerator(plan: MemoryPlan) -> str:
    said = "fits" if plan.fits else f"does not fit: {' '.join(plan.reasons)}"
    return f"The plan for {plan.count} of {plan.accelerator}: {said}"


TOTAL_SECONDS: Final = 900.0
"""For all that a model says of one case: 1,800 tokens of one that makes 2 a second."""
_MOST_FILES: Final = 20
_AT_ONCE: Final = 4
_ID: Final = re.compile(r"analysis-[0-9a-f]{8}")


class Work:
    """One analysis that is under way or done."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self.reading: Reading | None = None
        self.done: Final = anyio.Event()

    @property
    def analysis(self) -> Analysis:
        """Give it with the words that have been said so far."""
        words = self.reading.words() if self.reading else None
        return self._analysis.model_copy(update={"words": words})

    def end(self, *, silence: str | None, ended: bool) -> None:
        """Say that no more words come."""
        state = "ended" if ended else "done"
        self._analysis = self._analysis.model_copy(update={"state": state, "silence": silence})
        self.done.set()


_HELD: Final[WeakKeyDictionary[Runtime, dict[str, Work]]] = WeakKeyDictionary()
"""By server: several may live in one process, as they do in tests."""


def begin(
    runtime: Runtime, analysis: Analysis, case: Case, candidates: Sequence[Candidate]
) -> Work:
    """Let a model read in the background; the server's end ends it.

    More than a few at once would take the accelerator from those whom the model serves.
    """
    held = _HELD.setdefault(runtime, {})
    if sum(not one.done.is_set() for one in held.values()) >= _AT_ONCE:
        busy = Work(analysis)
        silence = f"No model reads this: {_AT_ONCE} analyses are being read already."
        busy.end(silence=silence, ended=False)
        return busy
    name = f"analysis-{secrets.token_hex(4)}"
    work = Work(analysis.model_copy(update={"operation": name, "state": "running"}))
    held[name] = work
    while len(held) > _MOST_FILES:
        del held[next(iter(held))]

    async def read() -> None:
        silence, ended = None, True
        with _file(runtime, name) as path:
            _write(runtime, path, work.analysis)
            try:
                silence = await _read_kept(work, case, candidates)
                ended = False
            finally:
                work.end(silence=silence, ended=ended)
                _write(runtime, path, work.analysis)

    runtime.background.start(name, read)
    return work


async def waited(work: Work, seconds: float) -> Analysis:
    """Give it when its words are complete, or as it is when the time is over."""
    with anyio.move_on_after(seconds):
        await work.done.wait()
    return work.analysis


async def find(runtime: Runtime, name: str, seconds: float) -> Analysis:
    """Give an analysis by its operation id, after a wait if it is this server's.

    Raises:
        NotFound: There is none of that id.
    """
    work = _HELD.get(runtime, {}).get(name)
    if work:
        return await waited(work, seconds)
    found = _from_file(_folder(runtime) / f"{name}.json") if _ID.fullmatch(name) else None
    if found is None:
        raise NotFound(
            f"There is no operation {name[:60]!r}.",
            fix="Leave `operation` out for a new analysis.",
        )
    if found.state == "running" and not _is_held(_folder(runtime) / f"{name}.lock"):
        return found.model_copy(update={"state": "ended"})
    return found


async def _read_kept(work: Work, case: Case, candidates: Sequence[Candidate]) -> str | None:
    """Let the first that can read it; give why there are no words, None where there are."""
    why: list[str] = []
    with anyio.move_on_after(waiting.limit(TOTAL_SECONDS)) as limit:
        for one in candidates:
            work.reading = Reading(one.label, case)
            try:
                async with one.opened() as endpoint:
                    await work.reading.run(endpoint, one.model)
            except EndpointError as exc:
                why.append(f"{one.label}: {exc.summary} {exc.cause}".strip())
            if _says(work.reading.words()):
                break
    if limit.cancelled_caught:
        why.append(f"It had not ended after {waiting.limit(TOTAL_SECONDS):.0f} s.")
    return _silence(why, work.reading.words() if work.reading else None)


def _silence(why: Sequence[str], words: Words | None) -> str | None:
    if words and _says(words):
        return f"Not everything worked: {' '.join(why)}"[:600] if why else None
    told = " ".join(why) or "It said nothing that cites a line."
    return f"No model's words: {told}"[:600]


def _says(words: Words) -> bool:
    return bool(words.claims or words.advice)


def _folder(runtime: Runtime) -> Path:
    return runtime.stage.folder / "analyses"


@contextmanager
def _file(runtime: Runtime, name: str) -> Iterator[Path | None]:
    """Hold an analysis' file while its model reads; None on a server that only looks."""
    folder = _folder(runtime)
    with contextlib.ExitStack() as stack:
        path: Path | None = None
        with contextlib.suppress(OSError):  # a full disk costs the file, not the words
            if not runtime.settings.read_only:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _forget_old(folder)
                lock = stack.enter_context((folder / f"{name}.lock").open("wb"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path = folder / f"{name}.json"
        yield path


def _write(runtime: Runtime, path: Path | None, analysis: Analysis) -> None:
    if path:
        text = analysis.model_validate(
            redact(analysis.model_dump(mode="json"), runtime.secrets)
        ).model_dump_json()
        with contextlib.suppress(OSError):
            replace(path, text, mode=0o600)


def _from_file(path: Path) -> Analysis | None:
    try:
        return Analysis.model_validate_json(path.read_text("utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


def _forget_old(folder: Path) -> None:
    files = sorted(folder.glob("analysis-*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[: -_MOST_FILES + 1]:
        lock = file.with_suffix(".lock")
        if not _is_held(lock):
            file.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


def _is_held(lock: Path) -> bool:
    """Whether a living server holds it."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


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
    ends: float = Field(default_factory=lambda: anyio.current_time() + waiting.limit(CALL_SECONDS))
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
    seen = await _read_analysing(runtime, found, asked, platform=True)
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
    seen = await _read_analysing(runtime, found, asked, platform=False)
    with anyio.move_on_after(min(10, asked.left)) as limit:
        memory = await accelerator_memory(found)
    if limit.cancelled_caught:
        memory = ("The memory is not known: its platform did not answer in time.",)
    quiet = tuple(is_quiet(runtime, one, 400) for one in memory)
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
    case = _case(runtime, found, base, seen.rows, _REMEDY_TASK, more=_verdict_analysing(diagnosis))
    return await _worded(runtime, found, base, case, until, unhealthy=why)


async def rest(
    runtime: Runtime, operation: str, wait_s: float, target: str | None, name: str | None
) -> Analysis:
    """Give the rest of an analysis that was begun before.

    Raises:
        NotFound: There is none of that id, or it is of another deployment than is named.
    """
    found = await find(runtime, operation, wait_s)
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
    with in_time(
        target or "A target", "find the deployment", waiting.limit(FIND_SECONDS), fix=again
    ):
        return await resolve_find(runtime.stage, target, name)


async def _read_analysing(runtime: Runtime, found: Found, asked: Asked, *, platform: bool) -> Seen:
    query = LogQuery(
        since=datetime.now(UTC) - timedelta(minutes=asked.minutes),
        contains=(asked.filter,) if asked.filter else (),
        platform=platform,
    )
    return await read(
        runtime,
        found,
        query,
        most_lines=asked.limit,
        seconds=min(READ_SECONDS, asked.left),
        only=None if platform else WORDS,
    )


async def _read_or_say(runtime: Runtime, found: Found, asked: Asked) -> Seen:
    limited = asked.model_copy(update={"limit": min(asked.limit, _REMEDY_LINES)})
    try:
        return await _read_analysing(runtime, found, limited, platform=True)
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
    quiet = tuple(is_quiet(runtime, one, 400) for one in said)
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
    return await waited(begin(runtime, base, case, those), until.left)


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


def _verdict_analysing(diagnosis: Diagnosis | None) -> tuple[str, ...]:
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
