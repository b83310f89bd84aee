"""The simulated metadata server, IAM credentials and registries, over HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from google.auth.transport.requests import Request

from core.settings import GooglePlane
from simulators.google.state import IdTokens, InvalidToken
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

_FLAVOR = {"Metadata-Flavor": "Google"}
_AUDIENCE = "https://gemma-1.us-central1.run.app"
_DEFAULT = "instance/service-accounts/default"


@pytest.fixture
async def http(plane: GooglePlane) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=plane.http, trust_env=False) as client:
        yield client


@pytest.fixture
def tokens(tmp_path_factory: pytest.TempPathFactory) -> IdTokens:
    """Those of a plane that keeps its key elsewhere."""
    return IdTokens(tmp_path_factory.mktemp("another"))


def _path(project: str, what: str) -> str:
    return f"/p/{project}/computeMetadata/v1/{what}"


async def _identity(http: httpx2.AsyncClient, project: str) -> str:
    asked = {"audience": _AUDIENCE, "format": "full"}
    reply = await http.get(_path(project, f"{_DEFAULT}/identity"), params=asked, headers=_FLAVOR)
    assert reply.status_code == 200
    return reply.text


def _claims(token: str) -> dict[str, Any]:
    from google.auth import jwt  # noqa: PLC0415  beside its one use

    claims: dict[str, Any] = jwt.decode(token, verify=False)
    return claims


async def test_the_machine_tells_who_it_is(http: httpx2.AsyncClient, project: str) -> None:
    """Its project, by id and number, and its account."""
    email = f"operator@{project}.iam.gserviceaccount.com"
    for what, expected in (("project/project-id", project), (f"{_DEFAULT}/email", email)):
        reply = await http.get(_path(project, what), headers=_FLAVOR)
        assert (reply.text, reply.headers["metadata-flavor"]) == (expected, "Google")
    reply = await http.get(
        _path(project, f"{_DEFAULT}/"), params={"recursive": "true"}, headers=_FLAVOR
    )
    assert reply.json()["email"] == email
    number = await http.get(_path(project, "project/numeric-project-id"), headers=_FLAVOR)
    assert number.text.isdecimal()


async def test_the_plain_path_is_that_of_the_rehearsal(http: httpx2.AsyncClient) -> None:
    """A machine has one project."""
    reply = await http.get("/computeMetadata/v1/project/project-id", headers=_FLAVOR)
    assert reply.text == "rehearsal"


async def test_a_request_without_the_header_is_refused(
    http: httpx2.AsyncClient, project: str
) -> None:
    """It keeps away who is sent here by somebody else."""
    reply = await http.get(_path(project, "project/project-id"))
    assert (reply.status_code, reply.headers["metadata-flavor"]) == (403, "Google")


async def test_an_identity_token_needs_an_audience(http: httpx2.AsyncClient, project: str) -> None:
    """And is for the machine's own account."""
    reply = await http.get(_path(project, f"{_DEFAULT}/identity"), headers=_FLAVOR)
    assert reply.status_code == 400
    other = _path(project, "instance/service-accounts/nobody@example.com/email")
    assert (await http.get(other, headers=_FLAVOR)).status_code == 404


async def test_an_identity_token_lives_as_long_as_the_knob_says(
    http: httpx2.AsyncClient, project: str, controls: Controls
) -> None:
    """An hour by default."""
    claims = _claims(await _identity(http, project))
    assert (claims["aud"], claims["exp"] - claims["iat"]) == (_AUDIENCE, 3600)
    assert claims["email"] == f"operator@{project}.iam.gserviceaccount.com"
    controls.set(project, token_seconds=60)
    claims = _claims(await _identity(http, project))
    assert claims["exp"] - claims["iat"] == 60


async def test_googles_own_library_fetches_a_token(plane: GooglePlane, project: str) -> None:
    """With nothing changed but where the metadata server is."""
    from google.auth import compute_engine  # noqa: PLC0415  reads the environment at import

    here = f"{plane.http}/p/{project}/computeMetadata/v1/"

    class Redirected(Request):
        def __call__(self, url: str, *args: Any, **kwargs: Any) -> Any:
            _host, path = url.split("/computeMetadata/v1/")
            return super().__call__(here + path, *args, **kwargs)  # type: ignore[no-untyped-call]  # Google's

    credentials = compute_engine.IDTokenCredentials(
        Redirected(), target_audience=_AUDIENCE, use_metadata_identity_endpoint=True
    )
    await anyio.to_thread.run_sync(credentials.refresh, Redirected())
    assert _claims(str(credentials.token))["aud"] == _AUDIENCE


async def test_a_person_at_a_laptop_has_no_metadata_server(
    http: httpx2.AsyncClient, project: str, controls: Controls
) -> None:
    """Nothing there answers as one."""
    controls.set(project, identity="me@example.com", identity_kind="user")
    reply = await http.get(_path(project, "project/project-id"), headers=_FLAVOR)
    assert reply.status_code == 404
    assert "metadata-flavor" not in reply.headers


