"""What an app's template must be: containers that fit, probes within limits, mounts that exist."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from emulators.azure.profiles_known import CONSUMPTION, TYPES
from emulators.azure.refusing import Refused, invalid
from emulators.azure.serving import Call

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


def check(call: Call, template: Mapping[str, Any], profile_type: str) -> None:
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
