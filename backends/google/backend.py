"""What Google's two backends answer alike."""

from abc import abstractmethod

from pydantic import SecretStr

from backends.base import KeptSecret
from backends.google import secrets
from backends.google.clients import GoogleSite
from backends.google.errors import not_configured
from backends.lifecycle import Lifecycle


class GoogleBackend(Lifecycle):
    """A target of one project."""

    site: GoogleSite

    @property
    @abstractmethod
    def own_engine(self) -> tuple[str, str]:
        """Version and image of the vLLM that serves where nobody names another."""

    def engine_name(self) -> tuple[str, str]:
        version, image = self.own_engine
        missing = "" if self.site.clients.configured else not_configured().fix
        return f"vLLM {version} ({image})", missing

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        return await secrets.keep(self.site, name, value)

    async def aclose(self) -> None:
        await self.site.clients.aclose()
