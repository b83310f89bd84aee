"""What a container app must be, what Azure fills in, and what it keeps back."""

import copy
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from simulators.azure import fleet
from simulators.azure.catalog import CONSUMPTION, TYPES, display_of
from simulators.azure.errors import Refused, invalid
from simulators.azure.serving import Call, moment, plain_region, system_data
from simulators.azure.state import Subscription, World, id_of

_LAST_PORT: Final = 65535


def ingress_check(ingress: Mapping[str, Any] | None) -> None:
    """Refuse an ingress that Azure does not make.

    Raises:
        Refused: Something about it cannot be.
    """
    if not ingress:
        return
    port = ingress.get("targetPort")
    if port is not None and not 0 < port <= _LAST_PORT:
        raise invalid(
            f"Ingress targetPort '{port}' is invalid: it must be between 1 and {_LAST_PORT}.",
            "ContainerAppInvalidIngressTargetPort",
        )
    weight = sum(one.get("weight") or 0 for one in ingress["traffic"])
    if ingress["traffic"] and weight != 100:
        raise invalid(
            f"Traffic weights must add up to 100, but the sum is {weight}.",
            "ContainerAppInvalidTrafficWeight",
        )
    _check_restrictions(ingress.get("ipSecurityRestrictions") or [])


def _check_restrictions(rows: list[dict[str, Any]]) -> None:
    names = [one["name"] for one in rows]
    if len(set(names)) < len(names):
        raise _bad("the names of the rules must be unique")
    if len({one["action"] for one in rows}) > 1:
        raise _bad("all rules must have the same action")
    for row in rows:
        try:
            ipaddress.IPv4Network(row["ipAddressRange"])
        except ValueError as exc:
            raise _bad(f"'{row['ipAddressRange']}' is not a range of IPv4 addresses") from exc


def _bad(why: str) -> Refused:
    return invalid(f"IP security restrictions are invalid: {why}.", "IpSecurityRestrictionInvalid")


_CONTAINER: Final = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
_SUFFIX: Final = re.compile(r"^[a-z]([a-z0-9-]*[a-z0-9])?$")
_LONGEST_REVISION: Final = 54
_MOST_REPLICAS: Final = 1000
_LIMITS: Final[dict[str, tuple[int, int]]] = {
    "initialDelaySeconds": (0, 60),
    "periodSeconds": (1, 240),
    "timeoutSeconds": (1, 240),
    "successThreshold": (1, 10),
}
"""Source: the descriptions in Microsoft's ARM schema; a delay of none is taken as well."""
_FAILURES: Final = {"Liveness": 30, "Readiness": 48}
"""Source: terraform-provider-azurerm, pull request 31989."""
_SMALLEST_CPU: Final = 0.25


def template_check(call: Call, template: Mapping[str, Any], profile_type: str) -> None:
    """Refuse containers and scaling that Azure does not run.

    Raises:
        Refused: Something about them cannot be.
    """
    containers = template.get("containers") or []
    if not containers:
        raise invalid(
            "A container app must have at least one container.", "ContainerAppContainersRequired"
        )
    for container in containers:
        _check_container(container)
        for probe in _probes(container):
            _check_probe(call, container["name"], probe)
    _check_total(call, containers, profile_type)
    _check_scale(template["scale"])
    _check_suffix(call.params["app"], template.get("revisionSuffix") or "")


def check_references(template: Mapping[str, Any], secrets: Iterable[str]) -> None:
    """Refuse variables that refer to no secret.

    Raises:
        Refused: One does.
    """
    known = set(secrets)
    for container in template["containers"]:
        for variable in container.get("env") or []:
            named = variable.get("secretRef")
            if named and named not in known:
                raise invalid(
                    f"SecretRef '{named}' defined for container '{container['name']}' not found.",
                    "ContainerAppSecretRefNotFound",
                )


def check_volumes(call: Call, template: Mapping[str, Any], environment_id: str) -> None:
    """Refuse volumes of no link, and mounts of no volume.

    Raises:
        Refused: There is one.
    """
    volumes = template.get("volumes") or []
    for volume in volumes:
        linked = volume.get("storageType") in {"AzureFile", "NfsAzureFile"}
        link = f"{environment_id}/storages/{volume.get('storageName')}"
        if linked and call.sub.get(link) is None:
            raise invalid(
                f"Storage '{volume.get('storageName')}' of the volume '{volume.get('name')}' is"
                " not found in the managed environment.",
                "ManagedEnvironmentStorageNotFound",
            )
        if "." in volume.get("name", ""):
            raise invalid(
                f"Volume name '{volume['name']}' is invalid.", "ContainerAppInvalidVolume"
            )
    names = {one.get("name") for one in volumes}
    for container in template["containers"]:
        for mount in container.get("volumeMounts") or []:
            if mount.get("volumeName") not in names or not mount.get("mountPath"):
                raise invalid(
                    f"Volume mount '{mount.get('volumeName')}' of container '{container['name']}'"
                    " refers to no volume, or has no path.",
                    "ContainerAppInvalidVolumeMount",
                )


