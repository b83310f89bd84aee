"""What Microsoft's schema and its SDK's models say of a resource on the wire, made strict."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from azure.mgmt.appcontainers import models as app
from azure.mgmt.keyvault import models as vaults
from azure.mgmt.loganalytics import models as workspaces
from azure.mgmt.storage import models as storage

from simulators.azure.admission import Refused
from simulators.azure.schema import checked
from tests.backends.aca import armschema
from tests.recorded import Call

READ_ONLY: Final = frozenset(
    {
        "id", "systemData", "principalId", "clientId", "provisioningState", "runningStatus",
        "latestRevisionName", "latestReadyRevisionName", "latestRevisionFqdn", "fqdn",
        "customDomainVerificationId", "outboundIpAddresses", "eventStreamEndpoint",
        "ephemeralStorage", "defaultDomain", "staticIp", "name", "type",
    }
)  # fmt: skip
"""What the schema leaves out, for nobody writes it; the models have all of it."""
NEWER: Final = frozenset({"environmentMode"})
"""What the SDK's version, 2026-07-01, has and that of the schema, 2026-01-01, lacks."""
_APP: Final = "microsoft.app/"
_KINDS: Final[Mapping[str, tuple[str, Any, Any]]] = {
    "microsoft.app/containerapps": ("containerApps", app.ContainerApp, app.ContainerApp),
    "microsoft.app/jobs": ("", app.Job, app.Job),
    "microsoft.app/containerapps/revisions": ("", app.Revision, app.Revision),
    "microsoft.app/containerapps/revisions/replicas": ("", app.Replica, app.Replica),
    "microsoft.app/managedenvironments": (
        "managedEnvironments",
        app.ManagedEnvironment,
        app.ManagedEnvironment,
    ),
    "microsoft.app/managedenvironments/storages": (
        "managedEnvironments_storages",
        app.ManagedEnvironmentStorage,
        app.ManagedEnvironmentStorage,
    ),
    "microsoft.keyvault/vaults": ("", vaults.VaultCreateOrUpdateParameters, vaults.Vault),
    "microsoft.storage/storageaccounts": (
        "",
        storage.StorageAccountCreateParameters,
        storage.StorageAccount,
    ),
    "microsoft.storage/storageaccounts/fileservices/shares": (
        "",
        storage.FileShare,
        storage.FileShare,
    ),
    "microsoft.operationalinsights/workspaces": ("", workspaces.Workspace, workspaces.Workspace),
}
"""Type of a resource: its name in the schema, the model of a request, that of an answer."""


def faults(call: Call) -> list[str] | None:
    """Return everything in a call that Microsoft does not know; nothing where it is not judged."""
    kind = _KINDS.get(kind_of(call.path))
    if kind is None or call.method not in {"GET", "PUT", "PATCH"}:
        return None
    return [*_asked(call, *kind[:2]), *_answered(call, kind[0], kind[2])]


def kind_of(path: str) -> str:
    """Return the type of the resource that a path names, such as microsoft.app/containerapps."""
    found = re.search(r".*/providers/([^/]+)((?:/[^/]+)+)/?$", path.lower())
    if not found:
        return ""
    parts = found[2].strip("/").split("/")
    return "/".join([found[1], *parts[::2]])


def _asked(call: Call, resource: str, model: Any) -> Iterator[str]:
    if not call.asked:
        return
    body, at = json.loads(call.asked), f"{call.method} {kind_of(call.path)}"
    patch = call.method == "PATCH"
    if resource and armschema.HERE and not patch:
        yield from (f"{at}: {fault}" for fault in armschema.faults(resource, body, only_read=NEWER))
    try:
        kept = checked(model, body, patch=patch)
    except Refused as refused:
        yield f"{at}: {refused.message}"
        return
    yield from (f"{at}{lost}: only Azure writes it" for lost in _lost(body, kept, ""))


def _lost(body: Any, kept: Any, at: str) -> Iterator[str]:
    """What the model took out, but for nulls."""
    if isinstance(body, dict) and isinstance(kept, dict):
        for key, value in body.items():
            if value is not None and key not in kept:
                yield f"{at}.{key}"
            else:
                yield from _lost(value, kept.get(key), f"{at}.{key}")


def _answered(call: Call, resource: str, model: Any) -> Iterator[str]:
    if not (call.status.startswith("2") and call.answered):
        return
    answer, at = json.loads(call.answered), f"{call.method} {kind_of(call.path)} answers"
    listed = isinstance(answer, dict) and isinstance(answer.get("value"), list)
    for one in answer["value"] if listed else [answer]:
        if resource and armschema.HERE:
            found = armschema.faults(resource, one, only_read=READ_ONLY | NEWER)
            yield from (f"{at}: {fault}" for fault in found)
        try:
            checked(model, one)
        except Refused as refused:
            yield f"{at}: {refused.message}"
        if call.method == "GET" and not {"id", "name", "type"} <= set(one):
            yield f"{at}: no id, name or type"
