"""What a project must have before anything can be deployed to it, from `needs.toml`."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

from core.record import Record
from core.records import DeploymentSpec

Who = Literal["every", "ollama", "bucket", "questions"]


class Api(Record):
    """One API that is to be enabled."""

    name: str
    needed_by: Who


class Role(Record):
    """One role of an account of ours."""

    name: str
    why: str


class Permissions(Record):
    """What whoever deploys must be allowed to do."""

    role: str
    """Which holds them all."""
    needed_by: Who
    names: tuple[str, ...]


class Needs(Record):
    """Everything that is needed."""

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


def needed(spec: DeploymentSpec) -> set[Who]:
    """Give which needs a deployment has."""
    found: set[Who] = {"every"}
    if spec.engine == "ollama":
        found.add("ollama")
    if (spec.weights or "").startswith("gs://"):
        found.add("bucket")
    return found
