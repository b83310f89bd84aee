"""Leftovers on Azure: what no deployment needs any more, in every group and region, and no more."""

import ssl
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import httpx2
import pytest

from backends.common.preflight import read_needs
from core.settings import Settings
from tests.conversation import Agent, Reply, agent_of
from tests.soon import HANGS, until
from tests.stories.conftest import Azure
from tests.stories.troubles import asked, bare_trouble, becomes, deploys, refused, trouble

__all__ = ["bare_trouble", "trouble"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("every_cloud")]

OURS: Final = {"managed-by": "vllm-devops-agent"}
AGO: Final = 3600.0
"""How long ago it is that everything was made."""
PLACES: Final = {"team-a": "swedencentral", "team-b": "westus3"}
"""Groups whose app somebody has deleted, with all that it stood on still there."""
SHARED: Final = (
    "Key Vault", "Log Analytics workspace", "environment", "file share", "managed identity",
    "role", "scheduled job", "secret", "storage account",
)  # fmt: skip
"""What one of those leaves."""
BY_HAND: Final = (
    "Log Analytics workspace", "environment", "file share", "managed identity", "storage account",
)  # fmt: skip
"""What a set-up by hand makes."""
FIRST: Final = {"container app", "scheduled job", "secret", "file share", "role assignment"}
"""What goes with another one, unless it is removed before."""
APPS: Final = "providers/Microsoft.App/containerApps"
IDENTITIES: Final = "providers/Microsoft.ManagedIdentity/userAssignedIdentities"
ENVIRONMENT: Final = (
    "resourceGroups/team-a/providers/Microsoft.App/managedEnvironments/vllm-devops-swedencentral"
)
JOB: Final = {
    "workloadProfileName": "Consumption",
    "configuration": {
        "triggerType": "Schedule",
        "replicaTimeout": 60,
        "scheduleTriggerConfig": {"cronExpression": "1 1 1 1 *"},
    },
    "template": {
        "containers": [
            {"name": "a", "image": "a/b:1", "resources": {"cpu": 0.25, "memory": "0.5Gi"}}
        ]
    },
}
VAULTS: Final = "providers/Microsoft.KeyVault/vaults"


