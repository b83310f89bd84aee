"""Removal: seen to be gone, with what stays and what it costs."""

import pytest
from pydantic import SecretStr

from backends.google.clients import HF_SECRET, key_secret
from core.errors import NotOurs
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.cloud_run import server
from tests.backends.cloud_run.sites import (
    OTHER,
    deployed,
    foreign_service,
    opened,
    planned,
    settled,
)
from tests.backends.google_secrets import keep_key
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(controls: Controls, project: str) -> None:
    controls.set(project, boot_seconds=0.1)


async def test_a_deletion_takes_service_and_key_and_is_read_back(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A second one finds nothing and says so."""
    async with opened(plane, project) as site:
        await deployed(site)
        deleted = await server.delete(site, "gemma")
        again = await server.delete(site, "gemma")
    seen = controls.get(project)
    assert not seen["services"]
    assert not seen["secrets"]
    assert deleted.gone
    assert len(deleted.removed) == 2
    assert again.gone
    assert again.removed == ()


async def test_the_token_that_others_may_read_stays_and_is_named(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """With what it costs and how to remove it."""
    async with opened(plane, project, hf_token=SecretStr("hf_first")) as site:
        await deployed(site)
        deleted = await server.delete(site, "gemma")
    assert [one.usd_per_month for one in deleted.stays] == [0.06]
    assert HF_SECRET in deleted.stays[0].how_to_remove
    assert list(controls.get(project)["secrets"]) == [HF_SECRET]


async def test_weights_in_a_bucket_stay_with_their_price(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A bucket that cannot be read is named all the same."""
    folder = f"gs://{project}/models/gemma"
    controls.set(project, rollout="image-missing")
    async with opened(plane, project) as site:
        await server.apply(site, planned(site, weights=folder))
        await settled(site)
        with collecting_notes() as notes:
            deleted = await server.delete(site, "gemma")
    assert notes
    assert folder in deleted.stays[0].what
    assert folder in deleted.stays[0].how_to_remove


async def test_a_key_that_a_dead_server_left_goes_as_well(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Though there is no service any more."""
    async with opened(plane, project) as site:
        await keep_key(site, "gemma")
        deleted = await server.delete(site, "gemma")
    assert deleted.gone
    assert deleted.removed == (f"its key (secret {key_secret('gemma')})",)
    assert not controls.get(project)["secrets"]


async def test_what_is_not_ours_is_not_deleted(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A stranger is refused; another target's deployment is not here, and keeps its key."""
    async with opened(plane, project) as site, opened(plane, project, target=OTHER) as other:
        await foreign_service(site, "stranger")
        await deployed(other)
        with pytest.raises(NotOurs):
            await server.delete(site, "stranger")
        deleted = await server.delete(site, "gemma")
    seen = controls.get(project)
    assert deleted.gone
    assert not deleted.removed
    assert seen["services"] == ["gemma", "stranger"]
    assert key_secret("gemma") in seen["secrets"]
