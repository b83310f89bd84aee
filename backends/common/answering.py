"""Whether a model answers, asked once."""

from collections.abc import Awaitable, Callable

from core.cloud_errors import CloudError
from core.endpoint import LOOK_SECONDS, Endpoint
from core.errors import EndpointError
from core.records import Access, Failure


async def silence(access: Callable[[], Awaitable[Access]], who: str) -> Failure | None:
    """Ask for the list of models; None once it came, else why it did not.

    `who` is what is up in spite of it, as in "Its revision".
    """
    try:
        await ask(await access())
    except (EndpointError, CloudError) as exc:
        return Failure(
            code=exc.code,
            cause=f"{who} is up but the model has not answered yet: {exc.summary} {exc.cause}",
            fix=exc.fix,
        )
    return None


async def ask(access: Access, *, timeout: float = LOOK_SECONDS) -> None:
    """Ask for the list of models; `timeout` in seconds.

    Raises:
        EndpointError: It did not come.
    """
    endpoint = Endpoint(access, timeout=timeout)
    try:
        await endpoint.models()
    finally:
        await endpoint.aclose()