class Owner(NamedTuple):
    """Whoever owns the subscription, at Azure's own door."""

    azure: Azure

    def put(self, path: str, **body: Any) -> None:
        """Make something."""
        body = {"location": "eastus", **body}
        self._ask("PUT", path, {key: one for key, one in body.items() if one is not None})

    def delete(self, path: str) -> None:
        """Delete something, and see it gone."""
        self._ask("DELETE", path)
        for _ in range(400):
            if not self.has(path):
                return
        raise AssertionError(path)

    def has(self, path: str) -> bool:
        """Whether it is there."""
        return f"{self.whole}/{path}".lower() in self.azure.get()["resources"]

    @property
    def whole(self) -> str:
        return f"/subscriptions/{self.azure.subscription}"

    def put_secret(self, vault: str, name: str) -> None:
        """Keep a secret of one's own in a vault."""
        url = f"{self.azure.controls.plane.vaults}/{vault}/secrets/{name}"
        self._send("PUT", url, {"value": "theirs"}, "https://vault.azure.net/.default")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        self._send(method, f"{self.azure.controls.plane.arm}{self.whole}/{path}", body)

    def _send(self, method: str, url: str, body: dict[str, Any] | None, *scopes: str) -> None:
        plane = self.azure.controls.plane
        trust = ssl.create_default_context(cafile=plane.ca)
        asks: dict[str, Any] = {"trust_env": False, "verify": trust, "timeout": 30}
        token = httpx2.post(
            f"{plane.http}/rehearsal{self.whole}/token", json={"scopes": scopes}, **asks
        ).json()["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        more = {"api-version": "2026-07-01"}
        reply = httpx2.request(method, url, params=more, json=body, headers=headers, **asks)
        assert reply.is_success, reply.text


def elsewhere(azure: Azure, tmp_path: Path, group: str) -> Settings:
    """Return the settings of another machine, whose deployments are in a group of their own."""
    more = {"vllm_devops_state_dir": tmp_path / group, "azure_resource_group": group}
    return azure.settings.model_copy(update={**more, "azure_location": PLACES.get(group, "eastus")})


async def deserted(azure: Azure, tmp_path: Path, group: str) -> None:
    """Let another machine deploy, and somebody delete its app by hand."""
    async with agent_of(elsewhere(azure, tmp_path, group)) as agent:
        await asked(agent, "setup_target", name=None)
        await deploys(agent, ttl_minutes=90)
        await until(lambda: Owner(azure).has(f"resourceGroups/{group}/{APPS}/one"))
    Owner(azure).delete(f"resourceGroups/{group}/{APPS}/one")


async def found(agent: Agent) -> Reply:
    """Look through the subscription."""
    reply = await agent.call("get_system_status", target="aca-a100", leftovers=True)
    assert not reply.failed, reply
    return reply


def others(reply: Reply) -> int:
    """Count what is somebody else's."""
    [counted] = reply.data["others"].values()
    return sum(counted.values())


def kinds(reply: Reply) -> dict[str, int]:
    """Count what was found, by kind."""
    return dict(Counter(one["kind"] for one in reply.data["leftovers"]))


async def test_forty_leftovers_are_found_beside_forty_of_others_and_each_is_removed(
    trouble: Azure, tmp_path: Path
) -> None:
    """A deployment lives beside them; nothing that it stands on is named."""
    owner = Owner(trouble)
    trouble.set(made_ago_seconds=AGO)
    for group in PLACES:
        await deserted(trouble, tmp_path, group)
    async with agent_of(elsewhere(trouble, tmp_path, "unseen")) as agent:
        await asked(agent, "setup_target", name=None)
        await deploys(agent, ttl_minutes=90, min_replicas=1)
        await becomes(agent, "ready")
    owner.delete(f"resourceGroups/team-a/{IDENTITIES}/vllm-devops")  # its role stays
    for number in range(9):
        owner.put(f"resourceGroups/empty-{number}", tags=OURS)
    for number in range(7):
        vault = f"resourceGroups/empty-0/{VAULTS}/old{number}-{trouble.subscription[:8]}"
        owner.put(vault, tags=OURS, properties=_vault(trouble))
        owner.delete(vault)
    _set_up_by_hand(owner)
    async with agent_of(trouble.settings) as agent:
        before = others(await found(agent))
        _plant_others(owner)
        await deploys(agent, name="living", ttl_minutes=90)
        await until(lambda: owner.has(f"resourceGroups/vllm-devops/{APPS}/living"))
        seen = await found(agent)
        wanted = Counter(SHARED * len(PLACES)) + Counter(BY_HAND)
        wanted += Counter({"role assignment": 1, "resource group": 9, "deleted Key Vault": 7})
        wanted += Counter({"container app": 1, "managed identity": -1})
        assert kinds(seen) == wanted, seen
        assert len(seen.data["leftovers"]) == 40
        assert others(seen) - before == 40, seen
        assert seen.data["not_seen"] == [], seen
        await _prices(seen)
        ids = [one["id"] for one in seen.data["leftovers"]]
        assert not [one for one in ids if "/vllm-devops/" in one or "living" in one]
        one_of_each = {one["kind"]: one for one in seen.data["leftovers"]}
        removed = sorted(one_of_each.values(), key=lambda one: one["kind"] not in FIRST)
        for one in removed:
            gone = await agent.call("destroy_vllm", target="aca-a100", leftover=one["id"])
            assert gone.data.get("gone"), f"{one}\n{gone}"
        after = await found(agent)
        left = {one["id"] for one in after.data["leftovers"]}
        gone_ids = {one["id"] for one in removed}
        assert left.isdisjoint(gone_ids)
        vault = one_of_each["Key Vault"]["id"].rpartition("/")[2]
        assert [one for one in ids if one not in left | gone_ids and vault not in one] == []
        assert others(after) - before == 40, after
        await becomes_ready(agent)


async def becomes_ready(agent: Agent) -> None:
    """See that the living one is well, and its job ends it."""
    with anyio.fail_after(HANGS):
        while True:
            reply = await asked(agent, "status_vllm", name="living", wait_s=1)
            if reply.state in {"ready", "asleep"}:
                assert reply.data["lease"] == "cloud", reply
                return


async def _prices(seen: Reply) -> None:
    """A share of 100 GiB is $25 a month, a replica on an A100 as many dollars as its hours."""
    prices = {one["kind"]: one["usd_per_month"] for one in seen.data["leftovers"]}
    assert prices.pop("file share") == 25
    assert prices.pop("container app") > 1000
    assert set(prices.values()) == {0}
    [app] = [one for one in seen.data["leftovers"] if one["kind"] == "container app"]
    assert "no target looks in the resource group unseen" in app["why"], app


def _vault(azure: Azure) -> dict[str, Any]:
    sku, tenant = {"family": "A", "name": "standard"}, azure.get()["tenant"]
    return {"tenantId": tenant, "sku": sku, "softDeleteRetentionInDays": 7}


def _set_up_by_hand(owner: Owner) -> None:
    """Make what a set-up makes in one more group and region."""
    group, unique = "resourceGroups/team-c/providers", owner.azure.subscription[:8]
    made: dict[str, Any] = {"tags": OURS, "location": "eastus"}
    owner.put("resourceGroups/team-c", **made)
    log = {"sku": {"name": "PerGB2018"}}
    owner.put(f"{group}/Microsoft.OperationalInsights/workspaces/w", properties=log, **made)
    owner.put(f"{group}/Microsoft.ManagedIdentity/userAssignedIdentities/vllm-devops", **made)
    owner.put(
        f"{group}/Microsoft.App/managedEnvironments/vllm-devops-eastus", properties={}, **made
    )
    account = f"{group}/Microsoft.Storage/storageAccounts/byhand{unique}"
    fast = {"kind": "FileStorage", "sku": {"name": "PremiumV2_LRS"}}
    owner.put(account, properties={}, **fast, **made)
    owner.put(f"{account}/fileServices/default/shares/weights", location=None, properties={})


def _plant_others(owner: Owner) -> None:
    """Make forty things of somebody else's."""
    owner.put("resourceGroups/theirs")
    group, app = "resourceGroups/theirs/providers", "Microsoft.App"
    log = {"sku": {"name": "PerGB2018"}}
    for number in range(5):
        owner.put(f"{group}/Microsoft.Network/virtualNetworks/net-{number}")
        owner.put(f"{group}/Microsoft.Insights/components/vllm-devops-{number}", tags={"a": "b"})
        owner.put(f"{group}/Microsoft.OperationalInsights/workspaces/w-{number}", properties=log)
        owner.put(f"{group}/Microsoft.ManagedIdentity/userAssignedIdentities/vllm-devops-{number}")
        owner.put(f"{group}/{app}/managedEnvironments/vllm-devops-{number}", properties={})
        account = f"{group}/Microsoft.Storage/storageAccounts/vllm{number}{owner.whole[15:23]}"
        owner.put(account, kind="FileStorage", sku={"name": "PremiumV2_LRS"}, properties={})
    for number in range(4):
        vault = f"{group}/Microsoft.KeyVault/vaults/t{number}-{owner.whole[15:23]}"
        owner.put(vault, properties=_vault(owner.azure), tags={"managed-by": "somebody-else"})
        owner.put(f"resourceGroups/theirs-{number}", tags={"managed-by": "terraform"})
    owner.put(f"{group}/Microsoft.Network/virtualNetworks/last")


async def test_what_is_not_left_over_is_not_removed(trouble: Azure, tmp_path: Path) -> None:
    """Nor what is others', nor what there is not; nor does a look change anything."""
    owner = Owner(trouble)
    trouble.set(made_ago_seconds=AGO)
    owner.put("resourceGroups/theirs")
    group, theirs = (
        f"{owner.whole}/resourceGroups/vllm-devops",
        f"{owner.whole}/resourceGroups/theirs",
    )
    owner.put("resourceGroups/theirs/providers/Microsoft.Network/virtualNetworks/net")
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, ttl_minutes=90)
        await until(lambda: owner.has(f"resourceGroups/vllm-devops/{APPS}/one"))
        assert (await found(agent)).data["leftovers"] == []
        before = trouble.get()["resources"]
        for id_ in (
            f"{group}/{APPS}/one",
            f"{group}/providers/Microsoft.App/jobs/lease-one",
            f"{group}/providers/Microsoft.App/managedEnvironments/vllm-devops-swedencentral",
            f"{group}/{IDENTITIES}/vllm-devops",
            group,
            theirs,
            f"{theirs}/providers/Microsoft.Network/virtualNetworks/net",
            f"{theirs}/providers/Microsoft.Network/virtualNetworks/other",
        ):
            await refused(agent, "destroy_vllm", "NOT_FOUND", name=None, leftover=id_)
        assert set(before) <= set(trouble.get()["resources"])


