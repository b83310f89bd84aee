"""What a subscription holds beside apps: groups, providers, policies, workspaces, environments."""

import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from core.records import Record
from simulators.azure.admission import derived_key, refusal
from simulators.azure.arm import (
    UNREGISTERED,
    Call,
    display_of,
    kind_of,
    made,
    moment,
    paged,
    plain_region,
)
from simulators.azure.roles import assign, define
from simulators.azure.state import CATALOG, Body, Replica, Subscription, World, id_of

APP: Final = "Microsoft.App/containerApps"
ENVIRONMENT: Final = "Microsoft.App/managedEnvironments"
GROUP: Final = "Microsoft.Resources/resourceGroups"
WORKSPACE: Final = "Microsoft.OperationalInsights/workspaces"
_PAGE: Final = 30
"""Resources of a page; Azure's are longer."""
CONSUMPTION: Final = "Consumption"
_OFFERS: Final = "locations/availableManagedEnvironmentsWorkloadProfileTypes"
_PROVIDERS: Final[list[str]] = CATALOG["providers"]


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
    return (CONSUMPTION, "D4", "D8", "E4", *words[1:]) if words else ()


async def _list_offers(call: Call) -> Body:
    region = plain_region(call.name)
    if not (types := _offered(call.sub, region)):
        version = call.query["api-version"]
        raise refusal("region", region=region, version=version, kind=_OFFERS)
    return {"value": [_offer(call.path, region, name, PROFILES[name]) for name in types]}


def _offer(path: str, region: str, name: str, profile: Profile) -> Body:
    return {
        "id": f"{path}/{name}",
        "name": name,
        "type": f"Microsoft.App/{_OFFERS.partition('/')[2]}",
        "location": region,
        "properties": {
            "category": profile.category,
            "applicability": "LocationDefault",
            "cores": profile.cores,
            "memoryGiB": profile.memory_gib,
            "gpus": profile.gpus,
            "displayName": profile.display_name or name,
        },
    }


async def _list_usages(call: Call) -> Body:
    sub, region = call.sub, plain_region(call.name)
    here = [one for one in sub.living() if one.region == region]
    environments = [plain_region(one["location"]) for one in sub.of_type(ENVIRONMENT)]
    rows = [
        _usage("ManagedEnvironmentCount", environments.count(region), 15),
        _usage("SubscriptionNCA100Gpus", 0, 0),
        *_gpus("Subscription", here, sub.knobs.quotas),
    ]
    return {"value": rows}


async def _list_environment_usages(call: Call) -> Body:
    here = [one for one in call.sub.living() if one.environment == call.parent.lower()]
    cores = PROFILES[CONSUMPTION].cores * _using(here, CONSUMPTION)
    rows = [
        _usage("ManagedEnvironmentConsumptionCores", cores, 100),
        *_gpus("ManagedEnvironment", here, call.sub.knobs.environment_quotas),
    ]
    return {"value": rows}


def most_gpus(quotas: Mapping[str, int], profile: Profile) -> int:
    """Return how many GPUs a quota lets run; 2 where none is set."""
    return quotas.get(profile.quota, 2)


def _gpus(whose: str, here: Sequence[Replica], quotas: Mapping[str, int]) -> list[Body]:
    return [
        _usage(f"{whose}{profile.counter}", _using(here, name), most_gpus(quotas, profile))
        for name, profile in PROFILES.items()
        if profile.quota
    ]


def _using(replicas: Sequence[Replica], profile_type: str) -> int:
    return sum(one.profile_type == profile_type for one in replicas)


def _usage(name: str, current: int, limit: int) -> Body:
    shown = {"value": name, "localizedValue": name}
    return {"unit": "Count", "currentValue": current, "limit": limit, "name": shown}


def environment_of(app: Body) -> str:
    """Return the id of an app's environment, in lower case."""
    return str(app["properties"].get("environmentId") or "").lower()


def profile_types(environment: Body) -> dict[str, str]:
    """Return the type of each profile of an environment, by its name."""
    rows = environment["properties"].get("workloadProfiles") or []
    return {one["name"]: one["workloadProfileType"] for one in rows}


def _apps(call: Call) -> list[Body]:
    return [one for one in call.sub.of_type(APP) if environment_of(one) == call.id]


def _environment(call: Call, asked: Body, there: Body | None) -> Body:
    region, properties = plain_region(asked["location"]), asked.get("properties", {})
    profiles = profile_types({"properties": properties})
    for kind in profiles.values():
        if kind not in _offered(call.sub, region):
            raise refusal("profile-region", kind=kind, region=region)
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
            "environmentMode": "WorkloadProfiles" if profiles else "ConsumptionOnly",
            **properties,
            "defaultDomain": old.get("defaultDomain", domain),
            "staticIp": "203.0.113.7",
        },
    }


def _check_change(call: Call, after: Mapping[str, str], there: Body) -> None:
    before = profile_types(there)
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


def _link(_call: Call, asked: Body, _there: Body | None) -> Body:
    properties = asked.get("properties", {})
    file = properties.get("azureFile") or {}
    needed = ("accountName", "accountKey", "shareName", "accessMode")
    if missing := [key for key in needed if not file.get(key)]:
        raise refusal("link", why=f"The storage's azureFile lacks {', '.join(missing)}.")
    return {"properties": properties}


