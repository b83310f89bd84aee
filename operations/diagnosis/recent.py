"""What the newest lines of its log tell, of what runs or ran."""

from typing import Final

from backends.base import HasHost, LogQuery, StreamsLogs
from core.records import State
from logs.failures import Finder, Finding, asked_words
from operations.diagnosis.booting import disk_evidence, disk_full
from operations.diagnosis.case import Case, Looked, ago, failed, healthy, skipped
from operations.diagnosis.records import MOST_CHARACTERS, Evidence, Remark
from operations.watching.log_reading import read_log

_MINUTES: Final = 60
_MOST_LINES: Final = 100_000
_SECONDS: Final = 10.0
_MOST_REMARKS: Final = 8


async def recent_logs(case: Case) -> Looked:
    """Tell what the catalogue knows of the last hour; by itself it makes nothing unhealthy."""
    if case.deployment.state in {State.STOPPED, State.ASLEEP, State.QUEUED, State.CREATING}:
        return skipped(f"Not read: {case.silent}.")
    if not isinstance(case.backend, StreamsLogs):
        return skipped("It keeps no logs that can be read from here.")
    finder = Finder(case.writer)
    query = LogQuery(
        since=ago(case, minutes=_MINUTES), contains=asked_words(case.writer or "engine")
    )
    seconds = min(_SECONDS, case.left - 1)
    read = await read_log(
        case.found, query, (finder.feed,), most_lines=_MOST_LINES, seconds=seconds
    )
    found = finder.findings()
    full = next((one for one in found if one.failure.code == "DISK_FULL"), None)
    if full and (looked := await _disk(case, full)):
        return looked
    known = f"{len(found)} of them known failures" if found else "none of them a known failure"
    seen = f"Of the last {_MINUTES} min, {read.lines} lines with a suspicious word, {known}."
    remarks = [_remark(one) for one in found[:_MOST_REMARKS]]
    return healthy(f"{seen} {read.left_out}".strip(), remarks=remarks)


async def _disk(case: Case, told: Finding) -> Looked | None:
    """A log that says so and a host that is short of it are one disk that is full."""
    if not isinstance(case.backend, HasHost):
        return None
    host = await case.backend.host()
    if host.health != "short of disk":
        return None
    line = Evidence(kind="line", text=told.line[:MOST_CHARACTERS], at=told.last)
    return failed(disk_full(host), line, *disk_evidence(case, host))


def _remark(one: Finding) -> Remark:
    return Remark(
        code=one.failure.code,
        text=f"Its log says so, though it is not unhealthy now: {one.failure.cause}",
        count=one.count,
        first=one.first,
        last=one.last,
    )
