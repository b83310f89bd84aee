"""A plan held against its target before anything is made: read-only, each look with its outcome."""

from collections.abc import Mapping

from backends.base import Backend
from core.errors import InvalidArgument, ModelNotFound, Unsupported
from core.records import DeploymentSpec
from core.reply import note
from operations.lives.deploying import plan, specify
from operations.models.hub_models import require_on_hub
from operations.plans.planning import DeploymentPlan
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
            raise _not_here(runtime, foreseen.target)
        return foreseen
    if not (foreseen.fits or check):
        return foreseen
    backend = runtime.stage.backend(foreseen.target)
    said = {name: value for name, value in source.items() if value}
    foreseen = foreseen.model_copy(update={"arguments": {**foreseen.arguments, **said}})
    try:
        spec = specify(backend.target, None, foreseen.model, runtime, **foreseen.arguments)
        foreseen = await _with_hub(runtime, backend, foreseen, spec, check=check)
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


async def _with_hub(
    runtime: Runtime,
    backend: Backend,
    foreseen: DeploymentPlan,
    spec: DeploymentSpec,
    *,
    check: bool,
) -> DeploymentPlan:
    """Say what is known not to be on the Hub; refuse it where `weights` name the Hub."""
    try:
        await require_on_hub(runtime.settings, backend.target, spec, ask=check)
    except ModelNotFound as exc:
        if spec.weights:
            raise
        return foreseen.model_copy(update={"missing": f"{exc.summary} {exc.fix}"})
    return foreseen


def _not_here(runtime: Runtime, target: str) -> Unsupported:
    names = ", ".join(runtime.stage.targets)
    return Unsupported(
        f"{target} can be planned for, not deployed to.",
        fix=f"Leave `check` out, or give one of {names}.",
    )
