"""Each test has a subscription of its own on the worker's simulated Azure."""

import uuid
from collections.abc import Iterator

import pytest

from core.settings import AzurePlane
from tests.azure_plane import Controls


@pytest.fixture
def controls(azure: AzurePlane) -> Controls:
    """Set by `controls.set(subscription, boot_seconds=0.5)`."""
    return Controls(azure)


@pytest.fixture
def bare_subscription(controls: Controls) -> Iterator[str]:
    """A subscription nobody has used: no provider registered, nothing in it."""
    fresh = str(uuid.uuid4())
    yield fresh
    controls.drop(fresh)


@pytest.fixture
def subscription(controls: Controls, bare_subscription: str) -> str:
    """A subscription as `set_up` leaves it."""
    controls.set(bare_subscription, prepared=True)
    return bare_subscription
