"""Logging v2: entries, and the query language by which they are found."""

import itertools
import json
import operator
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

import grpc.aio
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.logging_v2.types import ListLogEntriesRequest, ListLogEntriesResponse, LogEntry
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from core.records import Record
from simulators.google.serving import Method, add, refusal
from simulators.google.state import Entry, Project, World

E = TypeVar("E")
Fits = Callable[[E], bool]
Test = Callable[[str, str, tuple[str, ...]], Fits[E]]
"""Makes a function of a field, an operator and values: whether one of the values fits.

There are several values only of `:`, so that a text in which many are looked for is read once.
"""

FUNCTION: Final = "()"
"""The operator of a function call, such as `log_id("x")`: its name is the field."""
_ORDERED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_TERM: Final = re.compile(
    r"(?P<sign>[()]|\b(?:AND|OR)\b)"
    rf"|(?P<function>\w+)\((?P<given>{_QUOTED})\)"
    rf"|(?P<field>(?:[\w./-]|{_QUOTED})+)\s*(?P<how><=|>=|!=|[=<>:])"
    rf'\s*(?P<value>{_QUOTED}|[^\s()"]+)'
    rf"|(?P<text>{_QUOTED})"
)
_Terms = deque[re.Match[str]]


def matcher(words: str, test: Test[E]) -> Fits[E]:
    """Make one function of a filter.

    Raises:
        Refused: It cannot be read, or `test` does not know what it asks.
    """
    if stray := _TERM.sub("", words).strip():
        raise refusal("log-filter", why=f"unexpected {stray[:20]!r}")
    left = deque(_TERM.finditer(words))
    if not left:
        return lambda _entry: True
    fits = _all_of(left, test)
    if left:
        raise refusal("log-filter", why=f"unexpected {left[0][0]!r}")
    return fits


def _all_of(left: _Terms, test: Test[E]) -> Fits[E]:
    """Read terms between which is AND, or nothing; OR binds closer.

    Source: cloud.google.com/logging/docs/view/logging-query-language, boolean operators.
    """
    needed = [_any_of(left, test)]
    while left and left[0][0] != ")":
        if left[0][0] == "AND":
            left.popleft()
        needed.append(_any_of(left, test))
    return needed[0] if len(needed) == 1 else lambda entry: all(one(entry) for one in needed)


def _any_of(left: _Terms, test: Test[E]) -> Fits[E]:
    enough, texts = list[Fits[E]](), defaultdict[str, list[str]](list)
    while True:
        term = _next(left)
        if term[0] == "(":
            enough.append(_all_of(left, test))
            _next(left)  # the other parenthesis: nothing else ends what is inside
        elif term["sign"]:
            raise refusal("log-filter", why=f"unexpected {term[0]!r}")
        elif term["function"]:
            enough.append(test(term["function"], FUNCTION, (_unquoted(term["given"]),)))
        elif term["text"] or term["how"] == ":":
            texts[_unquoted(term["field"] or "")].append(_unquoted(term["text"] or term["value"]))
        else:
            enough.append(test(_unquoted(term["field"]), term["how"], (_unquoted(term["value"]),)))
        if not left or left[0][0] != "OR":
            break
        left.popleft()
    enough += [test(field, ":", tuple(values)) for field, values in texts.items()]
    return enough[0] if len(enough) == 1 else lambda entry: any(one(entry) for one in enough)


def _next(left: _Terms) -> re.Match[str]:
    if not left:
        raise refusal("log-filter", why="it ends too early")
    return left.popleft()


def _unquoted(text: str) -> str:
    """Return a text, or the name of a field such as labels."a/b", without its quotes."""
    return re.sub(_QUOTED, lambda found: re.sub(r"\\(.)", r"\1", found[0][1:-1]), text)


def _compared(how: str, wanted: Any, actual: Callable[[E], Any]) -> Fits[E]:
    """Return whether what an entry has stands so to what is wanted; what it has not never does."""
    if how not in _ORDERED:
        raise refusal("log-filter", why=f"operator {how!r} cannot be used here")
    compare = _ORDERED[how]

    def fits(entry: E) -> bool:
        found = actual(entry)
        return found is not None and compare(found, wanted)

    return fits


SEVERITIES: Final = {
    name: number * 100
    for number, name in enumerate(
        (
            *("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING"),
            *("ERROR", "CRITICAL", "ALERT", "EMERGENCY"),
        )
    )
}
_MICRO: Final = 1_000_000

Text = Callable[[Entry], str | None]
"""What a field of an entry holds; None where it has none."""


def _micros(seconds: float) -> int:
    """Return microseconds, which is what entries are told and compared in."""
    return round(seconds * _MICRO)