async def test_a_person_may_borrow_an_account_to_mint_a_token(
    http: httpx2.AsyncClient, project: str, controls: Controls
) -> None:
    """Which has to be there, and which the person must be allowed."""
    controls.set(project, identity="me@example.com", identity_kind="user")
    account = f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"
    url = f"/v1/projects/-/serviceAccounts/{account}:generateIdToken"
    body = {"audience": _AUDIENCE, "includeEmail": True}
    reply = await http.post(url, json=body)
    assert _claims(reply.json()["token"])["email"] == account
    assert (await http.post(url, json={})).status_code == 400
    missing = await http.post(url.replace("runtime", "nobody"), json=body)
    assert (missing.status_code, missing.json()["error"]["status"]) == (404, "NOT_FOUND")
    controls.set(project, denied_permissions=["iam.serviceAccounts.getOpenIdToken"])
    denied = await http.post(url, json=body)
    assert (denied.status_code, denied.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


async def test_an_access_token_can_be_borrowed_too(http: httpx2.AsyncClient, project: str) -> None:
    """For some scope."""
    account = f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"
    url = f"/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
    reply = await http.post(url, json={"scope": ["https://www.googleapis.com/auth/iam"]})
    assert set(reply.json()) == {"accessToken", "expireTime"}
    assert (await http.post(url, json={})).status_code == 400


async def test_a_fault_is_told_over_http_too(
    http: httpx2.AsyncClient, project: str, controls: Controls
) -> None:
    """Once, as it was asked for; then all is well again."""
    controls.set(project, faults=[{"method": "metadata/identity", "status": "UNAVAILABLE"}])
    asked = {"audience": _AUDIENCE}
    url = _path(project, f"{_DEFAULT}/identity")
    assert (await http.get(url, params=asked, headers=_FLAVOR)).status_code == 503
    assert (await http.get(url, params=asked, headers=_FLAVOR)).status_code == 200
    assert controls.get(project)["calls"].count("metadata/identity") == 2


def test_a_token_holds_for_its_audience_alone(tokens: IdTokens, tmp_path: Path) -> None:
    """Not for another, not if another signed it, not a second too long."""
    token = tokens.mint(_AUDIENCE, "me@example.com")
    assert tokens.verify(token, _AUDIENCE).email == "me@example.com"
    with pytest.raises(InvalidToken):
        tokens.verify(token, "https://other.run.app")
    with pytest.raises(InvalidToken):
        IdTokens(tmp_path).verify(token, _AUDIENCE)
    with pytest.raises(InvalidToken):
        tokens.verify(tokens.mint(_AUDIENCE, "me@example.com", seconds=-1), _AUDIENCE)
    with pytest.raises(InvalidToken):
        tokens.verify("not.a.token", _AUDIENCE)


def test_a_token_outlives_the_process_that_minted_it(tmp_path: Path) -> None:
    """The key is kept with the state, for its owner's eyes only."""
    token = IdTokens(tmp_path).mint(_AUDIENCE, "me@example.com")
    assert IdTokens(tmp_path).verify(token, _AUDIENCE).audience == _AUDIENCE
    assert (tmp_path / "idtokens.pem").stat().st_mode & 0o077 == 0


async def _manifest(http: httpx2.AsyncClient, image: str, reference: str) -> httpx2.Response:
    """Ask as Docker does: refused first, then with the token that the refusal says how to get."""
    url = f"/v2/{image}/manifests/{reference}"
    refused = await http.head(url)
    assert refused.status_code == 401
    told = dict(
        part.split("=", 1)
        for part in refused.headers["www-authenticate"].removeprefix("Bearer ").split(",")
    )
    asked = {key: told[key].strip('"') for key in ("service", "scope")}
    token = (await http.get(told["realm"].strip('"'), params=asked)).json()["token"]
    return await http.head(url, headers={"Authorization": f"Bearer {token}"})


async def test_a_published_image_has_a_digest(http: httpx2.AsyncClient) -> None:
    """Always the same for a tag, another for another; the digest itself is found too."""
    first = await _manifest(http, "vllm/vllm-openai", "v0.11.0")
    again = await _manifest(http, "vllm/vllm-openai", "v0.11.0")
    other = await _manifest(http, "ollama/ollama", "0.12.3")
    digest = first.headers["docker-content-digest"]
    assert digest == again.headers["docker-content-digest"]
    assert digest != other.headers["docker-content-digest"]
    assert (await _manifest(http, "vllm/vllm-openai", digest)).status_code == 200


@pytest.mark.parametrize(
    ("image", "tag"), [("vllm/vllm-openai", "v0.one"), ("vllm/vllm-open", "v0.11.0")]
)
async def test_an_image_that_was_never_published_is_not_found(
    http: httpx2.AsyncClient, image: str, tag: str
) -> None:
    """Neither the tag nor the repository."""
    assert (await _manifest(http, image, tag)).status_code == 404


async def test_a_token_for_one_image_opens_no_other(http: httpx2.AsyncClient) -> None:
    """Its scope is one repository."""
    asked = {"service": str(http.base_url).removeprefix("http://").rstrip("/")}
    scope = {"scope": "repository:ollama/ollama:pull"}
    token = (await http.get("/token", params={**asked, **scope})).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    reply = await http.get("/v2/vllm/vllm-openai/manifests/latest", headers=headers)
    assert reply.status_code == 401
