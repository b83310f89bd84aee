"""What a walk over the layers of a deployment says."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, get_args

from pydantic import Field

from core.errors import NextStep
from core.records import SIMULATED, Answer, Record
from core.redaction import shortened

Layer = Literal[
    "settings and login",
    "cloud resource",
    "revision or VM",
    "container",
    "engine boot",
    "health",
    "model answers",
    "metrics",
    "recent logs",
    "cost",
]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)
"""In the order of the walk: each stands on those before it."""

Verdict = Literal["healthy", "failed", "skipped"]

MOST_EVIDENCE: Final = 12
MOST_CHARACTERS: Final = 400
"""Of one piece of evidence."""


_FEW: Final = 3
"""Of a kind, in an answer that was not asked for in full."""


def _cut(text: str) -> str:
    return shortened(text.strip(), 240)


class Evidence(Record):
    """One thing that was seen."""

    kind: Literal["line", "condition", "number"]
    """A line of a log, what a platform or server says of itself, or a figure."""
    text: str = Field(max_length=MOST_CHARACTERS)
    at: datetime | None = None
    """When it was so; None where nobody says."""


class LookedAt(Record):
    """One layer, as it was found."""

    layer: Layer
    verdict: Verdict
    detail: str
    """What was looked at; of a skipped one, why it was not."""


class Call(Record):
    """A tool that helps now, as it is to be called."""

    tool: str
    arguments: Mapping[str, str | int | float | bool | tuple[str, ...]] = {}


class Cost(Record):
    """What the deployment costs, as far as is known."""

    usd_per_hour: float | None = None
    """Of one running replica."""
    usd_so_far: float | None = None


class Remark(Record):
    """What is worth knowing and does not make a deployment unhealthy."""

    code: str
    text: str
    count: int = 1
    first: datetime | None = None
    last: datetime | None = None


class Diagnosis(Answer):
    """The first layer that is unhealthy, and why; or what was found healthy."""

    target: str
    name: str | None
    """None where none was named and its target cannot be looked at."""
    healthy: bool
    """No layer is unhealthy."""
    layer: Layer | None = None
    """The one at fault."""
    code: str | None = None
    cause: str | None = None
    """Of a healthy one, what there is to know of its state."""
    fix: str | None = None
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=MOST_EVIDENCE)
    remarks: tuple[Remark, ...] = ()
    looked_at: tuple[LookedAt, ...]
    """In the order of the walk; what comes after the layer at fault was not looked at."""
    next: tuple[Call, ...] = ()
    """Tools that do what `fix` says, with target and name filled in."""
    cost: Cost = Cost()
    simulated: bool = False
    overdue_since: datetime | None = None
    """When its ttl ended, of one that runs on."""

    def summary(self) -> str:
        """Say the layer at fault and the cause, or what was found healthy."""
        where = f"{self.name} on {self.target}" if self.name else self.target
        if not self.healthy:
            return f"{where} is unhealthy ({self.layer}): {self.cause}"
        seen = ", ".join(row.layer for row in self.looked_at if row.verdict == "healthy")
        state = f" {self.cause}" if self.cause else ""
        return f"Nothing wrong with {where}.{state} Looked at: {seen or 'nothing'}."

    def facts(self) -> Mapping[str, Any]:
        """Return code, fix and what was seen; of the layers only those that were not looked at."""
        skipped = [
            f"{row.layer}: {row.detail}" for row in self.looked_at if row.verdict != "healthy"
        ]
        return {
            "healthy": self.healthy,
            "code": self.code,
            "fix": self.fix,
            "evidence": [_cut(one.text) for one in self.evidence[:_FEW]],
            "remarks": [f"{one.code}: {_cut(one.text)}" for one in self.remarks[:_FEW]],
            "not_looked_at": [_cut(row) for row in skipped if self.healthy][:_FEW],
            "usd_per_hour": self.cost.usd_per_hour,
            "usd_so_far": self.cost.usd_so_far,
        }

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is not real, and of what should have been stopped."""
        said = (SIMULATED,) if self.simulated else ()
        if self.overdue_since is None:
            return said
        return (*said, f"{self.name} is overdue since {self.overdue_since:%F %H:%M} UTC.")

    def next_steps(self) -> tuple[NextStep, ...]:
        """Name the tools that do what the fix says."""
        return tuple(NextStep(step.tool, step.arguments) for step in self.next)
