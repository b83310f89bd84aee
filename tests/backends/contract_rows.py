"""The rows of the contract: one world for each kind of target, and what it can."""

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from backends.base import (
    Backend,
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
from core.settings import AzurePlane, GooglePlane, Settings
from tests.azure_plane import Controls as AzureControls
from tests.backends import nimbus
from tests.backends.local.conftest import Machine
from tests.backends.served import Served
from tests.google_plane import Controls

ABILITIES = (
    Scales,
    Stops,
    HasLogs,
    KnowsEngine,
    NamesEngine,
    WritesConfig,
    HasHost,
)
Lines = Sequence[tuple[datetime, str]]


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
    say: Callable[[Ground, World, str, Lines], None] | None = None
    """Lets a deployment have written lines, where its backend streams logs."""
    opens: Callable[[], type[Backend]] | None = None
    """Returns its class, where the registry does not know it."""
    said_from: timedelta = timedelta(minutes=3)
    """When such lines begin, from now: after it was made, for what is older is no log of it."""


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


def made_up_cloud(ground: Ground) -> World:
    return World(Settings(), ground.state_dir, ())


def said_here(ground: Ground, _world: World, name: str, lines: Lines) -> None:
    with Machine(ground.state_dir).folder(name).log.open("a") as log:
        log.writelines(f"INFO {at.astimezone():%m-%d %H:%M:%S} {text}\n" for at, text in lines)


def said_on_cloud_run(ground: Ground, world: World, name: str, lines: Lines) -> None:
    project = str(world.settings.google_cloud_project)
    Controls(ground.plane()).say(project, _moments(lines), service=name)


def said_by_a_vm(ground: Ground, world: World, name: str, lines: Lines) -> None:
    project = str(world.settings.google_cloud_project)
    Controls(ground.plane()).say(project, _moments(lines), vm=name)


def said_by_an_app(ground: Ground, world: World, name: str, lines: Lines) -> None:
    subscription = str(world.settings.azure_subscription_id)
    AzureControls(ground.azure()).say(subscription, name, _moments(lines))


def _moments(lines: Lines) -> Sequence[tuple[float, str]]:
    return [(at.timestamp(), text) for at, text in lines]


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
    "local": Row(this_machine, ABILITIES, HERE, say=said_here),
    "endpoint": Row(own_endpoint, (), OWN, makes=False, name="endpoint"),
    "cloud_run": Row(google_cloud, WITHOUT_A_HOST, L4, "google/gemma-4-E2B-it",
         say=said_on_cloud_run ),
    "tpu": Row(google_cloud, tuple(one for one in WITHOUT_A_HOST if one not in {Scales, Stops}),
         CHIP, "google/gemma-4-E2B-it", say=said_by_a_vm),
    "nimbus": Row(made_up_cloud, (), nimbus.TARGET, opens=lambda: nimbus.NimbusBackend),
    "aca": Row(
        azure_cloud,
        WITHOUT_A_HOST,
        A100,
        "google/gemma-4-E2B-it",
        say=said_by_an_app,
        said_from=timedelta(hours=-2),  # it knows no future, and older lines are shown if asked for
    ),
}  # fmt: skip
