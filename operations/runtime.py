"""What lives as long as the server: the stage, its background work, what it must not say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pydantic import SecretStr

from backends.base import Backend
from core.endpoint import Endpoint
from core.journal import HeldTokens
from core.records import Access
from core.settings import Settings
from operations.background import Background
from operations.stage import Stage


class Runtime:
    """Handed to every tool."""

    def __init__(self, settings: Settings, listed: frozenset[str]) -> None:
        self.settings: Final = settings
        self.listed: Final = listed
        self.stage: Final = Stage(settings)
        self.held: Final = HeldTokens()
        """Tokens that a damaged journal cannot keep."""
        self.background: Final = Background()
        self.learned: Final[dict[str, str | None]] = {}
        """How far each life of a deployment was from its plan, once that is known."""
        self.told: Final[list[str]] = []
        """What happened between calls; the next answer says it."""
        self._secrets: set[str] = set(settings.secrets)

    @property
    def secrets(self) -> frozenset[str]:
        """Every secret this server has had in hand."""
        return frozenset(self._secrets)

    @asynccontextmanager
    async def endpoint(self, backend: Backend, name: str) -> AsyncIterator[Endpoint]:
        """Open a deployment's endpoint with its credential."""
        access = self.keep_quiet(await backend.access(name))
        endpoint = Endpoint(access)
        try:
            yield endpoint
        finally:
            await endpoint.aclose()

    def tell(self, sentence: str) -> None:
        """Let the next answer say something, once."""
        if sentence not in self.told:
            self.told.append(sentence)

    def hush(self, secret: SecretStr) -> None:
        """Remember a secret, so that no answer ever holds it."""
        self._secrets.add(secret.get_secret_value())

    def keep_quiet(self, access: Access) -> Access:
        """Remember a credential, so that no answer ever holds it."""
        held = (access.api_key, access.identity_token)
        self._secrets |= {secret.get_secret_value() for secret in held if secret}
        return access
