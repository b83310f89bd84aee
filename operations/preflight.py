"""A plan held against the cloud before anything is made: read-only, each look with its outcome."""

from core.errors import Unsupported
from operations.deploying import plan, specify
from operations.planning import DeploymentPlan
from operations.runtime import Runtime


async def checked(runtime: Runtime, foreseen: DeploymentPlan) -> DeploymentPlan:
    """Add what the target's own platform says of the same plan.

    Raises:
        Unsupported: The plan is for a place that nothing can be deployed to from here.
    """
    if foreseen.target not in runtime.stage.targets:
        names = ", ".join(runtime.stage.targets)
        raise Unsupported(
            f"{foreseen.target} can be planned for, not deployed to.",
            fix=f"Leave `check` out, or give one of {names}.",
        )
    backend = runtime.stage.backend(foreseen.target)
    spec = specify(backend.target, None, foreseen.model, runtime, **foreseen.arguments)
    preflight = await backend.check(await plan(backend, spec, force=True))
    return foreseen.model_copy(update={"checks": preflight.checks})
