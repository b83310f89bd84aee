"""What Google's two backends answer alike."""

from abc import abstractmethod
from collections.abc import Collection

from pydantic import SecretStr

from backends.base import KeptSecret, Leftovers
from backends.google import leftovers, secrets
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

    @property
    def account(self) -> str:
        return f"project {self.site.clients.project_id}"

    async def find_leftovers(self, kept: Collection[str]) -> Leftovers:
        if not self.site.clients.configured:
            return Leftovers(ours=(), others={}, not_seen=(not_configured().summary,))
        return await leftovers.find_leftovers(self.site, kept)

    async def remove_leftover(self, resource: str, kept: Collection[str]) -> bool:
        return await leftovers.remove_leftover(self.site, resource, kept)

    async def aclose(self) -> None:
        await self.site.clients.aclose()
