"""What a deployment that does not run answers, whoever asks it: no wait would change that."""

from core.errors import DeploymentFailed, EndpointError, Expired, NextStep, Stopped
from core.records import Deployment, State


def not_running(one: Deployment) -> EndpointError | None:
    """Return the error of a deployment that is stopped, expired or failed; None of any other."""
    here = {"target": one.target, "name": one.name}
    if one.state is State.STOPPED:
        price = f" (${one.usd_per_hour:.2f} an hour)" if one.usd_per_hour else ""
        return Stopped(
            f"{one.name} on {one.target} is stopped.",
            fix=f"Start it with start_vllm{price}.",
            next_steps=(NextStep("start_vllm", here),),
        )
    failure = one.failure
    if one.state is State.EXPIRED:
        return Expired(
            one.summary(),
            fix=failure.fix if failure else "Deploy it again with deploy_vllm.",
            next_steps=(NextStep("deploy_vllm", here),),
        )
    if one.state is not State.FAILED:
        return None
    return DeploymentFailed(
        one.summary(),
        fix=failure.fix if failure else "Call diagnose for the cause.",
        next_steps=(NextStep("diagnose", here),),
    )
