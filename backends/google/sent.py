"""Typed messages of Google's as its documents describe them."""

from typing import Any


def as_sent(message: Any) -> dict[str, Any]:
    """Give a message as JSON, without what is unset."""
    from google.protobuf.json_format import MessageToDict

    pb = type(message).pb(message) if hasattr(type(message), "pb") else message
    sent: dict[str, Any] = MessageToDict(pb)
    return sent
