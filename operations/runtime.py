"""What lives as long as the server: the stage, its background work, what it must not say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from backends.base import Backend
from core.endpoint import Endpoint
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
        self.background: Final = Background()
        self.learned: Final[dict[str, str | None]] = {}
        """How far each life of a deployment was from its plan, once that is known."""
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

    def keep_quiet(self, access: Access) -> Access:
        """Remember a credential, so that no answer ever holds it."""
        if access.api_key:
            self._secrets.add(access.api_key.get_secret_value())
        return access


@asynccontextmanager
async def running(settings: Settings, listed: frozenset[str]) -> AsyncIterator[Runtime]:
    """Keep a runtime while a server lives; its background work ends with it.

    `listed` names the tools that this server shows.
    """
    runtime = Runtime(settings, listed)
    try:
        yield runtime
    finally:
        await runtime.background.end()
