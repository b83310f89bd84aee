"""How a deployment is ended or begun anew: stop_vllm only where it can be started again after."""

from typing import Final

import anyio

from backends.base import Backend, Ends, RemembersSpec, Stops
from core.errors import OpsError
from core.records import DeploymentSpec, Step
from operations.plans.places import place_called
from operations.resolve import Found
from planner.places import Place

_SPEC_SECONDS: Final = 3.0
"""To read what was asked for, where that decides; without it nothing is counted on."""
_UNSTOPPED: Final = "most TPUs cannot be stopped"


def comes_back(spec: DeploymentSpec, place: Place) -> bool:
    """Whether a stopped TPU can be started again: for certain only one on demand, of the queue."""
    return spec.control_plane == "queued" and place.provisioning == "on-demand"


def can_stop(backend: Backend, spec: DeploymentSpec | None = None) -> bool:
    """Whether stop_vllm ends its bill for certain, and start_vllm brings it back."""
    if not isinstance(backend, Ends):
        return isinstance(backend, Stops)
    return spec is not None and comes_back(spec, place_called(backend.target.name))


async def stoppable(found: Found) -> bool:
    """Say it of a deployment, asking for its spec where that decides."""
    spec: DeploymentSpec | None = None
    if isinstance(found.backend, Ends) and isinstance(found.backend, RemembersSpec):
        with anyio.move_on_after(_SPEC_SECONDS):
            try:
                spec = await found.backend.spec(found.name)
            except OpsError:
                return False
    return can_stop(found.backend, spec)


def anew(backend: Backend, *, stops: bool) -> str:
    """Say how it is begun anew."""
    if stops:
        return "stop_vllm and start_vllm"
    if isinstance(backend, Stops):
        return f"destroy_vllm and deploy_vllm, for {_UNSTOPPED}"
    return "start it anew where it runs"


def anew_steps(backend: Backend, *, stops: bool) -> tuple[Step, ...]:
    """Give the same as calls; none for what is somebody else's."""
    if not isinstance(backend, Stops):
        return ()
    names = ("stop_vllm", "start_vllm") if stops else ("destroy_vllm", "deploy_vllm")
    return tuple(Step(tool=name) for name in names)


def end(backend: Backend, *, stops: bool) -> str:
    """Say how its bill is ended."""
    if stops:
        return "Stop it with stop_vllm or delete it with destroy_vllm."
    why = f", for {_UNSTOPPED}" if isinstance(backend, Ends) else ""
    return f"Delete it with destroy_vllm{why}."


def end_steps(*, stops: bool) -> tuple[Step, ...]:
    """Give the same as calls."""
    names = ("stop_vllm", "destroy_vllm") if stops else ("destroy_vllm",)
    return tuple(Step(tool=name) for name in names)
