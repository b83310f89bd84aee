"""The live streams of an app: what its containers write, and the events of the platform."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import httpx2
from pydantic import SecretStr

from backends.aca.failing import strictly
from backends.aca.names import CONTAINER
from backends.aca.replicas import Seen
from backends.aca.site import Site
from backends.aca.waiting import READ_SECONDS, reading
from core.cloud_errors import CloudError, CloudUnavailable, PermissionDenied
from core.trust import trusted
from logs.lines import Line, pieces

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

PLATFORM: Final = "Container Apps"
TAIL: Final = 300
"""Lines of one stream, at most; as much as Azure's own command asks for."""
_SILENCE_SECONDS: Final = 6.0
"""A stream that does not end by itself is left after so long."""
_CUT: Final = re.compile(r"(?:std(?:out|err) )?[FP] ")
"""Before each line: whether the container's runtime has it whole."""
_OWN_WORDS: Final = frozenset({"StartingGettingEvents", "ConnectedToEventsServer"})
_CONNECTED: Final = re.compile(r"(?:Connecting to the|Successfully Connected to) container")
"""What the streams say of themselves."""


class Event(NamedTuple):
    """One line of the system's log."""

    at: datetime
    reason: str
    """Such as AssigningReplica."""
    text: str
    revision: str
    replica: str
    warning: bool

    @property
    def line(self) -> Line:
        """As a line of the log."""
        return Line(self.at, f"{self.reason}: {self.text}", PLATFORM, self.replica)


async def events(site: Site, app: "ContainerApp", token: SecretStr) -> Sequence[Event]:
    """Give the newest events of an app, oldest first.

    Raises:
        CloudError: The stream cannot be read.
    """
    url = app.event_stream_endpoint or f"{_base(site)}{_path(site, app)}/eventstream"
    rows = await _rows(url, token)
    found = [event for row in rows if (event := event_of(row)) and event.reason not in _OWN_WORDS]
    return sorted(found, key=lambda event: event.at)


async def console(
    site: Site, app: "ContainerApp", revision: str, replica: Seen, token: SecretStr
) -> Sequence[Line]:
    """Give the newest lines that a replica's container wrote, oldest first.

    Raises:
        CloudError: The stream cannot be read.
    """
    built = (
        f"{_base(site)}{_path(site, app)}/revisions/{revision}/replicas/{replica.name}"
        f"/containers/{CONTAINER}/logstream"
    )
    rows = await _rows(replica.log_stream or built, token)
    return [line for row in rows for line in lines_of(row, replica.name)]


async def token_of(site: Site, name: str) -> SecretStr:
    """Fetch what opens the streams of an app.

    Raises:
        CloudError: Azure refused it.
    """
    client = await site.clients.apps()
    with strictly(f"open the log streams of {name}"):
        answer = await client.container_apps.get_auth_token(site.clients.group, name, **reading())
    return SecretStr((answer.properties.token if answer.properties else None) or "")


def event_of(row: dict[str, Any]) -> Event | None:
    """Read one event; None where the row is none."""
    at = moment(row.get("TimeStamp"))
    if at is None or "Reason" not in row:
        return None
    return Event(
        at=at,
        reason=str(row.get("Reason") or ""),
        text=str(row.get("Msg") or ""),
        revision=str(row.get("RevisionName") or ""),
        replica=str(row.get("ReplicaName") or ""),
        warning=row.get("Type") == "Warning",
    )


def lines_of(row: dict[str, Any], replica: str) -> Sequence[Line]:
    """Read one row of a console's stream, which may hold several lines."""
    at, text = moment(row.get("TimeStamp")), row.get("Log")
    if at is None or not isinstance(text, str) or _CONNECTED.match(text):
        return ()
    return [Line(at, part, "", replica) for part in pieces(_CUT.sub("", text, count=1))]


def moment(said: Any) -> datetime | None:
    """Read a stamp, which comes in two forms; None where it is none.

    >>> moment("2023-10-06 21:41:33 +0000 UTC") == moment("2023-10-06T21:41:33Z")
    True
    """
    text = re.sub(r" UTC$", "", str(said)).replace(" +", "+")
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)


async def _rows(url: str, token: SecretStr) -> Sequence[dict[str, Any]]:
    """Read what a stream has now; one that goes on is left when it says no more."""
    found: list[dict[str, Any]] = []
    with anyio.move_on_after(_SILENCE_SECONDS):
        async for line in _lines(url, token):
            found += _row(line)
            if len(found) >= TAIL:
                break
    return found


async def _lines(url: str, token: SecretStr) -> AsyncIterator[str]:
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    params = {"follow": "false", "tailLines": str(TAIL), "output": "json"}
    try:
        async with (
            httpx2.AsyncClient(timeout=READ_SECONDS, verify=trusted()) as client,
            client.stream("GET", url, params=params, headers=headers) as reply,
        ):
            if not reply.is_success:
                await reply.aread()
                raise _refused(reply)
            async for line in reply.aiter_lines():
                yield line
    except httpx2.HTTPError as exc:
        raise CloudUnavailable(
            "The log stream cannot be read.",
            cause=str(exc) or type(exc).__name__,
            fix="Call get_logs again in a minute.",
        ) from exc


def _row(line: str) -> list[dict[str, Any]]:
    try:
        row = json.loads(line)
    except ValueError:
        return []
    return [row] if isinstance(row, dict) else []


def _refused(reply: httpx2.Response) -> CloudError:
    words = reply.text[:300]
    if reply.status_code in {401, 403}:
        return PermissionDenied(
            "The log stream does not let you in.",
            cause=words,
            fix="Ask for Microsoft.App/containerApps/getAuthToken/action on the app.",
        )
    return CloudUnavailable(
        f"The log stream gives nothing ({reply.status_code}).",
        cause=words,
        fix="Call get_logs again in a minute.",
    )


def _base(site: Site) -> str:
    return f"https://{site.clients.region}.azurecontainerapps.dev"


def _path(site: Site, app: "ContainerApp") -> str:
    where = f"/subscriptions/{site.clients.subscription}/resourceGroups/{site.clients.group}"
    return f"{where}/containerApps/{app.name}"
