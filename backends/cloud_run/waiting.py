"""How long Cloud Run is waited for with a change that it goes on with alone."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

from backends.cloud_run.site import Site
from backends.google.failing import error_of
from backends.google.waiting import reading, strictly
from core.cloud_errors import CloudError
from core.reply import note

if TYPE_CHECKING:
    from google.longrunning.operations_pb2 import Operation

REFUSAL_SECONDS: Final = 10.0
"""Google refuses at once what it refuses at all; what is still under way then goes on."""
_LOOK_SECONDS: Final = 0.3


async def refusal(
    site: Site,
    operation: str,
    what: str,
    begun: Callable[[], Awaitable[bool]],
    *,
    seconds: float = REFUSAL_SECONDS,
) -> None:
    """Watch a change until it is over or has begun, for so many seconds at most.

    Raises:
        CloudError: It failed, as Google's own status inside the operation says.
    """
    # No cancel scope of anyio: grpc.aio loses the mark by which it knows its own cancellation.
    deadline = anyio.current_time() + seconds
    while operation and anyio.current_time() < deadline:
        now = await _look(site, operation, what)
        if now is None:
            return None
        if now.done:
            return _raise_error(now, what)
        if await begun():
            return None
        await anyio.sleep(_LOOK_SECONDS)
    return None


async def _look(site: Site, operation: str, what: str) -> "Operation | None":
    """Read a change that Google has taken; where it cannot be read, what is true is read later."""
    from google.longrunning.operations_pb2 import GetOperationRequest

    client = await site.clients.run()
    try:
        with strictly(what):
            return await client.get_operation(GetOperationRequest(name=operation), **reading())
    except CloudError as exc:
        note(f"Google took it, and does not say how it went: {what}. {exc.cause}".strip())
        return None


def _raise_error(operation: "Operation", what: str) -> None:
    from google.api_core.exceptions import from_grpc_status

    if operation.HasField("error"):
        words = operation.error
        raise error_of(from_grpc_status(words.code, words.message, errors=(words,)), what)
