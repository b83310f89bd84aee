"""What Microsoft's own schema says of a body, made strict: nothing in it is unknown or mistyped.

The schema is of version 2026-01-01; it lies beside the project, and not in it.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from core.environment import ROOT

_FOLDER: Final = ROOT.parent / "shared" / "contracts" / "azure"
_FILE: Final = _FOLDER / "Microsoft.App.ContainerApps.2026-01-01.json"
HERE: Final = _FILE.is_file()
WHY_NOT: Final = "Microsoft's ARM schema is not beside the project: shared/contracts/azure."
_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}
_TEMPLATE: Final = ("apiVersion", "name", "resources", "type")
"""What a template has and a body on the wire has not."""


@functools.cache
def document() -> Mapping[str, Any]:
    """Read it."""
    read: Mapping[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return read


def faults(resource: str, body: Any, *, only_read: frozenset[str] = frozenset()) -> list[str]:
    """Everything in a body of `managedEnvironments` or another resource that it does not know.

    `only_read` are names that an answer may have beside them.
    """
    schema = document()["resourceDefinitions"][resource]
    known = {key: rule for key, rule in schema["properties"].items() if key not in _TEMPLATE}
    needed = [key for key in schema.get("required", ()) if key not in _TEMPLATE]
    return list(_object({"properties": known, "required": needed}, body, resource, only_read))


def _object(
    schema: Mapping[str, Any], body: Any, at: str, only_read: frozenset[str]
) -> Iterator[str]:
    if not isinstance(body, dict):
        yield f"{at}: no object"
        return
    known, other = schema.get("properties", {}), schema.get("additionalProperties")
    yield from (f"{at}.{name}: missing" for name in schema.get("required", ()) if name not in body)
    for name, value in body.items():
        rule = known.get(name, other if isinstance(other, dict) else None)
        if rule is not None:
            yield from _value(rule, value, f"{at}.{name}", only_read)
        elif name not in only_read:
            yield f"{at}.{name}: unknown"


def _value(
    rule: Mapping[str, Any], value: Any, at: str, only_read: frozenset[str]
) -> Iterator[str]:
    rule = _resolved(rule)
    if rule.get("type") == "array" and isinstance(value, list):
        for position, item in enumerate(value):
            yield from _value(rule["items"], item, f"{at}[{position}]", only_read)
    elif rule.get("type") == "object":
        yield from _object(rule, value, at, only_read)
    elif "type" in rule and not _is(rule["type"], value):
        yield f"{at}: {value!r} is no {rule['type']}"
    elif "enum" in rule and value not in rule["enum"]:
        yield f"{at}: {value!r} is none of its words"


def _resolved(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references, and leave out what only templates may say: an expression."""
    if "oneOf" in rule:
        (rule,) = [one for one in rule["oneOf"] if not _foreign(one)]
        return _resolved(rule)
    if "$ref" in rule:
        return _resolved(document()["definitions"][rule["$ref"].rsplit("/", 1)[-1]])
    return rule


def _foreign(rule: Mapping[str, Any]) -> bool:
    return str(rule.get("$ref", "")).startswith("https://")


def _is(kind: str, value: Any) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
