"""Stories of a project or subscription of their own on the worker's simulated clouds."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from core.settings import AzurePlane, GooglePlane, Settings
from operations.runtime import Stage
from tests.azure_plane import Controls as AzureControls
from tests.google_plane import Controls


class Cloud(NamedTuple):
    """One project, and whoever wants to work in it."""

    controls: Controls
    project: str
    settings: Settings

    def set(self, **knobs: Any) -> dict[str, Any]:
        """Change how it behaves; gives what there is."""
        return self.controls.set(self.project, **knobs)

    def is_empty(self) -> bool:
        """Whether no service, no secret and no instance is there."""
        seen = self.controls.get(self.project)
        return not (seen["services"] or seen["secrets"] or seen["instances"])


@pytest.fixture
def bare_cloud(
    plane: GooglePlane, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    """A project in which nothing was ever made, and whose engines do not dawdle."""

    async def google(_self: Stage) -> GooglePlane:
        return plane

    monkeypatch.setattr(Stage, "google", google)
    settings = Settings(
        rehearsal=True,
        google_cloud_project=f"p-{uuid.uuid4().hex[:12]}",
        vllm_devops_state_dir=state_dir,
        toolsets=("all",),
        confirm="never",
        pause_scale=0.2,
    )
    cloud = Cloud(Controls(plane), str(settings.google_cloud_project), settings)
    cloud.set(
        boot_seconds=0.1,
        engine_environment={"SIMULATED_ENGINE_TIME_SCALE": "0"},
        quotas={"l4": 3, "rtx-pro-6000": 3},
    )
    yield cloud
    cloud.controls.drop(cloud.project)


@pytest.fixture
def cloud(bare_cloud: Cloud) -> Cloud:
    """The same, set up."""
    bare_cloud.set(prepared=True)
    return bare_cloud


@pytest.fixture
def every_cloud(plane: GooglePlane, azure: AzurePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a look at every cloud the worker's own: else each test starts the other cloud anew."""

    async def google(_self: Stage) -> GooglePlane:
        return plane

    async def microsoft(_self: Stage) -> AzurePlane:
        return azure

    monkeypatch.setattr(Stage, "google", google)
    monkeypatch.setattr(Stage, "azure", microsoft)


class Azure(NamedTuple):
    """One subscription, and whoever wants to work in it."""

    controls: AzureControls
    subscription: str
    settings: Settings

    def set(self, **knobs: Any) -> dict[str, Any]:
        """Change how it behaves; gives what there is."""
        return self.controls.set(self.subscription, **knobs)

    def get(self) -> dict[str, Any]:
        """Give what there is."""
        return self.controls.get(self.subscription)


@pytest.fixture
def bare_azure(
    azure: AzurePlane, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Azure]:
    """A subscription in which nothing was ever made, and whose engines do not dawdle."""

    async def plane(_self: Stage) -> AzurePlane:
        return azure

    monkeypatch.setattr(Stage, "azure", plane)
    settings = Settings(
        rehearsal=True,
        azure_subscription_id=str(uuid.uuid4()),
        vllm_devops_state_dir=state_dir,
        toolsets=("all",),
        confirm="never",
        pause_scale=0.2,
    )
    cloud = Azure(AzureControls(azure), str(settings.azure_subscription_id), settings)
    cloud.set(boot_seconds=0.1, engine_environment={"SIMULATED_ENGINE_TIME_SCALE": "0"})
    yield cloud
    cloud.controls.drop(cloud.subscription)


@pytest.fixture
def ready_azure(bare_azure: Azure) -> Azure:
    """The same, set up."""
    bare_azure.set(prepared=True)
    return bare_azure
