"""Whatever call fails, and however: the next one goes on, and nothing is there twice."""

from functools import partial
from typing import Any

import pytest

from backends.aca import site as aca_site
from backends.aca.site import PHASES, Site
from backends.common.concurrency import side_by_side
from core.errors import CloudError, NotAuthenticated
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.grounds import AT_ONCE, MADE, go, resources, stands
from tests.backends.aca.sites import fault, opened

pytestmark = [pytest.mark.anyio, pytest.mark.life]

CALLS = (
    *MADE,
    "POST Microsoft.OperationalInsights/workspaces/sharedKeys",
    "POST Microsoft.Storage/storageAccounts/listKeys",
)
"""Every change, and every key that is asked for."""
READS = (
    "GET Microsoft.Resources/subscriptions/providers",
    "GET Microsoft.Resources/resourceGroups",
    "GET Microsoft.OperationalInsights/workspaces",
    "GET Microsoft.App/managedEnvironments",
    "GET Microsoft.ManagedIdentity/userAssignedIdentities",
    "GET Microsoft.KeyVault/vaults",
    "GET Microsoft.KeyVault/deletedVaults",
    "GET Microsoft.Authorization/roleAssignments",
    "GET Microsoft.Storage/storageAccounts",
    "GET Microsoft.Storage/storageAccounts/fileServices/shares",
    "GET Microsoft.App/managedEnvironments/storages",
)
FEW = (
    "PUT Microsoft.Resources/resourceGroups",
    "PUT Microsoft.App/managedEnvironments",
    "PUT Microsoft.KeyVault/vaults",
    "PUT Microsoft.Authorization/roleAssignments",
    "PUT Microsoft.App/managedEnvironments/storages",
)
"""One of each kind: at once, a change that goes on, a name of the world, a role, a link."""
WAYS: dict[str, dict[str, Any]] = {
    "forbidden": {"status": 403, "code": "AuthorizationFailed"},
    "busy": {"status": 409},
    "throttled": {"status": 429},
    "down": {"status": 503},
    "down after it was done": {"status": 503, "when": "after"},
    "silent": {"when": "hang"},
}
MOST_TRIES = 40


async def tried(site: Site) -> CloudError | None:
    """Go on once; what was raised, if everything is not there."""
    try:
        phase = await go(site)
    except CloudError as exc:
        return exc
    assert phase is None or phase in PHASES
    return None


async def raised_until_all_is_there(site: Site) -> list[CloudError]:
    """Go on as long as something fails."""
    found: list[CloudError] = []
    for _ in range(MOST_TRIES):
        raised = await tried(site)
        if raised is None:
            return found
        found.append(raised)
    raise AssertionError(found)


@pytest.mark.parametrize("way", WAYS)
async def test_whatever_change_fails_is_made_by_the_next_call(
    azure: AzurePlane,
    bare_subscription: str,
    controls: Controls,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    if way == "silent":
        monkeypatch.setattr(aca_site, "WRITE_SECONDS", 0.2)
    calls = CALLS if way in {"forbidden", "down after it was done"} else FEW
    faults = [fault(call, **WAYS[way]) for call in calls]
    controls.set(bare_subscription, **AT_ONCE, faults=faults)
    async with opened(azure, bare_subscription) as site:
        raised = await raised_until_all_is_there(site)
        await stands(site)
    assert raised
    assert all(one.fix for one in raised)
    everything = resources(controls, bare_subscription)
    assert len(everything) == len(set(everything))
    assert sum("/managedenvironments/" in one for one in everything) == 3
    assert sum("/roleassignments/" in one for one in everything) == 3
    left = controls.get(bare_subscription)["knobs"]["faults"]
    assert not [one["method"] for one in left if one["times"]]


async def test_what_somebody_else_makes_at_the_same_time_is_taken_as_made(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    faults = [fault(call, 409, when="after") for call in FEW]
    controls.set(bare_subscription, **AT_ONCE, faults=faults)
    async with opened(azure, bare_subscription) as site:
        assert await raised_until_all_is_there(site) == []
        await stands(site)


async def test_two_servers_at_once_make_everything_once(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription) as one, opened(azure, bare_subscription) as other:
        await side_by_side([partial(stands, one), partial(stands, other)])
    everything = resources(controls, bare_subscription)
    assert len(everything) == len(set(everything))
    assert sum("/roleassignments/" in name for name in everything) == 3


async def test_whatever_look_fails_is_told_and_looked_at_again(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    refused = {"code": "AuthorizationFailed", "message": "Not you."}
    faults = [fault(call, 403, **refused) for call in READS]
    controls.set(bare_subscription, **AT_ONCE, faults=faults)
    async with opened(azure, bare_subscription) as site:
        raised = await raised_until_all_is_there(site)
        await stands(site)
    assert {one.code for one in raised} == {"PERMISSION_DENIED"}
    left = controls.get(bare_subscription)["knobs"]["faults"]
    assert not [one["method"] for one in left if one["times"]]


@pytest.mark.parametrize("login", ["none", "expired"])
async def test_without_a_login_it_says_how_to_log_in(
    azure: AzurePlane, subscription: str, controls: Controls, login: str
) -> None:
    controls.set(subscription, login=login)
    async with opened(azure, subscription) as site:
        with pytest.raises(NotAuthenticated) as caught:
            await go(site)
    assert "az login" in caught.value.fix
