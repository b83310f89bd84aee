"""REST v2alpha1 of the queue, which no SDK speaks: flex-start, and spot by its name."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import httpx2

from backends.google.errors import READ_SECONDS, WRITE_SECONDS
from backends.tpu.clients import TPU_API, Clients
from core.cloud_errors import CloudTimeout, CloudUnavailable

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError

_VERSION: Final = "v2alpha1"
_AGAIN: Final = "Look with status_vllm whether it happened; the same call again is harmless."


class Flex(NamedTuple):
    """What v2alpha1 knows of a request beyond v2."""

    model: str
    """STANDARD, SPOT, RESERVATION_BOUND or FLEX_START; empty if nobody said."""
    run: timedelta | None
    """How long it may run."""
    ends_at: datetime | None


async def create(
    clients: Clients, parent: str, chip_id: str, request_id: str, body: Mapping[str, Any]
) -> str:
    """Ask for a chip; give the operation's name.

    Raises:
        CloudTimeout, CloudUnavailable: No answer came, or none in time.
        GoogleAPICallError: Google refused.
    """
    answer = await _call(
        clients,
        "POST",
        f"{parent}/queuedResources",
        params={"queuedResourceId": chip_id, "requestId": request_id},
        json=body,
        timeout=WRITE_SECONDS,
    )
    return str(answer.get("name", ""))


async def seen(clients: Clients, name: str) -> Flex:
    """Look at a request by its full name. Raises what `create` does."""
    return read(await _call(clients, "GET", name, timeout=READ_SECONDS))


def read(answer: Mapping[str, Any]) -> Flex:
    """Read what v2alpha1 says of a request."""
    run = answer.get("runDuration", {})
    most, end = run.get("maxRunDuration"), run.get("terminationTime")
    return Flex(
        model=str(answer.get("provisioningModel", "")),
        run=timedelta(seconds=float(most.removesuffix("s"))) if most else None,
        ends_at=datetime.fromisoformat(end).astimezone(UTC) if end else None,
    )


async def _call(clients: Clients, method: str, path: str, **more: Any) -> Mapping[str, Any]:
    plane = await clients.plane()
    url = f"{plane.http if plane else TPU_API}/{_VERSION}/{path}"
    what = f"{method} {url}"
    headers = await _authorization(clients)
    try:
        async with httpx2.AsyncClient(trust_env=plane is None) as client:
            reply = await client.request(method, url, headers=headers, **more)
    except httpx2.TimeoutException as exc:
        raise CloudTimeout(f"Google did not answer in time: {what}.", fix=_AGAIN) from exc
    except httpx2.HTTPError as exc:
        raise CloudUnavailable(
            f"Google is not to be reached: {what}.", cause=str(exc), fix=_AGAIN
        ) from exc
    if not reply.is_success:
        raise refused(reply)
    answer: Mapping[str, Any] = reply.json()
    return answer


async def _authorization(clients: Clients) -> dict[str, str]:
    """Give the header that says who asks; a rehearsal asks nobody."""
    held: Any = await clients.credentials()
    headers: dict[str, str] = {}

    def fill() -> None:
        from google.auth.transport.requests import Request

        held.before_request(Request(), "GET", TPU_API, headers)

    await anyio.to_thread.run_sync(fill, abandon_on_cancel=True)
    return headers


def refused(reply: httpx2.Response) -> "GoogleAPICallError":
    """Give Google's JSON as its SDK would raise it."""
    from google.api_core.exceptions import from_grpc_status, from_http_status
    from grpc import StatusCode

    raised: GoogleAPICallError
    try:
        error = reply.json()["error"]
        status, words = StatusCode[error["status"]], str(error["message"])
    except (ValueError, KeyError, TypeError):
        raised = from_http_status(reply.status_code, reply.text[:500])
    else:
        raised = from_grpc_status(status, words)
    return raised
