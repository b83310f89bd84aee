"""What a project must have before anything can be deployed to it, from `needs.toml`."""

from functools import cache

from backends.common.needs import read_needs
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
    return Needs.model_validate(read_needs("cloud_run"))


def needed(spec: DeploymentSpec, caller: str | None) -> set[str]:
    """Give which needs a deployment has; `caller` is the account that is to ask its model."""
    found: set[str] = {"every", "ollama" if spec.engine == "ollama" else "keyed"}
    if (spec.weights or "").startswith("gs://"):
        found.add("bucket")
    if spec.access != "public":
        found.add("granting" if caller else "asking")
    return found
