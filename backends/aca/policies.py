"""What an organisation's policies forbid of a deployment, asked before anything is made or paid."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import anyio

from backends.aca import bodies, text
from backends.aca.blueprint import Blueprint
from backends.aca.failing import strictly
from backends.aca.site import Site
from backends.aca.waiting import reading
from core.cloud_errors import CloudRefused
from core.errors import OpsError

_API_VERSION: Final = "2022-03-01"
_ACTION: Final = "providers/Microsoft.PolicyInsights/checkPolicyRestrictions"
_EXEMPTION: Final = "ask its administrators for an exemption of this resource group"
APP_FIX: Final = (
    "If it forbids apps that the internet reaches, give access=internal, which only callers in the"
    f" environment's network reach; else change what the cause names, or {_EXEMPTION}."
)
SHARE_FIX: Final = (
    "If it forbids shared keys, with which a file share is mounted, give weights=hub:disk (the"
    " container's own disk) or an image with the weights (weights=baked, image=…); else set"
    f" AZURE_STORAGE_ACCOUNT to one that is there, or {_EXEMPTION}."
)


class _Content(NamedTuple):
    what: str
    fix: str
    body: dict[str, Any]


def is_policy(exc: OpsError) -> bool:
    """Whether a policy refused it."""
    return isinstance(exc, CloudRefused) and "RequestDisallowedByPolicy" in exc.summary


async def forbidden(site: Site, drawn: Blueprint) -> CloudRefused | None:
    """Return what a policy would refuse of a deployment; None where nothing is known against it.

    Raises:
        CloudError: Azure does not tell: the provider of policies is not registered, or not for you.
    """
    # The models of Azure's packages take a moment to be imported.
    contents = await anyio.to_thread.run_sync(lambda: tuple(_contents(drawn)))
    for one in contents:
        names = await _denied(site, one.body)
        if names:
            return CloudRefused(
                f"A policy of your organisation forbids {one.what}: {', '.join(names)}.",
                cause="Azure says so before it is made (Microsoft.PolicyInsights).",
                fix=one.fix,
            )
    return None


def _contents(drawn: Blueprint) -> Iterator[_Content]:
    app = {"type": "Microsoft.App/containerApps", "name": drawn.name, **text.body(drawn)}
    yield _Content("the app", APP_FIX, app)
    if drawn.mount:
        account = bodies.as_sent(bodies.storage_account_of(drawn.ground))
        kind = {"type": "Microsoft.Storage/storageAccounts", "name": drawn.ground.storage_account}
        yield _Content("the storage account of its share", SHARE_FIX, {**kind, **account})


async def _denied(site: Site, content: dict[str, Any]) -> list[str]:
    """Name the policies that deny it, in the group or, where that is not there yet, above it."""
    ground = site.ground
    subscription = f"/subscriptions/{ground.subscription}"
    found = await _asked(site, ground.group_id, content)
    if found is None:
        found = await _asked(site, subscription, content) or {}
    rows = (found.get("contentEvaluationResult") or {}).get("policyEvaluations") or []
    return [
        str((row.get("policyInfo") or {}).get("policyAssignmentId", "")).rpartition("/")[2]
        or "a policy"
        for row in rows
        if row.get("evaluationResult") == "NonCompliant"
        and (row.get("effectDetails") or {}).get("policyEffect", "Deny").lower() == "deny"
    ]


async def _asked(site: Site, scope: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Ask at a scope; None where it is not there."""
    from azure.core.rest import HttpRequest

    client = await site.clients.resources()
    request = HttpRequest(
        "POST",
        f"{scope}/{_ACTION}",
        params={"api-version": _API_VERSION},
        json={"resourceDetails": {"resourceContent": content}},
    )
    with strictly("see what policies forbid"):
        reply = await client.send_request(request, **reading())
        if reply.status_code == 404:
            return None
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
    return answer
