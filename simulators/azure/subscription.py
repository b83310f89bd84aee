"""Resource groups, and a subscription as the set-up leaves it."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.resource.resources import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.azure import environment, providers, roles, storage, vaults
from simulators.azure.app_rules import TYPE as APP
from simulators.azure.apps import gone
from simulators.azure.catalog import (
    A100,
    CONSUMPTION,
    FILES_READER,
    SECRETS_OFFICER,
    SECRETS_USER,
    T4,
    display_of,
)
from simulators.azure.errors import conflict, group_not_found, invalid
from simulators.azure.serving import (
    Call,
    arm,
    begin,
    check_tags,
    checked,
    lasting,
    location_header,
    looked_at,
    page,
    region_of,
    system_data,
    worker,
)
from simulators.azure.state import Operation, Subscription, World, id_of

TYPE: Final = "Microsoft.Resources/resourceGroups"
_NAME: Final = re.compile(r"^[\w.()-]{0,89}[\w()-]$")
_ALL: Final = "/subscriptions/{subscription}/resourcegroups"
_ONE: Final = f"{_ALL}/{{group}}"
_PERMISSION: Final = "Microsoft.Resources/subscriptions/resourceGroups"
_LISTED: Final[tuple[str, ...]] = ("id", "name", "type", "location", "tags")
_RESULTS: Final = "operationresults"


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve resource groups, and every resource that is in one."""
    verbs = (
        ("HEAD", _there, "read"),
        ("GET", _get, "read"),
        ("PUT", _put, "write"),
        ("PATCH", _patch, "write"),
        ("DELETE", _delete, "delete"),
    )
    return (
        *(
            arm(verb, _ONE, handler, type=TYPE, permission=f"{_PERMISSION}/{may}", world=world)
            for verb, handler, may in verbs
        ),
        arm("GET", _ALL, _list, type=TYPE, permission=f"{_PERMISSION}/read", world=world),
        arm("GET", f"{_ONE}/resources", _inside, type="Microsoft.Resources/resources", world=world),
        *looked_at(world, "Microsoft.Resources", _RESULTS),
    )


def made(sub: Subscription, name: str, region: str, tags: dict[str, str]) -> dict[str, Any]:
    """Make a resource group."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{name}"
    body = {
        "id": path,
        "name": name,
        "type": TYPE,
        "location": region,
        "tags": tags,
        "properties": {"provisioningState": "Succeeded"},
    }
    sub.resources[path.lower()] = body
    return body


async def _there(call: Call) -> Response:
    return Response(status_code=204 if call.id in call.sub.resources else 404)


async def _get(call: Call) -> dict[str, Any]:
    return _found(call)


async def _put(call: Call) -> Response:
    region_of(call.body)
    body, there = checked(M.ResourceGroup, call.body), call.sub.get(call.id)
    name = call.params["group"]
    if not _NAME.match(name):
        raise invalid(f"The resource group name '{name}' is not valid.", "InvalidResourceGroupName")
    region = region_of(body)
    check_tags(body.get("tags"))
    if there and there["location"] != region:
        raise conflict(
            "InvalidResourceGroupLocation",
            f"Invalid resource group location '{region}'. The Resource group already exists in"
            f" location '{there['location']}'.",
        )
    kept = made(call.sub, there["name"] if there else name, region, body.get("tags", {}))
    return JSONResponse(kept, status_code=200 if there else 201)


async def _patch(call: Call) -> dict[str, Any]:
    there, body = _found(call), checked(M.ResourceGroupPatchable, call.body, patch=True)
    check_tags(body.get("tags"))
    there["tags"] = body.get("tags", there["tags"])
    return there


async def _list(call: Call) -> dict[str, Any]:
    return page(call, call.sub.of_type(TYPE))


async def _inside(call: Call) -> dict[str, Any]:
    """List the resources of a group; those that belong to another one are not listed."""
    rows = [
        {key: body[key] for key in _LISTED if key in body}
        for name, body in call.sub.resources.items()
        if name.startswith(f"{call.group_id}/providers/") and _is_whole(name)
    ]
    return page(call, rows)


async def _delete(call: Call) -> Response:
    _found(call)
    operation = begin(call, "group-delete", "global", _RESULTS)
    call.sub.resources[call.id]["properties"]["provisioningState"] = "Deleting"
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("group-delete")
async def _deleted(world: World, sub: Subscription, operation: Operation) -> None:
    await lasting(operation, sub.knobs.operation_seconds)
    for app in sub.of_type(APP):
        if app["id"].lower().startswith(f"{operation.resource}/"):
            await gone(world, sub, app)
    for name in [one for one in sub.resources if one.startswith(f"{operation.resource}/")]:
        del sub.resources[name]
    sub.resources.pop(operation.resource, None)


def _found(call: Call) -> dict[str, Any]:
    body = call.sub.get(call.id)
    if body is None:
        raise group_not_found(call.params["group"])
    return body


def _is_whole(resource_id: str) -> bool:
    """Whether it is a resource of its own: `…/providers/NAMESPACE/TYPE/NAME`."""
    return len(resource_id.partition("/providers/")[2].split("/")) == 3


REGION: Final = "swedencentral"
OWN: Final = "vllm-devops"
"""The name of the group and the identity, and how the others begin."""
SHARE: Final = "weights"
_TAGS: Final = {"managed-by": "vllm-devops-agent"}
_NAMESPACES: Final = (
    "Microsoft.App",
    "Microsoft.OperationalInsights",
    "Microsoft.KeyVault",
    "Microsoft.ManagedIdentity",
    "Microsoft.Storage",
    "Microsoft.Insights",
)
_PROFILES: Final = {CONSUMPTION: CONSUMPTION, "gpu-a100": A100, "gpu-t4": T4}
_SHARE_GIB: Final = 100
_LINKS: Final = {SHARE: "ReadWrite", f"{SHARE}-ro": "ReadOnly"}


def prepare(world: World, sub: Subscription) -> None:
    """Make what is missing of it; what is there already stays as it is."""
    if sub.get(_path(sub, "Microsoft.App/managedEnvironments", f"{OWN}-{REGION}")):
        return
    for namespace in _NAMESPACES:
        providers.registered(sub, namespace)
    made(sub, OWN, REGION, dict(_TAGS))
    whole: dict[str, Any] = {"location": REGION, "tags": dict(_TAGS)}
    workspace = environment.made(sub, OWN, f"{OWN}-{REGION}", whole)
    _keep(sub, _environment(world, sub, workspace))
    identity = roles.made(sub, OWN, OWN, REGION, dict(_TAGS))
    _vault(sub, whole, identity["properties"]["principalId"])
    _weights(world, sub, whole)
    world.keep(sub)


def unique(sub: Subscription) -> str:
    """Give what makes names the subscription's own; the set-up works it out likewise."""
    return hashlib.sha256(f"{sub.id}/{OWN}".lower().encode()).hexdigest()[:12]


