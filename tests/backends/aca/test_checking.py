"""A preflight asks Azure for everything a plan needs, and changes nothing."""

from typing import Any

import anyio
import pytest

from backends.aca import checks as aca_checks
from core.records import Preflight
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.grounds import changes
from tests.backends.aca.preflights import checked, row, the_only_failure
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio


async def checks(azure: AzurePlane, subscription: str, **said: Any) -> Preflight:
    """Check a small model on a target."""
    target = said.pop("target", "aca-a100")
    settings = said.pop("settings", {})
    async with opened(azure, subscription, target, **settings) as site:
        return await checked(site, **said)


def outcomes(found: Preflight) -> dict[str, str]:
    return {one.what: one.outcome for one in found.checks}


@pytest.mark.parametrize("target", ["aca-a100", "aca-t4"])
async def test_a_subscription_that_is_set_up_fails_nothing_and_nothing_is_changed(
    azure: AzurePlane, subscription: str, controls: Controls, target: str
) -> None:
    before = changes(controls, subscription)
    found = await checks(azure, subscription, target=target)
    assert not found.failed
    assert all(one.detail for one in found.checks)
    unknown = [what for what, outcome in outcomes(found).items() if outcome == "unknown"]
    assert [one for one in unknown if "Hub" not in one and "image" not in one] == []
    assert changes(controls, subscription) == before


async def test_a_bare_subscription_is_told_what_will_be_made_and_fails_nothing(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    found = await checks(azure, bare_subscription)
    assert not found.failed
    assert "will be made" in row(found, "subscription").detail
    assert "Microsoft.App" in row(found, "providers").detail
    assert "the Key Vault" in row(found, "stands on").detail
    assert not changes(controls, bare_subscription)
    assert controls.get(bare_subscription)["providers"] == []


async def test_the_hub_is_asked_where_the_weights_come_from_it(
    azure: AzurePlane, subscription: str
) -> None:
    """A53: a model that is gated costs a GPU's boot otherwise; in a rehearsal nobody is asked."""
    words = "can be fetched from the Hub"
    assert row(await checks(azure, subscription), words).outcome == "unknown"
    found = await checks(azure, subscription, weights="files://weights/gemma")
    assert not [one for one in found.checks if words in one.what]


@pytest.mark.parametrize(("login", "words"), [("none", "az login"), ("expired", "az login")])
async def test_without_a_login_one_row_says_more_than_ten(
    azure: AzurePlane, subscription: str, controls: Controls, login: str, words: str
) -> None:
    controls.set(subscription, login=login)
    found = await checks(azure, subscription)
    failed = the_only_failure(found)
    assert len(found.checks) == 1
    assert words in failed.fix


async def test_a_login_that_does_not_answer_is_unknown(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aca_checks, "_LOGIN_SECONDS", 0.05)
    async with opened(azure, subscription) as site:

        async def silent() -> str:
            await anyio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(type(site.clients), "caller", lambda _self: silent())
        (only,) = (await checked(site)).checks
    assert only.outcome == "unknown"
    assert "did not answer" in only.detail


async def test_what_azure_does_not_answer_in_time_is_unknown_and_the_rest_is_told(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aca_checks, "_ANSWERS_SECONDS", 4)
    call = "GET Microsoft.App/locations/availableManagedEnvironmentsWorkloadProfileTypes"
    controls.set(subscription, faults=[fault(call, when="hang", times=-1)])
    found = await checks(azure, subscription)
    late = row(found, "offers Consumption-GPU-NC24-A100")
    assert late.outcome == "unknown"
    assert "No answer came" in late.detail
    assert row(found, "quotas allow").outcome == "pass"


@pytest.mark.parametrize("status", [403, 429, 503])
async def test_what_azure_refuses_to_tell_is_never_taken_for_a_pass(
    azure: AzurePlane, subscription: str, controls: Controls, status: int
) -> None:
    controls.set(subscription, faults=[fault("GET Microsoft.App/*", status, times=-1)])
    found = await checks(azure, subscription)
    for words in ("offers", "quotas allow", "environment vllm-devops", "is free or yours"):
        assert row(found, words).outcome == "unknown"


async def test_a_missing_permission_is_named_with_its_role(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    controls.set(subscription, denied_actions=["Microsoft.App/containerApps/write"])
    failed = the_only_failure(await checks(azure, subscription))
    assert failed.what == "You may do what a deployment takes"
    assert "Microsoft.App/containerApps/write" in failed.detail
    assert "Contributor" in failed.fix


async def test_permissions_to_make_things_are_asked_for_where_any_is_missing(
    azure: AzurePlane, subscription: str, bare_subscription: str, controls: Controls
) -> None:
    denied = ["Microsoft.Authorization/roleAssignments/write"]
    controls.set(subscription, denied_actions=denied)
    assert not (await checks(azure, subscription)).failed
    said = {"azure_containerapps_environment": "another"}
    failed = the_only_failure(await checks(azure, subscription, settings=said))
    assert "Role Based Access Control Administrator" in failed.fix
    assert denied[0] in failed.detail


async def test_permissions_of_the_share_are_asked_for_with_a_share_alone(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    controls.set(subscription, denied_actions=["Microsoft.Storage/*"])
    assert not (await checks(azure, subscription)).failed
    found = await checks(azure, subscription, weights="files://weights/models/qwen")
    assert "listKeys" in row(found, "You may do").detail


async def test_a_subscription_that_is_not_yours_is_said(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    call = "GET Microsoft.Resources/resourceGroups"
    controls.set(subscription, faults=[fault(call, 404, code="SubscriptionNotFound", times=-1)])
    failed = row(await checks(azure, subscription), "The subscription")
    assert failed.outcome == "fail"
    assert "AZURE_SUBSCRIPTION_ID" in failed.fix
