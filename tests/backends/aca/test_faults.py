"""Whatever Azure answers: a coded error or none, the truth afterwards, and nothing left over."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, NamedTuple

import pytest

from backends.aca import replicas, secrets
from backends.aca.site import HF_SECRET, PHASES, Site
from core.errors import CloudError
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import delete
from tests.backends.aca.faulty import (
    KINDS,
    WAYS,
    Cloud,
    Killed,
    Told,
    Wire,
    cloud_of,
    told_of,
    wire,
)
from tests.backends.aca.grounds import AT_ONCE, MADE, READS, go, resources, stands
from tests.backends.aca.sites import fault, opened
from tests.backends.aca.works import WORKS, cases

pytestmark = [pytest.mark.anyio, pytest.mark.life]
__all__ = ["wire"]
LOOKS: Final = {
    "apply": ("GET Microsoft.App/containerApps", "GET secrets", "GET operations"),
    "replace": ("GET Microsoft.App/containerApps/revisions",),
    "stop": ("GET Microsoft.App/containerApps", "GET operations"),
    "delete": ("GET Microsoft.App/containerApps", "GET Microsoft.KeyVault/vaults", "GET secrets"),
}
"""Calls that only look, and are refused for good."""
NUMBERS: Final = range(1, 16)
"""Of calls, each of which is cut."""


class World(NamedTuple):
    """A subscription in which nothing ever boots."""

    cloud: Cloud
    site: Site
    wire: Wire

    async def cut(self, number: int, way: str, work: Awaitable[object]) -> Told | None:
        """Do it; None where the server was killed."""
        self.wire.cut(number, way)
        try:
            told = await told_of(work)
        except Killed:
            return None
        except BaseExceptionGroup as exc:  # of looks that were made side by side
            if exc.subgroup(Killed) is None:
                raise
            return None
        self.wire.cut(0, "")  # it may make fewer calls than that
        return told


_LOOKS: Final = {"POST Microsoft.App/containerApps/getAuthtoken", "POST metrics:getBatch"}
"""What a look at a deployment asks with POST; it changes nothing."""


@pytest.fixture
async def world(azure: AzurePlane, subscription: str, wire: Wire) -> AsyncIterator[World]:
    async with cloud_of(azure, subscription, wire) as cloud, opened(azure, subscription) as site:
        await cloud.set(rollout="never", quotas={"a100": 50}, environment_quotas={"a100": 50})
        yield World(cloud, site, wire)


@pytest.mark.parametrize("what", WORKS)
async def test_every_call_that_changes_something_is_in_the_matrix(world: World, what: str) -> None:
    """A call that is new here needs a row."""
    work = WORKS[what]
    if work.begin:
        await work.begin(world.site, "gemma")
    before = (await world.cloud.set())["calls"]
    await work.do(world.site, "gemma")
    made = (await world.cloud.set())["calls"][len(before) :]
    changed = {call for call in made if not call.startswith("GET")} - READS - _LOOKS
    assert changed == set(work.calls)
    assert await work.holds(world.site, "gemma")


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(("what", "method"), cases())
async def test_what_is_told_is_true_and_the_next_call_does_it(
    world: World, what: str, method: str, how: str
) -> None:
    """No error means that it is so; nothing is there by halves, and a deletion leaves nothing."""
    work, site = WORKS[what], world.site
    for number, answer in enumerate(KINDS[how]):
        name = f"gemma-{number}"
        if work.begin:
            await work.begin(site, name)
        told = await world.cloud.wrong(method, answer, work.do(site, name))
        # Who may not write into the vault yet may later: then it waits.
        assert told.code or await work.holds(site, name) or site.pending.get(name)
        if what != "delete":
            assert await world.cloud.whole(name) or not work.begin
        await work.do(site, name)
        assert await work.holds(site, name)
        await world.cloud.whole(name)
        assert (await delete(site, name)).gone
        assert not await world.cloud.whole(name)
        await secrets.remove(site, HF_SECRET)


@pytest.mark.parametrize("status", [403, 503])
@pytest.mark.parametrize(
    ("what", "method"), [(what, method) for what, methods in LOOKS.items() for method in methods]
)
async def test_a_look_that_is_refused_stops_no_deletion_for_ever(
    world: World, what: str, method: str, status: int
) -> None:
    """Nothing is made without being looked for; once it may be looked at, all is as it should."""
    work, site = WORKS[what], world.site
    if work.begin:
        await work.begin(site, "gemma")
    code = "AuthorizationFailed" if status == 403 else ""
    fault = {"method": method, "status": status, "code": code, "times": -1}
    await world.cloud.set(faults=[fault])
    told = await told_of(work.do(site, "gemma"))
    await world.cloud.set(faults=[])
    assert told.code in {None, "PERMISSION_DENIED", "CLOUD_UNAVAILABLE"}
    assert told.code or await work.holds(site, "gemma") or site.pending.get("gemma")
    await work.do(site, "gemma")
    assert await work.holds(site, "gemma")
    await world.cloud.whole("gemma")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("what", ["apply", "replace", "delete"])
async def test_what_ends_anywhere_is_finished_by_the_next_call(
    world: World, what: str, number: int
) -> None:
    """Nothing is there by halves, unless the server died, and nothing twice; no error, it is so."""
    work, site = WORKS[what], world.site
    for way in WAYS:
        name = f"gemma-{way}"
        if work.begin:
            await work.begin(site, name)
        told = await world.cut(number, way, work.do(site, name))
        assert told is None or told.code or await work.holds(site, name)
        if what == "replace" or (told and (what == "apply" or told.code is None)):
            await world.cloud.whole(name)
        await work.do(site, name)
        assert await work.holds(site, name)
        await world.cloud.whole(name)
        if what == "apply":
            assert len(await replicas.read_revisions(site, name)) == 1


CALLS = (
    *MADE,
    "POST Microsoft.OperationalInsights/workspaces/sharedKeys",
    "POST Microsoft.Storage/storageAccounts/listKeys",
)
"""Every change, and every key that is asked for."""
LOOKED = (
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
REFUSED: dict[str, dict[str, Any]] = {
    "forbidden": {"status": 403, "code": "AuthorizationFailed"},
    "down after it was done": {"status": 503, "when": "after"},
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


@pytest.mark.parametrize("way", REFUSED)
async def test_whatever_change_fails_is_made_by_the_next_call(
    azure: AzurePlane,
    bare_subscription: str,
    controls: Controls,
    way: str,
) -> None:
    faults = [fault(call, **REFUSED[way]) for call in CALLS]
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


async def test_whatever_look_fails_is_told_and_looked_at_again(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    refused = {"code": "AuthorizationFailed", "message": "Not you."}
    faults = [fault(call, 403, **refused) for call in LOOKED]
    controls.set(bare_subscription, **AT_ONCE, faults=faults)
    async with opened(azure, bare_subscription) as site:
        raised = await raised_until_all_is_there(site)
        await stands(site)
    assert {one.code for one in raised} == {"PERMISSION_DENIED"}
    left = controls.get(bare_subscription)["knobs"]["faults"]
    assert not [one["method"] for one in left if one["times"]]
