"""What a project must have before anything can be deployed to it: each backend says which."""

from core.record import Record


class Api(Record):
    """One API that is to be enabled."""

    name: str
    needed_by: str


class Role(Record):
    """One role of an account of ours."""

    name: str
    why: str


class Permissions(Record):
    """What whoever deploys must be allowed to do."""

    role: str
    """Which holds them all."""
    why: str
    needed_by: str
    names: tuple[str, ...]
