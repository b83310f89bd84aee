"""What `make clients` calls wrong, each by itself."""

from typing import Any

import pytest

from tests.clients.seen import Seen, complaints, halves
from tests.clients.wire import Call, Wire

NAMES = ("get_help", "destroy_vllm")
SEEN = Seen(NAMES, ("**2 tools and 1 settings.**",))
WIRE = Wire(
    tools=NAMES, calls=(Call("get_help", "ok"), Call("destroy_vllm", "CONFIRMATION_REQUIRED"))
)
ASKING = WIRE._replace(
    elicitation=("form",), asked=1, calls=(WIRE.calls[0], Call("destroy_vllm", "CANCELLED"))
)
DELETED = WIRE._replace(calls=(WIRE.calls[0], Call("destroy_vllm", "ok")))


def test_a_client_that_cannot_ask_gets_the_token() -> None:
    """Nothing is deleted by it alone."""
    assert complaints(SEEN, WIRE, NAMES, kept=True) == []


def test_a_client_that_can_ask_is_made_to() -> None:
    """Where nobody answers, nothing is deleted."""
    assert complaints(SEEN, ASKING, NAMES, kept=True) == []


def test_what_was_agreed_to_is_gone() -> None:
    """By a human, or with the token."""
    assert complaints(SEEN._replace(agreed=True), DELETED, NAMES, kept=False) == []


@pytest.mark.parametrize(
    ("seen", "wire", "kept", "said"),
    [
        ({"tools": ("get_help",)}, {}, True, "The client has other tools: 1 of 2"),
        ({"tools": (*NAMES, NAMES[0])}, {}, True, "The client has other tools: 3 of 2"),
        ({"told": ()}, {}, True, "Of its answer there arrived"),
        ({"told": ("Error",)}, {}, True, "Of its answer there arrived"),
        ({}, {"tools": ()}, True, "The server listed other tools"),
        ({}, {"calls": WIRE.calls[1:]}, True, "get_help ended as None"),
        ({}, {"calls": WIRE.calls[:1]}, True, "destroy_vllm ended as None"),
        ({}, {}, False, "The deployment is gone."),
        ({}, {"asked": 1}, True, "A human was asked 1 times"),
    ],
)
def test_each_fault_is_named_by_itself(
    seen: dict[str, Any],
    wire: dict[str, Any],
    kept: bool,  # noqa: FBT001  a column of the table above
    said: str,
) -> None:
    """One thing that is wrong is one complaint, whatever else is well."""
    found = complaints(SEEN._replace(**seen), WIRE._replace(**wire), NAMES, kept=kept)
    assert len(found) == 1
    assert found[0].startswith(said)


def test_a_deletion_that_nobody_agreed_to_is_told() -> None:
    """The one thing that must never happen."""
    found = complaints(SEEN, DELETED, NAMES, kept=False)
    assert found[0].startswith("destroy_vllm ended as 'ok'")
    assert found[1] == "The deployment is gone."


def test_a_client_that_can_ask_and_is_not_made_to_is_told() -> None:
    """The token is for those that cannot."""
    found = complaints(SEEN, WIRE._replace(elicitation=("form",)), NAMES, kept=True)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("told", "arrived"),
    [
        ("**23 tools and 7 settings.**\n", "text"),
        ('{"ok": true, "summary": "23 tools"}', "structured"),
        ('"{\\"ok\\":true}"', "structured"),
        ('{"content": "**9 tools and", "structuredContent": {"ok": true}}', "text and structured"),
        ("Error: connection closed", ""),
    ],
)
def test_what_arrives_is_told_apart(told: str, arrived: str) -> None:
    """Some clients pass on the text, some the structured half, some both."""
    assert halves(told) == arrived
