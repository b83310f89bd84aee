"""Weights on a share are looked at file by file before a GPU is paid to load them."""

from collections.abc import Mapping

import pytest

from backends.aca import storage
from backends.common.models import Completeness
from core.records import Check
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.preflights import checked
from tests.backends.aca.shelf import store
from tests.backends.aca.sites import fault, opened
from tests.backends.shelf import INDEX, ONE, TWO, below, model, safetensors

pytestmark = pytest.mark.anyio

LOCATION = "files://weights/gemma"


async def judged(azure: AzurePlane, subscription: str, files: Mapping[str, bytes]) -> Completeness:
    """Judge a folder that holds these files."""
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", files))
        return await storage.judge_model(site, LOCATION)


async def row(azure: AzurePlane, subscription: str, weights: str = LOCATION) -> Check:
    """Give the row of a preflight."""
    async with opened(azure, subscription) as site:
        found = await checked(site, weights=weights)
    return next(one for one in found.checks if "holds a whole model" in one.what)


async def test_a_whole_model_is_whole(azure: AzurePlane, subscription: str) -> None:
    found = await judged(azure, subscription, model())
    assert found.complete is True
    assert "5 files" in found.detail


async def test_a_file_that_was_cut_off_is_seen_though_their_sum_is_large_enough(
    azure: AzurePlane, subscription: str
) -> None:
    """By the file's own header, which is read and nothing else of it."""
    whole = safetensors()
    found = await judged(azure, subscription, {**model(), ONE: whole[:-1], TWO: whole})
    assert found.complete is False
    assert ONE in found.detail
    assert TWO not in found.detail


async def test_a_whole_model_passes_the_preflight(azure: AzurePlane, subscription: str) -> None:
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", model()))
    found = await row(azure, subscription)
    assert (found.outcome, found.fix) == ("pass", "")
    assert found.what == f"{LOCATION} holds a whole model"


async def test_a_model_that_is_not_whole_fails_the_preflight(
    azure: AzurePlane, subscription: str
) -> None:
    """With the tool that gives the commands to copy it."""
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", {**model(), INDEX: b'{"weight_map": {}}'}))
    found = await row(azure, subscription)
    assert found.outcome == "fail"
    assert INDEX in found.detail
    assert "get_huggingface_model_copy_instructions" in found.fix


@pytest.mark.parametrize("weights", [LOCATION, "files://nothing/gemma"])
async def test_a_place_that_is_not_there_fails_the_preflight(
    azure: AzurePlane, subscription: str, weights: str
) -> None:
    found = await row(azure, subscription, weights)
    assert found.outcome == "fail"
    assert found.fix


async def test_a_share_that_may_not_be_read_leaves_it_unknown(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Apps read it by the account's key, so it may be whole all the same."""
    controls.set(subscription, faults=[fault("*", 403, times=99)])
    found = await row(azure, subscription)
    assert found.outcome == "unknown"
    assert "Storage File Data Privileged Reader" in found.fix
