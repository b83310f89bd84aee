"""Each test has a project of its own on the worker's simulated Google Cloud."""

import uuid
from collections.abc import Iterator

import pytest

from core.settings import GooglePlane
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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that Google does not answer is not repeated for seconds."""
    monkeypatch.setattr("backends.google.errors.patient", lambda: None)
