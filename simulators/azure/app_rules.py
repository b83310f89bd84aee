"""What a container app must be, and what Azure fills in."""

import copy
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

from simulators.azure.admission import refusal
from simulators.azure.arm import Call, plain_region
from simulators.azure.environment import CONSUMPTION, PROFILES
from simulators.azure.state import Body

_MOST_REPLICAS: Final = 1000
_LIMITS: Final[dict[str, tuple[int, int]]] = {
    "initialDelaySeconds": (0, 60),
    "periodSeconds": (1, 240),
    "timeoutSeconds": (1, 240),
}
"""Source: the descriptions in Microsoft's ARM schema; a delay of none is taken as well."""
_FAILURES: Final = {"Liveness": 30, "Readiness": 48}
"""Source: terraform-provider-azurerm, pull request 31989."""
_SCALE: Final = {"maxReplicas": 10, "cooldownPeriod": 300, "pollingInterval": 30}
"""What Azure takes where nothing is said. Source: the descriptions in Microsoft's ARM schema."""
_INGRESS: Final = {"external": False, "transport": "auto", "allowInsecure": False, "exposedPort": 0}
_RESOURCES: Final = {"cpu": 0.5, "memory": "1Gi"}


def filled(asked: Body) -> Body:
    """Return what was asked for with Azure's defaults."""
    body = copy.deepcopy(asked)
    properties = body.setdefault("properties", {})
    environment = properties.get("environmentId") or properties.get("managedEnvironmentId")
    properties |= {"environmentId": environment, "managedEnvironmentId": environment}
    properties.setdefault("workloadProfileName", CONSUMPTION)
    usual = {"activeRevisionsMode": "Single", "maxInactiveRevisions": 100}
    configuration = properties["configuration"] = usual | (properties.get("configuration") or {})
    if configuration.get("ingress"):
        everything = [{"weight": 100, "latestRevision": True}]
        configuration["ingress"] = {**_INGRESS, "traffic": everything, **configuration["ingress"]}
    template = properties.setdefault("template", {})
    template["scale"] = {**_SCALE, **(template.get("scale") or {})}
    for container in template.get("containers") or []:
        given = container.get("resources") or {}
        container["resources"] = {**_RESOURCES, **given, "ephemeralStorage": "8Gi"}
    return body


def check(call: Call, asked: Body) -> None:
    """Refuse what Azure does not make; `asked` has its defaults.

    Raises:
        Refused: Something about it cannot be.
    """
    properties, environment = asked["properties"], _environment(call, asked)
    configuration, template = properties["configuration"], properties["template"]
    for named in _identities(asked):
        if call.sub.get(named) is None:
            raise refusal("app-identity", name=named)
    secrets = configuration.get("secrets") or []
    names = [one.get("name") or "" for one in secrets]
    for secret in secrets:
        _check_secret(secret, {one.lower() for one in _identities(asked)})
    profiles = environment["properties"].get("workloadProfiles") or []
    types = {one["name"]: one["workloadProfileType"] for one in profiles}
    profile = properties["workloadProfileName"]
    if profile not in types:
        raise refusal("app-profile", profile=profile, name=environment["name"])
    if configuration.get("ingress"):
        _check_ingress(configuration["ingress"])
    _check_template(call, template, types[profile])
    for container in template["containers"]:
        for variable in container.get("env") or []:
            named = variable.get("secretRef")
            if named and named not in names:
                raise refusal("app-secret-ref", name=named, container=container["name"])
    _check_volumes(call, template, environment["id"])


def _identities(asked: Body) -> Sequence[str]:
    return list((asked.get("identity") or {}).get("userAssignedIdentities") or {})