async def test_what_others_keep_in_ours_is_kept_and_so_is_what_holds_it(
    bare_trouble: Azure, tmp_path: Path
) -> None:
    """A secret in the vault, a share in the account, an app in the environment."""
    owner = Owner(bare_trouble)
    bare_trouble.set(made_ago_seconds=AGO)
    await deserted(bare_trouble, tmp_path, "team-a")
    group = "resourcegroups/team-a/providers"
    there = bare_trouble.get()["resources"]
    account = next(one for one in there if f"{group}/microsoft.storage/" in one).split("/")[8]
    vault = next(one for one in there if f"{group}/microsoft.keyvault/" in one).split("/")[8]
    owner.put_secret(vault, "theirs")
    share = f"{group}/Microsoft.Storage/storageAccounts/{account}/fileServices/default/shares/own"
    owner.put(share, location=None, properties={})
    async with agent_of(bare_trouble.settings) as agent:
        wanted = dict.fromkeys(SHARED, 1)
        del wanted["storage account"], wanted["Key Vault"]
        assert kinds(await found(agent)) == wanted
        theirs = {**JOB, "environmentId": f"{owner.whole}/{ENVIRONMENT}"}
        owner.put(f"{group}/Microsoft.App/jobs/theirs", location="swedencentral", properties=theirs)
        # Whatever the group shares may be what that job needs.
        assert kinds(await found(agent)) == {"scheduled job": 1, "secret": 1}


