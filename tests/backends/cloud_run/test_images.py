"""A tag becomes the digest that its registry names, and nothing is made up where it is silent."""

from collections.abc import Iterator

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.common.registry import reference
from backends.google.setup import pinned
from core.errors import CloudRefused
from core.settings import GooglePlane
from tests.backends.cloud_run.sites import opened
from tests.webserver import serving

pytestmark = pytest.mark.anyio

DIGEST = "sha256:" + "ab" * 32


class Registry:
    """Docker Hub in small: whoever comes without a token is sent to fetch one."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.tokens = 0
        self.digest = DIGEST

    def routes(self) -> list[Route]:
        """Serve manifests and tokens."""
        return [
            Route("/token", self.token),
            Route("/v2/{name:path}/manifests/{tag}", self.manifest, methods=["HEAD", "GET"]),
        ]

    async def token(self, request: Request) -> Response:
        """Give one for the scope that is asked for."""
        self.tokens += 1
        return JSONResponse({"token": request.query_params["scope"]})

    async def manifest(self, request: Request) -> Response:
        """Answer by the repository's name."""
        name, tag = request.path_params["name"], request.path_params["tag"]
        self.asked.append(f"{request.method} {name}:{tag}")
        scope = f"repository:{name}:pull"
        if request.headers.get("authorization") != f"Bearer {scope}":
            asked = f'Bearer realm="{self.url}/token",service="registry",scope="{scope}"'
            return Response(status_code=401, headers={"WWW-Authenticate": asked})
        if name.startswith("answers/"):
            return Response(status_code=int(name.removeprefix("answers/")))
        digest = "sha256:short" if name == "odd/one" else self.digest
        return Response(headers={"Docker-Content-Digest": digest})


@pytest.fixture
def registry() -> Iterator[Registry]:
    served = Registry()
    with serving(Starlette(routes=served.routes())) as url:
        served.url = url
        yield served


def at(url: str) -> GooglePlane:
    return GooglePlane(grpc="127.0.0.1:9", http=url, storage="", pid=1)


@pytest.mark.parametrize(
    ("image", "name", "registry", "path", "tag"),
    [
        ("ollama/ollama:0.9", "ollama/ollama", "registry-1.docker.io", "ollama/ollama", "0.9"),
        ("ubuntu", "ubuntu", "registry-1.docker.io", "library/ubuntu", "latest"),
        ("docker.io/a/b:c", "docker.io/a/b", "registry-1.docker.io", "a/b", "c"),
        ("mirror.gcr.io/a/b:c", "mirror.gcr.io/a/b", "mirror.gcr.io", "a/b", "c"),
        ("localhost:5000/b", "localhost:5000/b", "localhost:5000", "b", "latest"),
        ("us-docker.pkg.dev/p/r/n:t", "us-docker.pkg.dev/p/r/n", "us-docker.pkg.dev", "p/r/n", "t"),
    ],
)  # fmt: skip
def test_a_name_is_taken_apart_as_docker_does(
    image: str, name: str, registry: str, path: str, tag: str
) -> None:
    assert reference(image) == (name, registry, path, tag)


async def test_a_tag_becomes_a_digest_by_asking_once_and_never_by_a_pull(
    registry: Registry,
) -> None:
    image = f"vllm/vllm-openai@{DIGEST}"
    async with opened(at(registry.url), "p") as site:
        assert await pinned(site, image) == image
        assert not registry.asked
        for _ in range(2):
            assert await pinned(site, "vllm/vllm-openai:v9") == image
    assert registry.asked == ["HEAD vllm/vllm-openai:v9"] * 2  # refused first, then by its token
    assert registry.tokens == 1


@pytest.mark.usefixtures("hastened")
async def test_a_tag_is_asked_for_anew_after_a_while(registry: Registry) -> None:
    """A plan and its deployment mean one image; a server that runs for weeks means today's."""
    async with opened(at(registry.url), "p") as site:
        planned = await pinned(site, "vllm/vllm-openai:nightly")
        registry.digest = "sha256:" + "cd" * 32
        assert await pinned(site, "vllm/vllm-openai:nightly") == planned
        await anyio.sleep(3600)
        found = await pinned(site, "vllm/vllm-openai:nightly")
        assert found == f"vllm/vllm-openai@{registry.digest}"


async def test_a_registry_that_gives_no_digest_or_is_not_there_leaves_it_unknown(
    registry: Registry,
) -> None:
    async with opened(at(registry.url), "p") as site:
        assert await pinned(site, "odd/one:v9") is None
    async with opened(at("http://127.0.0.1:9"), "p") as site:
        assert await pinned(site, "vllm/vllm-openai:v9") is None


@pytest.mark.parametrize("status", [404, 401, 403])
async def test_an_image_that_nobody_may_pull_is_refused_with_a_fix(
    registry: Registry, status: int
) -> None:
    async with opened(at(registry.url), "p") as site:
        with pytest.raises(CloudRefused) as refused:
            await pinned(site, f"answers/{status}:v9")
    assert f"answers/{status}:v9" in refused.value.summary
    assert refused.value.fix


@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_a_registry_of_google_that_refuses_to_tell_leaves_it_unknown(
    registry: Registry, status: int
) -> None:
    image = f"us-docker.pkg.dev/answers/{status}:v9"
    async with opened(at(registry.url), "p") as site:
        assert await pinned(site, image) is None
