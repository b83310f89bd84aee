"""What would be done and what was looked at, before anything is made."""

from typing import Any, Literal

from core.records import DeploymentSpec, ModelShape, Record, Target


class PlannedStep(Record):
    """One change that applying a plan would make, three ways."""

    what: str
    request: dict[str, Any]
    """As the platform is asked."""
    command: str
    """As a person would type it."""


class Plan(Record):
    """What applying a spec would do; nothing has been done yet."""

    spec: DeploymentSpec
    target: Target
    model: ModelShape
    steps: tuple[PlannedStep, ...]
    warnings: tuple[str, ...] = ()


class Check(Record):
    """One thing looked at before anything is made."""

    what: str
    outcome: Literal["pass", "fail", "unknown"]
    detail: str
    fix: str = ""


class Preflight(Record):
    """Everything looked at before anything is made."""

    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """What would make the deployment fail."""
        return tuple(check for check in self.checks if check.outcome == "fail")
