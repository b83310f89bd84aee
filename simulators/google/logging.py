"""Logging v2: entries, and the query language by which they are found."""

import json
import operator
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import grpc.aio
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.logging_v2.types import ListLogEntriesRequest, ListLogEntriesResponse, LogEntry
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from core.records import Record
from simulators.google.serving import Method, add, invalid
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
_TOKEN: Final = re.compile(rf'{_QUOTED}|<=|>=|!=|[=<>:()]|(?:[^\s"()=<>!:]|{_QUOTED})+')
_SIGNS: Final = frozenset({*_ORDERED, ":", "(", ")"})


class BadFilter(ValueError):
    """The filter cannot be read, or asks what is not known here."""

    def __init__(self, words: str) -> None:
        super().__init__(f"Unparseable filter: {words}")


class _Leaf(NamedTuple):
    """`field operator value`."""

    field: str
    how: str
    value: str


def matcher(words: str, test: Test[E]) -> Fits[E]:
    """Make one function of a filter.

    Raises:
        BadFilter: It cannot be read, or `test` does not know what it asks.
    """
    if not words.strip():
        return lambda _entry: True
    parser = _Parser(words, test)
    fits = parser.closed(parser.some())
    if parser.left:
        raise BadFilter(f"unexpected {parser.left[0]!r}")
    return fits


def _compared(how: str, wanted: Any, actual: Callable[[E], Any]) -> Fits[E]:
    """Return whether what an entry has stands so to what is wanted; what it has not never does."""
    if how not in _ORDERED:
        raise BadFilter(f"operator {how!r} cannot be used here")
    compare = _ORDERED[how]

    def fits(entry: E) -> bool:
        found = actual(entry)
        return found is not None and compare(found, wanted)

    return fits


class _Parser:
    def __init__(self, words: str, test: Callable[..., Fits[Any]]) -> None:
        if stray := _TOKEN.sub("", words).strip():
            raise BadFilter(f"syntax error at {stray[:20]!r}")
        self.left: deque[str] = deque(_TOKEN.findall(words))
        self._test = test

    def closed(self, term: _Leaf | Fits[Any]) -> Fits[Any]:
        if isinstance(term, _Leaf):
            return self._test(term.field, term.how, (term.value,))
        return term

    def some(self) -> _Leaf | Fits[Any]:
        terms = [self._every()]
        while self.left and self.left[0] == "OR":
            self.left.popleft()
            terms.append(self._every())
        if len(terms) == 1:
            return terms[0]
        enough, words = list[Fits[Any]](), dict[str, tuple[str, ...]]()
        for term in terms:
            if isinstance(term, _Leaf) and term.how == ":":
                words[term.field] = (*words.get(term.field, ()), term.value)
            else:
                enough.append(self.closed(term))
        enough += [self._test(field, ":", values) for field, values in words.items()]
        return lambda entry: any(one(entry) for one in enough)

    def _every(self) -> _Leaf | Fits[Any]:
        """Read terms between which is AND, or nothing."""
        terms = [self._one()]
        while self.left and self.left[0] not in {")", "OR"}:
            if self.left[0] == "AND":
                self.left.popleft()
            terms.append(self._one())
        if len(terms) == 1:
            return terms[0]
        needed = [self.closed(term) for term in terms]
        return lambda entry: all(one(entry) for one in needed)

    def _one(self) -> _Leaf | Fits[Any]:
        if self._take("("):
            term = self.some()
            self._must(")")
            return term
        field = self._value()
        if field.startswith('"') or not self.left or self.left[0] not in {*_ORDERED, ":", "("}:
            return _Leaf("", ":", _unquoted(field))
        if self._take("("):
            value = self._value()
            self._must(")")
            return _Leaf(field, FUNCTION, _unquoted(value))
        how = self.left.popleft()
        name = re.sub(_QUOTED, lambda found: _unquoted(found[0]), field)  # labels."a/b"
        return _Leaf(name, how, _unquoted(self._value()))

    def _value(self) -> str:
        if not self.left:
            raise BadFilter("it ends too early")
        found = self.left.popleft()
        if found in _SIGNS:
            raise BadFilter(f"unexpected {found!r}")
        return found

    def _take(self, sign: str) -> bool:
        if not self.left or self.left[0] != sign:
            return False
        self.left.popleft()
        return True

    def _must(self, sign: str) -> None:
        if not self._take(sign):
            found = repr(self.left[0]) if self.left else "end: it comes too early"
            raise BadFilter(f"unexpected {found}")


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


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
            raise BadFilter(f"{value!r} is not a severity")
        return _compared(how, SEVERITIES[value.upper()], lambda row: SEVERITIES[row.severity])
    if how == FUNCTION:
        if field != "log_id":
            raise BadFilter(f"unknown function {field!r}")
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
    "": lambda entry: "\n".join(_texts_in(entry.payload)) if entry.payload else entry.text,
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
        return lambda entry: _inside(entry.payload, rest.split("."))
    raise BadFilter(f"Field not found: {field!r}.")


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
        raise BadFilter(f"{text!r} is not a timestamp") from exc
    if read.tzinfo is None:
        raise BadFilter(f"{text!r} has no time zone")
    return _micros(read.timestamp())


