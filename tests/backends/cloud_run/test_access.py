"""Where a service answers, its two credentials, and ID tokens kept as long as they are good."""

import time
from pathlib import Path
from typing import Any

import pytest
from google.auth import jwt
from google.oauth2.credentials import Credentials as Person
from google.oauth2.service_account import IDTokenCredentials as KeyFile

from backends.cloud_run import access
from backends.cloud_run import site as sites
from backends.cloud_run.site import IdentityTokens, Site
from backends.google.clients import key_secret
from core import errors
from core.address import IDENTITY_HEADER, KEY_HEADER
from core.endpoint import Endpoint
from core.settings import GooglePlane
from tests.backends.cloud_run.sites import MODEL, deployed, fault, opened
from tests.backends.google_secrets import remove_secret
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio
URL = "https://gemma-1.us-east4.run.app"
MINTED = "google.iam.credentials.v1.IAMCredentials/getOpenIdToken"


async def _models(given: Any) -> tuple[str, ...]:
    endpoint = Endpoint(given, timeout=30)
    try:
        return tuple(model.id for model in await endpoint.models())
    finally:
        await endpoint.aclose()


async def _token(site: Site) -> str:
    return (await site.identity.minted(URL)).token.get_secret_value()


def _mints(controls: Controls, project: str) -> int:
    calls: list[str] = controls.get(project)["calls"]
    return calls.count("metadata/identity")


@pytest.fixture
def person(controls: Controls, project: str) -> str:
    """The service account of a project whose owner is logged in as a person."""
    controls.set(project, identity_kind="user", identity="owner@example.com")
    return f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"


async def test_both_credentials_open_the_model_and_neither_does_alone(site: Site) -> None:
    """Cloud Run reads the ID token, vLLM the key; a person can paste how to get both."""
    with pytest.raises(errors.DeploymentNotFound):
        await access.access(site, "gemma")
    await deployed(site)
    whole = await access.access(site, "gemma")
    assert await _models(whole) == (MODEL,)
    for left_out in ("api_key", "identity_token"):
        with pytest.raises(errors.Unauthorized):
            await _models(whole.model_copy(update={left_out: None}))
    assert whole.header_commands == {
        KEY_HEADER: "gcloud secrets versions access latest"
        f" --secret={key_secret('gemma')} --project={site.clients.project}",
        IDENTITY_HEADER: "curl -sf -H 'Metadata-Flavor: Google' 'http://metadata.google.internal"
        "/computeMetadata/v1/instance/service-accounts/default/identity"
        f"?audience={whole.base_url}'",
    }
    assert whole.api_key
    assert whole.api_key.get_secret_value() not in repr(whole)
    await remove_secret(site, key_secret("gemma"))
    with pytest.raises(errors.NotFound):
        await access.access(site, "gemma")


async def test_a_public_one_needs_its_key_and_no_token(site: Site) -> None:
    """And says what is open to everybody."""
    await deployed(site, access="public")
    given = await access.access(site, "gemma")
    assert given.identity_token is None
    assert list(given.header_commands) == [KEY_HEADER]
    assert "open to the internet" in given.protection
    assert await _models(given) == (MODEL,)


async def test_a_token_is_for_the_base_url_and_kept_for_55_minutes(
    site: Site, controls: Controls
) -> None:
    """One for each audience; one with less than five minutes left is not handed out again."""
    now, project = time.time(), site.clients.project
    tokens = IdentityTokens(site.clients, None, clock=lambda: now)
    token = (await tokens.minted(URL)).token
    assert jwt.decode(token.get_secret_value(), verify=False)["aud"] == URL
    assert token.get_secret_value() not in repr(token)
    now += 54 * 60
    await tokens.minted(URL)
    assert _mints(controls, project) == 1
    await tokens.minted(URL + ".other")
    now += 2 * 60
    await tokens.minted(URL)
    assert _mints(controls, project) == 3
    controls.set(project, token_seconds=290)
    for _ in range(2):
        await site.identity.minted(URL)
    assert _mints(controls, project) == 5


async def test_a_person_gets_a_token_of_the_account_they_may_impersonate(
    plane: GooglePlane, project: str, person: str
) -> None:
    """Without one they are told exactly what to set: Google mints none for a person's login."""
    async with opened(plane, project) as site:
        with pytest.raises(errors.NotAuthenticated) as caught:
            await _token(site)
    assert "GOOGLE_SERVICE_ACCOUNT" in caught.value.fix
    assert "roles/iam.serviceAccountTokenCreator" in caught.value.fix
    async with opened(plane, project, google_service_account=person) as site:
        claims = jwt.decode(await _token(site), verify=False)
    assert (claims["aud"], claims["email"]) == (URL, person)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("PERMISSION_DENIED", errors.PermissionDenied),
        ("UNAVAILABLE", errors.CloudUnavailable),
        ("RESOURCE_EXHAUSTED", errors.CloudUnavailable),
        ("NOT_FOUND", errors.CloudRefused),
    ],
)
async def test_an_impersonation_that_is_refused_says_why(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    person: str,
    status: str,
    kind: type[Exception],
) -> None:
    """Nothing is kept of it: the next call succeeds."""
    controls.set(project, faults=[fault(MINTED, status)])
    async with opened(plane, project, google_service_account=person) as site:
        with pytest.raises(kind):
            await _token(site)
        assert await _token(site)


def test_a_key_file_prints_what_works_whoever_is_logged_in_to_gcloud() -> None:
    """A person's gcloud refuses an audience, so it is lent the key."""
    minting = KeyFile(signer=None, service_account_email="", token_uri="", target_audience=URL)
    command = sites.own_command(minting, URL)
    assert command.startswith("CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE=")
    assert command.endswith(f"--audiences={URL}")


async def test_an_api_that_is_off_is_told_from_a_missing_permission(
    plane: GooglePlane, bare_project: str, controls: Controls
) -> None:
    """Setting up enables it."""
    controls.set(bare_project, identity_kind="user")
    account = f"someone@{bare_project}.iam.gserviceaccount.com"
    async with opened(plane, bare_project, google_service_account=account) as site:
        with pytest.raises(errors.ApiDisabled):
            await _token(site)


async def test_an_iam_that_is_silent_or_a_web_that_is_down_is_no_wrong_login(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    person: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait has its own end, whatever the library does; the same call may work later."""
    monkeypatch.setattr(sites, "_DEADLINE_SECONDS", 0.2)
    monkeypatch.setattr(sites, "_HTTP_SECONDS", 1.0)
    controls.set(project, faults=[fault(MINTED, when="hang")])
    async with opened(plane, project, google_service_account=person) as site:
        with pytest.raises(errors.CloudTimeout):
            await _token(site)
    nowhere = plane.model_copy(update={"http": "http://127.0.0.1:9"})
    async with opened(nowhere, project, google_service_account=person) as site:
        site.clients._credentials = Person("token")
        with pytest.raises(errors.CloudUnavailable):
            await _token(site)


async def test_a_rehearsal_never_uses_a_key_file_of_the_developer(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the environment says of real accounts does not count."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    assert await _token(site)
