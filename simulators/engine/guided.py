"""JSON that satisfies a schema, as guided decoding makes any model write it."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from simulators.engine.wire_errors import WireError, invalid

MOST_NESTING: Final = 64
"""Levels of objects and arrays in a schema. Source: vllm/sampling_params.py, vLLM 0.32.0."""
_SOME: Final = 2
"""Items of an array whose schema allows as many."""
_WORDS: Final = "words that the simulated engine made up and that mean nothing "


_ONE_KIND: Final = "You can only use one kind of structured outputs constraint"
_NO_KIND: Final = "You must use one kind of structured outputs constraint but none are specified: "


class JsonSchema(BaseModel):
    """A named schema; the name tells nothing."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    body: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """Which form the answer is held to."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BaseModel):
    """vLLM's own way to say it: exactly one kind."""

    model_config = ConfigDict(frozen=True)

    json_: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    @property
    def kinds(self) -> list[str]:
        """What of it is set."""
        named = {"json": self.json_, "json_object": self.json_object, "regex": self.regex}
        more = {"choice": self.choice, "grammar": self.grammar, "tag": self.structural_tag}
        return [name for name, value in {**named, **more}.items() if value is not None]

    @property
    def count(self) -> int:
        """How many kinds are set."""
        return len(self.kinds)


class _Schema(NamedTuple):
    """One schema within its whole, and the how manieth sibling it is for."""

    rules: Mapping[str, Any]
    whole: Mapping[str, Any]
    number: int = 0

    def of(self, rules: Any, number: int | None = None) -> "_Schema":
        """Give a part of it."""
        if not isinstance(rules, Mapping):
            raise _refused("a schema is an object")
        return _Schema(rules, self.whole, self.number if number is None else number)


def require_schema(data: Mapping[str, Any]) -> None:
    """Refuse a format that names a schema and has none."""
    wanted = data.get("response_format")
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        return
    if wanted.get("json_schema") is None:
        raise invalid(
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
            "response_format",
        )


def guided(wanted: ResponseFormat | None, ours: StructuredOutputs | None = None) -> str:
    """Give the JSON to say; nothing where the answer is free, or held to a regex or a grammar.

    Raises:
        WireError: vLLM refuses the schema, or it is beyond the simulated engine.
    """
    if ours and wanted and wanted.type != "text" and (ours.count > 1 or _other(wanted, ours)):
        raise WireError(f"{_ONE_KIND} but multiple are specified: {ours.model_dump()}")
    if wanted is None or wanted.type == "text":
        return _ours(ours) if ours else ""
    if wanted.type == "json_object":
        return "{}"
    schema = wanted.json_schema.body if wanted.json_schema else None
    if schema is None:
        nothing = dict.fromkeys(("json", "regex", "choice", "grammar", "json_object"))
        more = {"disable_any_whitespace": False, "disable_additional_properties": False}
        last = dict.fromkeys(("whitespace_pattern", "structural_tag", "_backend"))
        raise WireError(f"{_NO_KIND}{ {**nothing, **more, **last, '_backend_was_auto': False} }")
    return _json_of(schema)


def _other(wanted: ResponseFormat, ours: StructuredOutputs) -> bool:
    own = "json_object" if wanted.type == "json_object" else "json"
    return own not in ours.kinds


def _ours(wanted: StructuredOutputs) -> str:
    if wanted.count != 1:
        raise WireError(f"{_NO_KIND}{wanted.model_dump()}")
    if wanted.json_object is False:
        raise WireError(
            "structured_outputs.json_object must be True if set; omit structured_outputs to "
            "disable structured outputs"
        )
    if wanted.choice is not None:
        if not wanted.choice:
            raise WireError("Choice '[]' cannot be an empty list")
        return wanted.choice[0]
    if wanted.regex is not None:
        try:
            re.compile(wanted.regex)
        except re.error as error:
            raise _refused(f'invalid regex "{wanted.regex}" (in regex): {error}') from error
    if wanted.grammar is not None and "::=" not in wanted.grammar:
        raise WireError("Invalid grammar specification: Expected ::=")
    if wanted.structural_tag is not None:
        raise WireError("Invalid structured_outputs structural_tag specification.")
    if wanted.json_object:
        return "{}"
    return _json_of(_schema_of(wanted.json_)) if wanted.json_ is not None else ""