async def test_what_may_be_on_its_way_is_said_and_not_named(
    bare_trouble: Azure, tmp_path: Path
) -> None:
    """Another machine makes key, job and roles before the app: nobody here knows of it."""
    await deserted(bare_trouble, tmp_path, "team-a")
    Owner(bare_trouble).delete(f"resourceGroups/team-a/{IDENTITIES}/vllm-devops")
    async with agent_of(bare_trouble.settings) as agent:
        seen = await found(agent)
    young = {"scheduled job", "secret", "Key Vault", "environment", "role assignment"}
    assert young.isdisjoint(kinds(seen)), seen
    told = [one for one in seen.data["not_seen"] if "may be on its way" in one]
    assert len(told) == 2, seen


async def test_what_a_login_may_not_see_is_said(trouble: Azure) -> None:
    """What can be judged without it is named all the same; without apps and jobs nothing is."""
    async with agent_of(trouble.settings) as agent:
        before = len(trouble.get()["needed"])
        whole = kinds(await found(agent))
        taken = {one.lower() for one in trouble.get()["needed"][before:]}
        rows = read_needs("aca")["permissions"]
        said = [row["names"] for row in rows if row["needed_by"] == "leftovers"]
        assert taken - {one.lower() for names in said for one in names} == set()
        assert whole == dict.fromkeys(set(SHARED) - {"scheduled job", "secret"}, 1)
        trouble.set(denied_actions=["Microsoft.KeyVault/vaults/read", "*/roleAssignments/read"])
        part = await found(agent)
        assert kinds(part) == {kind: 1 for kind in whole if kind not in {"Key Vault", "role"}}
        assert "The Key Vaults: Azure refused" in part.text
        assert "The role assignments: Azure refused" in part.text
        trouble.set(denied_actions=["Microsoft.App/jobs/read"])
        nothing = await found(agent)
        assert nothing.data["leftovers"] == []
        assert "none is named" in nothing.text
    trouble.set(denied_actions=[], login="none")
    async with agent_of(trouble.settings) as agent:
        reply = await agent.call("get_system_status", target="aca-a100", leftovers=True)
        assert reply.code == "NOT_AUTHENTICATED", reply
