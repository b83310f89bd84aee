"""Entries of Cloud Logging as lines: the query, one page of it, or all of them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from google.api_core.exceptions import ResourceExhausted, ServiceUnavailable
from google.api_core.retry import AsyncRetry, if_exception_type
from google.cloud.logging_v2.types import ListLogEntriesRequest, LogEntry

from backends.base import LogQuery
from backends.google.clients import GoogleSite, when
from backends.google.errors import READ_SECONDS, reading, translated
from core.reply import note
from logs.read import Line, pieces

_ENTRIES: Final = 1000
"""The most that one call gives; a project has 60 calls a minute."""
_EMPTY: Final = 4
"""Google gives an empty page where a search takes it too long, and goes on at the next: so many
are asked for at most. Source: ListLogEntriesResponse.next_page_token of google-cloud-logging."""
_SYSTEM: Final = "system"
"""How the name of a log ends in which Cloud Run itself writes."""
PLATFORM: Final = "Cloud Run"
_FILTER_CHARACTERS: Final = 19_900
"""Google reads 20,000; a few join the terms. Source: cloud.google.com/logging/quotas (2026-11)."""
_PAGE_LINES: Final = 2000
_MINUTE_SECONDS: Final = 70.0
"""After which a project may surely read again."""
_WAITED: Final = (
    "Google lets a project read its log 60 times a minute; it was waited until it may again."
)


def quoted(text: str) -> str:
    r"""Make a word of the query that ends where we end it.

    >>> print(quoted('a" OR "b'))
    "a\" OR \"b"
    """
    return json.dumps(text, ensure_ascii=False)


def any_of(field: str, words: Sequence[str], *, besides: str = "") -> str:
    """Write the term that holds where a field (empty: any) has one of the words.

    It is empty where there are no words, and where the filter would be longer than Google
    reads: then it gives more, never less.
    """
    terms = " OR ".join(f"{field}{':' if field else ''}{quoted(word)}" for word in words)
    fits = len(besides) + len(terms) <= _FILTER_CHARACTERS
    return f"({terms})" if terms and fits else ""


def between(since: datetime, until: datetime | None) -> str:
    """Write the term of a time; without a begin it would be a day of everything."""
    end = f" AND timestamp<={quoted(until.isoformat())}" if until else ""
    return f"timestamp>={quoted(since.isoformat())}{end}"


async def read_entries(
    site: GoogleSite, query: str, *, newest: bool
) -> tuple[Sequence[LogEntry], bool]:
    """Give the first page that has any entries, oldest first, and whether there are more."""
    with translated("read the log"):
        left = _EMPTY
        async for page in await _pages(site, query, newest=newest, **reading()):
            left -= 1
            if page.entries or not left:
                break
    found = tuple(reversed(page.entries) if newest else page.entries)
    return found, bool(page.next_page_token)


async def all_lines(
    site: GoogleSite,
    asked: Callable[[], Awaitable[str]],
    query: LogQuery,
    read: Callable[[Sequence[LogEntry]], Sequence[Line]],
) -> AsyncGenerator[Sequence[Line], None]:
    """Return every line that is asked for in pages, the newest first, each page oldest line first.

    `asked` returns Cloud Logging's filter; nothing where there is no line. Where the project's
    calls of a minute are used up, it waits for the next minute, and says so.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    words = tuple(word.lower() for word in query.contains)
    if not (terms := await asked()):
        return

    def told(exc: Exception) -> None:
        if isinstance(exc, ResourceExhausted):
            note(_WAITED)

    again = if_exception_type(ServiceUnavailable, ResourceExhausted)
    polite = AsyncRetry(again, initial=0.5, maximum=10, timeout=_MINUTE_SECONDS, on_error=told)
    with translated("read the log"):
        pages = await _pages(site, terms, newest=True, timeout=READ_SECONDS, retry=polite)
        async for page in pages:
            # An entry can be of many lines, and the words of a filter be in any of its fields.
            texts = ((line, line.text.lower()) for line in read(tuple(reversed(page.entries))))
            found = [line for line, text in texts if not words or any(w in text for w in words)]
            for end in range(len(found), 0, -_PAGE_LINES):
                yield found[max(0, end - _PAGE_LINES) : end]


async def _pages(site: GoogleSite, query: str, *, newest: bool, **how: Any) -> AsyncIterator[Any]:
    client = await site.clients.logging()
    request = ListLogEntriesRequest(
        resource_names=[f"projects/{site.clients.project}"],
        filter=query,
        order_by="timestamp desc" if newest else "timestamp asc",
        page_size=_ENTRIES,
    )
    return (await client.list_log_entries(request, **how)).pages


def lines_of(entries: Iterable[LogEntry]) -> list[Line]:
    """Give the lines of entries of Cloud Run."""
    found: list[Line] = []
    for entry in entries:
        platform = PLATFORM if entry.log_name.endswith(_SYSTEM) else ""
        instance, at = entry.labels.get("instanceId", ""), when(entry.timestamp)
        found += [Line(at, part, platform, instance) for part in pieces(text_of(entry))]
    return found


def text_of(entry: LogEntry) -> str:
    """Give what an entry says: its text, or the message of its JSON."""
    if entry.text_payload:
        return str(entry.text_payload)
    said = dict(entry.json_payload) if entry.json_payload else {}
    return str(said["message"]) if "message" in said else json.dumps(said, default=str)
