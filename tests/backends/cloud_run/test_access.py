"""Access: where it answers, and the two credentials that it wants to see."""

import time
from typing import Any, Final

import pytest
from google.auth import jwt

from backends.cloud_run import access, service
from backends.cloud_run.site import Site
from backends.google.clients import MANAGED_BY, TARGET_LABEL, key_secret
from core.address import IDENTITY_HEADER, KEY_HEADER
from core.endpoint import Endpoint
from core.errors import DeploymentNotFound, NotFound, NotReady, Unauthorized
from core.settings import GooglePlane
from tests.backends.cloud_run import server
from tests.backends.cloud_run.sites import L4, MODEL, deployed, foreign_service, opened, planned
from tests.backends.google_secrets import remove_secret
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio
PROMPT: Final[dict[str, Any]] = {
    "model": MODEL,
    "prompt": "Tell me of the sea.",
    "max_tokens": 5000,
    "ignore_eos": True,
    "stream": True,
}


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


async def test_a_service_without_a_key_is_told_so(plane: GooglePlane, project: str) -> None:
    """As Ollama's: the ID token is all that protects it."""
    async with opened(plane, project) as site:
        labels = {"managed-by": MANAGED_BY, TARGET_LABEL: L4.name}
        await foreign_service(site, **labels)
        given = await access.access(site, "gemma")
    assert given.api_key is None
    assert given.identity_token
    assert "no key" in given.protection


async def test_no_address_yet_is_not_ready(
    plane: GooglePlane, project: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cloud Run hands out the URL a moment after the service."""
    async with opened(plane, project) as site:
        await deployed(site)
        seen = await service.get_service(site, "gemma")
        seen.uri = ""

        async def without(_site: Site, _name: str) -> Any:
            return seen

        monkeypatch.setattr(access, "get_service", without)
        with pytest.raises(NotReady):
            await access.access(site, "gemma")


async def test_what_is_missing_is_said(plane: GooglePlane, project: str) -> None:
    """A deployment that there is not, and a key that somebody removed."""
    async with opened(plane, project) as site:
        with pytest.raises(DeploymentNotFound):
            await access.access(site, "gemma")
        await deployed(site)
        await remove_secret(site, key_secret("gemma"))
        with pytest.raises(NotFound):
            await access.access(site, "gemma")


async def test_a_stream_outlives_its_token_and_the_next_request_has_another(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The token is looked at when a request begins."""
    async with opened(plane, project) as site:
        await deployed(site)
        await _models(await access.access(site, "gemma"))
        controls.set(project, token_seconds=1)
        async with opened(plane, project) as later:
            given = await access.access(later, "gemma")
            assert await _tokens_after(given, _expiry(given)) > 0
            with pytest.raises(Unauthorized):
                await _models(given)
            assert await _models(await access.access(later, "gemma")) == (MODEL,)


async def test_a_stopped_one_still_says_where_it_was(plane: GooglePlane, project: str) -> None:
    """Its address is kept for the next start."""
    async with opened(plane, project) as site:
        await server.apply(site, planned(site))
        await server.stop(site, "gemma")
        assert (await access.access(site, "gemma")).base_url


async def _models(given: Any) -> tuple[str, ...]:
    endpoint = Endpoint(given, timeout=30)
    try:
        return tuple(model.id for model in await endpoint.models())
    finally:
        await endpoint.aclose()


async def _tokens_after(given: Any, moment: float) -> int:
    """Read a stream until some tokens came after a moment; how many those were."""
    endpoint, after = Endpoint(given, timeout=30), 0
    try:
        async with endpoint.stream("/v1/completions", PROMPT) as events:
            async for _event in events:
                after += time.time() > moment
                if after > 3:
                    break
    finally:
        await endpoint.aclose()
    return after


def _expiry(given: Any) -> float:
    claims = jwt.decode(given.identity_token.get_secret_value(), verify=False)
    return float(claims["exp"]) + 1  # whole seconds are compared