def _schema_of(given: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    try:
        read = json.loads(given)
    except json.JSONDecodeError as error:
        raise WireError("Invalid JSON grammar specification.") from error
    return read if isinstance(read, dict) else {}


def _json_of(schema: dict[str, Any]) -> str:
    if _nesting(schema) > MOST_NESTING:
        raise WireError(
            "The JSON schema is nested too deeply: objects and arrays may nest at most "
            f"{MOST_NESTING} levels"
        )
    return json.dumps(_made(_Schema(schema, schema), 0), ensure_ascii=False)


def _nesting(value: Any) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        if depth > MOST_NESTING:
            break
    return depth


def _made(schema: _Schema, depth: int) -> Any:
    rules = schema.rules
    if depth > MOST_NESTING:
        raise _refused("a $ref that has no end")
    if "const" in rules:
        return rules["const"]
    if "enum" in rules:
        return _chosen(rules["enum"], schema.number)
    if "$ref" in rules or "anyOf" in rules:
        return _made(schema.of(_referred(schema)), depth + 1)
    return _MAKERS[_kind(rules)](schema, depth)


def _kind(rules: Mapping[str, Any]) -> str:
    kind = rules.get("type", "object" if "properties" in rules else "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind not in _MAKERS:
        raise _refused(f"Invalid type: {kind}")
    return str(kind)


def _referred(schema: _Schema) -> Any:
    if options := schema.rules.get("anyOf"):
        return options[0]
    path = str(schema.rules["$ref"])
    found: Any = schema.whole
    for step in path.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    if not path.startswith("#/") or found is None:
        raise _refused(f"Pointer '{path.removeprefix('#')}' does not exist")
    return found


def _chosen(options: Any, number: int) -> Any:
    if not isinstance(options, list) or not options:
        raise _refused("Unsatisfiable schema: anyOf is empty")
    return options[number % len(options)]


def _object(schema: _Schema, depth: int) -> dict[str, Any]:
    parts = schema.rules.get("properties", {})
    wanted = dict.fromkeys([*parts, *schema.rules.get("required", ())])
    return {name: _made(schema.of(parts.get(name, {})), depth + 1) for name in wanted}


def _array(schema: _Schema, depth: int) -> list[Any]:
    least, most = schema.rules.get("minItems", 0), schema.rules.get("maxItems", _SOME)
    _require_room("Items", schema.rules)
    items = schema.rules.get("items", {})
    count = max(least, min(_SOME, most))
    return [_made(schema.of(items, number), depth + 1) for number in range(count)]


def _string(schema: _Schema, _depth: int) -> str:
    rules = schema.rules
    if "pattern" in rules or "format" in rules:
        raise _refused("the simulated engine makes no text for a pattern or a format")
    least, most = rules.get("minLength", 0), rules.get("maxLength", len(_WORDS))
    _require_room("Length", rules)
    words: str = _WORDS * (1 + least // len(_WORDS))
    return words[: max(least, min(most, len(_WORDS) - 1))]


def _number(schema: _Schema, _depth: int) -> float:
    least, most = schema.rules.get("minimum", 1), schema.rules.get("maximum")
    return float(least if most is None else min(least, most))


def _require_room(what: str, rules: Mapping[str, Any]) -> None:
    least, most = rules.get(f"min{what}", 0), rules.get(f"max{what}")
    if most is not None and least > most:
        raise _refused(
            f"Unsatisfiable schema: min{what} ({least}) is greater than max{what} ({most})"
        )


def _refused(why: str) -> WireError:
    return WireError(f"Grammar error: {why}")


_MAKERS: Final[dict[str, Callable[[_Schema, int], Any]]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "number": _number,
    "integer": lambda schema, depth: int(_number(schema, depth)),
    "boolean": lambda _schema, _depth: True,
    "null": lambda _schema, _depth: None,
}
