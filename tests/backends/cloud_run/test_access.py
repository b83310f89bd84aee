"""Access: where it answers, and the two credentials that it wants to see."""

from typing import Any

import pytest

from backends.cloud_run import access
from backends.google.clients import key_secret
from core.address import IDENTITY_HEADER, KEY_HEADER
from core.endpoint import Endpoint
from core.errors import DeploymentNotFound, NotFound, Unauthorized
from core.settings import GooglePlane
from tests.backends.cloud_run.sites import MODEL, deployed, opened
from tests.backends.google_secrets import remove_secret
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(controls: Controls, project: str) -> None:
    controls.set(project, boot_seconds=0.1)


async def test_both_credentials_open_the_model_and_neither_does_alone(
    plane: GooglePlane, project: str
) -> None:
    """Cloud Run reads the ID token, vLLM the key."""
    async with opened(plane, project) as site:
        await deployed(site)
        whole = await access.access(site, "gemma")
    assert await _models(whole) == (MODEL,)
    for left_out in ("api_key", "identity_token"):
        with pytest.raises(Unauthorized):
            await _models(whole.model_copy(update={left_out: None}))


async def test_a_person_can_paste_how_to_get_both(plane: GooglePlane, project: str) -> None:
    """The commands name project, secret and base URL; no secret is in them."""
    async with opened(plane, project) as site:
        await deployed(site)
        given = await access.access(site, "gemma")
    assert given.header_commands == {
        KEY_HEADER: "gcloud secrets versions access latest"
        f" --secret={key_secret('gemma')} --project={project}",
        IDENTITY_HEADER: "curl -sf -H 'Metadata-Flavor: Google' 'http://metadata.google.internal"
        "/computeMetadata/v1/instance/service-accounts/default/identity"
        f"?audience={given.base_url}'",
    }
    assert given.api_key
    assert given.api_key.get_secret_value() not in repr(given)


async def test_a_public_one_needs_its_key_and_no_token(plane: GooglePlane, project: str) -> None:
    """And says what is open to everybody."""
    async with opened(plane, project) as site:
        await deployed(site, access="public")
        given = await access.access(site, "gemma")
    assert given.identity_token is None
    assert list(given.header_commands) == [KEY_HEADER]
    assert "open to the internet" in given.protection
    assert await _models(given) == (MODEL,)


async def test_what_is_missing_is_said(plane: GooglePlane, project: str) -> None:
    """A deployment that there is not, and a key that somebody removed."""
    async with opened(plane, project) as site:
        with pytest.raises(DeploymentNotFound):
            await access.access(site, "gemma")
        await deployed(site)
        await remove_secret(site, key_secret("gemma"))
        with pytest.raises(NotFound):
            await access.access(site, "gemma")


async def _models(given: Any) -> tuple[str, ...]:
    endpoint = Endpoint(given, timeout=30)
    try:
        return tuple(model.id for model in await endpoint.models())
    finally:
        await endpoint.aclose()
