"""What every part of the backend is handed: whose cloud, which target, what was seen before."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from backends.aca.clients import Clients
from backends.aca.names import Ground
from core.records import Target
from core.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One target, opened."""

    target: Target
    settings: Settings
    clients: Clients
    folder: Path
    """Where deployments are kept whose environment is not there yet, and changes under way."""
    answered: set[str] = field(default_factory=set)
    """Names of revisions whose model has answered: they need not be asked, and so kept awake."""
    woken: dict[str, datetime] = field(default_factory=dict)
    """When a deployment last answered us: its replica stays for the cooldown after that."""

    @property
    def rehearsed(self) -> bool:
        """Whether this is a simulated cloud."""
        return self.settings.rehearsal

    @property
    def ground(self) -> Ground:
        """What its deployments stand on; names alone, nothing is asked of anybody."""
        return self.clients.ground
