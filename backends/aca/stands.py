"""One thing that deployments stand on: how it is looked at, how it is made, what is waited for."""

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Final, NamedTuple, TypeVar

from backends.aca.failing import translated
from core.cloud_errors import ApiDisabled

T = TypeVar("T")

REGISTERING: Final = "registering providers"
ENVIRONMENT: Final = "creating the environment"
ROLE: Final = "waiting for a role to take effect"
PREPARING: Final = "creating what deployments stand on"
"""Group, workspace, identity, vault and storage: each takes seconds."""
PHASES: Final = frozenset({REGISTERING, ENVIRONMENT, ROLE, PREPARING})
"""Everything that a deployment may wait for before it has an app."""


class Stand(Enum):
    """What there is of it."""

    THERE = auto()
    UNDER_WAY = auto()
    ABSENT = auto()


class Step(NamedTuple):
    """One thing that is needed once."""

    name: str
    what: str
    command: str
    """As a person would type it."""
    look: Callable[[], Awaitable[Stand]]
    make: Callable[[], Awaitable[object]]
    """Begins it, and does not wait; harmless when it is done already."""
    after: tuple[str, ...] = ()
    """Names of those that must be there before."""
    phase: str = PREPARING
    """What is waited for until it is there."""
    usd_per_month: float = 0.0


async def stand_of(step: Step) -> Stand:
    """Look at one; where its provider is not registered, it is not there."""
    try:
        return await step.look()
    except ApiDisabled:
        return Stand.ABSENT


async def there(what: str, asked: Awaitable[T]) -> T | None:
    """Give what is asked for; None if there is none."""
    from azure.core.exceptions import ResourceNotFoundError

    try:
        with translated(what):
            return await asked
    except ResourceNotFoundError:
        return None


def made(state: str | None) -> Stand:
    """Read a provisioning state; what failed is not there, for it is made anew.

    >>> made("Succeeded"), made(None), made("Creating").name, made("Failed").name
    (<Stand.THERE: 1>, <Stand.THERE: 1>, 'UNDER_WAY', 'ABSENT')
    """
    if state is None or state.lower() == "succeeded":
        return Stand.THERE
    return Stand.ABSENT if state.lower() in {"failed", "canceled"} else Stand.UNDER_WAY
