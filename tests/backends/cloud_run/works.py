"""Everything that the backend does with Google, and which calls each of it makes."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from pydantic import SecretStr

from backends.cloud_run.site import Site
from backends.google import secrets
from backends.google.clients import HF_SECRET
from core.records import Plan
from tests.backends.cloud_run.faulty import ANSWERS
from tests.backends.cloud_run.sites import backend_of, planned

Do = Callable[[Site, str], Awaitable[Any]]

MUST: Final[frozenset[str]] = frozenset()
"""Without its answer the work fails, whatever it is."""
MAY: Final = frozenset(answer.code for answer in ANSWERS)
"""The work goes on without it."""
TWICE: Final = frozenset({"CLOUD_UNAVAILABLE", "CLOUD_TIMEOUT"})
"""It is done once more."""
ALLOWED: Final = frozenset({"PERMISSION_DENIED"})
"""The work goes on where we may not ask."""


class Work(NamedTuple):
    """Something that is done to a deployment, and the calls it makes; which errors are borne."""

    do: Do
    calls: Mapping[str, frozenset[str]]
    begin: Do | None = None
    """What there must be before."""


def wanted(site: Site, name: str, **said: Any) -> Plan:
    return planned(site, name=name, **said)


async def make(site: Site, name: str) -> None:
    await backend_of(site).apply(wanted(site, name))


async def make_in_image(site: Site, name: str) -> None:
    await backend_of(site).apply(wanted(site, name, model="gemma3:4b", engine="ollama"))


async def replace(site: Site, name: str) -> None:
    await backend_of(site).apply(wanted(site, name, max_model_len=2048))


async def make_and_stop(site: Site, name: str) -> None:
    await make(site, name)
    await backend_of(site).stop(name)


async def scale(site: Site, name: str) -> None:
    await backend_of(site).scale(name, min_replicas=0, max_replicas=2)


async def stop(site: Site, name: str) -> None:
    await backend_of(site).stop(name)


async def start(site: Site, name: str) -> None:
    await backend_of(site).start(name)


async def delete(site: Site, name: str) -> None:
    await backend_of(site).delete(name)


async def keep_token(site: Site, _name: str) -> None:
    await secrets.keep(site, HF_SECRET, SecretStr("hf_first"))


_SECRETS: Final = {
    "SecretManagerService/GetSecret": MUST,
    "SecretManagerService/CreateSecret": MUST,
    "SecretManagerService/AddSecretVersion": TWICE,
    "SecretManagerService/AccessSecretVersion": MUST,
    "SecretManagerService/GetIamPolicy": MUST,
    "SecretManagerService/SetIamPolicy": MUST,
}
_CHANGE: Final = {
    "Services/GetService": MUST,
    "Services/UpdateService": MUST,
    "Operations/GetOperation": MAY,  # the change is read back from the service itself
}

MAKING: Final = {
    "apply": Work(
        make,
        {
            **_SECRETS,
            "Services/GetService": MUST,
            "Services/CreateService": MUST,
            "Operations/GetOperation": MAY,  # what there is tells by itself how it goes on
        },
    ),
    "replace": Work(
        replace,
        {
            "Services/GetService": MUST,
            "SecretManagerService/GetSecret": MUST,
            "SecretManagerService/AccessSecretVersion": MUST,
            "SecretManagerService/GetIamPolicy": MUST,
            "Services/UpdateService": MUST,
            "Operations/GetOperation": MAY,
        },
        begin=make,
    ),
}
CHANGING: Final = {
    "scale": Work(
        lambda site, name: backend_of(site).scale(name, min_replicas=0, max_replicas=2),
        _CHANGE,
        begin=make,
    ),
    "stop": Work(stop, _CHANGE, begin=make),
    "start": Work(start, _CHANGE, begin=make_and_stop),
}
DELETING: Final = {
    "delete": Work(
        delete,
        {
            "Services/GetService": MUST,
            "Services/DeleteService": MUST,
            "SecretManagerService/GetSecret": MUST,
            "SecretManagerService/DeleteSecret": MUST,
            "CloudBuild/ListBuilds": ALLOWED,  # then it was not built from here
        },
        begin=make,
    ),
}
KEEPING: Final = {"keep": Work(keep_token, _SECRETS)}
BUILDING: Final = {
    "build": Work(
        make_in_image,
        {
            "Services/GetService": MUST,
            "ArtifactRegistry/ListDockerImages": MUST,
            "CloudBuild/ListBuilds": MUST,
            "CloudBuild/CreateBuild": MUST,
        },
    ),
}
UNBUILDING: Final = {
    "delete while building": Work(
        delete,
        {
            "Services/GetService": MUST,
            "SecretManagerService/GetSecret": MUST,
            "CloudBuild/ListBuilds": ALLOWED,  # then it was not built from here
            "CloudBuild/CancelBuild": MUST,
            "ArtifactRegistry/ListDockerImages": MAY,  # whether one is left is noted
        },
        begin=make_in_image,
    ),
}


LOOKS: Final = frozenset(
    {
        "Services/GetService",
        "Revisions/GetRevision",
        "MetricService/ListTimeSeries",
        "LoggingServiceV2/ListLogEntries",
        "SecretManagerService/AccessSecretVersion",
    }
)
"""A change ends with a look."""


def cases(works: Mapping[str, Work]) -> list[tuple[str, str]]:
    """Give every work with every call it makes."""
    return [(name, method) for name, work in works.items() for method in work.calls]
