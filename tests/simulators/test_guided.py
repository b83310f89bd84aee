"""`response_format`: whatever is asked for as a schema, the answer satisfies it."""

import json
from typing import Any, Final

import pytest

from tests.simulators.conftest import Simulate

pytestmark = pytest.mark.anyio

CHAT: Final = "/v1/chat/completions"
ASK: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "hello"}]}
CLAIM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 40},
        "lines": {
            "type": "array",
            "items": {"type": "string", "enum": ["L1", "L2", "L3"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["text", "lines"],
    "additionalProperties": False,
}
CLAIMS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"claims": {"type": "array", "items": CLAIM, "maxItems": 3}},
    "required": ["claims"],
}
WORDS: Final = "words that the simulated engine made up and that mean nothing"


def deep(levels: int) -> dict[str, Any]:
    """A schema of objects within objects."""
    return {"properties": {"in": deep(levels - 1)}} if levels else {"type": "object"}


def of(schema: Any) -> dict[str, Any]:
    """The field of a request that asks for this schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (CLAIMS, {"claims": [{"text": WORDS[:40], "lines": ["L1", "L2"]}] * 2}),
        ({"type": "string", "minLength": 65}, f"{WORDS} wor"),
        ({"type": "string", "maxLength": 3}, "wor"),
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "number", "maximum": -2}, -2.0),
        ({"type": ["null", "string"]}, None),
        ({"type": "boolean"}, True),
        ({"enum": [4, "b"]}, 4),
        ({"const": {"a": 1}}, {"a": 1}),
        ({"type": "array", "minItems": 3, "items": {"type": "integer"}}, [1, 1, 1]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, 1),
        ({"$ref": "#/$defs/one", "$defs": {"one": {"type": "null"}}}, None),
        (
            {"properties": {"free": {}}, "required": ["free", "more"]},
            {"free": WORDS, "more": WORDS},
        ),
    ],
)
async def test_an_answer_satisfies_its_schema(simulate: Simulate, schema: Any, said: Any) -> None:
    """Whole and streamed, in a chat and in a completion, whatever the model would have said."""
    form = of(schema)
    async with simulate(reply="plain words") as engine:
        whole = (await engine.post(CHAT, **ASK, response_format=form)).json()["choices"][0]
        *chunks, _ = await engine.events(CHAT, **ASK, response_format=form)
        text = await engine.post(
            "/v1/completions", prompt="hello", max_tokens=900, response_format=form
        )
    pieces = [json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in chunks]
    heard = (whole["message"]["content"], "".join(pieces), text.json()["choices"][0]["text"])
    assert [json.loads(one) for one in heard] == [said] * 3
    assert whole["finish_reason"] == "stop"


async def test_items_of_an_enum_are_different_ones(simulate: Simulate) -> None:
    """An answer that cites lines cites several."""
    async with simulate() as engine:
        reply = (await engine.post(CHAT, **ASK, response_format=of(CLAIMS))).json()
    said = json.loads(reply["choices"][0]["message"]["content"])
    assert said["claims"][0]["lines"] == ["L1", "L2"]


async def test_too_few_tokens_leave_half_an_object(simulate: Simulate) -> None:
    """Guided decoding cannot end what max_tokens cuts; the reason says so."""
    async with simulate() as engine:
        asked = {**ASK, "max_tokens": 6, "response_format": of(CLAIMS)}
        choice = (await engine.post(CHAT, **asked)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    with pytest.raises(ValueError, match=r"."):
        json.loads(choice["message"]["content"])


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"type": "text"}, "plain words"),
        ({"type": "json_object"}, "{}"),
        (None, "plain words"),
    ],
)
async def test_other_formats_are_kept_too(simulate: Simulate, form: Any, said: str) -> None:
    """Free text stays free, and any object is an object."""
    async with simulate(reply="plain words") as engine:
        reply = (await engine.post(CHAT, **ASK, response_format=form)).json()
    assert reply["choices"][0]["message"]["content"] == said


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"type": "json_schema"}, "the 'json_schema' field must be provided"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "one kind of structured outputs"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "Field required"),
        ({"type": "yaml"}, "validation error"),
        (of(deep(40)), "nested too deeply"),
        (of({"type": "nonsense"}), "Grammar error: Invalid type: nonsense"),
        (of({"enum": []}), "Grammar error"),
        (of({"$ref": "#/$defs/none"}), "Pointer '/$defs/none' does not exist"),
        (of({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "Grammar error"),
        (of({"type": "array", "items": 3}), "Grammar error"),
        (
            of({"type": "array", "minItems": 2, "maxItems": 1}),
            "minItems (2) is greater than maxItems (1)",
        ),
        (of({"type": "string", "minLength": 2, "maxLength": 1}), "Grammar error"),
        (of({"type": "string", "pattern": "a+"}), "Grammar error"),
    ],
)
async def test_what_cannot_be_held_to_is_refused(simulate: Simulate, form: Any, words: str) -> None:
    """As a bad request, before anything is generated."""
    async with simulate() as engine:
        reply = await engine.post(CHAT, **ASK, response_format=form)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