def _environment(call: Call, asked: Body) -> Body:
    named = asked["properties"]["environmentId"] or ""
    words = named.lower().split("/")
    if len(words) != 9 or words[6:8] != ["microsoft.app", "managedenvironments"]:
        raise refusal("app-environment", value=named)
    found = call.sub.get(named)
    if found is None:
        raise refusal("app-no-environment", name=named)
    if plain_region(found["location"]) != plain_region(asked["location"]):
        raise refusal("app-location", asked=asked["location"], there=found["location"])
    if found["properties"]["provisioningState"] not in {"Succeeded", "Waiting"}:
        raise refusal("app-early", name=named)
    return found


def _check_secret(secret: Mapping[str, Any], identities: set[str]) -> None:
    name, url, identity = (secret.get(key) or "" for key in ("name", "keyVaultUrl", "identity"))
    if not secret.get("value") and not (url and identity):
        why = "value or keyVaultUrl and identity should be provided"
        raise refusal("app-secret", name=name, why=why)
    if url and identity.lower() not in {"system", *identities}:
        raise refusal("app-secret-identity", identity=identity, name=name)


def _check_ingress(ingress: Mapping[str, Any]) -> None:
    rows = ingress.get("ipSecurityRestrictions") or []
    if len({one["action"] for one in rows}) > 1:
        raise refusal("app-addresses", why="all rules must have the same action")
    for row in rows:
        try:
            ipaddress.IPv4Network(row["ipAddressRange"])
        except ValueError as exc:
            why = f"'{row['ipAddressRange']}' is not a range of IPv4 addresses"
            raise refusal("app-addresses", why=why) from exc


def _check_template(call: Call, template: Mapping[str, Any], profile_type: str) -> None:
    containers = template.get("containers") or []
    if not containers:
        raise refusal("app-empty")
    for container in containers:
        for probe in container.get("probes") or []:
            _check_probe(call, container["name"], probe)
    _check_total(call, containers, profile_type)
    _check_scale(template["scale"])


def _check_probe(call: Call, name: str, probe: Mapping[str, Any]) -> None:
    failures = _FAILURES.get(probe["type"], call.sub.knobs.startup_failures)
    limits = {**_LIMITS, "failureThreshold": (1, failures)}
    for key, (least, most) in limits.items():
        value, told = probe.get(key), f"{key[0].upper()}{key[1:]}"
        if value is not None and not least <= value <= most:
            raise refusal("app-probe-range", key=told, name=name, least=least, most=most)


def _check_total(call: Call, containers: Sequence[Body], profile_type: str) -> None:
    """On a GPU, and on Consumption, only certain pairs are taken."""
    texts = [str(one["resources"]["memory"]) for one in containers]
    cpu = sum(one["resources"]["cpu"] for one in containers)
    wrong = refusal("app-total", cpu=f"{cpu:g}", memory="+".join(texts), profile=profile_type)
    try:
        memory = sum(float(one.removesuffix("Gi")) for one in texts)
    except ValueError as exc:
        raise wrong from exc
    profile = PROFILES[profile_type]
    if profile_type == CONSUMPTION:
        fits = cpu in {n / 4 for n in range(1, 17)} and memory == 2 * cpu
    elif profile.gpus and call.sub.knobs.whole_nodes:
        fits = (cpu, memory) == (profile.cores, profile.memory_gib)
    else:
        fits = cpu <= profile.cores and memory <= profile.memory_gib
    if not fits:
        raise wrong


def _check_scale(scale: Mapping[str, Any]) -> None:
    least, most = scale.get("minReplicas") or 0, scale["maxReplicas"]
    if not 0 <= least <= most or not 1 <= most <= _MOST_REPLICAS:
        why = f"minReplicas {least} and maxReplicas {most} do not go together"
        raise refusal("app-scale", why=why)


def _check_volumes(call: Call, template: Mapping[str, Any], environment_id: str) -> None:
    for volume in template.get("volumes") or []:
        name, stored = volume.get("name") or "", volume.get("storageName")
        linked = volume.get("storageType") in {"AzureFile", "NfsAzureFile"}
        if linked and call.sub.get(f"{environment_id}/storages/{stored}") is None:
            raise refusal("app-storage", storage=stored, name=name)
