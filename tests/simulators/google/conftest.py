"""Google's own clients on a simulated Google Cloud, each test with a project of its own."""

import importlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio
import httpx2
import pytest

from core.settings import GooglePlane
from tests.backends.cloud_run.conftest import bare_project, controls, project
from tests.google_plane import Controls, google_plane
from tests.simulators.google.planted import plant
from tests.simulators.google.run_services import Services, services_of

__all__ = ["bare_project", "controls", "project"]


class Google:
    """Opens the SDK's clients; they are closed with it."""

    def __init__(self, plane: GooglePlane) -> None:
        self._channel = grpc.aio.insecure_channel(plane.grpc)

    def client(self, package: str, service: str, name: str) -> Any:
        kind = getattr(importlib.import_module(f"{package}.services.{service}"), name)
        transport = kind.get_transport_class("grpc_asyncio")
        return kind(transport=transport(channel=self._channel))

    async def aclose(self) -> None:
        await self._channel.close()


@pytest.fixture
async def google(plane: GooglePlane) -> AsyncIterator[Google]:
    google = Google(plane)
    yield google
    await google.aclose()


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


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GooglePlane]:
    """A plane whose projects have logs, and instances that were billed."""
    folder = tmp_path_factory.mktemp("past")
    plant(folder)
    with google_plane(folder) as plane:
        yield plane


@pytest.fixture
async def google_with_a_past(past: GooglePlane) -> AsyncIterator[Google]:
    google = Google(past)
    yield google
    await google.aclose()


@pytest.fixture
def past_controls(past: GooglePlane) -> Controls:
    return Controls(past)