def _check_container(container: Mapping[str, Any]) -> None:
    name = container.get("name") or ""
    if not _CONTAINER.match(name):
        raise invalid(f"Container name '{name}' is invalid.", "ContainerAppContainerInvalidName")
    if not container.get("image"):
        raise invalid(
            f"Container with name '{name}' must have an 'Image' property specified.",
            "ContainerAppImageRequired",
        )


def _probes(container: Mapping[str, Any]) -> list[dict[str, Any]]:
    probes: list[dict[str, Any]] = container.get("probes") or []
    kinds = [one.get("type") for one in probes]
    if len(set(kinds)) < len(kinds) or None in kinds:
        raise invalid(
            f"Container '{container['name']}' must have one probe of each type at most.",
            "ContainerAppProbeDuplicateType",
        )
    return probes


def _check_probe(call: Call, container: str, probe: Mapping[str, Any]) -> None:
    if bool(probe.get("httpGet")) == bool(probe.get("tcpSocket")):
        raise invalid(
            f"Container '{container}' '{probe['type']}' probe must have exactly one of httpGet and"
            " tcpSocket.",
            "ContainerAppProbeInvalidHandler",
        )
    most = _FAILURES.get(probe["type"], call.sub.knobs.startup_failures)
    limits = {**_LIMITS, "failureThreshold": (1, most)}
    if probe["type"] != "Readiness":
        limits["successThreshold"] = (1, 1)
    for key, (least, greatest) in limits.items():
        value = probe.get(key)
        if value is not None and not least <= value <= greatest:
            name = f"{key[0].upper()}{key[1:]}"
            raise invalid(
                f"Container '{container}' 'Type' probe's {name} must be in the range of"
                f" ['{least}', '{greatest}'].",
                f"ContainerAppProbe{name}OutOfRange",
            )


def _check_total(call: Call, containers: list[dict[str, Any]], profile_type: str) -> None:
    """On a GPU, and on Consumption, only certain pairs are taken."""
    cpu = sum(one["resources"]["cpu"] for one in containers)
    memory = sum(_gib(one["resources"]["memory"], profile_type) for one in containers)
    profile = TYPES[profile_type]
    if profile_type == CONSUMPTION:
        fits = cpu in {n * _SMALLEST_CPU for n in range(1, 17)} and memory == 2 * cpu
    elif profile.gpus and call.sub.knobs.whole_nodes:
        fits = (cpu, memory) == (profile.cores, profile.memory_gib)
    else:
        fits = cpu <= profile.cores and memory <= profile.memory_gib
    if not fits:
        raise _bad_total(f"CPU: {cpu:g}, memory: {memory:g}", profile_type)


def _bad_total(asked: str, profile_type: str) -> Refused:
    return invalid(
        f"The total requested CPU and memory resources for this application ({asked}) is invalid."
        " Total CPU and memory for all containers defined in a Container App must add up to one"
        f" of the CPU - Memory combinations of {profile_type}.",
        "ContainerAppInvalidResourceTotal",
    )


def _gib(text: str, profile_type: str) -> float:
    try:
        return float(text.removesuffix("Gi"))
    except ValueError as exc:
        raise _bad_total(f"memory: {text}", profile_type) from exc


def _check_scale(scale: Mapping[str, Any]) -> None:
    least, most = scale.get("minReplicas") or 0, scale["maxReplicas"]
    if not 0 <= least <= most or not 1 <= most <= _MOST_REPLICAS:
        raise _bad_scale(f"minReplicas {least} and maxReplicas {most} do not go together")
    if scale["cooldownPeriod"] < 1 or scale["pollingInterval"] < 1:
        raise _bad_scale("cooldownPeriod and pollingInterval must be positive")
    names = [one.get("name") for one in scale.get("rules") or []]
    if len(set(names)) < len(names) or not all(names):
        raise _bad_scale("scale rules must have names of their own")
    for rule in scale.get("rules") or []:
        number = ((rule.get("http") or {}).get("metadata") or {}).get("concurrentRequests", "1")
        if not number.isdecimal() or not int(number):
            raise _bad_scale(f"concurrentRequests '{number}' is no number of requests")


def _bad_scale(why: str) -> Refused:
    return invalid(f"The scale of the container app is invalid: {why}.", "ContainerAppInvalidScale")


def _check_suffix(app: str, suffix: str) -> None:
    if suffix and (not _SUFFIX.match(suffix) or len(f"{app}--{suffix}") > _LONGEST_REVISION):
        raise invalid(
            f"Revision name has an invalid value '{suffix}'. A revision name must consist of lower"
            " case alphanumeric characters or '-', start with an alphabetic character, and end"
            " with an alphanumeric character. The length of the revision name must not be more"
            " than a combined 54 characters with the container app name.",
            "ContainerAppInvalidRevisionName",
        )


_NAME: Final = re.compile(r"^[a-z](?!.*--)[a-z0-9-]{0,30}[a-z0-9]$")
_SECRET: Final = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
_ENVIRONMENT: Final = re.compile(
    r"^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.App/managedEnvironments/"
    r"[^/]+$",
    re.IGNORECASE,
)


