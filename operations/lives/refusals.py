"""What would be refused is refused before anybody is asked to agree to its price."""

from backends.base import Backend, RefusesEarly
from core.endpoint import not_running
from core.errors import InvalidArgument
from core.records import Plan, State
from operations.resolve import Found


async def refuse_deploy(backend: Backend, wanted: Plan) -> None:
    """Raise what `apply` would, as far as a look tells.

    Raises:
        NotOurs: Somebody else's resource has that name.
        NotConfigured, NotAuthenticated, ApiDisabled: The cloud lets nobody in.
    """
    if isinstance(backend, RefusesEarly):
        await backend.refuse_deploy(wanted.spec)


async def refuse_start(found: Found) -> None:
    """Raise what `start` would, as far as a look tells.

    Raises:
        Unsupported: This deployment cannot be started again.
        Expired, DeploymentFailed: Starting would change nothing: it has to be deployed again.
    """
    if not isinstance(found.backend, RefusesEarly):
        return
    error = not_running(found.deployment)
    if error and found.deployment.state is not State.STOPPED:
        raise error  # a cloud's failed deployment stays so: it is deployed again, not started
    await found.backend.refuse_start(found.name)


async def refuse_scale(found: Found, minimum: int, maximum: int) -> None:
    """Raise what `scale` would, as far as a look tells.

    Raises:
        InvalidArgument: More at least than at most, or more than there can be.
        Unsupported: The target has no replicas.
    """
    if minimum > maximum:
        raise InvalidArgument(
            f"min_replicas {minimum} is more than max_replicas {maximum}.",
            fix="Give at least as many for max_replicas.",
        )
    if isinstance(found.backend, RefusesEarly):
        await found.backend.refuse_scale(found.name, minimum, maximum)
