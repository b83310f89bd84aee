"""What an explanation of a deployment is made of."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from core.errors import NextStep
from core.records import Record, State
from operations.watching.answers import Located

_UNFORESEEN: Final = " What that does to memory, speed, boot or cost, the planner cannot say here."
LIVE: Final = frozenset({"min_replicas", "max_replicas"})
"""What update_vllm_scaling changes while it runs."""
_BRIEF: Final = 2
"""Effects of a change that its first line has all of; of more, the memory's comes below."""
_FEW: Final = 3
"""Trade-offs and practices of a short answer; practices that are not followed come first."""
Verdict = Literal["yes", "probably", "probably not", "no", "nothing ends it", "not known"]


class FlagRow(Record):
    """One setting of a deployment."""

    flag: str
    value: str
    default: str | None
    """Of vLLM or of the target, where it is left out; None where the value is that."""
    differs: bool
    """From the default."""
    does: str
    """Here, in numbers."""
    trades: str
    """What it gives up for that, and what another value would do."""


class TradeOff(Record):
    """Two good things of which one pays for the other."""

    between: str
    here: str
    """Where this deployment stands."""
    to_move: str
    """What would shift it, and by how much."""


class Difference(Record):
    """One setting that two specs differ in."""

    flag: str
    before: str
    after: str
    does: str
    """By itself, in numbers."""


class Comparison(Record):
    """Two specs, flag by flag."""

    compared_with: str
    differences: tuple[Difference, ...]
    together: tuple[str, ...]
    """What all of them do at once."""
    fits: bool | None
    """None where nobody can say."""
    why_not: tuple[str, ...]
    restarts: str


class BootCheck(Record):
    """Whether a boot ends before its platform gives it up."""

    budget_seconds: int | None
    """None: nothing ends a slow boot there."""
    probe: str
    longest_seconds: int | None
    """That the platform, or this project on it, lets a probe allow."""
    predicted_seconds: str | None
    """Of what the probe sees: expected, and from the fastest to the slowest."""
    predicted_first_seconds: str | None = None
    """Of the first boot of all, where that downloads the weights."""
    cold_start_seconds: str | None
    """With host and image, until the first answer."""
    phases: tuple[str, ...]
    measured_seconds: float | None
    """The sum of the phases' medians of earlier boots here; None until one was seen to end."""
    measured: dict[str, float]
    long_enough: Verdict
    verdict: str
    notes: tuple[str, ...]


class Practice(Record):
    """Something that is better done there than left, computed for this model."""

    rule: str
    why: str
    followed: str
    """Yes, no, or what to look at."""
    source: str


class Explanation(Located):
    """A deployment, explained."""

    model: str
    place: str
    state: State
    """Of the deployment, now; it is told as it was asked for, whatever its state."""
    flags: tuple[FlagRow, ...]
    trade_offs: tuple[TradeOff, ...]
    boot: BootCheck
    practices: tuple[Practice, ...]
    measured_capacity: str | None = None
    """Of the KV cache, as the engine's log says it."""
    comparison: Comparison | None = None
    new: Mapping[str, Any] = Field(default={}, exclude=True)
    """The flags that were asked about, as deploy_vllm takes them."""

    def summary(self) -> str:
        """Say what the changes do, else what the trade-off is."""
        now = "" if self.state is State.READY else f", which is {self.state},"
        head = f"{self.name} on {self.target}{now}"
        if self.comparison:
            return f"{head} against {self.comparison.compared_with}: {self._changes()}"
        said = ", ".join(f"{row.flag} {row.value}" for row in self.flags if row.differs)
        flags = f"differs from the defaults in {said}" if said else "has the defaults throughout"
        trades = "".join(f" {one.between.capitalize()}: {one.here}." for one in self.trade_offs[:1])
        best = "".join(f" Recommended: {one.rule}." for one in self._better[:1])
        return f"{head} {flags}.{trades} {self.boot.verdict}{best}"

    @property
    def _better(self) -> list[Practice]:
        """Return what is not done as it is best, what is surely not so first."""
        found = [one for one in self.practices if one.followed != "yes"]
        return sorted(found, key=lambda one: one.followed != "no")

    def facts(self) -> Mapping[str, Any]:
        """Return what the changes do; else flags, trade-offs, boot and what could be better."""
        here = {"target": self.target, "name": self.name, "model": self.model}
        if (against := self.comparison) is not None:
            return here | {
                "changes": {
                    one.flag: f"{one.before} -> {one.after}. {one.does}"
                    for one in against.differences
                },
                "together": against.together[:1],  # The summary has the rest.
                "fits": against.fits,
                "why_not": against.why_not,
                "restarts": against.restarts,
            }
        boot = self.boot
        return here | {
            "differs": {row.flag: f"{row.value}: {row.does}" for row in self.flags if row.differs},
            "defaults": ", ".join(
                f"{row.flag} {row.value}" for row in self.flags if not row.differs
            ),
            "trade_offs": {
                one.between: f"{one.here}. {one.to_move}" for one in self.trade_offs[:_FEW]
            },
            "boot": {
                "long_enough": boot.long_enough,
                "budget_seconds": boot.budget_seconds,
                "predicted_seconds": boot.predicted_seconds,
                "measured_seconds": boot.measured_seconds,
            },
            "could_be_better": {one.rule: one.why for one in self._better[:_FEW]},
            "capacity": self.measured_capacity,
        }

    def _changes(self) -> str:
        assert self.comparison
        told = [f"{one.flag} {one.before} -> {one.after}" for one in self.comparison.differences]
        if not told:
            return "nothing differs."
        fits = " It does not fit." if self.comparison.fits is False else ""
        together = self.comparison.together
        shown = together[1:] if len(together) > _BRIEF else together
        what = f" Together: {'; '.join(shown)}." if shown else _UNFORESEEN
        return f"{'; '.join(told)}.{fits}{what}"

    def warnings(self) -> tuple[str, ...]:
        """Warn of a boot that is given up too early, and of changes that would not fit."""
        short = self.boot.long_enough in {"no", "probably not"}
        boot = (self.boot.verdict,) if short else ()
        bad = self.comparison is not None and self.comparison.fits is False
        return (*boot, *(self.comparison.why_not if bad and self.comparison else ()))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Make the changes that were asked about, or see whether they fit; else measure."""
        here = {"target": self.target, "name": self.name}
        if not (self.new and self.comparison and self.comparison.differences):
            return (NextStep("get_model_details", here), NextStep("run_benchmark", here))
        if self.comparison.fits is False:
            asked = {"target": self.target, "model": self.model, "layout": "concurrency"}
            return (NextStep("plan_deployment", asked),)
        if {one.flag for one in self.comparison.differences} <= LIVE:
            replicas = {name: value for name, value in self.new.items() if name in LIVE}
            return (NextStep("update_vllm_scaling", {**here, **replicas}),)
        return (NextStep("deploy_vllm", {**here, "model": self.model, **self.new}),)
