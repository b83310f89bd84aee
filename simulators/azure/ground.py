"""Resource groups, providers, policies, workspaces of logs; and a subscription that is set up."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.responses import Response

from simulators.azure.admission import derived_key, refusal
from simulators.azure.arm import Call, delete, kind_of, made, moment
from simulators.azure.roles import APP_READER, FILES_READER, SECRETS_OFFICER, assign
from simulators.azure.state import CATALOG, Body, Subscription, World, id_of

WORKSPACE: Final = "Microsoft.OperationalInsights/workspaces"
_GROUP: Final = "Microsoft.Resources/resourceGroups"
_PROVIDERS: Final[list[str]] = CATALOG["providers"]
_UNREGISTERED: Final = {"Microsoft.Resources", "Microsoft.Authorization"}


async def _group_there(call: Call) -> Response:
    return Response(status_code=204 if call.sub.get(call.path) else 404)


def _group(_call: Call, _asked: Body, _there: Body | None) -> Body:
    return {"properties": {"provisioningState": "Succeeded"}}


async def _delete_group(call: Call) -> Response:
    call.found()
    return await delete(call)


async def _get_provider(call: Call) -> Body:
    return _provider(call.sub, _namespace(call))


async def _register(call: Call) -> Body:
    namespace = _namespace(call)
    at = time.time() + call.sub.knobs.registration_seconds
    call.sub.providers.setdefault(namespace.lower(), at)
    return _provider(call.sub, namespace)


def _namespace(call: Call) -> str:
    for known in _PROVIDERS:
        if known.lower() == call.name.lower():
            return known
    raise refusal("namespace", name=call.name)


def _provider(sub: Subscription, namespace: str) -> Body:
    free = namespace in _UNREGISTERED
    state = "Registering" if namespace.lower() in sub.providers else "NotRegistered"
    return {
        "id": f"/subscriptions/{sub.id}/providers/{namespace}",
        "namespace": namespace,
        "registrationState": "Registered" if free or sub.registered(namespace) else state,
        "registrationPolicy": "RegistrationFree" if free else "RegistrationRequired",
    }


def refuse_by_policy(sub: Subscription, kind: str, name: str, body: Mapping[str, Any]) -> None:
    """Refuse what a policy of the organisation denies.

    Raises:
        Refused: In Microsoft's words.
    """
    for policy in _violated(sub, kind, body):
        named = [{"policyAssignment": {"name": policy, "id": _assignment(sub, policy)}}]
        raise refusal("policy", name=name, named=json.dumps(named))


def _violated(sub: Subscription, kind: str, body: Mapping[str, Any]) -> Iterator[str]:
    properties, forbids = body.get("properties") or {}, sub.knobs.organisation_forbids
    ingress = (properties.get("configuration") or {}).get("ingress") or {}
    broken = {
        "microsoft.storage/storageaccounts": "shared-keys"
        if properties.get("allowSharedKeyAccess") is not False
        else "",
        "microsoft.app/containerapps": "public-ingress" if ingress.get("external") else "",
    }.get(kind.lower())
    if broken in forbids:
        yield broken


def _assignment(sub: Subscription, policy: str) -> str:
    kind = "Microsoft.Authorization/policyAssignments"
    return f"/subscriptions/{sub.id}/providers/{kind}/{policy}"


async def _check_restrictions(call: Call) -> Body:
    content = (call.body.get("resourceDetails") or {}).get("resourceContent")
    if not content or not content.get("type"):
        raise refusal("restrictions")
    rows = [
        {
            "policyInfo": {"policyAssignmentId": _assignment(call.sub, policy)},
            "evaluationResult": "NonCompliant",
        }
        for policy in _violated(call.sub, content["type"], content)
    ]
    return {"fieldRestrictions": [], "contentEvaluationResult": {"policyEvaluations": rows}}


def workspace_key(world: World, workspace: Body, which: str = "primary") -> str:
    """Return a workspace's key, primary or secondary."""
    return derived_key(world, workspace["properties"]["customerId"], which)


