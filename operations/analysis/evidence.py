"""One log read once, for what the catalogue knows and for what is to be counted."""

import contextlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import anyio

from backends.base import LogQuery
from core.errors import OpsError
from core.redaction import one_line, redact
from logs.failures import WRITERS, Finder, Finding, Writer
from logs.read import Line, clean
from logs.reduce import Reduced, Reducer, mask, times
from operations.analysis.records import Recognized
from operations.analyst.words import Row
from operations.diagnosis.calls import calls
from operations.diagnosis.records import Call
from operations.resolve import Found
from operations.runtime import Runtime
from operations.watching.log_reading import ReadSoFar, read_log

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


def quiet(runtime: Runtime, text: str, most: int = _ROW_CHARACTERS) -> str:
    """Give a text of a log as it may leave: no secrets, no personal data, one line, cut."""
    return one_line(mask(str(redact(clean(text), runtime.secrets))), most)


def _seen(
    runtime: Runtime, found: Found, done: ReadSoFar, failures: Sequence[Finding], reducer: Reducer
) -> Seen:
    reduced = reducer.reduced(most=MOST_ROWS - len(failures))
    told = [_of_finding(one) for one in failures] + [str(one) for one in reduced.templates]
    rows = tuple(
        Row(id=f"L{number}", text=quiet(runtime, text)) for number, text in enumerate(told, 1)
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
        cause=quiet(runtime, one.failure.cause, 400),
        fix=quiet(runtime, one.failure.fix, 400),
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
