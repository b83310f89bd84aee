"""Google's own clients on a simulated Google Cloud, each test with a project of its own."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from core.settings import GooglePlane
from tests.backends.cloud_run.conftest import bare_project, controls, project
from tests.simulators.google.run_services import Services, services_of

__all__ = ["bare_project", "controls", "project"]


@pytest.fixture
async def services(plane: GooglePlane, project: str) -> AsyncIterator[Services]:
    """Cloud Run of the test's project."""
    async with services_of(plane, project) as services:
        yield services


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    """Whoever asks a service's URL."""
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
        yield client
