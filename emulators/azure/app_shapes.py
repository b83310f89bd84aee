"""A container app's body: what Azure fills in, what it shows, and what it keeps back."""

import copy
from typing import Any, Final

from emulators.azure import fleet
from emulators.azure.bodies import moment, plain_region, system_data
from emulators.azure.profiles_known import CONSUMPTION, display_of
from emulators.azure.serving import Call
from emulators.azure.state import Subscription, World, id_of

TYPE: Final = "Microsoft.App/containerApps"
REVISION_TYPE: Final = "Microsoft.App/containerApps/revisions"
_SCALE: Final = {"maxReplicas": 10, "cooldownPeriod": 300, "pollingInterval": 30}
"""What Azure takes where nothing is said. Source: the descriptions in Microsoft's ARM schema."""
_INGRESS: Final = {"external": False, "transport": "auto", "allowInsecure": False, "exposedPort": 0}
_TRAFFIC: Final = ({"weight": 100, "latestRevision": True},)
_RESOURCES: Final = {"cpu": 0.5, "memory": "1Gi"}
_NOT_SHOWN: Final = ("runningStateDetails",)
"""Known to the rehearsal, but not to the API's schema."""


def filled(asked: dict[str, Any]) -> dict[str, Any]:
    """Give what was asked for with Azure's defaults."""
    body = copy.deepcopy(asked)
    properties = body.setdefault("properties", {})
    environment = properties.get("environmentId") or properties.get("managedEnvironmentId")
    properties |= {"environmentId": environment, "managedEnvironmentId": environment}
    properties.setdefault("workloadProfileName", CONSUMPTION)
    configuration = properties.setdefault("configuration", {})
    configuration.setdefault("activeRevisionsMode", "Single")
    configuration.setdefault("maxInactiveRevisions", 100)
    if configuration.get("ingress"):
        ingress = {**_INGRESS, **configuration["ingress"]}
        ingress.setdefault("traffic", [dict(one) for one in _TRAFFIC])
        configuration["ingress"] = ingress
    template = properties.setdefault("template", {})
    template["scale"] = {**_SCALE, **(template.get("scale") or {})}
    for container in template.get("containers") or []:
        container["resources"] = {
            **_RESOURCES, **(container.get("resources") or {}), "ephemeralStorage": "8Gi"
        }  # fmt: skip
    return body


def made(
    call: Call, asked: dict[str, Any], there: dict[str, Any] | None, *, state: str
) -> dict[str, Any]:
    """Give the app's whole body as it is kept, of what was asked for and already filled."""
    old = (there or {}).get("properties", {})
    read_only = {
        key: old[key] for key in ("latestRevisionName", "latestReadyRevisionName") if key in old
    }
    return {
        "id": there["id"] if there else call.path,
        "name": there["name"] if there else call.params["app"],
        "type": TYPE,
        "location": display_of(plain_region(asked["location"])),
        "tags": asked.get("tags") or {},
        "identity": _identity(call.sub, asked.get("identity")),
        "systemData": system_data(call.sub, there),
        "properties": {
            **asked["properties"],
            **read_only,
            "provisioningState": state,
            "runningStatus": old.get("runningStatus", "Progressing"),
            "customDomainVerificationId": id_of(call.sub.id).replace("-", "").upper(),
            "outboundIpAddresses": ["203.0.113.7"],
        },
    }


def shown(world: World, sub: Subscription, app: dict[str, Any]) -> dict[str, Any]:
    """Give an app as ARM does: no secret's value, and the addresses that it has now."""
    body = copy.deepcopy(app)
    properties = body["properties"]
    for secret in properties["configuration"].get("secrets") or []:
        secret.pop("value", None)
    path = app["id"].replace("/providers/Microsoft.App", "")
    properties["eventStreamEndpoint"] = f"{world.urls.http}{path}/eventstream"
    if properties["configuration"].get("ingress"):
        address = fleet.address(world, sub, app)
        properties["configuration"]["ingress"]["fqdn"] = address
        properties["latestRevisionFqdn"] = address
    return body


def revision_of(world: World, sub: Subscription, app: dict[str, Any], name: str) -> dict[str, Any]:
    """Make the revision of an app's template as it is now, unless it is there already."""
    path = f"{app['id']}/revisions/{name}"
    there = sub.get(path)
    if there:
        return there
    properties: dict[str, Any] = {
        "createdTime": moment(),
        "template": copy.deepcopy(app["properties"]["template"]),
        "active": True,
        "healthState": "None",
        "provisioningState": "Provisioning",
        "runningState": "Processing",
    }
    if app["properties"]["configuration"].get("ingress"):
        properties["fqdn"] = fleet.address(world, sub, app)
    made = {"id": path, "name": name, "type": REVISION_TYPE, "properties": properties}
    sub.resources[path.lower()] = made
    return made


def revision_shown(
    sub: Subscription, app: dict[str, Any], revision: dict[str, Any]
) -> dict[str, Any]:
    """Give a revision as ARM does, with how many replicas of it there are."""
    properties = {k: v for k, v in revision["properties"].items() if k not in _NOT_SHOWN}
    properties["replicas"] = len(sub.living(app["id"], revision["name"]))
    latest = app["properties"].get("latestRevisionName") == revision["name"]
    properties["trafficWeight"] = 100 if latest else 0
    return {**revision, "properties": properties}


def template_changed(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a change makes a new revision."""
    keys = ("template", "workloadProfileName")
    return any(before["properties"].get(key) != after["properties"].get(key) for key in keys)


def _identity(sub: Subscription, asked: dict[str, Any] | None) -> dict[str, Any]:
    """Fill in whose the identities are."""
    if not asked:
        return {"type": "None"}
    named = asked.get("userAssignedIdentities") or {}
    if not named:
        return dict(asked)
    told = {}
    for name in named:
        properties = (sub.get(name) or {"properties": {}})["properties"]
        told[name] = {key: properties.get(key, "") for key in ("principalId", "clientId")}
    return {**asked, "userAssignedIdentities": told}
