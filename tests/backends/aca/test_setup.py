"""A subscription is set up once, by steps that can be done again, and nobody else's is touched."""

import shlex

import pytest

from backends.aca import setup
from core.errors import CloudTimeout, NotConfigured, PermissionDenied
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.grounds import AT_ONCE, MADE, changes
from tests.backends.aca.planned import site as offline
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio

TOKEN = "hf_secretword"


async def test_looking_at_a_bare_subscription_names_every_step_and_changes_nothing(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        found = await setup.read_setup(site)
    assert len(found.missing) == len(found.steps) == 15
    assert not changes(controls, bare_subscription)
    assert controls.get(bare_subscription)["providers"] == []


async def test_what_is_made_is_read_back_as_done(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        made = await setup.make_setup(site)
        assert made.missing == ()
        assert await setup.read_setup(site) == made
        again = await setup.make_setup(site)
        kept = await (await site.clients.secrets()).get_secret("hf-token")
    assert again == made
    assert kept.value == TOKEN
    assert changes(controls, bare_subscription) == {**MADE, "PUT secrets": 1}


async def test_a_subscription_that_is_prepared_has_all_that_either_target_needs(
    azure: AzurePlane, subscription: str
) -> None:
    for target in ("aca-a100", "aca-t4"):
        async with opened(azure, subscription, target) as site:
            missing = (await setup.read_setup(site)).missing
        assert missing == ()


async def test_what_is_under_way_is_not_done_and_says_so(
    azure: AzurePlane, bare_subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "PATIENCE_SECONDS", 1)
    monkeypatch.setattr("backends.aca.environment._REFUSED_WITHIN_SECONDS", 0.05)
    controls.set(bare_subscription, **{**AT_ONCE, "environment_seconds": 600})
    async with opened(azure, bare_subscription) as site:
        found = await setup.make_setup(site)
    (waits,) = [one.what for one in found.missing if "Azure is at it" in one.what]
    assert waits.startswith("The environment vllm-devops-swedencentral")
    assert waits.endswith("(Azure is at it: creating the environment)")
    assert {one.what for one in found.missing if one.what != waits} == {
        f"The environment's link {name} to the share weights ({mode})"
        for name, mode in (("weights", "ReadWrite"), ("weights-ro", "ReadOnly"))
    }


async def test_a_step_that_fails_says_how_far_it_came(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    refused = fault(
        "PUT Microsoft.KeyVault/vaults", 403, code="AuthorizationFailed", message="Not you."
    )
    controls.set(bare_subscription, **AT_ONCE, faults=[refused])
    async with opened(azure, bare_subscription) as site:
        with pytest.raises(PermissionDenied) as caught:
            await setup.make_setup(site)
        told = caught.value
        assert (await setup.make_setup(site)).missing == ()
    assert "The Key Vault" in told.summary
    assert told.cause == "Not you."
    assert "the next call goes on" in told.fix
    assert len(told.data["done"]) + len(told.data["not_done"]) == 14
    assert "The resource group vllm-devops" in told.data["done"]


async def test_a_token_that_is_another_is_kept_anew_and_never_told(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription, hf_token="hf_older") as site:
        await setup.make_setup(site)
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        found = await setup.read_setup(site)
        assert [one.what.split(" with")[0] for one in found.missing] == ["The secret hf-token"]
        assert (await setup.make_setup(site)).missing == ()
    assert TOKEN not in repr(found)


async def test_every_command_is_one_that_a_shell_takes(
    azure: AzurePlane, bare_subscription: str
) -> None:
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        found = await setup.read_setup(site)
    for step in found.steps:
        lines = step.command.splitlines()
        assert all("az" in shlex.split(line) for line in lines), step.command


async def test_an_azure_that_does_not_answer_is_given_up_in_time(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "_LOOKING_SECONDS", 0.3)
    controls.set(subscription, faults=[fault("GET *", when="hang", times=-1)])
    async with opened(azure, subscription) as site:
        with pytest.raises(CloudTimeout):
            await setup.read_setup(site)


async def test_without_a_subscription_it_says_which_setting_is_missing() -> None:
    for work in (setup.read_setup, setup.make_setup):
        with pytest.raises(NotConfigured):
            await work(offline())
