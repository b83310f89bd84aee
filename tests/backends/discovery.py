"""What Google's documents say of a body: nothing in it is unknown, mistyped or theirs to set."""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final

_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}

_OUTPUT: Final = re.compile(r"\[?Output only", re.IGNORECASE)
"""How a description begins of what Compute Engine alone sets."""


@functools.cache
def document(name: str) -> Mapping[str, Any]:
    """Read the schemas of one API, such as `run.v2`."""
    folder = resources.files("googleapiclient") / "discovery_cache" / "documents"
    text = (folder / f"{name}.json").read_text(encoding="utf-8")
    schemas: Mapping[str, Any] = json.loads(text)["schemas"]
    return schemas


def faults(api: str, schema: str, body: Any) -> list[str]:
    """Everything in a body that the API's document does not know."""
    return list(_object(document(api), document(api)[schema], body, schema))


def _object(
    schemas: Mapping[str, Any], schema: Mapping[str, Any], body: Any, at: str
) -> Iterator[str]:
    if not isinstance(body, dict):
        yield f"{at}: no object"
        return
    known, other = schema.get("properties", {}), schema.get("additionalProperties")
    for name, value in body.items():
        rule = known.get(name, other)
        if rule is None:
            yield f"{at}.{name}: unknown"
        elif rule.get("readOnly") or _OUTPUT.match(rule.get("description", "")):
            yield f"{at}.{name}: only Google sets it"
        else:
            yield from _value(schemas, rule, value, f"{at}.{name}")


def _value(
    schemas: Mapping[str, Any], rule: Mapping[str, Any], value: Any, at: str
) -> Iterator[str]:
    if "$ref" in rule:
        yield from _object(schemas, schemas[rule["$ref"]], value, at)
    elif rule["type"] == "array" and isinstance(value, list):
        for position, item in enumerate(value):
            yield from _value(schemas, rule["items"], item, f"{at}[{position}]")
    elif rule["type"] == "object":
        yield from _object(schemas, rule, value, at)
    elif rule["type"] != "any" and not _is(rule["type"], value):
        yield f"{at}: {value!r} is no {rule['type']}"
    elif "enum" in rule and value not in rule["enum"]:
        yield f"{at}: {value!r} is none of its words"


def _is(kind: str, value: Any) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