def check(call: Call, asked: Mapping[str, Any]) -> None:
    """Refuse what Azure does not make; `asked` has its defaults.

    Raises:
        Refused: Something about it cannot be.
    """
    _check_name(call.params["app"])
    environment = _environment(call, asked)
    _check_identities(call, asked)
    properties = asked["properties"]
    configuration, template = properties["configuration"], properties["template"]
    _check_secrets(call, asked, configuration.get("secrets") or [])
    profile = _profile(environment, properties["workloadProfileName"])
    ingress_check(configuration.get("ingress"))
    template_check(call, template, profile["workloadProfileType"])
    names = {one["name"] for one in configuration.get("secrets") or []}
    check_references(template, names)
    check_volumes(call, template, environment["id"])


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise invalid(
            f"Invalid ContainerApp name '{name}'. A name must consist of lower case alphanumeric"
            " characters or '-', start with an alphabetic character, and end with an alphanumeric"
            " character and cannot have '--'. The length must be between 2 and 32 characters"
            " inclusive.",
            "ContainerAppInvalidName",
        )


def _environment(call: Call, asked: Mapping[str, Any]) -> dict[str, Any]:
    named = asked["properties"]["environmentId"]
    if not named or not _ENVIRONMENT.match(named):
        raise invalid(
            f"Invalid ManagedEnvironmentId value '{named or ''}'.", "InvalidManagedEnvironmentId"
        )
    found = call.sub.get(named)
    if found is None:
        raise Refused(
            404, "ManagedEnvironmentNotFound", f"The managed environment '{named}' does not exist."
        )
    if plain_region(found["location"]) != plain_region(asked["location"]):
        raise invalid(
            f"The container app's location '{asked['location']}' is not that of its environment,"
            f" '{found['location']}'.",
            "ContainerAppInvalidLocation",
        )
    if found["properties"]["provisioningState"] not in {"Succeeded", "Waiting"}:
        raise invalid(
            f"The environment '{named}' has not been provisioned successfully.",
            "ManagedEnvironmentNotProvisioned",
        )
    return found


def _profile(environment: Mapping[str, Any], named: str) -> dict[str, Any]:
    profiles = environment["properties"].get("workloadProfiles") or []
    found = next((one for one in profiles if one["name"] == named), None)
    if found is None:
        raise invalid(
            f"Workload profile name '{named}' does not exist in the environment"
            f" '{environment['name']}'.",
            "WorkloadProfileNameInvalid",
        )
    return dict(found)


def _check_identities(call: Call, asked: Mapping[str, Any]) -> None:
    """An identity that is given to the app has to be there."""
    told = asked.get("identity") or {}
    for named in told.get("userAssignedIdentities") or {}:
        if call.sub.get(named) is None:
            raise invalid(
                "Failed to perform resource identity operation. Status: 'BadRequest'. Response:"
                f" The resource '{named}' was not found.",
                "FailedIdentityOperation",
            )


def _check_secrets(call: Call, asked: Mapping[str, Any], secrets: list[dict[str, Any]]) -> None:
    given = {
        one.lower() for one in (asked.get("identity") or {}).get("userAssignedIdentities") or {}
    }
    names = [one.get("name", "") for one in secrets]
    if len(set(names)) < len(names):
        raise invalid("Container app secret names must be unique.", "ContainerAppSecretInvalid")
    for secret in secrets:
        _check_secret(call, secret, given)


def _check_secret(call: Call, secret: Mapping[str, Any], identities: set[str]) -> None:
    name, url, identity = (secret.get(key) or "" for key in ("name", "keyVaultUrl", "identity"))
    if not _SECRET.match(name):
        raise invalid(
            f"Invalid Request: Container app secret name '{name}' is invalid: a name must consist"
            " of lower case alphanumeric characters, '-' or '.'.",
            "ContainerAppSecretInvalid",
        )
    if not secret.get("value") and not (url and identity):
        raise invalid(
            f"Invalid Request: Container app secret(s) with name(s) '{name}' are invalid: value or"
            " keyVaultUrl and identity should be provided.",
            "ContainerAppSecretInvalid",
        )
    if not url:
        return
    if not _is_vault_secret(call, url):
        raise invalid(
            f"The keyVaultUrl '{url}' of the secret '{name}' is invalid.",
            "ContainerAppSecretKeyVaultUrlInvalid",
        )
    if identity.lower() != "system" and identity.lower() not in identities:
        raise invalid(
            f"The identity '{identity}' of the secret '{name}' is not assigned to the container"
            " app.",
            "ContainerAppSecretIdentityInvalid",
        )


def _is_vault_secret(call: Call, url: str) -> bool:
    """Whether it is `https://NAME.vault.azure.net/secrets/SECRET[/VERSION]`, or that rehearsed."""
    base, parts = call.world.urls.vaults, urlsplit(url)
    if url.startswith(f"{base}/"):
        path = url.removeprefix(f"{base}/").split("/")[1:]
    elif parts.scheme == "https" and (parts.hostname or "").endswith(".vault.azure.net"):
        path = parts.path.strip("/").split("/")
    else:
        return False
    return path[:1] == ["secrets"] and len(path) in {2, 3} and all(path)


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
