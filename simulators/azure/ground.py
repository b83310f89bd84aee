"""What a subscription holds beside apps: groups, providers, policies, workspaces, environments."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from core.records import Record
from simulators.azure.admission import derived_key, refusal
from simulators.azure.arm import Call, display_of, kind_of, made, moment, plain_region
from simulators.azure.roles import APP_READER, FILES_READER, SECRETS_OFFICER, assign
from simulators.azure.state import CATALOG, Body, Replica, Subscription, World, id_of

ENVIRONMENT: Final = "Microsoft.App/managedEnvironments"
CONSUMPTION: Final = "Consumption"
_APP: Final = "Microsoft.App/containerApps"
_LINK: Final = f"{ENVIRONMENT}/storages"
_OFFERS: Final = "locations/availableManagedEnvironmentsWorkloadProfileTypes"


class Profile(Record):
    """What one replica, or one node, of a type of profile has at most."""

    category: str
    cores: int
    memory_gib: int
    gpus: int = 0
    display_name: str = ""
    quota: str = ""
    """The key of the knob `quotas` that it draws on; none if empty."""
    counter: str = ""
    """What Azure calls that quota, after whose it is."""
    accelerator: str = ""
    """The GPU's name in the planner."""


PROFILES: Final = {name: Profile(**said) for name, said in CATALOG["profiles"].items()}


def _offered(sub: Subscription, region: str) -> Sequence[str]:
    """Return the profile types of a region; none where Container Apps are not."""
    if sub.knobs.profiles is not None:
        return sub.knobs.profiles.get(region, ())
    words = CATALOG["regions"].get(region)
    special = {"t4": "Consumption-GPU-NC8as-T4", "a100": "Consumption-GPU-NC24-A100",
               "dedicated": "NC24-A100"}  # fmt: skip
    return (CONSUMPTION, "D4", "D8", "E4", *(special[one] for one in words[1:])) if words else ()


async def _list_offers(call: Call) -> Body:
    region = plain_region(call.name)
    if not (types := _offered(call.sub, region)):
        version = call.query["api-version"]
        raise refusal("region", region=region, version=version, kind=_OFFERS)
    return {"value": [_offer(call.path, region, name) for name in types]}


def _offer(path: str, region: str, name: str) -> Body:
    kind = PROFILES.get(name, Profile(category=name, cores=4, memory_gib=8))
    return {
        "id": f"{path}/{name}",
        "name": name,
        "type": f"Microsoft.App/{_OFFERS.partition('/')[2]}",
        "location": region,
        "properties": {
            "category": kind.category,
            "applicability": "LocationDefault",
            "cores": kind.cores,
            "memoryGiB": kind.memory_gib,
            "gpus": kind.gpus,
            "displayName": kind.display_name or name,
        },
    }


async def _list_usages(call: Call) -> Body:
    sub, region = call.sub, plain_region(call.name)
    here = [one for one in sub.living() if one.region == region]
    environments = [plain_region(one["location"]) for one in sub.of_type(ENVIRONMENT)]
    rows = [
        _usage("ManagedEnvironmentCount", environments.count(region), 15),
        _usage("SubscriptionNCA100Gpus", 0, 0),
        *_gpus("Subscription", here, sub.knobs.quota),
        _usage("SessionPools", 0, 20),
    ]
    return {"value": rows}


async def _list_environment_usages(call: Call) -> Body:
    sub = call.sub
    here = [one for one in sub.living() if one.environment == call.parent.lower()]
    cores = PROFILES[CONSUMPTION].cores * _using(here, CONSUMPTION)
    rows = [
        _usage("ManagedEnvironmentConsumptionCores", cores, 100),
        _usage("ManagedEnvironmentGeneralPurposeCores", 0, 100),
        *_gpus("ManagedEnvironment", here, sub.knobs.environment_quota),
        _usage("ManagedEnvironmentMemoryOptimizedCores", 0, 50),
    ]
    return {"value": rows}


def _gpus(whose: str, here: Sequence[Replica], quota: Any) -> list[Body]:
    return [
        _usage(f"{whose}{kind.counter}", _using(here, name), quota(kind.quota))
        for name, kind in PROFILES.items()
        if kind.quota
    ]


def _using(replicas: Sequence[Replica], profile_type: str) -> int:
    return sum(one.profile_type == profile_type for one in replicas)


def _usage(name: str, current: int, limit: int) -> Body:
    shown = {"value": name, "localizedValue": name}
    return {"unit": "Count", "currentValue": current, "limit": limit, "name": shown}


def environment_of(app: Body) -> str:
    """Return the id of an app's environment, in lower case."""
    return str(app["properties"].get("environmentId") or "").lower()


