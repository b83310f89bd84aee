"""Microsoft's own clients on a simulated Azure, each test with a subscription of its own."""

from collections.abc import AsyncIterator

import pytest

from backends.aca.site import Clients
from core.settings import AzurePlane
from tests.backends.aca.conftest import bare_subscription, controls, subscription
from tests.backends.aca.sites import opened

__all__ = ["bare_subscription", "controls", "subscription"]


@pytest.fixture
async def clients(azure: AzurePlane, subscription: str) -> AsyncIterator[Clients]:
    """The clients of a subscription as `set_up` leaves it."""
    async with opened(azure, subscription) as site:
        yield site.clients
