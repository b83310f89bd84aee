"""What was found, and looks that end in time whatever they hang on."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from core.errors import OpsError
from core.records import Record
from core.redaction import redact

_LONGEST: Final = 300
"""Characters of a sentence: a cloud's own words go on for pages."""

Verdict = Literal["ok", "missing", "warning", "failed"]
"""`missing` is not needed for the rest; `failed` is."""


class Finding(Record):
    """One thing that was looked at."""

    area: str
    about: str
    verdict: Verdict
    detail: str
    fix: str = ""
    """What to do now, in one line."""


class Report(Record):
    """Everything that was looked at."""

    findings: tuple[Finding, ...]
    finished: bool = True
    """Whether every look came to its end."""

    @property
    def ok(self) -> bool:
        """Whether nothing that is needed fails."""
        return all(one.verdict != "failed" for one in self.findings)

    def summary(self) -> str:
        """Say it in one sentence."""
        number = len(self.findings)
        if not self.ok:
            failed = [one.about for one in self.findings if one.verdict == "failed"]
            return f"{len(failed)} of {number} fail: {', '.join(failed)}."
        missing, warned = (
            sum(one.verdict == verdict for one in self.findings)
            for verdict in ("missing", "warning")
        )
        return (
            f"Nothing that is needed fails. Looked at: {number}; not set up: {missing};"
            f" warnings: {warned}."
        )


class Look(NamedTuple):
    """One look, which may block."""

    area: str
    about: str
    find: Callable[[], Iterable[Finding]]
    seconds: float
    """After so long it is left alone; it may still hang then."""
    hung: Verdict = "warning"
    """What that means."""


def all_of(looks: Sequence[Look]) -> Report:
    """Look at everything at once; no look keeps the others, or the end, waiting."""
    found: dict[int, tuple[Finding, ...]] = {}

    def run(number: int, look: Look) -> None:
        found[number] = _found(look)

    # Not anyio's threads, which the end of the program would wait for.
    threads = [
        threading.Thread(target=run, args=one, daemon=True, name=f"look at {one[1].about}")
        for one in enumerate(looks)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread, look in zip(threads, looks, strict=True):
        thread.join(max(0.0, began + look.seconds - time.monotonic()))
    hung = [thread.is_alive() for thread in threads]
    rows = (
        found.get(number) or (_silent(look, hung=hung[number]),)
        for number, look in enumerate(looks)
    )
    return Report(findings=tuple(one for row in rows for one in row), finished=not any(hung))


def plain(words: str) -> str:
    """Give the first lines of somebody else's words as one short sentence, without secrets."""
    said: str = redact(" ".join(words.split()), ())
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]} …"


def _found(look: Look) -> tuple[Finding, ...]:
    try:
        return tuple(look.find())
    except OpsError as exc:
        said = plain(f"{exc.summary} {exc.cause}")
        return (
            Finding(
                area=look.area, about=look.about, verdict="failed", detail=said, fix=plain(exc.fix)
            ),
        )


def _silent(look: Look, *, hung: bool) -> Finding:
    why = f"No answer within {look.seconds:g} s." if hung else "The look broke; see above."
    return Finding(
        area=look.area,
        about=look.about,
        verdict=look.hung if hung else "failed",
        detail=why,
        fix="Look at network and proxies, then run it again." if hung else "Report it.",
    )