def _workspace(call: Call, asked: Body, there: Body | None) -> Body:
    given, now = asked.get("properties", {}), moment()
    return {
        "properties": {
            "retentionInDays": 30,
            "publicNetworkAccessForIngestion": "Enabled",
            "publicNetworkAccessForQuery": "Enabled",
            "features": {"enableLogAccessUsingOnlyResourcePermissions": True},
            **given,
            "sku": {"name": "PerGB2018", **given.get("sku", {})},
            "customerId": id_of(call.id),
            "createdDate": there["properties"]["createdDate"] if there else now,
            "modifiedDate": now,
        }
    }


async def _shared_keys(call: Call) -> Body:
    found = call.found()
    return {
        f"{which}SharedKey": workspace_key(call.world, found, which)
        for which in ("primary", "secondary")
    }


KINDS: Final = (
    kind_of(_GROUP, fill=_group, handlers={"HEAD": _group_there, "DELETE": _delete_group}),
    kind_of(
        "Microsoft.Resources/subscriptions/providers",
        handlers={"GET": _get_provider, "register": _register},
    ),
    kind_of("Microsoft.PolicyInsights", handlers={"checkPolicyRestrictions": _check_restrictions}),
    kind_of(
        WORKSPACE,
        fill=_workspace,
        handlers={"sharedKeys": _shared_keys},
    ),
)


_OWN: Final = "vllm-devops"
_REGION: Final = "swedencentral"
_WHOLE: Final[Body] = {"location": _REGION, "tags": {"managed-by": "vllm-devops-agent"}}


def prepare(world: World, sub: Subscription) -> None:
    """Make what the set-up of both targets makes, with the names that it gives."""
    group = f"/subscriptions/{sub.id}/resourceGroups/{_OWN}"
    inside, named = f"{group}/providers", f"{_OWN}-{_REGION}"
    environment = f"{inside}/Microsoft.App/managedEnvironments/{named}"
    if sub.get(environment):
        return
    for namespace in _PROVIDERS:
        sub.providers[namespace.lower()] = 0.0
    for free in _UNREGISTERED:
        del sub.providers[free.lower()]
    unique = hashlib.sha256(f"{sub.id}/{_OWN}".lower().encode()).hexdigest()[:12]

    def make(path: str, properties: Body, **more: Any) -> Body:
        return made(world, sub, path, {**_WHOLE, "properties": properties, **more})

    make(group, {})
    workspace = make(f"{inside}/{WORKSPACE}/{named}", {})
    profiles = {"Consumption": "Consumption", "gpu-a100": "Consumption-GPU-NC24-A100",
                "gpu-t4": "Consumption-GPU-NC8as-T4"}  # fmt: skip
    logs = {
        "customerId": workspace["properties"]["customerId"],
        "sharedKey": workspace_key(world, workspace),
    }
    make(
        environment,
        {
            "workloadProfiles": [
                {"name": one, "workloadProfileType": of} for one, of in profiles.items()
            ],
            "appLogsConfiguration": {
                "destination": "log-analytics",
                "logAnalyticsConfiguration": logs,
            },
        },
    )
    identity = make(f"{inside}/Microsoft.ManagedIdentity/userAssignedIdentities/{_OWN}", {})
    vault = make(
        f"{inside}/Microsoft.KeyVault/vaults/vllm-{unique}",
        {
            "tenantId": sub.tenant,
            "sku": {"family": "A", "name": "standard"},
            "softDeleteRetentionInDays": 7,
        },
    )
    assign(sub, vault["id"], APP_READER, identity["properties"]["principalId"])
    assign(sub, vault["id"], SECRETS_OFFICER, sub.caller)
    account = make(
        f"{inside}/Microsoft.Storage/storageAccounts/vllm{unique}",
        {"minimumTlsVersion": "TLS1_2", "allowSharedKeyAccess": True},
        kind="FileStorage",
        sku={"name": "PremiumV2_LRS"},
    )
    make(f"{account['id']}/fileServices/default/shares/weights", {"shareQuota": 100})
    assign(sub, account["id"], FILES_READER, sub.caller)
    for link, mode in (("weights", "ReadWrite"), ("weights-ro", "ReadOnly")):
        file = {
            "accountName": account["name"],
            "accountKey": derived_key(world, sub.id, account["name"], "key1"),
            "shareName": "weights",
            "accessMode": mode,
        }
        make(f"{environment}/storages/{link}", {"azureFile": file})
    world.keep(sub)
