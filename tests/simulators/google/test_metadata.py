"""Who a machine is, and its tokens; the manifests of a registry."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

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


async def _asked(
    http: httpx2.AsyncClient, project: str, what: str, **query: str
) -> httpx2.Response:
    return await http.get(f"/p/{project}/computeMetadata/v1/{what}", params=query, headers=_FLAVOR)


async def test_the_machine_tells_who_it_is(
    http: httpx2.AsyncClient, project: str, controls: Controls
) -> None:
    """To whoever sends its header; where a person works there is no such server."""
    email = f"operator@{project}.iam.gserviceaccount.com"
    for what, expected in (
        ("project/project-id", project),
        (f"{_DEFAULT}/email", email),
        ("instance/service-accounts/", f"default/\n{email}/\n"),
    ):
        reply = await _asked(http, project, what)
        assert (reply.text, reply.headers["metadata-flavor"]) == (expected, "Google")
    account = (await _asked(http, project, f"{_DEFAULT}/", recursive="true")).json()
    assert (account["email"], account["aliases"]) == (email, ["default"])
    assert (await _asked(http, project, "project/numeric-project-id")).text.isdecimal()
    for what, status in (
        (f"{_DEFAULT}/identity", 400),
        ("instance/service-accounts/nobody@example.com/email", 404),
    ):
        assert (await _asked(http, project, what)).status_code == status
    plain = await http.get("/computeMetadata/v1/project/project-id")
    assert (plain.status_code, plain.headers["metadata-flavor"]) == (403, "Google")
    controls.set(project, identity="me@example.com", identity_kind="user")
    assert (await _asked(http, project, "project/project-id")).status_code == 404


async def test_a_fault_is_told_over_http_too(
    http: httpx2.AsyncClient, project: str, controls: Controls
) -> None:
    """Once, as it was asked for; then all is well again."""
    controls.set(project, faults=[{"method": "metadata/identity", "status": "UNAVAILABLE"}])
    for status in (503, 200):
        reply = await _asked(http, project, f"{_DEFAULT}/identity", audience=_AUDIENCE)
        assert reply.status_code == status
    assert controls.get(project)["calls"].count("metadata/identity") == 2


async def test_a_person_may_borrow_an_account(
    http: httpx2.AsyncClient, project: str, controls: Controls, tokens: IdTokens
) -> None:
    """Which has to be there, and which the person must be allowed."""
    controls.set(project, identity="me@example.com", identity_kind="user")
    account = f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"
    url = f"/v1/projects/-/serviceAccounts/{account}:generateIdToken"
    body = {"audience": _AUDIENCE, "includeEmail": True}
    token = (await http.post(url, json=body)).json()["token"]
    with pytest.raises(InvalidToken):  # of another signer
        tokens.verify(token, _AUDIENCE)
    access = url.replace("generateIdToken", "generateAccessToken")
    scope = {"scope": ["https://www.googleapis.com/auth/iam"]}
    assert set((await http.post(access, json=scope)).json()) == {"accessToken", "expireTime"}
    controls.set(project, denied_permissions=["iam.serviceAccounts.getAccessToken"])
    for path, asked, status in (
        (url, {}, 400),
        (url.replace("runtime", "nobody"), body, 404),
        (access, scope, 403),
    ):
        assert (await http.post(path, json=asked)).status_code == status


@pytest.fixture
def tokens(tmp_path_factory: pytest.TempPathFactory) -> IdTokens:
    """Those of a plane that keeps its key elsewhere."""
    return IdTokens(tmp_path_factory.mktemp("another"))


def test_a_token_holds_for_its_audience_alone(tokens: IdTokens, tmp_path: Path) -> None:
    """Not for another, not if another signed it, not a second too long; its key is kept."""
    token = tokens.mint(_AUDIENCE, "me@example.com")
    assert tokens.verify(token, _AUDIENCE).email == "me@example.com"
    late = tokens.mint(_AUDIENCE, "me@example.com", seconds=-1)
    for other, claimed, audience in (
        (tokens, token, "https://other.run.app"),
        (IdTokens(tmp_path), token, _AUDIENCE),
        (tokens, late, _AUDIENCE),
        (tokens, "not.a.token", _AUDIENCE),
    ):
        with pytest.raises(InvalidToken):
            other.verify(claimed, audience)
    again = IdTokens(tmp_path).mint(_AUDIENCE, "me@example.com")
    assert IdTokens(tmp_path).verify(again, _AUDIENCE).audience == _AUDIENCE
    assert (tmp_path / "idtokens.pem").stat().st_mode & 0o077 == 0


async def _manifest(http: httpx2.AsyncClient, image: str, reference: str) -> httpx2.Response:
    """Ask as Docker does: refused first, then with the token that the refusal says how to get."""
    url = f"/v2/{image}/manifests/{reference}"
    refused = await http.head(url, headers={"Authorization": "Bearer of-another-image"})
    assert refused.status_code == 401
    words = refused.headers["www-authenticate"].removeprefix("Bearer ").split(",")
    told: dict[str, Any] = dict(part.split("=", 1) for part in words)
    asked = {key: told[key].strip('"') for key in ("service", "scope")}
    token = (await http.get(told["realm"].strip('"'), params=asked)).json()["token"]
    return await http.head(url, headers={"Authorization": f"Bearer {token}"})


async def test_a_published_image_has_a_digest(http: httpx2.AsyncClient) -> None:
    """Always the same for a tag; the digest itself is found too, what nobody published is not."""
    first = await _manifest(http, "vllm/vllm-openai", "v0.11.0")
    digest = first.headers["docker-content-digest"]
    again = await _manifest(http, "vllm/vllm-openai", digest)
    other = await _manifest(http, "ollama/ollama", "0.12.3")
    assert digest == again.headers["docker-content-digest"]
    assert digest != other.headers["docker-content-digest"]
    for image, tag in (("vllm/vllm-openai", "v0.one"), ("vllm/vllm-open", "v0.11.0")):
        assert (await _manifest(http, image, tag)).status_code == 404