def _apps(call: Call) -> list[Body]:
    return [one for one in call.sub.of_type(_APP) if environment_of(one) == call.id]


def _environment(call: Call, asked: Body, there: Body | None) -> Body:
    region, properties = plain_region(asked["location"]), asked.get("properties", {})
    profiles = properties.get("workloadProfiles") or []
    for profile in profiles:
        _check_profile(call.sub, region, profile)
    logs = properties.get("appLogsConfiguration") or {}
    linked = logs.get("logAnalyticsConfiguration") or {}
    if logs.get("destination") == "log-analytics" and not (
        linked.get("customerId") and linked.get("sharedKey")
    ):  # what GET answers lacks the key: it is written each time
        raise refusal("log-key")
    if there:
        _check_change(call, profiles, there)
    old, word = (there or {}).get("properties", {}), id_of(call.id, call.sub.id)[:8]
    domain = f"gentle{word[:4]}-{word}.{region}.azurecontainerapps.io"
    return {
        "location": display_of(region),
        "properties": {
            "zoneRedundant": False,
            "environmentMode": "WorkloadProfiles" if profiles else "ConsumptionOnly",
            "publicNetworkAccess": "Enabled",
            **properties,
            "defaultDomain": old.get("defaultDomain", domain),
            "staticIp": "203.0.113.7",
            "eventStreamEndpoint": f"{call.world.urls.http}{call.path}/eventstream",
        },
    }


def _check_profile(sub: Subscription, region: str, profile: Mapping[str, Any]) -> None:
    kind = profile["workloadProfileType"]
    if kind not in _offered(sub, region):
        raise refusal("profile-region", kind=kind, region=region)


def _check_change(call: Call, profiles: Sequence[Body], there: Body) -> None:
    before = {one["name"] for one in there["properties"].get("workloadProfiles") or []}
    after = {one["name"]: one["workloadProfileType"] for one in profiles}
    for name, kind in after.items():
        if name not in before and call.sub.knobs.old_environment and "GPU" in kind:
            raise refusal("profile-late", kind=kind, name=there["name"])
    for app in _apps(call):
        used = app["properties"]["workloadProfileName"]
        if used in before and used not in after:
            raise refusal("profile-used", profile=used, app=app["name"])


def _check_empty(call: Call, _environment: Body) -> None:
    if apps := _apps(call):
        raise refusal("environment-used", name=call.name, count=len(apps))


def _shown_environment(_world: World, _sub: Subscription, body: Body) -> Body:
    """Keep the workspace's key back."""
    logs = body["properties"].get("appLogsConfiguration") or {}
    if not (linked := logs.get("logAnalyticsConfiguration")):
        return body
    told = {**logs, "logAnalyticsConfiguration": {"customerId": linked["customerId"]}}
    return {**body, "properties": {**body["properties"], "appLogsConfiguration": told}}


def _link(_call: Call, asked: Body, _there: Body | None) -> Body:
    properties = asked.get("properties", {})
    file = properties.get("azureFile") or {}
    needed = ("accountName", "accountKey", "shareName", "accessMode")
    if missing := [key for key in needed if not file.get(key)]:
        raise refusal("link", why=f"The storage's azureFile lacks {', '.join(missing)}.")
    return {"properties": properties}


def _shown_link(_world: World, _sub: Subscription, body: Body) -> Body:
    """Keep the account's key back."""
    properties = {
        kind: {key: value for key, value in told.items() if key != "accountKey"}
        for kind, told in body["properties"].items()
    }
    return {**body, "properties": properties}


_APPS: Final = (
    kind_of(ENVIRONMENT, fill=_environment, shown=_shown_environment, keep=_check_empty),
    kind_of(f"{ENVIRONMENT}/storages", fill=_link, shown=_shown_link),
    kind_of(f"{ENVIRONMENT}/usages", handlers={"LIST": _list_environment_usages}),
    kind_of("Microsoft.App/locations/usages", handlers={"LIST": _list_usages}),
    kind_of(f"Microsoft.App/{_OFFERS}", handlers={"LIST": _list_offers}),
)
WORKSPACE: Final = "Microsoft.OperationalInsights/workspaces"
_GROUP: Final = "Microsoft.Resources/resourceGroups"
_PROVIDERS: Final[list[str]] = CATALOG["providers"]
_UNREGISTERED: Final = {"Microsoft.Resources", "Microsoft.Authorization"}


def _group(_call: Call, _asked: Body, _there: Body | None) -> Body:
    return {"properties": {"provisioningState": "Succeeded"}}


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
    *_APPS,
    kind_of(_GROUP, fill=_group),
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