def _test(field: str, how: str, values: tuple[str, ...]) -> Fits[Entry]:
    value = values[0]
    if field == "timestamp":
        return _compared(how, _moment(value), lambda entry: _micros(entry.timestamp))
    if field == "severity":
        if value.upper() not in SEVERITIES:
            raise refusal("log-filter", why=f"{value!r} is not a severity")
        return _compared(how, SEVERITIES[value.upper()], lambda row: SEVERITIES[row.severity])
    if how == FUNCTION:
        if field != "log_id":
            raise refusal("log-filter", why=f"unknown function {field!r}")
        return lambda entry: entry.log_name == value
    text, words = _text(field), tuple(word.lower() for word in values)

    def lowered(entry: Entry) -> str | None:  # the case of words does not count
        found = text(entry)
        return None if found is None else found.lower()

    def holds(entry: Entry) -> bool:
        found = lowered(entry)
        return found is not None and any(word in found for word in words)

    return holds if how == ":" else _compared(how, words[0], lowered)


_TEXTS: Final[Mapping[str, Text]] = {
    "": lambda entry: "\n".join(_texts_in(entry.json_payload)) if entry.payload else entry.text,
    "textPayload": lambda entry: None if entry.payload else entry.text,
    "resource.type": operator.attrgetter("resource"),
}


def _text(field: str) -> Text:
    if field in _TEXTS:
        return _TEXTS[field]
    if label := re.fullmatch(r"(?P<of>resource\.)?labels?\.(?P<name>.+)", field):
        own, name = not label["of"], label["name"]
        return lambda entry: (entry.own_labels if own else entry.labels).get(name)
    first, _, rest = field.partition(".")
    if first == "jsonPayload" and rest:
        return lambda entry: _inside(entry.json_payload, rest.split("."))
    raise refusal("log-filter", why=f"Field not found: {field!r}.")


def _inside(payload: Any, names: Sequence[str]) -> str | None:
    """Follow names into a payload, to a text."""
    for name in names:
        payload = payload.get(name) if isinstance(payload, dict) else None
    return payload if isinstance(payload, str) else None


def _texts_in(payload: Any) -> Iterator[str]:
    if isinstance(payload, dict):
        for value in payload.values():
            yield from _texts_in(value)
    else:
        yield payload if isinstance(payload, str) else json.dumps(payload)


def _moment(text: str) -> int:
    try:
        read = datetime.fromisoformat(text)
    except ValueError as exc:
        raise refusal("log-filter", why=f"{text!r} is not a timestamp") from exc
    if read.tzinfo is None:
        raise refusal("log-filter", why=f"{text!r} has no time zone")
    return _micros(read.timestamp())


Key = tuple[float, str]
"""Moment and id: what entries are ordered by."""
_NUMBERS: Final = itertools.count()


class Saying(Record):
    """Lines of one deployment, with their moments."""

    lines: tuple[tuple[float, str], ...]
    """Epoch seconds and text, in any order."""
    service: str = ""
    """Of Cloud Run."""
    vm: str = ""
    """Of the deployment that a VM with chips serves, in place of a service."""
    platform: bool = False
    """Cloud Run says it, or Cloud TPU of the deployment's node."""
    severity: Literal["DEFAULT", "INFO", "WARNING", "ERROR"] = "DEFAULT"
    phase: str = ""
    """The startup script of the VM tells it, as this phase."""
    without: str = ""
    """Lines of this text that were put in before are taken out."""

    def source(self, project: Project) -> dict[str, Any]:
        """Return what entries of the deployment itself have alike.

        Raises:
            LookupError: There is no such service or node in the project.
        """
        if self.service:
            path = _ending(project.services, f"/services/{self.service}")
            log = "varlog/system" if self.platform else "stderr"
            return of_revision(project.services[path].latest_created_revision, log)
        if self.platform:
            path = _ending(project.nodes, f"/nodes/vllm-devops-{self.vm}")
            node = path.rpartition("/")[2]
            return {
                "resource": "tpu_worker",
                "log_name": "tpu.googleapis.com/runtime_monitor",
                "labels": {"zone": path.split("/")[3], "node_id": node},
                "payload": {"node": node},
            }
        return of_script("vllm-devops", self.vm, self.phase) if self.phase else of_vm(self.vm)


def of_revision(name: str, log: str) -> dict[str, Any]:
    """Return what a revision of Cloud Run, by its full name, writes to a log of it."""
    _, _, _, location, _, service, _, revision = name.split("/")
    named = {"service_name": service, "revision_name": revision, "configuration_name": service}
    return {
        "resource": "cloud_run_revision",
        "log_name": f"run.googleapis.com/{log}",
        "labels": {**named, "location": location},
    }


def of_script(log: str, deployment: str, phase: str) -> dict[str, Any]:
    """Return what the startup script of a VM with chips tells of a phase."""
    return {
        "resource": "global",
        "log_name": log,
        "labels": {},
        "own_labels": {"deployment": deployment, "phase": phase},
        "payload": {"phase": phase},
    }


def of_vm(deployment: str) -> dict[str, Any]:
    """Return what the engine's container writes on such a VM, by docker's driver.

    Source: moby, daemon/logger/gcplogs, read 2026-11.
    """
    box = {"name": f"/vllm-devops-{deployment}", "metadata": {"deployment": deployment}}
    return {
        "resource": "gce_instance",
        "log_name": "gcplogs-docker-driver",
        "labels": {},
        "payload": {"container": box},
    }