async def _list_resources(call: Call) -> Body:
    """List whatever has a location, in pages; its filters are not simulated."""
    if "$filter" in call.query:
        raise refusal("not-served", path=f"{call.path}?$filter")
    keys = ("id", "name", "type", "location", "tags", "kind", "sku", "identity")
    every = [
        {key: one[key] for key in keys if key in one}
        for one in call.sub.resources.values()
        if "location" in one and one["type"] != GROUP
    ]
    return paged(every, call.query, f"{call.world.urls.arm}{call.path}", _PAGE)


async def _provider(call: Call) -> Body:
    """Tell whether a provider may be used; register it where that is asked."""
    sub, name = call.sub, call.name.lower()
    namespace = next((one for one in _PROVIDERS if one.lower() == name), None)
    if namespace is None:
        raise refusal("namespace", name=call.name)
    if call.verb == "register":
        sub.providers.setdefault(name, time.time() + sub.knobs.registration_seconds)
    registered = name in UNREGISTERED or sub.registered(namespace)
    state = "Registering" if name in sub.providers else "NotRegistered"
    return {
        "id": f"/subscriptions/{sub.id}/providers/{namespace}",
        "namespace": namespace,
        "registrationState": "Registered" if registered else state,
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
    of_account = kind.lower() == "microsoft.storage/storageaccounts"
    if of_account and properties.get("allowSharedKeyAccess") is not False:
        yield from {"shared-keys"} & {*forbids}
    if kind.lower() == APP.lower() and ingress.get("external"):
        yield from {"public-ingress"} & {*forbids}


def _assignment(sub: Subscription, policy: str) -> str:
    kind = "Microsoft.Authorization/policyAssignments"
    return f"/subscriptions/{sub.id}/providers/{kind}/{policy}"


async def _check_restrictions(call: Call) -> Body:
    content = call.body["resourceDetails"]["resourceContent"]
    rows = [
        {
            "policyInfo": {"policyAssignmentId": _assignment(call.sub, policy)},
            "evaluationResult": "NonCompliant",
        }
        for policy in _violated(call.sub, content["type"], content)
    ]
    return {"fieldRestrictions": [], "contentEvaluationResult": {"policyEvaluations": rows}}


def workspace_key(world: World, workspace: Body) -> str:
    """Return a workspace's primary key."""
    return derived_key(world, workspace["properties"]["customerId"])


def _workspace(call: Call, asked: Body, _there: Body | None) -> Body:
    given = {"customerId": id_of(call.id), "modifiedDate": moment()}
    return {"properties": {**asked["properties"], **given}}


async def _shared_keys(call: Call) -> Body:
    return {"primarySharedKey": workspace_key(call.world, call.found())}


KINDS: Final = (
    kind_of(ENVIRONMENT, fill=_environment, keep=_check_empty),
    kind_of(f"{ENVIRONMENT}/storages", fill=_link),
    kind_of(f"{ENVIRONMENT}/usages", handlers={"LIST": _list_environment_usages}),
    kind_of("Microsoft.App/locations/usages", handlers={"LIST": _list_usages}),
    kind_of(f"Microsoft.App/{_OFFERS}", handlers={"LIST": _list_offers}),
    kind_of(GROUP),
    kind_of("Microsoft.Resources/resources", handlers={"LIST": _list_resources}),
    kind_of("Microsoft.Insights/components"),
    kind_of("Microsoft.Network/virtualNetworks"),
    kind_of(
        "Microsoft.Resources/subscriptions/providers",
        handlers={"GET": _provider, "register": _provider},
    ),
    kind_of("Microsoft.PolicyInsights", handlers={"checkPolicyRestrictions": _check_restrictions}),
    kind_of(WORKSPACE, fill=_workspace, handlers={"sharedKeys": _shared_keys}),
)


def prepare(world: World, sub: Subscription) -> None:
    """Make what the set-up of both targets makes, as `catalog.toml` has it."""
    sub.providers |= dict.fromkeys({one.lower() for one in _PROVIDERS} - UNREGISTERED, 0.0)
    unique = hashlib.sha256(f"{sub.id}/vllm-devops".encode()).hexdigest()[:12]
    words: dict[str, Any] = {"sub": sub, "unique": unique}
    for row in CATALOG["prepared"]:
        asked = {"location": "swedencentral", "tags": {"managed-by": "vllm-devops-agent"}}
        path, body = row["path"].format_map(words), _filled(row.get("body", {}), words)
        made_now = words[row["as"]] = made(world, sub, path, {**asked, **body})
        for role, principal in row.get("roles", {}).items():
            assign(sub, made_now["id"], role, principal.format_map(words))
        if row["as"] == "workspace":
            words["workspace_key"] = workspace_key(world, made_now)
        if row["as"] == "account":
            words["account_key"] = derived_key(world, sub.id, made_now["name"], "key1")
    role = _filled(CATALOG["prepared_role"], words)
    define(sub, str(uuid.uuid5(uuid.UUID(role["of"]), role["name"].lower())), role["properties"])
    world.keep(sub)


def _filled(value: Any, words: Mapping[str, Any]) -> Any:
    """Return a value of the catalogue with the words that it names."""
    if isinstance(value, dict):
        return {key: _filled(inner, words) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, words) for inner in value]
    return value.format_map(words) if isinstance(value, str) else value
