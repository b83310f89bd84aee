"""Logging v2: entries, found by the query language."""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import grpc.aio
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.logging_v2.types import (
    ListLogEntriesRequest,
    ListLogEntriesResponse,
    LogEntry,
)
from google.protobuf.timestamp_pb2 import Timestamp

from emulators.google import filters
from emulators.google.filters import BadFilter, Comparison
from emulators.google.paging import page_of
from emulators.google.refusing import invalid
from emulators.google.serving import add, unary
from emulators.google.state import Entry, Project, World

_SEVERITIES: Final = {
    "DEFAULT": 0,
    "DEBUG": 100,
    "INFO": 200,
    "NOTICE": 300,
    "WARNING": 400,
    "ERROR": 500,
    "CRITICAL": 600,
    "ALERT": 700,
    "EMERGENCY": 800,
}
_ORDERS: Final = {"": False, "timestamp asc": False, "timestamp desc": True}
_RESOURCE: Final = re.compile(r"^(projects|folders|organizations|billingAccounts)/[^/]+(/.*)?$")
_RESOURCE_LABEL: Final = re.compile(r"^resource\.labels?\.(?P<name>.+)$")
_ENTRY_LABEL: Final = re.compile(r"^labels\.(?P<name>.+)$")
_MOST_ENTRIES: Final = 1000
_BEGIN: Final = "searched-0"
_SEARCHED: Final = re.compile(r"searched-(\d+)")
"""The token of a page after so many that were empty."""
_MICRO: Final = 1_000_000


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
    rows = [row for name in dict.fromkeys(names) for row in _found(world, name, request.filter)]
    rows.sort(key=lambda row: (row[1].timestamp, row[1].insert_id))
    if _ORDERS[request.order_by]:
        rows.reverse()
    searched = _SEARCHED.fullmatch(request.page_token or _BEGIN)
    if searched and int(searched[1]) < project.knobs.log_empty_pages:
        return ListLogEntriesResponse(next_page_token=f"searched-{int(searched[1]) + 1}")
    asked = "" if searched else request.page_token
    page, token = page_of(rows, request.page_size, asked, most=_MOST_ENTRIES, usual=50)
    return ListLogEntriesResponse(
        entries=[_told(owner, entry) for owner, entry in page], next_page_token=token
    )


def _found(world: World, resource: str, words: str) -> list[tuple[Project, Entry]]:
    project = world.project(resource.split("/")[1])
    try:
        node = filters.parse(words)
        for one in filters.comparisons(node):
            _judge(one, project, _ANY)  # what is not understood is refused, also without entries
        return [
            (project, entry)
            for entry in project.log
            if filters.holds(node, lambda one, entry=entry: _judge(one, project, entry))  # type: ignore[misc]  # bound for the loop
        ]
    except (BadFilter, re.error) as exc:
        raise invalid(str(exc)) from exc


def _judge(one: Comparison, project: Project, entry: Entry) -> bool:
    if one.field in {"timestamp", "receiveTimestamp", "receive_timestamp"}:
        return filters.ordered(one.operator, _micros(entry.timestamp), _moment(one.value))
    if one.field == "severity":
        wanted = _SEVERITIES.get(one.value.upper())
        if wanted is None:
            raise BadFilter(f"Unparseable filter: {one.value!r} is not a severity")
        return filters.ordered(one.operator, _SEVERITIES[entry.severity], wanted)
    if one.field == "log_id" and one.operator == filters.FUNCTION:
        return one.value == entry.log_name
    if one.operator == filters.FUNCTION:
        raise BadFilter(f"Unparseable filter: unknown function {one.field!r}")
    actual = _text(one.field, project, entry)
    return actual is not None and filters.compared(one.operator, actual, one.value)


_JSON_PAYLOAD: Final = frozenset({"jsonPayload", "json_payload"})
_TEXTS: Final[Mapping[str, Callable[[Entry], str | None]]] = {
    "": lambda entry: (
        json.dumps(entry.payload, ensure_ascii=False) if entry.payload else entry.text
    ),
    "textPayload": lambda entry: None if entry.payload else entry.text,
    "text_payload": lambda entry: None if entry.payload else entry.text,
    "insertId": operator.attrgetter("insert_id"),
    "insert_id": operator.attrgetter("insert_id"),
    "resource.type": operator.attrgetter("resource"),
}


def _text(field: str, project: Project, entry: Entry) -> str | None:
    """Give what an entry has in a field; None where it has none."""
    if field in {"logName", "log_name"}:
        return _log_name(project, entry)
    if field in _TEXTS:
        return _TEXTS[field](entry)
    if label := _RESOURCE_LABEL.match(field):
        return entry.labels.get(label["name"])
    if label := _ENTRY_LABEL.match(field):
        return entry.own_labels.get(label["name"])
    first, _, rest = field.partition(".")
    if first in _JSON_PAYLOAD and rest:
        return _inside(entry.payload, rest.split("."))
    if first == "httpRequest":
        return None
    raise BadFilter(f"Field not found: {field!r}.")


def _inside(payload: Any, names: Sequence[str]) -> str | None:
    """Follow names into a payload, to a text, a number or a truth."""
    for name in names:
        payload = payload.get(name) if isinstance(payload, dict) else None
    if isinstance(payload, str):
        return payload
    return json.dumps(payload) if isinstance(payload, (bool, int, float)) else None


def _moment(text: str) -> int:
    """Read an RFC 3339 time, in microseconds."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError as exc:
        raise BadFilter(f"Unparseable filter: {text!r} is not a timestamp") from exc
    if read.tzinfo is None:
        raise BadFilter(f"Unparseable filter: {text!r} has no time zone")
    return _micros(read.timestamp())


def _micros(seconds: float) -> int:
    return round(seconds * _MICRO)


def _log_name(project: Project, entry: Entry) -> str:
    return f"projects/{project.id}/logs/{quote(entry.log_name, safe='')}"


def _told(project: Project, entry: Entry) -> LogEntry:
    seconds, micros = divmod(_micros(entry.timestamp), _MICRO)
    moment = Timestamp(seconds=seconds, nanos=micros * 1000)
    said: dict[str, Any] = (
        {"json_payload": entry.payload} if entry.payload else {"text_payload": entry.text}
    )
    return LogEntry(
        log_name=_log_name(project, entry),
        resource=MonitoredResource(type=entry.resource, labels=entry.labels),
        timestamp=moment,
        receive_timestamp=moment,
        severity=_SEVERITIES[entry.severity],
        labels=entry.own_labels,
        insert_id=entry.insert_id,
        **said,
    )


_ANY: Final = Entry(
    timestamp=0, severity="DEFAULT", text="", log_name="", resource="", labels={}, insert_id=""
)
