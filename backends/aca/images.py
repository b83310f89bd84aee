"""Container images by digest: what a tag means now, as its registry says."""

from typing import Final, NamedTuple

from backends.aca.site import Site
from backends.common import registry
from backends.common.registry import Reference, reference
from core.cloud_errors import CloudRefused
from core.settings import Settings

_AZURE: Final = ".azurecr.io"

_pins: Final[dict[tuple[str, str], str]] = {}
"""Digests found by this process, so that a plan, its check and its deployment mean one image."""


def registry_of_azure(image: str) -> str | None:
    """Give the Azure registry that an image is pulled from with our identity; None for others."""
    server = reference(image.partition("@")[0]).registry
    return server if server.endswith(_AZURE) else None


class Account(NamedTuple):
    """Who pulls from a registry; the password is kept in the vault."""

    server: str
    username: str


def account_for(settings: Settings, *images: str) -> Account | None:
    """Return the account to pull images with; None where all are of other registries."""
    server, username = settings.registry_server, settings.registry_username
    if not username or not settings.registry_password:
        return None
    asked = {reference(image.partition("@")[0]).registry for image in images}
    return Account(server, username) if reference(f"{server}/x/x").registry in asked else None


async def pinned(site: Site, image: str) -> str | None:
    """Give the image as NAME@sha256:…; None where its registry cannot be asked.

    Raises:
        CloudRefused: The registry has no such image, or shows it to nobody.
    """
    if "@" in image:
        return image
    wanted = reference(image)
    plane = await site.clients.plane()
    base = plane.http if plane else f"https://{wanted.registry}"
    if (base, image) not in _pins:
        password = site.settings.registry_password
        account = account_for(site.settings, image)
        login = (account.username, password.get_secret_value()) if account and password else None
        said = await registry.ask_registry(base, wanted, login=login)
        digest = _read(said, wanted) if said else None
        if digest is None:
            return None
        _pins[base, image] = f"{wanted.name}@{digest}"
    return _pins[base, image]


def _read(said: registry.RegistryAnswer, wanted: Reference) -> str | None:
    if wanted.registry.endswith(_AZURE):
        return said.digest  # shown to whoever logs in there, which nobody does here
    if said.status in {401, 403, 404}:
        raise CloudRefused(
            f"{wanted.registry} has no image {wanted.path}:{wanted.tag} that all may pull.",
            cause=f"Its registry answers {said.status}.",
            fix="Correct the name or tag; Container Apps pull what is public, and from a registry"
            " of Azure what the identity vllm-devops may read (AcrPull).",
        )
    return said.digest
