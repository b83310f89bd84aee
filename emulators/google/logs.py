"""Logging v2: entries, found by the query language."""

import re
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Any, Final

import grpc.aio
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.logging_v2.types import (
    ListLogEntriesRequest,
    ListLogEntriesResponse,
    LogEntry,
)
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from emulators.google.filters import BadFilter
from emulators.google.log_fields import SEVERITIES, judge_of, log_name, micros
from emulators.google.log_said import Key, in_order, key_of
from emulators.google.refusing import invalid
from emulators.google.serving import add, unary
from emulators.google.state import Entry, Project, World

_ORDERS: Final = {"": False, "timestamp asc": False, "timestamp desc": True}
_RESOURCE: Final = re.compile(r"^(projects|folders|organizations|billingAccounts)/[^/]+(/.*)?$")
_FILTER_CHARACTERS: Final = 20_000
"""Source: cloud.google.com/logging/quotas (2026-11)."""
_MOST_ENTRIES: Final = 1000
_USUAL_ENTRIES: Final = 50
_BEGIN: Final = "searched-0"
_SEARCHED: Final = re.compile(r"searched-(\d+)")
"""The token of a page after so many that were empty."""
_AFTER: Final = re.compile(r"after-(\d+(?:\.\d+)?)-([0-9a-z-]*)")
"""The token of a page after an entry: what is written meanwhile moves no page."""
_MICRO: Final = 1_000_000
_Row = tuple[Key, Project, Entry]


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "ListLogEntries": unary(
            ListLogEntriesRequest, ListLogEntriesResponse, _list, "logging.logEntries.list"
        )
    }
    add(server, world, "google.logging.v2.LoggingServiceV2", methods, api="logging.googleapis.com")


async def _list(
    world: World, project: Project, request: ListLogEntriesRequest
) -> ListLogEntriesResponse:
    """Answer as Google: a search that takes long gives empty pages, and goes on at the next."""
    names = list(request.resource_names)
    if not names or not all(_RESOURCE.match(name) for name in names):
        raise invalid("resource_names must name at least one project, folder or organization.")
    if request.order_by not in _ORDERS:
        raise invalid(f"Invalid order_by: {request.order_by!r}.")
    if request.page_size < 0:
        raise invalid("page_size must not be negative.")
    if len(request.filter) > _FILTER_CHARACTERS:
        raise invalid(f"The filter is longer than {_FILTER_CHARACTERS} characters.")
    rows = _rows(world, request, _begin(request.page_token))
    searched = _SEARCHED.fullmatch(request.page_token or _BEGIN)
    if searched and int(searched[1]) < project.knobs.log_empty_pages:
        return ListLogEntriesResponse(next_page_token=f"searched-{int(searched[1]) + 1}")
    size = min(request.page_size or _USUAL_ENTRIES, _MOST_ENTRIES)
    found = list(islice(rows, size + 1))
    token = "after-{!r}-{}".format(*found[size - 1][0]) if len(found) > size else ""
    told = [_told(owner, entry) for _, owner, entry in found[:size]]
    kind = ListLogEntriesResponse
    answer: ListLogEntriesResponse = kind.wrap(kind.pb()(entries=told, next_page_token=token))
    return answer


def _begin(token: str) -> Key | None:
    """Give after which entry a page begins; None is at the first.

    Raises:
        Refused: The token is not one of ours.
    """
    after = _AFTER.fullmatch(token)
    if token and not after and not _SEARCHED.fullmatch(token):
        raise invalid("The page token is not valid.")
    return (float(after[1]), after[2]) if after else None


def _rows(world: World, request: ListLogEntriesRequest, after: Key | None) -> Iterator[_Row]:
    """Give the entries that a filter finds, one after the other: a page needs only its own.

    Raises:
        Refused: The filter is not understood; also where there is no entry.
    """
    newest = _ORDERS[request.order_by]
    names = dict.fromkeys(name.split("/")[1] for name in request.resource_names)
    every = [
        _found(world, world.project(name), request.filter, after, newest=newest) for name in names
    ]
    return merge(*every, key=lambda row: row[0], reverse=newest)


def _found(
    world: World, project: Project, words: str, after: Key | None, *, newest: bool
) -> Iterator[_Row]:
    try:
        fits = judge_of(words, project)
    except (BadFilter, re.error) as exc:
        raise invalid(str(exc)) from exc
    written = sorted(project.log, key=key_of)
    said = world.said[project.id].entries if project.id in world.said else ()
    both = (in_order(rows, after, newest=newest) for rows in (written, said))
    ordered = merge(*both, key=key_of, reverse=newest)
    return ((key_of(entry), project, entry) for entry in ordered if fits(entry))


def _told(project: Project, entry: Entry) -> Any:
    seconds, left = divmod(micros(entry.timestamp), _MICRO)
    moment = Timestamp(seconds=seconds, nanos=left * 1000)
    said: dict[str, Any] = {"text_payload": entry.text}
    if entry.payload:
        said = {"json_payload": Struct()}
        said["json_payload"].update(entry.payload)
    return LogEntry.pb()(
        log_name=log_name(project, entry),
        resource=MonitoredResource(type=entry.resource, labels=entry.labels),
        timestamp=moment,
        receive_timestamp=moment,
        severity=SEVERITIES[entry.severity],
        labels=entry.own_labels,
        insert_id=entry.insert_id,
        **said,
    )
