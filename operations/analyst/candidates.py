"""Who may read a log: the model it is about, if it is healthy; else the owner's other endpoint."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple

from core.endpoint import Endpoint
from core.records import Access, State
from operations.resolve import Found
from operations.runtime import Runtime

ANALYST: Final = "ANALYST_BASE_URL"


class Candidate(NamedTuple):
    """One that can be asked."""

    label: str
    """Whose words they will be."""
    model: str | None
    """None is the first that it serves."""
    opened: Callable[[], AbstractAsyncContextManager[Endpoint]]


class Candidates(NamedTuple):
    """Those that can be asked, the best first, and why the others are not."""

    those: tuple[Candidate, ...]
    why_not: str


def candidates(runtime: Runtime, found: Found, *, unhealthy: str = "") -> Candidates:
    """Return who can be asked; `unhealthy` says why not the deployment's own. None is woken."""
    one = found.deployment
    reason = unhealthy or ("" if one.state is State.READY else f"{one.name} is {one.state}")
    own = () if reason else (_own(runtime, found),)
    other = _other(runtime)
    if runtime.settings.rehearsal:
        missing = "a rehearsal asks no endpoint outside"
    else:
        missing = "" if other else f"{ANALYST} is not set"
    why_not = " and ".join(filter(None, (reason, missing)))
    return Candidates((*own, *other), f"No model reads this: {why_not}." if why_not else "")


def _own(runtime: Runtime, found: Found) -> Candidate:
    one = found.deployment
    label = f"{one.served_model_name} ({one.name} on {one.target})"
    return Candidate(
        label, one.served_model_name, lambda: runtime.endpoint(found.backend, found.name)
    )


def _other(runtime: Runtime) -> tuple[Candidate, ...]:
    settings = runtime.settings
    if not settings.analyst_base_url or settings.rehearsal:
        return ()
    access = Access(
        base_url=settings.analyst_base_url.rstrip("/").removesuffix("/v1"),
        api_key=settings.analyst_api_key,
        protection="The owner's other endpoint.",
    )

    @asynccontextmanager
    async def opened() -> AsyncIterator[Endpoint]:
        endpoint = Endpoint(access)
        try:
            yield endpoint
        finally:
            await endpoint.aclose()

    label = f"{settings.analyst_model or 'the first model'} of {ANALYST}"
    return (Candidate(label, settings.analyst_model, opened),)
