"""What every part of a backend of Google's is handed: whose cloud, and which target."""

from dataclasses import dataclass

from backends.google.clients import GoogleClients
from backends.google.names import key_secret
from core.records import Target
from core.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleSite:
    """One target, opened."""

    target: Target
    settings: Settings
    clients: GoogleClients

    @property
    def rehearsed(self) -> bool:
        """Whether this is a simulated cloud."""
        return self.settings.rehearsal

    @property
    def home(self) -> str:
        """Name where a deployment is: one of the same name elsewhere has another key."""
        return self.clients.region

    def key_secret(self, name: str) -> str:
        """Name the secret with a deployment's key."""
        return key_secret(name)
