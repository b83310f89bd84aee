"""Resource providers, and what an organisation's policies forbid."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.routing import BaseRoute

from simulators.azure.catalog import REGIONS, display_of
from simulators.azure.errors import Refused, denied, invalid, not_authorized
from simulators.azure.serving import Call, arm
from simulators.azure.state import Subscription, World

_TYPE: Final = "Microsoft.Resources/subscriptions/providers"
_ALWAYS: Final = frozenset({"microsoft.resources", "microsoft.authorization"})
"""Nobody has to register these."""
_TYPES: Final = {
    "Microsoft.App": {
        "managedEnvironments": "2026-07-01",
        "managedEnvironments/storages": "2026-07-01",
        "containerApps": "2026-07-01",
        "locations/usages": "2026-07-01",
        "locations/availableManagedEnvironmentsWorkloadProfileTypes": "2026-07-01",
    },
    "Microsoft.OperationalInsights": {"workspaces": "2025-07-01"},
    "Microsoft.KeyVault": {"vaults": "2026-05-15", "deletedVaults": "2026-05-15"},
    "Microsoft.ManagedIdentity": {"userAssignedIdentities": "2024-11-30"},
    "Microsoft.Storage": {"storageAccounts": "2026-09-01"},
    "Microsoft.Insights": {"metrics": "2024-02-01"},
    "Microsoft.Authorization": {
        "roleAssignments": "2022-04-01",
        "roleDefinitions": "2022-04-01",
        "permissions": "2022-04-01",
    },
    "Microsoft.Resources": {"resourceGroups": "2025-04-01"},
}
NAMESPACES: Final = tuple(_TYPES)
"""In Microsoft's own letters."""


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    every = "/subscriptions/{subscription}/providers"
    one = f"{every}/{{namespace}}"
    return (
        arm("GET", every, _list, type=_TYPE, world=world),
        arm("GET", one, _get, type=_TYPE, world=world),
        arm(
            "POST",
            f"{one}/register",
            _register,
            type=_TYPE,
            action="register",
            permission=f"{_TYPE}/read",
            world=world,
        ),
        arm(
            "POST",
            f"{one}/unregister",
            _forget,
            type=_TYPE,
            action="unregister",
            permission=f"{_TYPE}/read",
            world=world,
        ),
    )


def registered(sub: Subscription, namespace: str) -> None:
    """Register a provider at once."""
    sub.providers[namespace.lower()] = 0.0


async def _list(call: Call) -> dict[str, Any]:
    return {"value": [_shown(call.sub, namespace) for namespace in NAMESPACES]}


async def _get(call: Call) -> dict[str, Any]:
    return _shown(call.sub, _named(call))


async def _register(call: Call) -> dict[str, Any]:
    namespace = _allowed(call, "register")
    takes_effect = time.time() + call.sub.knobs.registration_seconds
    call.sub.providers.setdefault(namespace.lower(), takes_effect)
    return _shown(call.sub, namespace)


async def _forget(call: Call) -> dict[str, Any]:
    namespace = _allowed(call, "unregister")
    call.sub.providers.pop(namespace.lower(), None)
    return _shown(call.sub, namespace)


def _allowed(call: Call, action: str) -> str:
    namespace = _named(call)
    permission = f"{namespace}/{action}/action"
    if denied(call.sub, permission) or call.sub.knobs.group_alone:
        raise not_authorized(call.sub.caller_name, call.caller, permission, call.path)
    return namespace


def _named(call: Call) -> str:
    asked = call.params["namespace"]
    found = next((one for one in NAMESPACES if one.lower() == asked.lower()), None)
    if found is None:
        raise Refused(
            404, "InvalidResourceNamespace", f"The resource namespace '{asked}' is invalid."
        )
    return found


def _shown(sub: Subscription, namespace: str) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{sub.id}/providers/{namespace}",
        "namespace": namespace,
        "registrationState": _state(sub, namespace.lower()),
        "registrationPolicy": (
            "RegistrationFree" if namespace.lower() in _ALWAYS else "RegistrationRequired"
        ),
        "resourceTypes": [
            {
                "resourceType": kind,
                "locations": [display_of(region) for region in REGIONS],
                "apiVersions": [version],
                "capabilities": "SupportsTags, SupportsLocation",
            }
            for kind, version in _TYPES[namespace].items()
        ],
    }


def _state(sub: Subscription, namespace: str) -> str:
    if namespace in _ALWAYS or sub.registered(namespace):
        return "Registered"
    return "Registering" if namespace in sub.providers else "NotRegistered"


_KIND: Final = "Microsoft.PolicyInsights/checkPolicyRestrictions"
_PERMISSION: Final = f"{_KIND}/action"


def policies_routes(world: World) -> Sequence[BaseRoute]:
    """Serve it for a resource group and for a subscription."""
    return [
        arm("POST", f"{scope}/providers/{_KIND}", _check, type=_KIND, world=world,
            permission=_PERMISSION)
        for scope in (
            "/subscriptions/{subscription}",
            "/subscriptions/{subscription}/resourceGroups/{group}",
        )
    ]  # fmt: skip


def refuse(sub: Subscription, kind: str, name: str, body: Mapping[str, Any]) -> None:
    """Refuse what a policy denies.

    Raises:
        Refused: In Microsoft's words.
    """
    for policy in _violated(sub, kind, body):
        named = [{"policyAssignment": {"name": policy, "id": _assignment(sub, policy)}}]
        raise Refused(
            403,
            "RequestDisallowedByPolicy",
            f"Resource '{name}' was disallowed by policy. Policy identifiers:"
            f" '{json.dumps(named)}'.",
        )


def _violated(sub: Subscription, kind: str, body: Mapping[str, Any]) -> Iterator[str]:
    properties, forbids = body.get("properties") or {}, sub.knobs.organisation_forbids
    of = kind.lower()
    if of == "microsoft.storage/storageaccounts" and "shared-keys" in forbids:
        if properties.get("allowSharedKeyAccess") is not False:
            yield "shared-keys"
    elif of == "microsoft.app/containerapps" and "public-ingress" in forbids:
        ingress = (properties.get("configuration") or {}).get("ingress") or {}
        if ingress.get("external"):
            yield "public-ingress"


def _assignment(sub: Subscription, policy: str) -> str:
    kind = "Microsoft.Authorization/policyAssignments"
    return f"/subscriptions/{sub.id}/providers/{kind}/{policy}"


async def _check(call: Call) -> dict[str, Any]:
    content = (call.body.get("resourceDetails") or {}).get("resourceContent")
    if not content or not content.get("type"):
        raise invalid("The resource content must have a type.", "InvalidCheckRestrictionsRequest")
    rows = [
        {
            "policyInfo": {"policyAssignmentId": _assignment(call.sub, policy)},
            "evaluationResult": "NonCompliant",
        }
        for policy in _violated(call.sub, content["type"], content)
    ]
    return {"fieldRestrictions": [], "contentEvaluationResult": {"policyEvaluations": rows}}
