"""How long Google is waited for: for one answer, and for a change that it goes on with alone."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from backends.cloud_run.failing import error_of, patient, translated
from backends.cloud_run.site import Site
from core.cloud_errors import CloudError, CloudRefused, CloudTimeout, CloudUnavailable
from core.reply import note

if TYPE_CHECKING:
    from google.longrunning.operations_pb2 import Operation

READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 15.0
REFUSAL_SECONDS: Final = 10.0
"""Google refuses at once what it refuses at all; what is still under way then goes on."""
_LOOK_SECONDS: Final = 0.3
UNSURE: Final = (CloudUnavailable, CloudTimeout)
"""After these a change may have happened all the same."""


def reading() -> dict[str, Any]:
    """Give the limits of a call that only looks: it may be made again."""
    return {"timeout": READ_SECONDS, "retry": patient()}


def writing() -> dict[str, Any]:
    """Give the limits of a call that changes something: it is made once."""
    return {"timeout": WRITE_SECONDS, "retry": None}


@contextmanager
def strictly(what: str) -> Iterator[None]:
    """Translate what Google raises where nothing that is named may be missing."""
    from google.api_core.exceptions import NotFound

    try:
        with translated(what):
            yield
    except NotFound as exc:
        raise CloudRefused(
            f"Google does not find what is needed: {what}.",
            cause=exc.message,
            fix="Call setup_target (make setup) if it is something of the project's.",
        ) from exc


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
