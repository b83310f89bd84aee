"""What deployments stand on, as tests make it and look at it."""

from collections import Counter
from typing import Final

from backends.aca.backend import AcaBackend
from backends.aca.plan import base as ground
from backends.aca.site import SHARE, Site
from backends.lifecycle import advance
from core.waiting import wait_until
from tests.azure_plane import Controls

AT_ONCE: Final = {"environment_seconds": 0, "operation_seconds": 0, "registration_seconds": 0}
"""Nothing has to be waited for."""
CHANGES: Final = ("PUT", "PATCH", "DELETE", "POST")
READS: Final = {
    "POST Microsoft.OperationalInsights/workspaces/sharedKeys",
    "POST Microsoft.Storage/storageAccounts/listKeys",
    "POST Microsoft.PolicyInsights/checkPolicyRestrictions",
}
"""What is asked with POST and changes nothing."""
MADE: Final = {
    "POST Microsoft.Resources/subscriptions/providers/register": 5,
    "PUT Microsoft.Resources/resourceGroups": 1,
    "PUT Microsoft.OperationalInsights/workspaces": 1,
    "PUT Microsoft.App/managedEnvironments": 1,
    "PUT Microsoft.ManagedIdentity/userAssignedIdentities": 1,
    "PUT Microsoft.KeyVault/vaults": 1,
    "PUT Microsoft.Authorization/roleAssignments": 3,
    "PUT Microsoft.Storage/storageAccounts": 1,
    "PUT Microsoft.Storage/storageAccounts/fileServices/shares": 1,
    "PUT Microsoft.App/managedEnvironments/storages": 2,
}
"""Every change that a bare subscription needs, and how often."""


def changes(controls: Controls, subscription: str) -> Counter[str]:
    """Count the calls that changed something, or tried to."""
    calls = controls.get(subscription)["calls"]
    return Counter(one for one in calls if one.startswith(CHANGES) and one not in READS)


def resources(controls: Controls, subscription: str) -> list[str]:
    """Give the ids of everything that is there, in lower case."""
    found: list[str] = controls.get(subscription)["resources"]
    return found


async def go(site: Site, *, share: str | None = SHARE) -> str | None:
    """Make what is missing; the phase that is waited for, None when all is there."""
    waiting = await advance(ground(site, share), seconds=AcaBackend.go_on_seconds)
    return waiting.phase if waiting else None


async def stands(site: Site, share: str | None = SHARE) -> None:
    """Go on until everything is there."""

    async def look() -> str | None:
        return await go(site, share=share)

    await wait_until(look, lambda seen: seen is None, waiting_for="it", every=0.05, timeout=20)
