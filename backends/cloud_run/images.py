"""Container images by digest: what a tag means now, as its registry says."""

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx2

from backends.cloud_run.failing import translated
from backends.cloud_run.site import Site
from core.cloud_errors import CloudRefused

_ACCEPTED: Final = (
    "application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
_DOCKER_HUB: Final = "registry-1.docker.io"
_DOCKER_NAMES: Final = ("docker.io", "index.docker.io", _DOCKER_HUB)
_GOOGLE: Final = re.compile(r"(^|\.)(pkg\.dev|gcr\.io)$")
_MIRROR: Final = "mirror.gcr.io"
"""Google's, of Docker Hub; it serves everybody."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}$")
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT: Final = 10.0

_pins: Final[dict[tuple[str, str], str]] = {}
"""Digests found by this process, so that a plan, its check and its deployment mean one image."""


class Reference(NamedTuple):
    """An image's name, taken apart."""

    name: str
    """Without tag and digest, as it was written."""
    registry: str
    path: str
    """Of the repository at its registry."""
    tag: str


def reference(image: str) -> Reference:
    """Take a name apart; without a registry it is Docker Hub's, without a tag the latest."""
    head, _, last = image.rpartition("/")
    short, _, tag = last.partition(":")
    name = f"{head}/{short}" if head else short
    first, _, rest = name.partition("/")
    if not rest or not (set(".:") & set(first) or first == "localhost"):
        first, rest = _DOCKER_HUB, name
    if first in _DOCKER_NAMES:
        first, rest = _DOCKER_HUB, rest if "/" in rest else f"library/{rest}"
    return Reference(name, first, rest, tag or "latest")


async def pinned(site: Site, image: str) -> str | None:
    """Give the image as NAME@sha256:…; None where its registry cannot be asked.

    Raises:
        CloudRefused: The registry has no such image, or shows it to nobody.
        NotAuthenticated: It is one of Google's, and nobody is logged in.
    """
    if "@" in image:
        return image
    wanted = reference(image)
    plane = await site.clients.plane()
    base = plane.http if plane else f"https://{wanted.registry}"
    if (base, image) not in _pins:
        known = plane is None and _GOOGLE.search(wanted.registry) and wanted.registry != _MIRROR
        digest = await _digest(base, wanted, await _own_token(site) if known else None)
        if digest is None:
            return None
        _pins[base, image] = f"{wanted.name}@{digest}"
    return _pins[base, image]


async def _digest(base: str, wanted: Reference, token: str | None) -> str | None:
    url = f"{base}/v2/{wanted.path}/manifests/{wanted.tag}"
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=True) as client:
            reply = await _asked(client, url, token)
            if reply.status_code == 401 and token is None:
                token = await _visitors_token(client, reply)
                reply = await _asked(client, url, token) if token else reply
    except (httpx2.TransportError, httpx2.InvalidURL, ValueError):
        return None
    return _read(reply, wanted)


def _read(reply: httpx2.Response, wanted: Reference) -> str | None:
    hidden = reply.status_code in {401, 403} and not _GOOGLE.search(wanted.registry)
    if reply.status_code == 404 or hidden:
        raise CloudRefused(
            f"{wanted.registry} has no image {wanted.path}:{wanted.tag} that all may pull.",
            cause=f"Its registry answers {reply.status_code}.",
            fix="Correct the name or tag; Cloud Run pulls from Docker Hub what is public, and "
            "from Artifact Registry what its service agent may read.",
        )
    digest = reply.headers.get("docker-content-digest", "")
    return digest if reply.is_success and _DIGEST.match(digest) else None


async def _asked(client: httpx2.AsyncClient, url: str, token: str | None) -> httpx2.Response:
    # HEAD does not count against Docker Hub's limit of pulls.
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    return await client.head(url, headers={"Accept": _ACCEPTED, **shown})


async def _visitors_token(client: httpx2.AsyncClient, reply: httpx2.Response) -> str | None:
    """Fetch what the registry's challenge asks of somebody without an account."""
    asked = dict(_CHALLENGE.findall(reply.headers.get("www-authenticate", "")))
    realm = asked.pop("realm", "")
    if urlsplit(realm).scheme not in {"http", "https"}:
        return None
    answer = await client.get(realm, params=asked)
    body = answer.json() if answer.is_success else {}
    token = body.get("token") or body.get("access_token")
    return token if isinstance(token, str) else None


async def _own_token(site: Site) -> str | None:
    """Give the caller's access token, which Google's own registries know."""
    credentials = await site.clients.credentials()

    def fresh() -> str | None:
        from google.auth.transport.requests import Request

        if not credentials.valid:
            credentials.refresh(Request())
        return credentials.token

    with translated("give an access token"):
        return await anyio.to_thread.run_sync(fresh, abandon_on_cancel=True)
