"""JSON with comments and TOML, changed in place: what is not meant stays as it was."""

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_REST_OF_LINE: Final = re.compile(r"(?:[ \t]|/\*[^\n]*?\*/)*(?://[^\r\n]*)?")
_INDENTED: Final = re.compile(r"\n([ \t]+)[^ \t\r\n]")


class _Member(NamedTuple):
    key: str
    start: int
    value: "_Node"
    comma: int | None
    """Where the comma after it stands."""


class _Node(NamedTuple):
    start: int
    end: int
    value: Any
    members: tuple[_Member, ...] | None = None
    """Of an object."""


def read_jsonc(text: str) -> Any:
    """Give the value; an empty text is an empty object, commas may follow the last of anything.

    Raises:
        ValueError: It is no JSON; the message names the line and quotes nothing.
    """
    return _document(text).value


def put_jsonc(text: str, path: Sequence[str], value: Any) -> str:
    """Set one member, making the objects on the way to it.

    Raises:
        ValueError: It is no JSON, or something on the way is no object.
    """
    text = text if text.strip() else "{}\n"
    node, rest = _reached(text, path)
    if not rest:
        return text[: node.start] + _written(text, value, node.start) + text[node.end :]
    for key in reversed(rest[1:]):
        value = {key: value}
    return _with_member(text, node, rest[0], value)


def drop(text: str, path: Sequence[str]) -> str:
    """Take one member away, with its line.

    Raises:
        ValueError: It is no JSON, or has no such member.
    """
    owner, rest = _reached(text, path[:-1])
    found = [] if rest else [one for one in owner.members or () if one.key == path[-1]]
    if not found:
        raise ValueError("there is no such member")
    gone = found[0]
    line = text.rfind("\n", 0, gone.start) + 1
    start = line - 1 if line and not text[line : gone.start].strip() else gone.start
    if gone.comma is not None:
        return text[:start].removesuffix("\r") + text[gone.comma + 1 :]
    before = [one.comma for one in owner.members or () if one.comma is not None]
    head = text[:start].removesuffix("\r")
    if before:
        head = head[: before[-1]] + head[before[-1] + 1 :]
    return head + text[gone.value.end :]


def _reached(text: str, path: Sequence[str]) -> tuple[_Node, Sequence[str]]:
    """Go along the path as far as it exists; give the last node and what is left."""
    node, rest = _document(text), tuple(path)
    while rest:
        if node.members is None:
            raise ValueError(f"'{path[len(path) - len(rest) - 1]}' is no object")
        found = [one for one in node.members if one.key == rest[0]]
        if len(found) > 1:
            raise ValueError(f"'{rest[0]}' is there twice")
        if not found:
            break
        node, rest = found[0].value, rest[1:]
    return node, rest


def _with_member(text: str, owner: _Node, key: str, value: Any) -> str:
    """Write a member below the last one and whatever is said of that on its line."""
    newline = _newline(text)
    last = owner.members[-1] if owner.members else None
    outer = _indent_at(text, owner.start)
    inner = _indent_at(text, last.start) if last and _begins_line(text, last.start) else ""
    inner = inner or outer + _unit(text)
    if last is None:
        after, comma = owner.start + 1, ""
    else:
        after, comma = last.value.end, "" if last.comma is not None else ","
    said = _end_of_line(text, after if last is None or last.comma is None else last.comma + 1)
    head = text[:after] + comma + text[after:said].rstrip(" \t")
    body = _lines(value, inner, _unit(text), newline)
    more = "," if last and last.comma is not None else ""
    closing = "" if "\n" in text[said : owner.end] else newline + outer
    member = f"{newline}{inner}{json.dumps(key, ensure_ascii=False)}: {body}{more}{closing}"
    return head + member + text[said:]


def _end_of_line(text: str, at: int) -> int:
    found = _REST_OF_LINE.match(text, at)
    return found.end() if found else at


def _written(text: str, value: Any, at: int) -> str:
    return _lines(value, _indent_at(text, at), _unit(text), _newline(text))