def _path(sub: Subscription, kind: str, name: str) -> str:
    return f"/subscriptions/{sub.id}/resourceGroups/{OWN}/providers/{kind}/{name}"


def _keep(sub: Subscription, body: dict[str, Any]) -> None:
    sub.resources[body["id"].lower()] = body


def _vault(sub: Subscription, whole: dict[str, Any], app: str) -> None:
    """Make the vault: apps read, whoever calls keeps secrets."""
    properties = {
        "tenantId": sub.tenant,
        "sku": {"family": "A", "name": "standard"},
        "softDeleteRetentionInDays": 7,
    }
    body = {**whole, "properties": properties}
    vault = vaults.made(sub, OWN, f"vllm-{unique(sub)}", body)
    roles.assigned(sub, vault["id"], SECRETS_USER, app)
    roles.assigned(sub, vault["id"], SECRETS_OFFICER, sub.caller)


def _weights(world: World, sub: Subscription, whole: dict[str, Any]) -> None:
    """Make the account with its share, and the environment's links to it."""
    name = f"vllm{unique(sub)}"
    body = {
        **whole,
        "kind": "FileStorage",
        "sku": {"name": "PremiumV2_LRS"},
        "properties": {"minimumTlsVersion": "TLS1_2", "allowSharedKeyAccess": True},
    }
    account = storage.account_made(sub, OWN, name, body)
    storage.share_made(world, sub, account, SHARE, {"shareQuota": _SHARE_GIB})
    roles.assigned(sub, account["id"], FILES_READER, sub.caller)
    for link, mode in _LINKS.items():
        _keep(sub, _link(world, sub, name, link, mode))


def _link(world: World, sub: Subscription, account: str, link: str, mode: str) -> dict[str, Any]:
    environment = _path(sub, "Microsoft.App/managedEnvironments", f"{OWN}-{REGION}")
    return {
        "id": f"{environment}/storages/{link}",
        "name": link,
        "type": "Microsoft.App/managedEnvironments/storages",
        "systemData": system_data(sub),
        "properties": {
            "azureFile": {
                "accountName": account,
                "accountKey": storage.key_of(world, sub, account),
                "shareName": SHARE,
                "accessMode": mode,
            }
        },
    }


def _environment(world: World, sub: Subscription, workspace: dict[str, Any]) -> dict[str, Any]:
    kind, name = "Microsoft.App/managedEnvironments", f"{OWN}-{REGION}"
    path = _path(sub, kind, name)
    word = id_of(path, sub.id)[:8]
    return {
        "id": path,
        "name": name,
        "type": kind,
        "location": display_of(REGION),
        "tags": dict(_TAGS),
        "systemData": system_data(sub),
        "properties": {
            "zoneRedundant": False,
            "environmentMode": "WorkloadProfiles",
            "publicNetworkAccess": "Enabled",
            "workloadProfiles": [
                {"name": one, "workloadProfileType": of} for one, of in _PROFILES.items()
            ],
            "appLogsConfiguration": _logs(world, workspace),
            "provisioningState": "Succeeded",
            "defaultDomain": f"gentle{word[:4]}-{word}.{REGION}.azurecontainerapps.io",
            "staticIp": "203.0.113.7",
            "eventStreamEndpoint": f"{world.urls.http}{path}/eventstream",
        },
    }


def _logs(world: World, workspace: dict[str, Any]) -> dict[str, Any]:
    key, guid = environment.key_of(world, workspace), workspace["properties"]["customerId"]
    return {
        "destination": "log-analytics",
        "logAnalyticsConfiguration": {"customerId": guid, "sharedKey": key},
    }