Key = tuple[float, str]
"""Moment and id: what entries are ordered by."""


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

    def entries(self, project: Project, first: int) -> Sequence[Entry]:
        """Make entries, as the deployment itself would have written them; ids begin at `first`.

        Raises:
            LookupError: There is no such service or node in the project.
        """
        shared = self._shared(project)
        payload = shared.pop("payload", {})
        return [
            Entry(
                timestamp=at,
                text=text,
                insert_id=f"said-{number:016x}",
                payload={**payload, "message": text} if payload else {},
                severity=self.severity,
                **shared,
            )
            for number, (at, text) in enumerate(self.lines, first)
        ]

    def _shared(self, project: Project) -> dict[str, Any]:
        if self.service:
            path = _ending(project.services, f"/services/{self.service}")
            labels = {
                "project_id": project.id,
                "service_name": self.service,
                "revision_name": project.services[path].latest_created_revision.split("/")[-1],
                "configuration_name": self.service,
                "location": path.split("/")[3],
            }
            log = f"run.googleapis.com/{'varlog/system' if self.platform else 'stderr'}"
            return {"resource": "cloud_run_revision", "log_name": log, "labels": labels}
        if self.platform:
            path = _ending(project.nodes, f"/nodes/vllm-devops-{self.vm}")
            node = path.rpartition("/")[2]
            return {
                "resource": "tpu_worker",
                "log_name": "tpu.googleapis.com/runtime_monitor",
                "labels": {"project_id": project.id, "zone": path.split("/")[3], "node_id": node},
                "payload": {"node": node},
            }
        if self.phase:
            return {
                "resource": "global",
                "log_name": "vllm-devops",
                "labels": {},
                "own_labels": {"deployment": self.vm, "phase": self.phase},
                "payload": {"phase": self.phase},
            }
        box = {"name": f"/vllm-devops-{self.vm}", "metadata": {"deployment": self.vm}}
        return {
            "resource": "gce_instance",
            "log_name": "gcplogs-docker-driver",
            "labels": {"project_id": project.id},
            "payload": {"container": box},
        }


class Said:
    """Those of one project in their order; kept only while the process lives."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._number = 0

    def add(self, project: Project, saying: Saying) -> int:
        """Put lines in, whatever moments they have; returns how many there are now.

        Raises:
            LookupError: Nobody is there who could have written them.
        """
        fresh = saying.entries(project, self._number)
        self._number += len(fresh)
        kept = [one for one in self.entries if one.text != saying.without or not saying.without]
        self.entries = sorted([*kept, *fresh], key=_key_of)
        return len(self.entries)


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
    if len(request.resource_names) != 1 or not request.resource_names[0].startswith("projects/"):
        raise invalid("resource_names must name one project; more are not known here.")
    if request.order_by not in _ORDERS:
        raise invalid(f"Invalid order_by: {request.order_by!r}.")
    if len(request.filter) > _FILTER_CHARACTERS:
        raise invalid(f"The filter is longer than {_FILTER_CHARACTERS} characters.")
    begin = _TOKENS.fullmatch(request.page_token or "searched-0")
    if not begin:
        raise invalid("The page token is not valid.")
    newest = _ORDERS[request.order_by]
    after = (float(begin["at"]), begin["id"]) if begin["at"] else None
    rows = _found(world, project, request.filter, after, newest=newest)
    if begin["pages"] and int(begin["pages"]) < project.knobs.log_empty_pages:
        return ListLogEntriesResponse(next_page_token=f"searched-{int(begin['pages']) + 1}")
    size = min(request.page_size or _USUAL_ENTRIES, _MOST_ENTRIES)
    found = list(islice(rows, size + 1))
    token = "after-{!r}-{}".format(*_key_of(found[size - 1])) if len(found) > size else ""
    told = [_told(project, entry) for entry in found[:size]]
    kind = ListLogEntriesResponse
    answer: ListLogEntriesResponse = kind.wrap(kind.pb()(entries=told, next_page_token=token))
    return answer


def _found(
    world: World, project: Project, words: str, after: Key | None, *, newest: bool
) -> Iterator[Entry]:
    """Return the entries that a filter finds, one after the other: a page needs only its own.

    Raises:
        Refused: The filter is not understood; also where there is no entry.
    """
    try:
        fits = matcher(words, _test)
    except BadFilter as exc:
        raise invalid(str(exc)) from exc
    written = sorted(project.log, key=_key_of)
    said = world.planted.get(project.id, Said()).entries
    both = (_in_order(rows, after, newest=newest) for rows in (written, said))
    return filter(fits, merge(*both, key=_key_of, reverse=newest))


def _told(project: Project, entry: Entry) -> Any:
    seconds, left = divmod(_micros(entry.timestamp), _MICRO)
    at = Timestamp(seconds=seconds, nanos=left * 1000)
    said: dict[str, Any] = {"text_payload": entry.text}
    if entry.payload:
        said = {"json_payload": Struct()}
        said["json_payload"].update(entry.payload)
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
