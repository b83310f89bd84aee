"""What a project must have before anything can be deployed to it, from `needs.toml`."""

import tomllib
from functools import cache
from pathlib import Path

from backends.google.needs import Api, Permissions, Role
from core.record import Record
from core.records import DeploymentSpec


class Needs(Record):
    """Everything that is needed."""

    title: str
    """Of the cloud."""
    also: tuple[str, ...]
    """What people call it."""
    apis: tuple[Api, ...]
    roles: tuple[Role, ...]
    """Of the runtime account, in the project."""
    builder_roles: tuple[Role, ...]
    """Of the account that images are built as, in the project."""
    repository_roles: tuple[Role, ...]
    """Of that account, on the repository."""
    permissions: tuple[Permissions, ...]


@cache
def needs() -> Needs:
    """Read them, once."""
    text = Path(__file__).with_name("needs.toml").read_text(encoding="utf-8")
    return Needs.model_validate(tomllib.loads(text))


def needed(spec: DeploymentSpec) -> set[str]:
    """Give which needs a deployment has: every, ollama, bucket; questions stop nothing."""
    found: set[str] = {"every"}
    if spec.engine == "ollama":
        found.add("ollama")
    if (spec.weights or "").startswith("gs://"):
        found.add("bucket")
    return found
