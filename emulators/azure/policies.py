"""What an organisation forbids by Azure Policy: told when it is asked, refused when it is made."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.routing import BaseRoute

from emulators.azure.refusing import Refused, invalid
from emulators.azure.serving import Call, arm
from emulators.azure.state import Subscription, World

_KIND: Final = "Microsoft.PolicyInsights/checkPolicyRestrictions"
_PERMISSION: Final = f"{_KIND}/action"


def routes(world: World) -> Sequence[BaseRoute]:
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
