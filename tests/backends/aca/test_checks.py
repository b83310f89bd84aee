"""A preflight asks Azure for everything a plan needs, row by row, and changes nothing."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
from azure.mgmt.keyvault.aio import KeyVaultManagementClient
from azure.mgmt.storage.models import FileShare, FileShareProperties

from backends.aca import checks as aca_checks
from backends.aca import replicas
from backends.aca.storage import has_room
from backends.common import preflight
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import changes
from tests.backends.aca.planned import GIB
from tests.backends.aca.planned import site as offline
from tests.backends.aca.planted import Arm
from tests.backends.aca.preflights import (
    PROFILES,
    checked,
    environment,
    planted_apps,
)
from tests.backends.aca.sites import fault, opened
from tests.backends.preflights import row, the_only_failure

pytestmark = pytest.mark.anyio

SHARE: Final = {"weights": "files://weights/models/qwen"}
MINE: Final = {"managed-by": "vllm-devops-agent", "vllm-devops-target": "aca-a100"}
WRITE: Final = "Microsoft.App/containerApps/write"
ROLES: Final = "Microsoft.Authorization/roleAssignments/write"
ENVIRONMENT: Final = "environment vllm-devops"
NO_ROOM: Final = {"deploymentErrors": "No room."}
NEW_NAME: Final = "AZURE_CONTAINERAPPS_ENVIRONMENT"


class Row(NamedTuple):
    """One thing that is otherwise, and what its row of the preflight says."""

    why: str
    question: str
    """Words of it."""
    outcome: str
    detail: str = ""
    fix: str = ""
    knobs: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    plant: Callable[[Arm], None] | None = None


def usages(name: str, in_use: int, limit: int) -> Callable[[Arm], None]:
    said = {"name": {"value": name}, "unit": "Count", "currentValue": in_use, "limit": limit}
    return lambda arm: arm.on("GET .*/usages", lambda _: (200, {"value": [said]}))


def there_is(state: str = "Succeeded", **said: Any) -> Callable[[Arm], None]:
    def plant(arm: Arm) -> None:
        arm.on("GET .*/managedEnvironments/[^/]*", lambda _: (200, environment(state, **said)))
        arm.on("GET .*/containerApps", lambda _: (200, {"value": []}))

    return plant


def app_of(tags: dict[str, str]) -> Callable[[Arm], None]:
    app = {"name": "gemma", "location": "swedencentral", "tags": tags}
    return lambda arm: arm.on("GET .*/containerApps/gemma", lambda _: (200, app))


def linked_elsewhere(arm: Arm) -> None:
    other = {"accountName": "elsewhere", "shareName": "weights", "accessMode": "ReadOnly"}
    link = {"name": "weights-ro", "properties": {"azureFile": other}}
    arm.on("GET .*/storages/weights-ro", lambda _: (200, link))


def forbids(*actions: str) -> dict[str, Any]:
    return {"denied_actions": list(actions)}


NO_GROUP: Final = fault(
    "GET Microsoft.Resources/resourceGroups", 404, code="SubscriptionNotFound", times=-1
)
POLICIES: Final = "POST Microsoft.PolicyInsights/checkPolicyRestrictions"
PERMISSIONS: Final = "GET Microsoft.Authorization/permissions"
ROWS: Final = (
    Row("a missing permission", "You may do", "fail", WRITE, "Contributor", forbids(WRITE)),
    Row("roles are there already", "You may do", "pass", knobs=forbids(ROLES)),
    Row("roles are to be given", "You may do", "fail", ROLES,
        "Role Based Access Control Administrator", forbids(ROLES),
        {"azure_containerapps_environment": "another"}),
    Row("no share, no storage", "You may do", "pass", knobs=forbids("Microsoft.Storage/*")),
    Row("a share", "You may do", "fail", "listKeys", "", forbids("Microsoft.Storage/*"),
        spec=SHARE),
    Row("not your subscription", "The subscription", "fail", "", "AZURE_SUBSCRIPTION_ID",
        {"faults": [NO_GROUP]}),
    Row("no GPU there", "offers", "fail", "NC24-A100", "swedencentral",
        settings={"azure_location": "northeurope"}),
    Row("no GPU any more", "offers", "fail", knobs={"profiles": {"swedencentral": ["D4"]}}),
    Row("no Container Apps", "offers", "fail", "no Container Apps",
        settings={"azure_location": "atlantis"}),
    Row("no quota at all", "quotas allow 3", "fail", "", "Ask for more",
        {"quotas": {"a100": 0}}, spec={"max_replicas": 3}),
    Row("too small a quota", "quotas allow 3", "fail", "", "Give max_replicas 2 or less.",
        {"quotas": {"a100": 2}}, spec={"max_replicas": 3}),
    Row("too small in the environment", "quotas allow 3", "fail", "", "max_replicas 1 or less",
        {"quotas": {"a100": 5}, "environment_quotas": {"a100": 1}}, spec={"max_replicas": 3}),
    Row("a quota that is used up", "quotas allow", "unknown", "leave less", "Remove",
        plant=usages("SubscriptionConsumptionNCA100Gpus", 2, 2)),
    Row("a quota that nobody tells", "quotas allow", "unknown",
        plant=lambda arm: arm.on("GET .*/usages", lambda _: (200, {"value": []}))),
    Row("it has the profile", ENVIRONMENT, "pass", "has it", plant=there_is()),
    Row("it is being made", ENVIRONMENT, "pass", "waiting", plant=there_is("Waiting")),
    Row("it lacks the profile", ENVIRONMENT, "unknown", "will be added", NEW_NAME,
        plant=there_is(workloadProfiles=PROFILES[:1])),
    Row("of the old kind", ENVIRONMENT, "fail", "no workload profiles", NEW_NAME,
        plant=there_is(workloadProfiles=[])),
    Row("elsewhere", ENVIRONMENT, "fail", "westus3", NEW_NAME,
        plant=there_is(location="West US 3")),
    Row("failed, ours and empty", ENVIRONMENT, "pass", "made anew. No room.",
        plant=there_is("Failed", **NO_ROOM)),
    Row("failed, and theirs", ENVIRONMENT, "fail", "No room.", NEW_NAME,
        plant=there_is("Failed", **NO_ROOM, tags={"owner": "them"})),
    Row("a new role", "The Key Vault", "unknown", "minutes to count",
        knobs={"faults": [fault("GET secrets", 403, code="Forbidden", times=-1)]}),
    Row("a role that is missing", "The Key Vault", "pass", "will be given",
        knobs={"identity": "somebody else"}),
    Row("the share can be used", "The share weights", "pass", spec=SHARE),
    Row("nothing on the share", "holds a whole model", "fail", "", "setup_target", spec=SHARE),
    Row("a link elsewhere", "The share weights", "fail", "elsewhere", spec=SHARE,
        plant=linked_elsewhere),
    Row("whoever asks may call", "who may call", "pass", "127.0.0.1/32; nobody else is let in."),
    Row("an address that is none", "who may call", "fail", "home", "203.0.113.0/24",
        settings={"azure_allowed_addresses": "home"}),
    Row("no such image", "container image", "fail", "has no image", "AcrPull",
        spec={"image": "vllm/vllm-openai:nonsense"}),
    Row("policies are not told", "No policy", "unknown", "could not be looked at",
        knobs={"faults": [fault(POLICIES, 400, code="InvalidRequest", times=-1)]}),
    Row("permissions are not told", "You may do", "unknown", "could not be looked at",
        knobs={"faults": [fault(PERMISSIONS, 400, code="InvalidRequest", times=-1)]}),
    Row("a free name", "is free or yours", "pass", "Nothing of that name"),
    Row("your own name", "is free or yours", "pass", "would be changed", plant=app_of(MINE)),
    Row("somebody's name", "is free or yours", "fail", "not made here", "another name",
        plant=app_of({"owner": "them"})),
    Row("another target's name", "is free or yours", "fail", "aca-t4", "another name",
        plant=app_of({**MINE, "vllm-devops-target": "aca-t4"})),
    Row("no token", "Hub's token", "pass", "None is kept"),
    Row("a token of the settings", "Hub's token", "pass", "is kept as hf-token",
        settings={"hf_token": "hf_secretword"}),
    Row("the Hub, in a rehearsal", "can be fetched from the Hub", "unknown"),
)  # fmt: skip


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.why)
async def test_what_is_otherwise_is_told_in_its_row(
    azure: AzurePlane, subscription: str, controls: Controls, one: Row
) -> None:
    """What fails says what to do, and no value of a secret is in any row."""
    controls.set(subscription, **one.knobs)
    async with opened(azure, subscription, **one.settings) as site:
        if one.plant:
            one.plant(planted_apps(site))
        whole = await checked(site, **one.spec)
    found = row(whole, one.question)
    assert found.outcome == one.outcome, found.detail
    assert one.detail in found.detail
    assert one.fix in found.fix
    assert found.fix or found.outcome != "fail"
    assert "max_replicas 0" not in found.fix
    assert "hf_secretword" not in repr(whole)


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ({}, ("The share", "holds a whole model")),
        (SHARE, ("can be fetched from the Hub", "Hub's token")),
        ({"weights": "baked", "image": "me/vllm:1"}, ("Hub's token",)),
        ({"access": "public"}, ("who may call",)),
        ({"access": "internal"}, ("who may call",)),
    ],
)
async def test_what_a_plan_does_not_need_is_not_asked(
    azure: AzurePlane, subscription: str, said: dict[str, Any], gone: tuple[str, ...]
) -> None:
    async with opened(azure, subscription) as site:
        asked = [one.what for one in (await checked(site, **said)).checks]
    assert not [what for what in asked for words in gone if words in what]


@pytest.mark.parametrize("target", ["aca-a100", "aca-t4"])
async def test_a_subscription_that_is_set_up_fails_nothing_and_nothing_is_changed(
    azure: AzurePlane, subscription: str, controls: Controls, target: str
) -> None:
    before = changes(controls, subscription)
    async with opened(azure, subscription, target) as site:
        found = await checked(site)
    assert not found.failed
    assert all(one.detail for one in found.checks)
    unknown = [one.what for one in found.checks if one.outcome == "unknown"]
    assert [one for one in unknown if "Hub" not in one and "image" not in one] == []
    assert changes(controls, subscription) == before


async def test_a_bare_subscription_is_told_what_will_be_made_and_fails_nothing(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription) as site:
        found = await checked(site)
        quotas = await replicas.read_quotas(site)
    assert not found.failed
    assert "will be made" in row(found, "subscription").detail
    assert "Microsoft.App" in row(found, "providers").detail
    assert "the Key Vault" in row(found, "stands on").detail
    assert row(found, "Hub's token").outcome == "unknown"
    assert not changes(controls, bare_subscription)
    assert controls.get(bare_subscription)["providers"] == []
    assert [one.limit for one in quotas] == [None, None]


@pytest.mark.parametrize("login", ["none", "expired"])
async def test_without_a_login_one_row_says_more_than_ten(
    azure: AzurePlane, subscription: str, controls: Controls, login: str
) -> None:
    controls.set(subscription, login=login)
    async with opened(azure, subscription) as site:
        found = await checked(site)
    assert len(found.checks) == 1
    assert "az login" in the_only_failure(found).fix


async def test_what_azure_does_not_answer_in_time_is_unknown_and_the_rest_is_told(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aca_checks, "_ANSWERS_SECONDS", 4)
    call = "GET Microsoft.App/locations/availableManagedEnvironmentsWorkloadProfileTypes"
    controls.set(subscription, faults=[fault(call, when="hang", times=-1)])
    async with opened(azure, subscription) as site:
        found = await checked(site)
    late = row(found, "offers Consumption-GPU-NC24-A100")
    assert late.outcome == "unknown"
    assert "No answer came" in late.detail
    assert row(found, "quotas allow").outcome == "pass"


async def test_a_deleted_vault_of_ours_is_told_to_come_back(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription) as site:
        vaults = (await site.clients.arm(KeyVaultManagementClient)).vaults
        await vaults.delete("vllm-devops", site.ground.vault)
        assert "brought back" in row(await checked(site), "The Key Vault").detail


@pytest.mark.parametrize("status", [403, 429, 503])
async def test_what_azure_refuses_to_tell_is_never_taken_for_a_pass(
    azure: AzurePlane, subscription: str, controls: Controls, status: int
) -> None:
    controls.set(subscription, faults=[fault("GET Microsoft.App/*", status, times=-1)])
    async with opened(azure, subscription) as site:
        found = await checked(site)
        quotas = await replicas.read_quotas(site)
    for words in ("offers", "quotas allow", ENVIRONMENT, "is free or yours"):
        assert row(found, words).outcome == "unknown"
    assert [one.limit for one in quotas] == [None, None]
    assert all("Azure" in one.detail for one in quotas)


async def test_an_address_that_nobody_tells_fails_with_its_setting(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_SECONDS", 0.0001)
    async with opened(azure, subscription) as site:
        failed = the_only_failure(await checked(site))
    assert "AZURE_ALLOWED_ADDRESSES" in failed.fix


def share(quota_gib: int, used: int) -> FileShare:
    """One as Azure shows it; what is used is told, never sent."""
    properties = FileShareProperties(share_quota=quota_gib)
    properties["shareUsageBytes"] = used
    return FileShare(file_share_properties=properties)


@pytest.mark.parametrize(
    ("quota", "used", "wanted", "passed"),
    [(100, 0, 58, True), (100, 58, 42, True), (100, 58, 58, None), (50, 0, 58, False),
     (None, 0, 99, True), (None, 0, 101, False)],
)  # fmt: skip
def test_a_model_is_held_against_what_is_free_on_its_share(
    quota: int | None, used: int, wanted: int, *, passed: bool | None
) -> None:
    """It may lie there already, but not on a share that is smaller than it, or that is made."""
    found = share(quota, used * GIB) if quota else None
    answer = has_room(offline(), found, wanted * GIB)
    assert answer.passed is passed
    assert (passed is True) == (not answer.fix)
    if passed is not True:
        assert f"--quota {round((used + wanted) * 1.1 + 0.5)}" in answer.fix


@pytest.mark.parametrize(("target", "word"), [("aca-a100", "NCA100Gpus"), ("aca-t4", "T4Gpus")])
async def test_both_quotas_are_told_of_the_targets_own_gpu_the_least_room_first(
    azure: AzurePlane, subscription: str, controls: Controls, target: str, word: str
) -> None:
    """Of 0 there are 0, and that is known."""
    gpu = target.removeprefix("aca-")
    controls.set(subscription, quotas={gpu: 4}, environment_quotas={gpu: 0})
    async with opened(azure, subscription, target) as site:
        environment, region = await replicas.read_quotas(site)
    assert environment.quota == f"ManagedEnvironmentConsumption{word}"
    assert region.quota == f"SubscriptionConsumption{word}"
    assert [(one.limit, one.in_use) for one in (environment, region)] == [(0, 0), (4, 0)]


async def test_a_quota_that_is_not_told_is_not_known_and_stands_last(
    azure: AzurePlane, subscription: str
) -> None:
    """Neither without an environment, nor where GPUs that are hired by the month are meant."""
    async with opened(azure, subscription, azure_containerapps_environment="another") as site:
        known, unknown = await replicas.read_quotas(site)
        assert (known.limit, unknown.limit) == (2, None)
        assert "is not there yet" in unknown.detail
        usages("SubscriptionNCA100Gpus", 0, 8)(planted_apps(site))
        found = await replicas.read_quotas(site)
    assert all(one.limit is None and "no quota of these GPUs" in one.detail for one in found)
