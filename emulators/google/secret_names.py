"""Names, versions and states of the simulated secrets."""

import re
import time
from typing import Any, Final

from google.cloud.secretmanager_v1.types import SecretVersion
from google.protobuf.timestamp_pb2 import Timestamp

from emulators.google import filters
from emulators.google.refusing import Refused, invalid
from emulators.google.state import Project, Secret, Version

_NAME: Final = re.compile(
    r"^projects/[^/]+(?:/locations/[^/]+)?/secrets/(?P<id>[^/]+)(?:/versions/(?P<version>[^/]+))?$"
)


def path(project: Project, name: str) -> str:
    """Give a secret's full name, which has the project's number."""
    return f"projects/{project.number}/secrets/{name}"


def parts(name: str) -> tuple[str, str]:
    """Give the id of a secret, and the version that is named (empty: none)."""
    found = _NAME.match(name)
    if found is None:
        raise invalid(f"The provided name [{name}] does not match the expected format.")
    return found["id"], found["version"] or ""


def secret(project: Project, name: str) -> Secret:
    """Find a secret by its full name, or by that of one of its versions."""
    kept = project.secrets.get(parts(name)[0])
    if kept is None:
        raise Refused("NOT_FOUND", f"Secret [{path(project, parts(name)[0])}] not found.")
    return kept


def version(project: Project, name: str, number: str) -> Version:
    """Find a version: by number, or `latest`."""
    versions = secret(project, path(project, name)).versions
    if number == "latest" and versions:
        return versions[-1]
    for one in versions:
        if str(one.number) == number:
            return one
    raise Refused(
        "NOT_FOUND", f"Secret Version [{path(project, name)}/versions/{number}] not found."
    )


def enabled(project: Project, name: str, found: Version) -> Version:
    """Refuse a version that is disabled or destroyed."""
    if found.state != "ENABLED":
        raise Refused(
            "FAILED_PRECONDITION",
            f"Secret Version [{path(project, name)}/versions/{found.number}] is in"
            f" {found.state} state.",
        )
    return found


def changed(project: Project, name: str, state: str) -> SecretVersion:
    """Bring a version to another state; a destroyed one stays as it is."""
    name, number = parts(name)
    found = version(project, name, number)
    if found.state == "DESTROYED":
        enabled(project, name, found)
    found.state = state
    if state == "DESTROYED":
        found.data = ""
    return told(project, name, found)


def told(project: Project, name: str, found: Version) -> SecretVersion:
    """Give a version as the API tells it."""
    return SecretVersion(
        name=f"{path(project, name)}/versions/{found.number}",
        create_time=Timestamp(seconds=int(found.created)),
        state=found.state,
        client_specified_payload_checksum=True,
        etag=f'"{found.number}-{found.state}"',
    )


def chosen(kept: Secret, words: str) -> bool:
    """Say whether a list with this filter has the secret."""
    try:
        return filters.holds(filters.parse(words), lambda one: _judged(kept.message, one))
    except filters.BadFilter as exc:
        raise invalid(str(exc)) from exc


def created_now() -> Timestamp:
    """Give the present, to the second."""
    return Timestamp(seconds=int(time.time()))


def _judged(message: Any, one: filters.Comparison) -> bool:
    if one.field == "name":
        return filters.compared(one.operator, message.name, one.value)
    if one.field.startswith("labels."):
        actual = dict(message.labels).get(one.field.removeprefix("labels."))
        return actual is not None and filters.compared(one.operator, actual, one.value)
    raise filters.BadFilter(f"Invalid filter: field {one.field!r} is not supported")
