"""Each test has a project of its own on the worker's simulated Google Cloud."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from backends.cloud_run.site import Site
from core.settings import GooglePlane
from tests.backends.cloud_run.planted import Planted, planting
from tests.backends.cloud_run.sites import opened
from tests.google_plane import Controls


@pytest.fixture
def controls(plane: GooglePlane) -> Controls:
    """Set by `controls.set(project, boot_seconds=0.5)`."""
    return Controls(plane)


@pytest.fixture
def bare_project(controls: Controls) -> Iterator[str]:
    """A project id nobody has used: no API enabled, nothing in it."""
    fresh = f"p-{uuid.uuid4().hex[:12]}"
    yield fresh
    controls.drop(fresh)


@pytest.fixture
def project(controls: Controls, bare_project: str) -> str:
    """A project as `set_up` leaves it."""
    controls.set(bare_project, prepared=True)
    return bare_project


@pytest.fixture
async def site(plane: GooglePlane, project: str, controls: Controls) -> AsyncIterator[Site]:
    """A target of that project, whose engines boot at once."""
    controls.set(project, boot_seconds=0.1)
    async with opened(plane, project) as site:
        yield site


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    """A piece of that cloud inside the test, with whatever is planted in it."""
    async with planting(tmp_path) as planted:
        yield planted
