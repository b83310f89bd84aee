"""Typed messages of Google's as its documents describe them: JSON, and YAML for a person."""

from collections.abc import Mapping
from typing import Any


def as_sent(message: Any) -> dict[str, Any]:
    """Give a message as JSON, without what is unset."""
    from google.protobuf.json_format import MessageToDict

    pb = type(message).pb(message) if hasattr(type(message), "pb") else message
    sent: dict[str, Any] = MessageToDict(pb)
    return sent


def as_yaml(values: Mapping[str, Any]) -> str:
    """Write values in their order; text of several lines stays readable."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """With block style for long text."""

    def write(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, write)
    text: str = yaml.dump(dict(values), Dumper=Dumper, sort_keys=False, width=1000)
    return text
