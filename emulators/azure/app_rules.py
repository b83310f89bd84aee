"""What a container app must be: its name, where it runs, its identities and its secrets."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from emulators.azure import app_rules_ingress, app_rules_template
from emulators.azure.bodies import plain_region
from emulators.azure.refusing import Refused, invalid
from emulators.azure.serving import Call

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
    app_rules_ingress.check(configuration.get("ingress"))
    app_rules_template.check(call, template, profile["workloadProfileType"])
    names = {one["name"] for one in configuration.get("secrets") or []}
    app_rules_template.check_references(template, names)
    app_rules_template.check_volumes(call, template, environment["id"])


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
