"""What a target needs once, before anything can be deployed there: shown, agreed to, made."""

import hashlib

from backends.base import Backend
from backends.cloud_abilities import SetsUp, Setup, SetupStep
from core.errors import NextStep
from core.records import Answer, Target
from operations.abilities import chosen
from operations.lives.agreement import Preview, preview
from operations.runtime import Runtime


class SetupReport(Answer):
    """What a target needs, and what was made of it just now."""

    target: str
    made: tuple[str, ...]
    """Seen to be there now, and not there before."""
    missing: tuple[str, ...]
    """Still not there."""
    steps: tuple[SetupStep, ...]

    def summary(self) -> str:
        """Say whether anything is left to do."""
        if self.missing:
            return f"{self.target} still lacks {len(self.missing)}: {'; '.join(self.missing)}."
        if not self.made:
            return f"{self.target} has all that it needs; nothing was changed."
        return f"{self.target} has all that it needs; made now: {'; '.join(self.made)}."

    def next_steps(self) -> tuple[NextStep, ...]:
        """Go on with quotas and a first deployment, or with what is missing."""
        here = {"target": self.target}
        if self.missing:
            return (NextStep("setup_target", here),)
        return (NextStep("check_gpu_quotas", here), NextStep("deploy_vllm", here))


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
    total = sum(step.usd_per_month for step in seen.missing)
    asked = hashlib.sha256(repr([step.command for step in seen.missing]).encode()).hexdigest()
    many = f"{len(seen.missing)} thing{'s' if len(seen.missing) > 1 else ''}"
    what = f"Set up {target.name}, once: make {many} for ${total:g} a month"
    shown = preview("setup_target", target.name, "", what, None, None, asked)
    dearest = sorted(seen.missing, key=lambda step: -step.usd_per_month)
    makes = tuple(f"{step.what}: ${step.usd_per_month:g}" for step in dearest)
    return shown.model_copy(update={"makes": makes})


async def set_up(target: Target, backend: SetsUp, seen: Setup) -> SetupReport:
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
    )


def _sets_up(backend: Backend) -> SetsUp | None:
    return backend if isinstance(backend, SetsUp) else None
