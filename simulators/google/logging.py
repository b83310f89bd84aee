"""Logging v2: entries, and the query language by which they are found."""

import json
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

import grpc.aio
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.logging_v2.types import ListLogEntriesRequest, ListLogEntriesResponse, LogEntry
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from core.records import Record
from simulators.google.serving import add, invalid, unary
from simulators.google.state import Entry, Project, World

T = TypeVar("T", str, float)
E = TypeVar("E")

FUNCTION: Final = "()"
"""The operator of a function call, such as `log_id("x")`: its name is the field."""

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<quoted>"(?:[^"\\]|\\.)*")
    | (?P<operator><=|>=|!=|=~|!~|[=<>:])
    | (?P<bracket>[()])
    | (?P<minus>-(?=\S))
    | (?P<word>(?:[^\s"()=<>!:]|"(?:[^"\\]|\\.)*")+)
    )""",
    re.VERBOSE,
)


class BadFilter(ValueError):
    """The filter cannot be read, or asks what is not known here."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`field operator value`."""

    field: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Every:
    """All of them hold; of none: always."""

    terms: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one holds."""

    terms: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """It does not hold."""

    term: "Node"


Node = Comparison | Every | Some | Negation


def parse(text: str) -> Node:
    """Read a filter.

    Raises:
        BadFilter: It cannot be read.
    """
    parser = _Parser(_tokens(text))
    node = parser.some() if parser.left else Every(())
    if parser.left:
        raise BadFilter(f"Unparseable filter: unexpected {parser.left[0][1]!r}")
    return node


def comparisons(node: Node) -> Iterator[Comparison]:
    """Give every comparison in it."""
    match node:
        case Comparison():
            yield node
        case Negation(term):
            yield from comparisons(term)
        case Every(terms) | Some(terms):
            for term in terms:
                yield from comparisons(term)


def holds(node: Node, judge: Callable[[Comparison], bool]) -> bool:
    """Say whether it holds where `judge` says so of each comparison."""
    match node:
        case Comparison():
            return judge(node)
        case Negation(term):
            return not holds(term, judge)
        case Every(terms):
            return all(holds(term, judge) for term in terms)
        case Some(terms):
            return any(holds(term, judge) for term in terms)


def compiled(
    node: Node, test: Callable[[str, str, tuple[str, ...]], Callable[[E], bool]]
) -> Callable[[E], bool]:
    """Make one function of a filter, which is quicker than to look at the filter each time.

    `test` makes a function of field, operator and values: whether one of the values fits. There
    are several only of `:`, so that a text in which many are looked for is read once.
    """
    match node:
        case Comparison(field, operator, value):
            return test(field, operator, (value,))
        case Negation(term):
            inner = compiled(term, test)
            return lambda entry: not inner(entry)
        case Every(terms):
            needed = tuple(compiled(term, test) for term in terms)
            return lambda entry: all(one(entry) for one in needed)
        case Some(terms):
            enough = tuple(_alternatives(terms, test))
            return lambda entry: any(one(entry) for one in enough)


def _alternatives(
    terms: Iterable[Node], test: Callable[[str, str, tuple[str, ...]], Callable[[E], bool]]
) -> Iterator[Callable[[E], bool]]:
    words: dict[str, list[str]] = {}
    for term in terms:
        if isinstance(term, Comparison) and term.operator == ":":
            words.setdefault(term.field, []).append(term.value)
        else:
            yield compiled(term, test)
    for field, values in words.items():
        yield test(field, ":", tuple(values))


def compared(operator: str, actual: str, wanted: str) -> bool:
    """Compare words as Logging does: their case does not count, except in patterns."""
    one, other = actual.lower(), wanted.lower()
    match operator:
        case "=":
            return one == other
        case "!=":
            return one != other
        case ":":
            return other in one
        case "=~":
            return re.search(wanted, actual) is not None
        case "!~":
            return re.search(wanted, actual) is None
    return ordered(operator, one, other)


def ordered(operator: str, actual: T, wanted: T) -> bool:
    """Compare what has an order.

    Raises:
        BadFilter: The operator knows none.
    """
    match operator:
        case "=":
            return actual == wanted
        case "!=":
            return actual != wanted
        case "<":
            return actual < wanted
        case "<=":
            return actual <= wanted
        case ">":
            return actual > wanted
        case ">=":
            return actual >= wanted
    raise BadFilter(f"Unparseable filter: operator {operator!r} cannot be used here")


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.left = tokens

    def some(self) -> Node:
        terms = [self._every()]
        while self._take("word", "OR"):
            terms.append(self._every())
        return terms[0] if len(terms) == 1 else Some(tuple(terms))

    def _every(self) -> Node:
        terms = [self._one()]
        while self.left and self.left[0] not in {("bracket", ")"), ("word", "OR")}:
            self._take("word", "AND")
            terms.append(self._one())
        return terms[0] if len(terms) == 1 else Every(tuple(terms))

    def _one(self) -> Node:
        if self._take("word", "NOT") or self._take("minus", "-"):
            return Negation(self._one())
        if self._take("bracket", "("):
            inner = self.some()
            self._must("bracket", ")")
            return inner
        return self._comparison()

    def _comparison(self) -> Node:
        kind, field = self._next()
        if kind == "quoted":
            return Comparison("", ":", _unquoted(field))
        if kind != "word":
            raise BadFilter(f"Unparseable filter: unexpected {field!r}")
        if self._take("bracket", "("):
            value = _unquoted(self._must("quoted"))
            self._must("bracket", ")")
            return Comparison(field, FUNCTION, value)
        operator = self._must("operator")
        kind, value = self._next()
        if kind not in {"word", "quoted"}:
            raise BadFilter(f"Unparseable filter: unexpected {value!r}")
        return Comparison(_field(field), operator, _unquoted(value))

    def _next(self) -> tuple[str, str]:
        if not self.left:
            raise BadFilter("Unparseable filter: it ends too early")
        return self.left.pop(0)

    def _must(self, kind: str, text: str | None = None) -> str:
        found, words = self._next()
        if found != kind or text not in {None, words}:
            raise BadFilter(f"Unparseable filter: unexpected {words!r}")
        return words

    def _take(self, kind: str, text: str) -> bool:
        if not self.left or self.left[0] != (kind, text):
            return False
        self.left.pop(0)
        return True


def _tokens(text: str) -> list[tuple[str, str]]:
    """Split; a line that begins with `--` is a comment."""
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadFilter(f"Unparseable filter: syntax error at {text[at : at + 20]!r}")
        kind = match.lastgroup or ""
        found.append((kind, match[kind]))
        at = match.end()
    return found


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _field(text: str) -> str:
    """Give `labels."a/b"` as `labels.a/b`."""
    return re.sub(r'"((?:[^"\\]|\\.)*)"', r"\1", text)


SEVERITIES: Final = {
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
_RESOURCE_LABEL: Final = re.compile(r"^resource\.labels?\.(?P<name>.+)$")
_ENTRY_LABEL: Final = re.compile(r"^labels\.(?P<name>.+)$")
_MICRO: Final = 1_000_000
_MOMENTS: Final = frozenset({"timestamp", "receiveTimestamp", "receive_timestamp"})
_JSON_PAYLOAD: Final = frozenset({"jsonPayload", "json_payload"})

Judge = Callable[[Entry], bool]
Text = Callable[[Entry], str | None]


def judge_of(words: str, project: Project) -> Judge:
    """Make the judge of a filter for a project's entries.

    Raises:
        BadFilter: It is not understood.
        re.error: A pattern in it is none.
    """

    def one(field: str, operator: str, values: tuple[str, ...]) -> Judge:
        return _judge(project, field, operator, values)

    return compiled(parse(words), one)


def micros(seconds: float) -> int:
    """Give microseconds, which is what entries are told and compared in."""
    return round(seconds * _MICRO)


def log_name(project: Project, entry: Entry) -> str:
    """Give the full name of an entry's log."""
    return f"projects/{project.id}/logs/{quote(entry.log_name, safe='')}"


def _judge(project: Project, field: str, how: str, values: tuple[str, ...]) -> Judge:
    value = values[0]
    if field in _MOMENTS:
        moment = _moment(value)
        return _number(how, moment, lambda entry: micros(entry.timestamp))
    if field == "severity":
        if value.upper() not in SEVERITIES:
            raise BadFilter(f"Unparseable filter: {value!r} is not a severity")
        wanted = SEVERITIES[value.upper()]
        return _number(how, wanted, lambda entry: SEVERITIES[entry.severity])
    if how == FUNCTION:
        if field != "log_id":
            raise BadFilter(f"Unparseable filter: unknown function {field!r}")
        return lambda entry: entry.log_name == value
    return _words(how, values, _text(field, project))


def _number(how: str, wanted: int, actual: Callable[[Entry], int]) -> Judge:
    ordered(how, wanted, wanted)  # refuses what has no order, also without entries
    return lambda entry: ordered(how, actual(entry), wanted)


def _words(how: str, values: tuple[str, ...], text: Text) -> Judge:
    if how == ":":
        lowered = tuple(value.lower() for value in values)
        return lambda entry: _holds_one(text(entry), lowered)
    (value,) = values
    compared(how, "", value)  # refuses a pattern that is none, also without entries

    def fits(entry: Entry) -> bool:
        actual = text(entry)
        return actual is not None and compared(how, actual, value)

    return fits


def _holds_one(text: str | None, lowered: tuple[str, ...]) -> bool:
    if text is None:
        return False
    actual = text.lower()
    return any(word in actual for word in lowered)


_TEXTS: Final[Mapping[str, Text]] = {
    "": lambda entry: "\n".join(_texts_in(entry.payload)) if entry.payload else entry.text,
    "textPayload": lambda entry: None if entry.payload else entry.text,
    "text_payload": lambda entry: None if entry.payload else entry.text,
    "insertId": operator.attrgetter("insert_id"),
    "insert_id": operator.attrgetter("insert_id"),
    "resource.type": operator.attrgetter("resource"),
}


def _text(field: str, project: Project) -> Text:
    """Give what reads a field of an entry: None where that has none."""
    if field in {"logName", "log_name"}:
        return lambda entry: log_name(project, entry)
    if field in _TEXTS:
        return _TEXTS[field]
    if label := _RESOURCE_LABEL.match(field):
        name = label["name"]
        return lambda entry: entry.labels.get(name)
    if label := _ENTRY_LABEL.match(field):
        own = label["name"]
        return lambda entry: entry.own_labels.get(own)
    first, _, rest = field.partition(".")
    if first in _JSON_PAYLOAD and rest:
        names = rest.split(".")
        return lambda entry: _inside(entry.payload, names)
    if first == "httpRequest":
        return lambda _entry: None
    raise BadFilter(f"Field not found: {field!r}.")


def _inside(payload: Any, names: Sequence[str]) -> str | None:
    """Follow names into a payload, to a text, a number or a truth."""
    for name in names:
        payload = payload.get(name) if isinstance(payload, dict) else None
    if isinstance(payload, str):
        return payload
    return json.dumps(payload) if isinstance(payload, (bool, int, float)) else None


def _texts_in(payload: Any) -> Iterator[str]:
    if isinstance(payload, dict):
        for value in payload.values():
            yield from _texts_in(value)
    elif isinstance(payload, list):
        for value in payload:
            yield from _texts_in(value)
    else:
        yield payload if isinstance(payload, str) else json.dumps(payload)


def _moment(text: str) -> int:
    """Read an RFC 3339 time, in microseconds."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError as exc:
        raise BadFilter(f"Unparseable filter: {text!r} is not a timestamp") from exc
    if read.tzinfo is None:
        raise BadFilter(f"Unparseable filter: {text!r} has no time zone")
    return micros(read.timestamp())


Key = tuple[float, str]
"""Moment and id: what entries are ordered by."""
_OUTPUT: Final = {False: "run.googleapis.com/stderr", True: "run.googleapis.com/varlog/system"}
_DOCKER: Final = "gcplogs-docker-driver"
_SCRIPT: Final = "vllm-devops"


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
        return [
            Entry(
                timestamp=at,
                text=text,
                insert_id=f"said-{number:016x}",
                payload={**shared["payload"], "message": text} if shared["payload"] else {},
                **{name: value for name, value in shared.items() if name != "payload"},
            )
            for number, (at, text) in enumerate(self.lines, first)
        ]

    def _shared(self, project: Project) -> dict[str, Any]:
        if self.service:
            return self._of_service(project)
        if self.platform:
            return self._of_node(project)
        if self.phase:
            own = {"deployment": self.vm, "phase": self.phase}
            return self._made("global", _SCRIPT, {}, {"phase": self.phase}) | {"own_labels": own}
        box = {"name": f"/vllm-devops-{self.vm}", "metadata": {"deployment": self.vm}}
        return self._made("gce_instance", _DOCKER, {"project_id": project.id}, {"container": box})

    def _of_service(self, project: Project) -> dict[str, Any]:
        path = _ending(project.services, f"/services/{self.service}")
        labels = {
            "project_id": project.id,
            "service_name": self.service,
            "revision_name": project.services[path].latest_created_revision.rpartition("/")[2],
            "configuration_name": self.service,
            "location": path.split("/")[3],
        }
        return self._made("cloud_run_revision", _OUTPUT[self.platform], labels, {})

    def _of_node(self, project: Project) -> dict[str, Any]:
        path = _ending(project.nodes, f"/nodes/vllm-devops-{self.vm}")
        node = path.rpartition("/")[2]
        labels = {"project_id": project.id, "zone": path.split("/")[3], "node_id": node}
        return self._made(
            "tpu_worker", "tpu.googleapis.com/runtime_monitor", labels, {"node": node}
        )

    def _made(
        self, resource: str, log: str, labels: dict[str, str], payload: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "resource": resource,
            "log_name": log,
            "labels": labels,
            "own_labels": {},
            "payload": payload,
            "severity": self.severity,
        }


class Said:
    """Those of one project in their order; kept only while the process lives."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._number = 0

    def add(self, project: Project, saying: Saying) -> int:
        """Put lines in, whatever moments they have; give how many there are now.

        Raises:
            LookupError: Nobody is there who could have written them.
        """
        fresh = saying.entries(project, self._number)
        self._number += len(fresh)
        kept = [one for one in self.entries if one.text != saying.without or not saying.without]
        self.entries = sorted([*kept, *fresh], key=key_of)
        return len(self.entries)


def key_of(entry: Entry) -> Key:
    """Give what an entry is ordered by."""
    return entry.timestamp, entry.insert_id


def in_order(entries: Sequence[Entry], after: Key | None, *, newest: bool) -> Iterator[Entry]:
    """Give those that come after a key, in either order; `entries` are oldest first."""
    if newest:
        end = len(entries) if after is None else bisect_left(entries, after, key=key_of)
        return (entries[place] for place in range(end - 1, -1, -1))
    begin = 0 if after is None else bisect_right(entries, after, key=key_of)
    return (entries[place] for place in range(begin, len(entries)))


def _ending(named: dict[str, Any], end: str) -> str:
    found = next((name for name in sorted(named) if name.endswith(end)), None)
    if found is None:
        raise LookupError(f"There is no {end[1:]}.")
    return found


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
