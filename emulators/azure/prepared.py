"""A subscription as the set-up leaves it: everything that deployments of both targets stand on."""

import hashlib
from typing import Any, Final

from emulators.azure import (
    groups,
    identities,
    providers,
    roles,
    shares_arm,
    storage_accounts,
    vaults_arm,
    workspaces,
)
from emulators.azure.bodies import system_data
from emulators.azure.profiles_known import A100, CONSUMPTION, T4, display_of
from emulators.azure.roles_known import FILES_READER, SECRETS_OFFICER, SECRETS_USER
from emulators.azure.state import Subscription, World, id_of

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
    groups.made(sub, OWN, REGION, dict(_TAGS))
    whole: dict[str, Any] = {"location": REGION, "tags": dict(_TAGS)}
    workspace = workspaces.made(sub, OWN, f"{OWN}-{REGION}", whole)
    _keep(sub, _environment(world, sub, workspace))
    identity = identities.made(sub, OWN, OWN, REGION, dict(_TAGS))
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
    vault = vaults_arm.made(sub, OWN, f"vllm-{unique(sub)}", body)
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
    account = storage_accounts.made(sub, OWN, name, body)
    shares_arm.made(world, sub, account, SHARE, {"shareQuota": _SHARE_GIB})
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
                "accountKey": storage_accounts.key_of(world, sub, account),
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
    key, guid = workspaces.key_of(world, workspace), workspace["properties"]["customerId"]
    return {
        "destination": "log-analytics",
        "logAnalyticsConfiguration": {"customerId": guid, "sharedKey": key},
    }
