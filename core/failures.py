"""The catalogue of failures: what a dying engine's lines mean."""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from core.boot_log import clean
from core.records import Failure, Record

_FILE: Final = Path(__file__).with_name("failures.toml")
_EVIDENCE_LINES: Final = 12


class Pattern(Record):
    """One entry of `failures.toml`."""

    code: str
    pattern: str
    cause: str
    fix: str
    seen: str
    """Where the wording was seen."""


@cache
def catalogue() -> tuple[Pattern, ...]:
    """Give the entries in their order; the first that fits wins."""
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["failure"]
    return tuple(Pattern.model_validate(row) for row in rows)


def recognize(lines: Sequence[str]) -> Failure | None:
    """Give the catalogue's words for the first entry that any line fits, None without one."""
    cleaned = [clean(line) for line in lines]
    for entry in catalogue():
        wanted = re.compile(entry.pattern)
        for line in cleaned:
            if match := wanted.search(line):
                groups = {name: text or "not said" for name, text in match.groupdict().items()}
                return Failure(
                    code=entry.code,
                    cause=entry.cause.format(**groups),
                    fix=entry.fix.format(**groups),
                    evidence=(line.strip()[:400], *evidence(cleaned)),
                )
    return None


def evidence(lines: Sequence[str]) -> tuple[str, ...]:
    """Give the last lines that say anything, newest last."""
    spoken = [clean(line).rstrip()[:400] for line in lines if line.strip()]
    return tuple(spoken[-_EVIDENCE_LINES:])


def died_of(status: int | None, lines: Sequence[str]) -> Failure:
    """Say why an engine ended; `status` is its exit status, negative for a signal.

    >>> died_of(-9, []).cause
    'It was killed by signal 9 (often the kernel, for lack of memory).'
    """
    if known := recognize(lines):
        return known
    fix = "Call get_logs for what it wrote, then deploy_vllm to start it again."
    if status == -9:
        cause = "It was killed by signal 9 (often the kernel, for lack of memory)."
        return Failure(code="KILLED", cause=cause, fix=fix, evidence=evidence(lines))
    if status is not None and status < 0:
        cause = f"It was ended by signal {-status}."
        return Failure(code="KILLED", cause=cause, fix=fix, evidence=evidence(lines))
    if status is None:
        cause = "The engine is gone and nobody saw how: its watcher or the machine died too."
        return Failure(code="ENGINE_GONE", cause=cause, fix=fix, evidence=evidence(lines))
    return Failure(
        code="ENGINE_EXITED",
        cause=f"The engine ended by itself (exit status {status}).",
        fix=fix,
        evidence=evidence(lines),
    )
