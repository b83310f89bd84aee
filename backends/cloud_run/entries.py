"""Entries of Cloud Logging as lines, and the lines of one boot."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from backends.cloud_run.failing import translated
from backends.cloud_run.moments import when
from backends.cloud_run.site import Site
from backends.cloud_run.waiting import reading
from backends.common.lines import Line, pieces

if TYPE_CHECKING:
    from google.cloud.logging_v2.types import LogEntry
    from google.cloud.run_v2 import Revision

_ENTRIES: Final = 1000
"""The most that one call gives; a project has 60 calls a minute."""
_BOOT: Final = timedelta(hours=1)
"""A boot ends within 30 minutes: Cloud Run's own limit with a GPU."""
_OUTPUT: Final = ("run.googleapis.com/stdout", "run.googleapis.com/stderr")
_SYSTEM: Final = "run.googleapis.com/varlog/system"
_PLATFORM: Final = "Cloud Run"
_START: Final = "Starting new instance"
"""So Cloud Run says of each that it starts."""


async def boot_lines(
    site: Site, name: str, revision: "Revision", *, newest: bool
) -> Sequence[Line]:
    """Give a revision's output, oldest first: of its newest boot, or of its first.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    begin = when(revision.create_time)
    until = None if newest else begin + _BOOT
    which = revision.name.rpartition("/")[2]
    query = wanted(site, name, begin, until=until, revision=which)
    found, _ = await read(site, query, newest=newest)
    starts = [place for place, line in enumerate(found) if line.platform and _START in line.text]
    output = [line for line in found[starts[-1] if newest and starts else 0 :] if not line.platform]
    one = output[-1 if newest else 0].instance if output else ""
    return [line for line in output if line.instance == one]


def wanted(
    site: Site,
    name: str,
    begin: datetime,
    *,
    until: datetime | None = None,
    revision: str | None = None,
    contains: str | None = None,
) -> str:
    """Write the query; without a begin it would read a day of everything."""
    which = " OR ".join(f"log_id({_quoted(log)})" for log in (*_OUTPUT, _SYSTEM))
    terms = [
        'resource.type="cloud_run_revision"',
        f"resource.labels.service_name={_quoted(name)}",
        f"resource.labels.location={_quoted(site.clients.region)}",
        f"timestamp>={_quoted(begin.isoformat())}",
        f"({which})",
    ]
    terms += [f"resource.labels.revision_name={_quoted(revision)}"] if revision else []
    terms += [f"timestamp<={_quoted(until.isoformat())}"] if until else []
    terms += [_quoted(contains)] if contains else []
    return " AND ".join(terms)


def _quoted(text: str) -> str:
    r"""Make a word of the query that ends where we end it.

    >>> print(_quoted('a" OR "b'))
    "a\" OR \"b"
    """
    return json.dumps(text, ensure_ascii=False)


async def read(site: Site, query: str, *, newest: bool) -> tuple[list[Line], bool]:
    """Give one page of lines, oldest first, and whether there are more."""
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
        page = await anext(pager.pages)
    entries = reversed(page.entries) if newest else page.entries
    return [line for entry in entries for line in lines_of(entry)], bool(page.next_page_token)


def lines_of(entry: "LogEntry") -> Sequence[Line]:
    """Give an entry's lines."""
    platform = _PLATFORM if entry.log_name.endswith(_SYSTEM.rpartition("/")[2]) else ""
    instance, at = entry.labels.get("instanceId", ""), when(entry.timestamp)
    return [Line(at, part, platform, instance) for part in pieces(_text(entry))]


def _text(entry: "LogEntry") -> str:
    if entry.text_payload:
        return str(entry.text_payload)
    said = dict(entry.json_payload) if entry.json_payload else {}
    return str(said["message"]) if "message" in said else json.dumps(said, default=str)
