"""Entries of Cloud Logging as lines."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from backends.common.lines import Line, pieces
from backends.google.failing import translated
from backends.google.moments import when
from backends.google.site import GoogleSite
from backends.google.waiting import reading

if TYPE_CHECKING:
    from google.cloud.logging_v2.types import LogEntry

_ENTRIES: Final = 1000
"""The most that one call gives; a project has 60 calls a minute."""
_EMPTY: Final = 4
"""Google gives an empty page where a search takes it too long, and goes on at the next: so many
are asked for at most. Source: ListLogEntriesResponse.next_page_token of google-cloud-logging."""
_SYSTEM: Final = "system"
"""How the name of a log ends in which Cloud Run itself writes."""
PLATFORM: Final = "Cloud Run"


def quoted(text: str) -> str:
    r"""Make a word of the query that ends where we end it.

    >>> print(quoted('a" OR "b'))
    "a\" OR \"b"
    """
    return json.dumps(text, ensure_ascii=False)


async def read(site: GoogleSite, query: str, *, newest: bool) -> tuple[list[Line], bool]:
    """Give one page of lines, oldest first, and whether there are more."""
    found, more = await entries(site, query, newest=newest)
    return [line for entry in found for line in lines_of(entry)], more


async def entries(
    site: GoogleSite, query: str, *, newest: bool
) -> tuple[Sequence["LogEntry"], bool]:
    """Give the first page that has any entries, oldest first, and whether there are more."""
    client = await site.clients.logging()
    from google.cloud.logging_v2.types import ListLogEntriesRequest

    request = ListLogEntriesRequest(
        resource_names=[f"projects/{site.clients.project}"],
        filter=query,
        order_by="timestamp desc" if newest else "timestamp asc",
        page_size=_ENTRIES,
    )
    with translated("read the log"):
        pager = await client.list_log_entries(request, **reading())
        left = _EMPTY
        async for page in pager.pages:
            left -= 1
            if page.entries or not left:
                break
    found = tuple(reversed(page.entries) if newest else page.entries)
    return found, bool(page.next_page_token)


def lines_of(entry: "LogEntry") -> Sequence[Line]:
    """Give an entry's lines."""
    platform = PLATFORM if entry.log_name.endswith(_SYSTEM) else ""
    instance, at = entry.labels.get("instanceId", ""), when(entry.timestamp)
    return [Line(at, part, platform, instance) for part in pieces(text_of(entry))]


def text_of(entry: "LogEntry") -> str:
    """Give what an entry says: its text, or the message of its JSON."""
    if entry.text_payload:
        return str(entry.text_payload)
    said = dict(entry.json_payload) if entry.json_payload else {}
    return str(said["message"]) if "message" in said else json.dumps(said, default=str)
