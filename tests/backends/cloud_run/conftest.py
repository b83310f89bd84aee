"""A target of the test's own project, and a piece of its cloud inside the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.cloud_run.site import Site
from core.settings import GooglePlane
from tests.backends.cloud_run.planted import Planted, planting
from tests.backends.cloud_run.sites import opened
from tests.google_plane import Controls


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
