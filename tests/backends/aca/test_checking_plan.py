"""Whether the name is free, the image is there, and the Hub's token is kept."""

from typing import Any

import pytest

from core.errors import CloudRefused
from core.settings import AzurePlane
from tests.backends.aca.preflights import checked, planted_apps, row
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio

MINE = {"managed-by": "vllm-devops-agent", "vllm-devops-target": "aca-a100"}


@pytest.mark.parametrize(
    ("tags", "outcome", "words"),
    [
        (MINE, "pass", "would be changed"),
        ({"owner": "them"}, "fail", "not made here"),
        ({**MINE, "vllm-devops-target": "aca-t4"}, "fail", "aca-t4"),
    ],
)
async def test_a_name_is_free_or_yours_or_left_alone(
    azure: AzurePlane, subscription: str, tags: dict[str, str], outcome: str, words: str
) -> None:
    app: dict[str, Any] = {"name": "gemma", "location": "swedencentral", "tags": tags}
    async with opened(azure, subscription) as site:
        assert "Nothing of that name" in row(await checked(site), "is free or yours").detail
        planted_apps(site).on("GET .*/containerApps/gemma", lambda _: (200, app))
        found = row(await checked(site), "is free or yours")
    assert found.outcome == outcome
    assert words in found.detail
    assert bool(found.fix) == (outcome == "fail")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("vllm/vllm-openai@sha256:1", "pass"),
        (None, "unknown"),
        (CloudRefused("No such tag.", fix="Correct it."), "fail"),
    ],
)
async def test_the_image_is_asked_of_its_registry(
    azure: AzurePlane,
    subscription: str,
    monkeypatch: pytest.MonkeyPatch,
    answer: str | CloudRefused | None,
    outcome: str,
) -> None:
    async def pinned(_site: object, _image: str) -> str | None:
        if isinstance(answer, CloudRefused):
            raise answer
        return answer

    monkeypatch.setattr("backends.aca.app.pinned", pinned)
    async with opened(azure, subscription) as site:
        assert row(await checked(site), "image").outcome == outcome


async def test_the_token_is_told_where_the_hub_gives_the_weights(
    azure: AzurePlane, subscription: str, bare_subscription: str
) -> None:
    words = "Hub's token"
    async with opened(azure, subscription) as site:
        assert "None is kept" in row(await checked(site), words).detail
        await (await site.clients.secrets()).set_secret("hf-token", "hf_secretword")
        assert "hf-token is kept" in row(await checked(site), words).detail
        baked = await checked(site, weights="baked", image="me/vllm:1")
        assert not [one for one in baked.checks if words in one.what]
    async with opened(azure, subscription, hf_token="hf_secretword") as site:
        found = await checked(site)
    assert row(found, words).outcome == "pass"
    assert "hf_secretword" not in repr(found)


async def test_a_vault_that_is_not_there_yet_leaves_the_token_unknown(
    azure: AzurePlane, bare_subscription: str
) -> None:
    async with opened(azure, bare_subscription) as site:
        assert row(await checked(site), "Hub's token").outcome == "unknown"
