"""What a target needs once, and a plan held against its target before anything is made."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from backends.base import SetsUp, Setup, SetupStep
from core.errors import ApiDisabled, InvalidArgument, ModelNotFound, NextStep, Unsupported
from core.records import Answer, Target
from core.reply import note
from operations.agreement import Preview, preview
from operations.deployments import plan, specify
from operations.models import require_on_hub
from operations.planning import DeploymentPlan
from operations.resolve import calls, chosen
from operations.runtime import Runtime
from planner.flags import added_in


async def held(
    runtime: Runtime, foreseen: DeploymentPlan, *, check: bool, source: Mapping[str, object]
) -> DeploymentPlan:
    """Add what the target's backend says of the same plan, and with `check` its platform too.

    `source` is where weights, image and chips come from, as `deploy_vllm` takes them.

    Raises:
        Unsupported: To be checked, but for a place that nothing can be deployed to from here.
    """
    if foreseen.target not in runtime.stage.targets:
        if check:
            raise Unsupported(
                f"{foreseen.target} can be planned for, not deployed to.",
                fix=f"Leave `check` out, or give one of {', '.join(runtime.stage.targets)}.",
            )
        return foreseen
    if not (foreseen.fits or check):
        return foreseen
    backend = runtime.stage.backend(foreseen.target)
    said = {name: value for name, value in source.items() if value}
    foreseen = foreseen.model_copy(update={"arguments": {**foreseen.arguments, **said}})
    try:
        spec = specify(backend.target, None, foreseen.model, runtime, **foreseen.arguments)
        try:
            await require_on_hub(runtime.settings, backend.target, spec, ask=check)
        except ModelNotFound as exc:
            if spec.weights:  # they name the Hub
                raise
            foreseen = foreseen.model_copy(update={"missing": f"{exc.summary} {exc.fix}"})
        wanted = await plan(backend, spec, force=True)
    except InvalidArgument as exc:
        why = f"{exc.summary} {exc.fix}"
        return foreseen.model_copy(update={"fits": False, "reasons": (*foreseen.reasons, why)})
    for warning in wanted.warnings:
        note(warning)
    line = " ".join((foreseen.engine_line, *added_in(wanted.spec.engine_args)))
    foreseen = foreseen.model_copy(update={"engine_line": line})
    if not check:
        return foreseen
    preflight = await backend.check(wanted)
    return foreseen.model_copy(update={"checks": preflight.checks})


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
    return chosen(runtime.stage, SetsUp, "be set up", target)


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
    tried = [
        one
        for one in calls(runtime.stage.journal)
        if one.tool == "deploy_vllm" and one.arguments.get("target") == target.name
    ]
    wanted = None  # the newest deployment, if it was refused for want of this
    if tried and tried[-1].result == ApiDisabled.code:
        given = {name: said for name, said in tried[-1].arguments.items() if name != "confirm"}
        wanted = NextStep("deploy_vllm", given)
    return SetupReport(
        target=target.name,
        made=tuple(step.what for step in seen.missing if step.what in there),
        missing=tuple(step.what for step in now.missing),
        steps=now.steps,
        wanted=wanted,
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
