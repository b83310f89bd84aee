"""What an analysis says: facts first, then words that are marked as such."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

from core.errors import NextStep
from core.records import Record
from core.redaction import shortened
from operations.analyst.words import Words
from operations.diagnosis.records import Call
from operations.watching.answers import Located

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