def plant(world: World, project: Project, saying: Saying) -> int:
    """Put lines into a log, whatever moments they have; returns how many there are now.

    They are kept only while the process lives.

    Raises:
        LookupError: Nobody is there who could have written them.
    """
    there: Sequence[Entry] = world.planted.get(project.id, ())
    rows = [one for one in there if one.text != saying.without or not saying.without]
    shared: Any = {"severity": saying.severity, **saying.source(project)}
    for at, text in saying.lines:
        insert_id = f"said-{next(_NUMBERS):016x}"
        rows.append(Entry(timestamp=at, text=text, insert_id=insert_id, **shared))
    rows.sort(key=_key_of)
    world.planted[project.id] = rows
    return len(rows)


def _key_of(entry: Entry) -> Key:
    return entry.timestamp, entry.insert_id


def _in_order(entries: Sequence[Entry], after: Key | None, *, newest: bool) -> Iterator[Entry]:
    """Return those that come after a key, in either order; `entries` are oldest first."""
    if newest:
        end = len(entries) if after is None else bisect_left(entries, after, key=_key_of)
        return (entries[place] for place in range(end - 1, -1, -1))
    begin = 0 if after is None else bisect_right(entries, after, key=_key_of)
    return (entries[place] for place in range(begin, len(entries)))


def _ending(named: dict[str, Any], end: str) -> str:
    found = next((name for name in sorted(named) if name.endswith(end)), None)
    if found is None:
        raise LookupError(f"There is no {end[1:]}.")
    return found


_ORDERS: Final = {"": False, "timestamp asc": False, "timestamp desc": True}
_FILTER_CHARACTERS: Final = 20_000
"""Source: cloud.google.com/logging/quotas (2026-11)."""
_MOST_ENTRIES: Final = 1000
_USUAL_ENTRIES: Final = 50
_TOKENS: Final = re.compile(
    r"searched-(?P<pages>\d+)|after-(?P<at>\d+(?:\.\d+)?)-(?P<id>[0-9a-z-]*)"
)
"""The token of a page after so many that were empty, or after an entry: what is written meanwhile
moves no page."""


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    method = Method(ListLogEntriesRequest, _list, "logging.logEntries.list")
    methods = {"ListLogEntries": method}
    add(server, world, "google.logging.v2.LoggingServiceV2", methods, api="logging.googleapis.com")


async def _list(
    world: World, project: Project, request: ListLogEntriesRequest
) -> ListLogEntriesResponse:
    """Answer as Google: a search that takes long gives empty pages, and goes on at the next."""
    if len(request.filter) > _FILTER_CHARACTERS:
        raise refusal("log-filter-length", most=_FILTER_CHARACTERS)
    begin = _TOKENS.fullmatch(request.page_token or "searched-0")
    if not begin:
        raise refusal("log-token")
    newest = _ORDERS[request.order_by]
    after = (float(begin["at"]), begin["id"]) if begin["at"] else None
    rows = _found(world, project, request.filter, after, newest=newest)
    if begin["pages"] and int(begin["pages"]) < project.knobs.log_empty_pages:
        return ListLogEntriesResponse(next_page_token=f"searched-{int(begin['pages']) + 1}")
    size = min(request.page_size or _USUAL_ENTRIES, _MOST_ENTRIES)
    found = list(itertools.islice(rows, size + 1))
    token = "after-{!r}-{}".format(*_key_of(found[size - 1])) if len(found) > size else ""
    told = [_as_entry(project, entry) for entry in found[:size]]
    kind = ListLogEntriesResponse
    answer: ListLogEntriesResponse = kind.wrap(kind.pb()(entries=told, next_page_token=token))
    return answer


def _found(
    world: World, project: Project, words: str, after: Key | None, *, newest: bool
) -> Iterator[Entry]:
    """Return the entries that a filter finds, one after the other: a page needs only its own."""
    fits = matcher(words, _test)
    logs = sorted(project.log, key=_key_of), world.planted.get(project.id, ())
    both = (_in_order(rows, after, newest=newest) for rows in logs)
    return filter(fits, merge(*both, key=_key_of, reverse=newest))


def _as_entry(project: Project, entry: Entry) -> Any:
    seconds, left = divmod(_micros(entry.timestamp), _MICRO)
    at = Timestamp(seconds=seconds, nanos=left * 1000)
    said: dict[str, Any] = {"text_payload": entry.text}
    if entry.payload:
        said = {"json_payload": Struct()}
        said["json_payload"].update(entry.json_payload)
    return LogEntry.pb()(
        log_name=f"projects/{project.id}/logs/{quote(entry.log_name, safe='')}",
        resource=MonitoredResource(type=entry.resource, labels=entry.labels),
        timestamp=at,
        receive_timestamp=at,
        severity=SEVERITIES[entry.severity],
        labels=entry.own_labels,
        insert_id=entry.insert_id,
        **said,
    )
