"""Whether a call gets through: whose project it is, what is switched off, what goes wrong."""

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from emulators.google.knobs import Fault
from emulators.google.refusing import Refused, not_permitted
from emulators.google.state import Project, World

_PROJECT: Final = re.compile(r"(?:^|/)projects/([^/]+)")
_ACCOUNT: Final = re.compile(r"@([a-z0-9-]+)\.iam\.gserviceaccount\.com")
_BUILD: Final = re.compile(r"^operations/(?:build/|acf\.[^/]*?-)([^/]+)")
_NO_PROJECT: Final = "rehearsal"
ALWAYS_ENABLED: Final = frozenset({"serviceusage.googleapis.com"})
"""Without it nothing could ever be enabled."""
_CLIENT_BASED: Final = frozenset(
    f"{name}.googleapis.com" for name in ("cloudquotas", "cloudresourcemanager", "serviceusage")
)
"""APIs that count a call for the project of the credentials, not for the one that it is about."""
_GCLOUDS_OWN: Final = "764086051850"
USE: Final = "serviceusage.services.use"


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that happens to this call."""

    when: str
    refusal: Refused


def project_of(request: Any) -> str:
    """Give the id or number of the project that a request is about."""
    message = type(request).pb(request) if hasattr(type(request), "pb") else request
    for text in _texts(message):
        for pattern in (_PROJECT, _ACCOUNT, _BUILD):
            found = pattern.search(text)
            if found and found.group(1) != "-":
                return found.group(1)
    return str(getattr(message, "project_id", "")) or _NO_PROJECT


def take_fault(project: Project, method: str) -> Injected | None:
    """Give the first fault that a call of `method` meets, and count it."""
    for place, fault in enumerate(project.knobs.faults):
        if fault.times and fnmatch.fnmatchcase(method, fault.method):
            spent = fault.model_copy(update={"times": fault.times - 1 if fault.times > 0 else -1})
            faults = list(project.knobs.faults)
            faults[place] = spent
            project.knobs = project.knobs.model_copy(update={"faults": tuple(faults)})
            return Injected(fault.when, _refusal(fault))
    return None


def admit(project: Project, request: Any, api: str, permission: str) -> None:
    """Refuse a call to an API that is off, or by a caller who may not."""
    if api and api not in project.apis | ALWAYS_ENABLED:
        raise disabled(project, api)
    if project.denies(permission):
        message = type(request).pb(request) if hasattr(type(request), "pb") else request
        raise not_permitted(permission, next(_texts(message), f"projects/{project.id}"))


def check_billed(world: World, project: Project, api: str, billed: str) -> None:
    """Refuse a call of a person that no project pays for, or one that may not or cannot.

    Source: docs.cloud.google.com/docs/authentication/adc-troubleshooting/user-creds and
    github.com/golang/oauth2/issues/702 (2024-02), which quotes the refusal.
    """
    if project.knobs.identity_kind != "user" or not api:
        return
    if not billed:
        if api in _CLIENT_BASED:
            raise Refused(
                "PERMISSION_DENIED",
                "Your application is authenticating by using local Application Default"
                f" Credentials. The {api} API requires a quota project, which is not set by"
                " default. To learn how to set your quota project, see"
                " https://cloud.google.com/docs/authentication/adc-troubleshooting/user-creds .",
                reason="SERVICE_DISABLED",
                metadata={"service": api, "consumer": f"projects/{_GCLOUDS_OWN}"},
            )
        return
    paying = world.project(billed)
    if paying.denies(USE):
        raise Refused(
            "PERMISSION_DENIED",
            f"Caller does not have required permission to use project {billed}. Grant the caller"
            f" the roles/serviceusage.serviceUsageConsumer role, or a custom role with the {USE}"
            " permission, and then retry.",
            reason="USER_PROJECT_DENIED",
            metadata={"service": api, "consumer": f"projects/{billed}"},
        )
    if api not in paying.apis | ALWAYS_ENABLED:
        raise disabled(paying, api)


def disabled(project: Project, api: str) -> Refused:
    """Say that an API is not enabled, as Google does."""
    address = f"https://console.developers.google.com/apis/api/{api}/overview?project="
    return Refused(
        "PERMISSION_DENIED",
        f"{api} has not been used in project {project.number} before or it is disabled. Enable it"
        f" by visiting {address}{project.number} then retry. If you enabled this API recently,"
        " wait a few minutes for the action to propagate to our systems and retry.",
        reason="SERVICE_DISABLED",
        metadata={"service": api, "consumer": f"projects/{project.number}"},
    )


def _refusal(fault: Fault) -> Refused:
    return Refused(
        fault.status, fault.message or f"Rehearsed: {fault.status}.", reason=fault.reason
    )


def _texts(message: Message) -> Iterator[str]:
    """Every string of a request, those of the request itself first."""
    inner: list[Message] = []
    for descriptor, value in message.ListFields():
        if isinstance(value, str):
            yield value
        elif descriptor.message_type is None and not isinstance(value, (bytes, int, float, bool)):
            yield from (one for one in value if isinstance(one, str))
        elif isinstance(value, Message):
            inner.append(value)
    for one in inner:
        yield from _texts(one)
