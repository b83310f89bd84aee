"""Secrets: one per deployment, readable by one account, and never left over."""

import pytest
from google.cloud.secretmanager_v1.types import Replication, Secret
from pydantic import SecretStr

from backends.cloud_run.site import Site
from backends.google import secrets
from backends.google.clients import HF_SECRET, key_secret
from core.errors import CloudError, InvalidArgument, NotFound, NotOurs
from core.settings import GooglePlane
from tests.backends.cloud_run.sites import fault, opened
from tests.backends.google_secrets import keep_key, remove_secret
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio
TOKEN = SecretStr("hf_abcdefgh")
RUNTIME = "serviceAccount:vllm-devops-runtime@{}.iam.gserviceaccount.com"


async def test_a_kept_token_is_readable_by_the_deployments_account_alone(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Line ends go, the value comes back, the grant is on the secret and not on the project."""
    async with opened(plane, project) as site:
        kept = await secrets.keep(site, HF_SECRET, SecretStr(" hf_abcdefgh\n"))
        assert await secrets.read(site, HF_SECRET) == TOKEN
    seen = controls.get(project)
    assert kept.version == "1"
    assert seen["secrets"][HF_SECRET]["bindings"] == {
        "roles/secretmanager.secretAccessor": [RUNTIME.format(project)]
    }
    assert "roles/secretmanager.secretAccessor" not in seen["bindings"]


async def test_the_same_token_again_makes_no_version(plane: GooglePlane, project: str) -> None:
    """Twice is harmless; another value is a new version."""
    async with opened(plane, project) as site:
        versions = [
            (await secrets.keep(site, HF_SECRET, SecretStr(text))).version
            for text in ("hf_abcdefgh", "hf_abcdefgh\n", "hf_another", "hf_another")
        ]
    assert versions == ["1", "1", "2", "2"]


async def test_an_empty_token_is_refused_before_anything_is_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Nothing is asked of Google."""
    async with opened(plane, project) as site:
        with pytest.raises(InvalidArgument):
            await secrets.keep(site, HF_SECRET, SecretStr(" \n"))
    assert not controls.get(project)["calls"]


async def test_a_key_is_made_once_and_kept(plane: GooglePlane, project: str) -> None:
    """A later deployment under the same name has the key of the first, long and random."""
    async with opened(plane, project) as site:
        assert await keep_key(site, "gemma")
        first = await secrets.read(site, key_secret("gemma"))
        assert not await keep_key(site, "gemma")
        assert await secrets.read(site, key_secret("gemma")) == first
        await keep_key(site, "qwen")
        assert await secrets.read(site, key_secret("qwen")) != first
    assert len(first.get_secret_value()) == 43


async def test_a_secret_of_somebody_else_is_left_alone(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """One without our label is neither filled nor granted nor deleted."""
    async with opened(plane, project) as site:
        await _foreign(site, HF_SECRET)
        with pytest.raises(NotOurs):
            await secrets.keep(site, HF_SECRET, TOKEN)
        assert not await remove_secret(site, HF_SECRET)
    assert controls.get(project)["secrets"][HF_SECRET] == {"versions": 0, "bindings": {}}


async def test_a_key_of_the_same_name_in_another_region_is_left_alone(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Secrets are of the whole project: each region's deployment keeps its own."""
    async with opened(plane, project) as site:
        await keep_key(site, "gemma")
    async with opened(plane, project, google_cloud_location="europe-west4") as elsewhere:
        with pytest.raises(NotOurs):
            await keep_key(elsewhere, "gemma")
        assert not await remove_secret(elsewhere, key_secret("gemma"))
    assert key_secret("gemma") in controls.get(project)["secrets"]


async def test_a_secret_that_is_missing_says_what_to_do(plane: GooglePlane, project: str) -> None:
    """Reading it is an error of ours; removing it is none."""
    async with opened(plane, project) as site:
        with pytest.raises(NotFound) as caught:
            await secrets.read(site, HF_SECRET)
        assert "save_hf_token" in caught.value.fix
        assert not await remove_secret(site, HF_SECRET)


async def test_a_project_without_the_runtime_account_keeps_no_secret_that_nobody_can_read(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """What was made before the grant failed is taken back."""
    controls.set(project, faults=[fault("SetIamPolicy", "INVALID_ARGUMENT")])
    async with opened(plane, project) as site:
        with pytest.raises(CloudError):
            await secrets.keep(site, HF_SECRET, TOKEN)
    assert not controls.get(project)["secrets"]


async def test_a_secret_without_any_version_is_filled_after_a_moment(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that died between the two steps does not stop the next one."""
    async with opened(plane, project) as site:
        controls_fault = fault("AddSecretVersion", "PERMISSION_DENIED")
        Controls(plane).set(project, faults=[controls_fault, fault("DeleteSecret")])
        with pytest.raises(CloudError):
            await keep_key(site, "gemma")
        assert await secrets.exists(site, key_secret("gemma"))
        await keep_key(site, "gemma")
        assert await secrets.read(site, key_secret("gemma"))


async def _foreign(site: Site, name: str) -> None:
    client = await site.clients.secrets()
    await client.create_secret(
        request={
            "parent": f"projects/{site.clients.project}",
            "secret_id": name,
            "secret": Secret(replication=Replication(automatic=Replication.Automatic())),
        }
    )
