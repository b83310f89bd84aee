"""ID tokens: minted by google-auth itself, kept for as long as they are good."""

import time
from pathlib import Path

import pytest
from google.auth import jwt
from google.oauth2.credentials import Credentials as Person
from google.oauth2.service_account import IDTokenCredentials as KeyFile

from backends.cloud_run import site as identity
from backends.cloud_run.site import IdentityTokens, Site
from core.errors import (
    ApiDisabled,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    NotAuthenticated,
    PermissionDenied,
)
from core.settings import GooglePlane
from tests.backends.cloud_run.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio
URL = "https://gemma-1.us-east4.run.app"
MINTED = "google.iam.credentials.v1.IAMCredentials/getOpenIdToken"


@pytest.fixture
def person(controls: Controls, project: str) -> str:
    """A project whose owner is logged in as a person, and its service account."""
    controls.set(project, identity_kind="user", identity="owner@example.com")
    return f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"


async def test_a_service_account_mints_for_the_base_url(plane: GooglePlane, project: str) -> None:
    """The audience is the address as it was given."""
    async with opened(plane, project) as site:
        token = (await site.identity.minted(URL)).token
    assert jwt.decode(token.get_secret_value(), verify=False)["aud"] == URL
    assert token.get_secret_value() not in repr(token)


async def test_a_token_is_kept_for_55_minutes(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """One for each audience; then there is a new one."""
    now = time.time()
    async with opened(plane, project) as site:
        tokens = IdentityTokens(site.clients, None, clock=lambda: now)
        await tokens.minted(URL)
        now += 54 * 60
        await tokens.minted(URL)
        assert _mints(controls, project) == 1
        await tokens.minted(URL + ".other")
        assert _mints(controls, project) == 2
        now += 2 * 60
        await tokens.minted(URL)
    assert _mints(controls, project) == 3


async def test_a_token_with_less_than_five_minutes_left_is_not_handed_out_again(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Whatever its life was to be."""
    controls.set(project, token_seconds=290)
    async with opened(plane, project) as site:
        await site.identity.minted(URL)
        await site.identity.minted(URL)
    assert _mints(controls, project) == 2


async def test_a_person_without_an_account_is_told_exactly_what_to_set(
    plane: GooglePlane, project: str, person: str
) -> None:
    """Google mints no ID token for a person's login."""
    async with opened(plane, project) as site:
        with pytest.raises(NotAuthenticated) as caught:
            await site.identity.minted(URL)
    assert "GOOGLE_SERVICE_ACCOUNT" in caught.value.fix
    assert "roles/iam.serviceAccountTokenCreator" in caught.value.fix


async def test_a_person_gets_a_token_of_the_account_they_may_impersonate(
    plane: GooglePlane, project: str, person: str
) -> None:
    """It is the account's, for the same audience."""
    async with opened(plane, project, google_service_account=person) as site:
        claims = jwt.decode((await _token(site)), verify=False)
    assert (claims["aud"], claims["email"]) == (URL, person)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("PERMISSION_DENIED", PermissionDenied),
        ("UNAVAILABLE", CloudUnavailable),
        ("RESOURCE_EXHAUSTED", CloudUnavailable),
        ("NOT_FOUND", CloudRefused),
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
    command = identity.own_command(minting, URL)
    assert command.startswith("CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE=")
    assert command.endswith(f"--audiences={URL}")


async def test_an_api_that_is_off_is_told_from_a_missing_permission(
    plane: GooglePlane, bare_project: str, controls: Controls
) -> None:
    """Setting up enables it."""
    controls.set(bare_project, identity_kind="user")
    account = f"someone@{bare_project}.iam.gserviceaccount.com"
    async with opened(plane, bare_project, google_service_account=account) as site:
        with pytest.raises(ApiDisabled):
            await _token(site)


async def test_an_iam_that_never_answers_ends_the_wait(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    person: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait has its own end, whatever the library does."""
    monkeypatch.setattr(identity, "_DEADLINE_SECONDS", 0.2)
    monkeypatch.setattr(identity, "_HTTP_SECONDS", 1.0)
    controls.set(project, faults=[fault(MINTED, when="hang")])
    async with opened(plane, project, google_service_account=person) as site:
        with pytest.raises(CloudTimeout):
            await _token(site)


async def test_a_web_that_is_down_is_no_wrong_login(
    project: str, plane: GooglePlane, person: str
) -> None:
    """Nothing listens: the same call may work later."""
    nowhere = plane.model_copy(update={"http": "http://127.0.0.1:9"})
    async with opened(nowhere, project, google_service_account=person) as site:
        site.clients._credentials = Person("token")
        with pytest.raises(CloudUnavailable):
            await _token(site)


async def test_a_rehearsal_never_uses_a_key_file_of_the_developer(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the environment says of real accounts does not count."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    async with opened(plane, project) as site:
        assert await _token(site)


async def _token(site: Site) -> str:
    return (await site.identity.minted(URL)).token.get_secret_value()


def _mints(controls: Controls, project: str) -> int:
    calls: list[str] = controls.get(project)["calls"]
    return calls.count("metadata/identity")
