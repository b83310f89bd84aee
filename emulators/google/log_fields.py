"""What a comparison of a filter means for an entry of Cloud Logging."""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from emulators.google import filters
from emulators.google.filters import BadFilter
from emulators.google.state import Entry, Project

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

    return filters.compiled(filters.parse(words), one)


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
    if how == filters.FUNCTION:
        if field != "log_id":
            raise BadFilter(f"Unparseable filter: unknown function {field!r}")
        return lambda entry: entry.log_name == value
    return _words(how, values, _text(field, project))


def _number(how: str, wanted: int, actual: Callable[[Entry], int]) -> Judge:
    filters.ordered(how, wanted, wanted)  # refuses what has no order, also without entries
    return lambda entry: filters.ordered(how, actual(entry), wanted)


def _words(how: str, values: tuple[str, ...], text: Text) -> Judge:
    if how == ":":
        lowered = tuple(value.lower() for value in values)
        return lambda entry: _holds_one(text(entry), lowered)
    (value,) = values
    filters.compared(how, "", value)  # refuses a pattern that is none, also without entries

    def fits(entry: Entry) -> bool:
        actual = text(entry)
        return actual is not None and filters.compared(how, actual, value)

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
