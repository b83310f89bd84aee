"""Container images by digest: what a tag means now, as its registry says."""

import re
from typing import Final

import anyio
from google.auth.transport.requests import Request

from backends.common import registry
from backends.common.registry import Reference, reference
from backends.google.clients import GoogleSite
from backends.google.errors import translated
from core.errors import CloudRefused

_GOOGLE: Final = re.compile(r"(^|\.)(pkg\.dev|gcr\.io)$")
_MIRROR: Final = "mirror.gcr.io"
"""Google's, of Docker Hub; it serves everybody."""

_pins: Final[dict[tuple[str, str], str]] = {}
"""Digests found by this process, so that a plan, its check and its deployment mean one image."""


async def pinned(site: GoogleSite, image: str) -> str | None:
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
        said = await registry.ask_registry(base, wanted, await _own_token(site) if known else None)
        digest = _read(said, wanted) if said else None
        if digest is None:
            return None
        _pins[base, image] = f"{wanted.name}@{digest}"
    return _pins[base, image]


def _read(said: registry.RegistryAnswer, wanted: Reference) -> str | None:
    hidden = said.status in {401, 403} and not _GOOGLE.search(wanted.registry)
    if said.status == 404 or hidden:
        raise CloudRefused(
            f"{wanted.registry} has no image {wanted.path}:{wanted.tag} that all may pull.",
            cause=f"Its registry answers {said.status}.",
            fix="Correct the name or tag; what is public can be pulled from Docker Hub, and from"
            " Artifact Registry what the project may read.",
        )
    return said.digest


async def _own_token(site: GoogleSite) -> str | None:
    """Give the caller's access token, which Google's own registries know."""
    credentials = await site.clients.credentials()

    def fresh() -> str | None:
        if not credentials.valid:
            credentials.refresh(Request())
        return credentials.token

    with translated("give an access token"):
        return await anyio.to_thread.run_sync(fresh, abandon_on_cancel=True)
