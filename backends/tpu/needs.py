"""What a project must have before a chip can be asked for in it, from `needs.toml`."""

import tomllib
from functools import cache
from pathlib import Path

from backends.google.needs import Api, Permissions, Role
from backends.tpu.blueprint import Blueprint
from core.record import Record


class Needs(Record):
    """Everything that is needed."""

    title: str
    """Of the cloud."""
    also: tuple[str, ...]
    """What people call it."""
    apis: tuple[Api, ...]
    roles: tuple[Role, ...]
    """Of the runtime account, in the project."""
    permissions: tuple[Permissions, ...]


@cache
def needs() -> Needs:
    """Read them, once."""
    text = Path(__file__).with_name("needs.toml").read_text(encoding="utf-8")
    return Needs.model_validate(tomllib.loads(text))


def needed(made: Blueprint) -> set[str]:
    """Give which needs a deployment has: every, queued, compute, opened; questions stop nothing."""
    opened = {"opened"} if made.opened else set()
    return {"every", *(place.plane for place in made.places), *opened}
