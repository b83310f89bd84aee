"""Values written for a person."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """With block style for long text."""


def _write(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write)


def as_yaml(values: Mapping[str, Any]) -> str:
    """Write values in their order; text of several lines stays readable."""
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, width=1000)
    return text


def assigned(values: Mapping[str, object]) -> Iterable[str]:
    """Write pairs as shells and command lines do."""
    return [f"{name}={value}" for name, value in values.items()]
