"""A subscription is set up once, by steps that can be done again, and nobody else's is touched."""

import pytest

from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import patient
from tests.backends.aca.grounds import AT_ONCE, MADE, changes
from tests.backends.aca.sites import backend_of, opened

pytestmark = pytest.mark.anyio

TOKEN = "hf_secretword"


async def test_looking_at_a_bare_subscription_names_every_step_and_changes_nothing(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        found = await backend_of(site).setup()
    assert len(found.missing) == len(found.steps) == 15
    assert not changes(controls, bare_subscription)
    assert controls.get(bare_subscription)["providers"] == []


async def test_what_is_made_is_read_back_as_done(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        made = await backend_of(site).set_up()
        assert made.missing == ()
        assert await backend_of(site).setup() == made
        again = await backend_of(site).set_up()
        kept = await (await site.clients.secrets()).get_secret("hf-token")
    assert again == made
    assert kept.value == TOKEN
    assert changes(controls, bare_subscription) == {**MADE, "PUT secrets": 1}


async def test_a_subscription_that_is_prepared_has_all_that_either_target_needs(
    azure: AzurePlane, subscription: str
) -> None:
    for target in ("aca-a100", "aca-t4"):
        async with opened(azure, subscription, target) as site:
            missing = (await backend_of(site).setup()).missing
        assert missing == ()


async def test_what_is_under_way_is_not_done_and_says_so(
    azure: AzurePlane, bare_subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch, 1)
    controls.set(bare_subscription, **{**AT_ONCE, "environment_seconds": 600})
    async with opened(azure, bare_subscription) as site:
        found = await backend_of(site).set_up()
    (waits,) = [one.what for one in found.missing if "(creating the environment)" in one.what]
    assert waits.startswith("The environment vllm-devops-swedencentral")
    assert {one.what for one in found.missing if one.what != waits} == {
        f"The environment's link {name} to the share weights ({mode})"
        for name, mode in (("weights", "ReadWrite"), ("weights-ro", "ReadOnly"))
    }


async def test_a_token_that_is_another_is_kept_anew_and_never_told(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription, hf_token="hf_older") as site:
        await backend_of(site).set_up()
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        found = await backend_of(site).setup()
        assert [one.what.split(" with")[0] for one in found.missing] == ["The secret hf-token"]
        assert (await backend_of(site).set_up()).missing == ()
    assert TOKEN not in repr(found)
