"""What a target needs once, before anything can be deployed there: shown, agreed to, made."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from backends.base import Backend, SetsUp, Setup, SetupStep
from core.errors import ApiDisabled, NextStep
from core.records import Answer, Target
from operations.abilities import chosen
from operations.lives.agreement import Preview, preview
from operations.remembered import calls
from operations.runtime import Runtime


class SetupReport(Answer):
    """What a target needs, and what was made of it just now."""

    target: str
    made: tuple[str, ...]
    """Seen to be there now, and not there before."""
    missing: tuple[str, ...]
    """Still not there."""
    steps: tuple[SetupStep, ...]
    wanted: NextStep | None = Field(default=None, exclude=True)
    """The deployment that was refused for want of it."""

    def summary(self) -> str:
        """Say whether anything is left to do, and what a month of it costs."""
        if self.missing:
            return f"{self.target} still lacks {len(self.missing)}: {'; '.join(self.missing)}."
        made = f"{_things(self.made)} made" if self.made else "nothing was changed"
        return f"{self.target} is set up: {made} ({_bill(self.steps)})."

    def facts(self) -> Mapping[str, Any]:
        """Return what was made."""
        return {"made": self.made}

    def next_steps(self) -> tuple[NextStep, ...]:
        """Go on with what is missing, else with the deployment that was wanted, or a choice."""
        here = {"target": self.target}
        if self.missing:
            return (NextStep("setup_target", here),)
        choose = NextStep("recommend_deployment", {"targets": [self.target]})
        return (self.wanted or choose, NextStep("check_gpu_quotas", here))


@contextmanager
def offered_for(target: Target) -> Iterator[None]:
    """Let a refusal of a cloud that is not set up offer its setup."""
    try:
        yield
    except ApiDisabled as exc:
        exc.next_steps = (NextStep("setup_target", {"target": target.name}),)
        raise


def setting_up(runtime: Runtime, target: str | None) -> tuple[Target, SetsUp]:
    """Give the target that is to be set up.

    Raises:
        Unsupported: It needs nothing of the kind.
        Ambiguous: Several do, and none is named.
    """
    return chosen(runtime.stage, _sets_up, "be set up", target)


def to_set_up(target: Target, seen: Setup) -> Preview | None:
    """Ask where anything would be made."""
    if not seen.missing:
        return None
    asked = hashlib.sha256(repr([step.command for step in seen.missing]).encode()).hexdigest()
    what = f"Set up {target.name}, once: make {_things(seen.missing)} ({_bill(seen.missing)})"
    shown = preview("setup_target", target.name, "", what, None, None, asked)
    return shown.model_copy(update={"makes": tuple(step.what for step in seen.missing)})


async def set_up(runtime: Runtime, target: Target, backend: SetsUp, seen: Setup) -> SetupReport:
    """Make what was seen to be missing, and say what is there then.

    Raises:
        CloudError: A step failed; those before it are made, and a second call goes on.
    """
    now = await backend.set_up() if seen.missing else seen
    there = {step.what for step in now.steps if step.done}
    return SetupReport(
        target=target.name,
        made=tuple(step.what for step in seen.missing if step.what in there),
        missing=tuple(step.what for step in now.missing),
        steps=now.steps,
        wanted=_refused(runtime, target.name),
    )


def _bill(steps: Sequence[SetupStep]) -> str:
    """Say what they cost while nothing is deployed."""
    paid = [step for step in steps if step.usd_per_month]
    if not paid:
        return "$0 a month until something is deployed"
    total = sum(step.usd_per_month for step in paid)
    what = "; ".join(step.what[0].lower() + step.what[1:] for step in paid)
    return f"${total:.2f} a month, used or not: {what}"


def _things(those: Sequence[object]) -> str:
    return f"{len(those)} thing{'s' * (len(those) != 1)}"


def _refused(runtime: Runtime, target: str) -> NextStep | None:
    """Return the newest call of deploy_vllm for a target if its setup was lacking then."""
    tried = [
        one
        for one in calls(runtime.stage.journal)
        if one.tool == "deploy_vllm" and one.arguments.get("target") == target
    ]
    if not tried or tried[-1].result != ApiDisabled.code:
        return None
    arguments = {name: said for name, said in tried[-1].arguments.items() if name != "confirm"}
    return NextStep("deploy_vllm", arguments)


def _sets_up(backend: Backend) -> SetsUp | None:
    return backend if isinstance(backend, SetsUp) else None