def _lines(value: Any, indent: str, unit: str, newline: str) -> str:
    plain = json.dumps(value, indent=unit, ensure_ascii=False)
    return plain.replace("\n", newline + indent)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _unit(text: str) -> str:
    found = _INDENTED.search(text)
    return found.group(1) if found else "  "


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip(" \t")


def _document(text: str) -> _Node:
    if not text.strip():
        return _Node(0, 0, {}, ())
    node = _value(text, _skip(text, 0))
    end = _skip(text, node.end)
    if end != len(text):
        _wrong(text, end)
    return node


def _value(text: str, at: int) -> _Node:
    if text.startswith("{", at):
        return _object(text, at)
    if text.startswith("[", at):
        return _array(text, at)
    try:
        value, end = _SCALARS.raw_decode(text, at)
    except ValueError:
        _wrong(text, at)
    return _Node(at, end, value)


def _object(text: str, start: int) -> _Node:
    members: list[_Member] = []
    at = _skip(text, start + 1)
    while not text.startswith("}", at):
        if (members and members[-1].comma is None) or not text.startswith('"', at):
            _wrong(text, at)
        key = _value(text, at)
        colon = _skip(text, key.end)
        if not text.startswith(":", colon):
            _wrong(text, colon)
        value = _value(text, _skip(text, colon + 1))
        after = _skip(text, value.end)
        comma = after if text.startswith(",", after) else None
        members.append(_Member(key.value, at, value, comma))
        at = after if comma is None else _skip(text, comma + 1)
    return _Node(start, at + 1, {one.key: one.value.value for one in members}, tuple(members))


def _array(text: str, start: int) -> _Node:
    values: list[Any] = []
    at, more = _skip(text, start + 1), True
    while not text.startswith("]", at):
        if not more:
            _wrong(text, at)
        node = _value(text, at)
        values.append(node.value)
        at = _skip(text, node.end)
        more = text.startswith(",", at)
        at = _skip(text, at + 1) if more else at
    return _Node(start, at + 1, values)


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _wrong(text: str, at: int) -> NoReturn:
    raise ValueError(f"line {text.count(chr(10), 0, at) + 1} is not as JSON wants it")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


_SCALARS: Final = json.JSONDecoder(parse_constant=_no_constant)


def read_toml(text: str) -> dict[str, Any]:
    """Give the tables.

    Raises:
        ValueError: It is no TOML; the message names the line.
    """
    return tomllib.loads(text)


def put_toml(
    text: str, path: tuple[str, str], fields: Mapping[str, Any], gone: Collection[str] = ()
) -> str:
    """Set fields of the table `path`, which is made if need be, and take others away.

    Raises:
        ValueError: It is no TOML, or something on the way is no table.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document: Any = tomlkit.parse(text)
        under, key = path
        if under not in document:
            document[under] = tomlkit.table(is_super_table=True)
        new = key not in document[under]
        if new:
            document[under][key] = tomlkit.table()
        table = document[under][key]
        for name in gone:
            del table[name]
        for name, value in fields.items():
            table[name] = value
        if new:
            table.add(tomlkit.nl())  # apart from the table that follows, if one does
        written = tomlkit.dumps(document)
        return _as_there(_apart(written, text, path) if new else written, text)
    except (TOMLKitError, TypeError, AttributeError) as exc:
        raise ValueError("its tables are written in a way that cannot be added to") from exc


def _apart(new: str, old: str, path: tuple[str, str]) -> str:
    """Leave a line free before the table, and none at the end of the file."""
    before, header, rest = new.partition(f"\n[{'.'.join(path)}]")
    space = "\n" if header and before.strip() and not before.endswith("\n") else ""
    text = f"{before}{space}{header}{rest}"
    return text.removesuffix("\n") if text.endswith("\n\n") and not old.endswith("\n\n") else text


def _as_there(new: str, old: str) -> str:
    """End our lines as all of the others do."""
    lines = old.count("\n")
    if not lines or old.count("\r\n") != lines:
        return new
    return new.replace("\r\n", "\n").replace("\n", "\r\n")
