"""The rows of the contract: one world for each kind of target, and what it can."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from backends.base import (
    HasHost,
    HasLogs,
    KnowsEngine,
    NamesEngine,
    Scales,
    Stops,
    World,
    WritesConfig,
)
from core.records import Target
from core.rehearsal import AzurePlane, GooglePlane
from core.settings import Settings
from tests.azure_plane import Controls as AzureControls
from tests.backends.local.conftest import Machine
from tests.backends.served import Served
from tests.google_plane import Controls

ABILITIES = (Scales, Stops, HasLogs, KnowsEngine, NamesEngine, WritesConfig, HasHost)


class Ground(NamedTuple):
    """What the worlds of the rows stand on."""

    state_dir: Path
    served: Served
    plane: Callable[[], GooglePlane]
    """The simulated cloud, started when a row first asks for it."""
    azure: Callable[[], AzurePlane]


class Row(NamedTuple):
    """One kind of target."""

    world: Callable[[Ground], World]
    abilities: tuple[type, ...]
    target: Target
    model: str = "fake/ready"
    makes: bool = True
    """Whether deployments are made here; a place that is only looked at refuses."""
    name: str = "one"
    """Of the deployment that there is, or will be."""


def this_machine(ground: Ground) -> World:
    return Machine(ground.state_dir).world


def own_endpoint(ground: Ground) -> World:
    return World(Settings(vllm_base_url=ground.served.url), ground.state_dir, ())


def google_cloud(ground: Ground) -> World:
    """A project of its own, set up."""
    project = f"p-{uuid.uuid4().hex[:12]}"
    plane = ground.plane()
    Controls(plane).set(project, prepared=True)

    async def google() -> GooglePlane:
        return plane

    settings = Settings(google_cloud_project=project, rehearsal=True)
    return World(settings, ground.state_dir, (), google)


def azure_cloud(ground: Ground) -> World:
    """A subscription of its own, set up."""
    subscription = str(uuid.uuid4())
    plane = ground.azure()
    AzureControls(plane).set(subscription, prepared=True)

    async def azure() -> AzurePlane:
        return plane

    settings = Settings(azure_subscription_id=subscription, rehearsal=True)
    return World(settings, ground.state_dir, (), None, azure)


HERE = Target(name="local", backend="local", description="")
OWN = Target(name="endpoint", backend="endpoint", description="")
L4 = Target(
    name="cloud-run-l4",
    backend="cloud_run",
    description="",
    accelerator="nvidia-l4",
    region="us-east4",
)
A100 = Target(
    name="aca-a100",
    backend="aca",
    description="",
    accelerator="a100-80",
    region="swedencentral",
)
CHIP = Target(
    name="tpu-v6e-1",
    backend="tpu",
    description="",
    accelerator="v6e",
    accelerator_count=1,
    region="us-east5-b",
)
WITHOUT_A_HOST = tuple(one for one in ABILITIES if one is not HasHost)
ROWS = {
    "local": Row(this_machine, ABILITIES, HERE),
    "endpoint": Row(own_endpoint, (), OWN, makes=False, name="endpoint"),
    "cloud_run": Row(google_cloud, WITHOUT_A_HOST, L4, "google/gemma-4-E2B-it"),
    "tpu": Row(
        google_cloud,
        tuple(one for one in WITHOUT_A_HOST if one is not Scales),
        CHIP,
        "google/gemma-4-E2B-it",
    ),
    "aca": Row(azure_cloud, WITHOUT_A_HOST, A100, "google/gemma-4-E2B-it"),
}
