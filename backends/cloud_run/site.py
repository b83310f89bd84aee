"""What every part of the backend is handed: whose cloud, which target, what was seen before."""

from dataclasses import dataclass, field
from datetime import datetime

from backends.cloud_run.clients import Clients
from backends.cloud_run.identity import IdentityTokens
from backends.google.site import GoogleSite


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(GoogleSite):
    """One target, opened."""

    clients: Clients
    identity: IdentityTokens
    answered: set[str] = field(default_factory=set)
    """Names of revisions whose model has answered: they need not be asked, and so kept awake."""
    woken: dict[str, datetime] = field(default_factory=dict)
    """When a deployment last answered us: readings of its instances may be older than that."""
