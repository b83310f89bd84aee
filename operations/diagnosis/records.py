"""What a walk over the layers of a deployment says."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, get_args

from pydantic import Field

from core.errors import NextStep
from core.records import SIMULATED, Answer, Record

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

Verdict = Literal["well", "ill", "skipped"]

MOST_EVIDENCE: Final = 12
MOST_CHARACTERS: Final = 400
"""Of one piece of evidence."""


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
    """What is worth knowing and does not make a deployment ill."""

    code: str
    text: str
    count: int = 1
    first: datetime | None = None
    last: datetime | None = None


class Diagnosis(Answer):
    """The first layer that is ill, and why; or what was found well."""

    target: str
    name: str | None
    """None where none was named and its target cannot be looked at."""
    well: bool
    """No layer is ill."""
    layer: Layer | None = None
    """The one at fault."""
    code: str | None = None
    cause: str | None = None
    """Of a well one, what there is to know of its state."""
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
        """Say the layer at fault and the cause, or what was found well."""
        where = f"{self.name} on {self.target}" if self.name else self.target
        if not self.well:
            return f"{where} is ill at the layer '{self.layer}': {self.cause}"
        seen = ", ".join(row.layer for row in self.looked_at if row.verdict == "well")
        state = f" {self.cause}" if self.cause else ""
        return f"Nothing wrong with {where}.{state} Looked at: {seen or 'nothing'}."

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is not real, and of what should have been stopped."""
        said = (SIMULATED,) if self.simulated else ()
        if self.overdue_since is None:
            return said
        return (*said, f"{self.name} is overdue since {self.overdue_since:%F %H:%M} UTC.")

    def next_steps(self) -> tuple[NextStep, ...]:
        """Name the tools that do what the fix says."""
        return tuple(NextStep(step.tool, step.arguments) for step in self.next)
