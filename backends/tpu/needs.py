"""What a project must have before a chip can be asked for in it, from `needs.toml`."""

from functools import cache

from backends.common.preflight import read_needs
from backends.google.iam import Api, Permissions, Role
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
    return Needs.model_validate(read_needs("tpu"))


def needed(made: Blueprint) -> set[str]:
    """Give which needs a deployment has: every, queued, compute, external, opened."""
    planes = {place.plane for place in made.places}
    external = {"external"} if made.external_ip and "compute" in planes else set()
    return {"every", *planes, *external, *({"opened"} if made.opened else set())}
