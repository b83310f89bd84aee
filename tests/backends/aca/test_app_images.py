"""An image by its digest, and which engine it holds."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backends.aca.app import app_of, label, pinned, registry_of_azure, version
from core.errors import CloudRefused
from core.settings import AzurePlane
from tests.backends.aca.planned import A100, CALLERS, PATCHED, VAULT, drawn, site
from tests.backends.aca.sites import opened
from tests.webserver import serving

pytestmark = pytest.mark.anyio

_DIGEST = "sha256:" + "a" * 64


def _at(url: str) -> AzurePlane:
    return AzurePlane(arm=url, logs=url, vaults=url, storage=url, http=url, ca="", pid=1)


def _registry(status: int = 200) -> Starlette:
    async def manifest(request: Request) -> Response:
        known = request.path_params["tag"] != "gone"
        headers = {"docker-content-digest": _DIGEST}
        return Response(status_code=status if known else 404, headers=headers)

    return Starlette(
        routes=[Route("/v2/{name:path}/manifests/{tag}", manifest, methods=["HEAD", "GET"])]
    )


async def test_a_tag_becomes_a_digest_once_for_all() -> None:
    """The plan, its check and its deployment mean one image."""
    with serving(_registry()) as url:
        async with opened(_at(url), "s") as there:
            assert await pinned(there, "me/vllm:1") == f"me/vllm@{_DIGEST}"
    async with opened(_at(url), "s") as there:
        assert await pinned(there, "me/vllm:1") == f"me/vllm@{_DIGEST}"
        assert await pinned(there, PATCHED) == PATCHED


async def test_a_registry_that_cannot_be_asked_pins_nothing() -> None:
    """The tag is used, and whoever deploys is told."""
    async with opened(_at("http://127.0.0.1:9"), "s") as there:
        assert await pinned(there, "me/vllm:2") is None


async def test_an_image_that_is_not_there_is_refused() -> None:
    """A revision would fail after minutes with it."""
    with serving(_registry()) as url:
        async with opened(_at(url), "s") as there:
            with pytest.raises(CloudRefused, match="has no image me/vllm:gone") as refused:
                await pinned(there, "ghcr.io/me/vllm:gone")
            assert "AcrPull" in refused.value.fix


async def test_an_azure_registry_shows_nothing_to_visitors() -> None:
    """The identity pulls it, so that no answer here is a refusal there."""
    with serving(_registry(401)) as url:
        async with opened(_at(url), "s") as there:
            assert await pinned(there, "mine.azurecr.io/vllm:1") is None
            with pytest.raises(CloudRefused):
                await pinned(there, "ghcr.io/me/vllm:3")


def test_only_a_registry_of_azures_is_logged_in_to() -> None:
    """Its name is at the end of the host's."""
    assert registry_of_azure("mine.azurecr.io/vllm:1") == "mine.azurecr.io"
    assert registry_of_azure("mine.azurecr.io/vllm@sha256:0") == "mine.azurecr.io"
    assert registry_of_azure("me/azurecr.io:1") is None


def test_an_engine_is_known_by_its_image() -> None:
    """By the tag, or as ours where the digest hides it."""
    app = app_of(drawn(), kept_at=VAULT, addresses=CALLERS)
    assert version(site(A100), app) == "0.32.0"
    assert label(site(A100), f"vllm/vllm-openai@{_DIGEST}") == "vLLM 0.32.0"
    assert label(site(A100), PATCHED) == "vLLM (version not known)"
    assert label(site(A100, rehearsal=True), None).startswith("simulated vLLM")
