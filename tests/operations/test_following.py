"""A deployment in several steps, followed from one to the next."""

from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, cast

import anyio
import pytest

from backends.base import Backend
from core.errors import DeploymentNotFound
from core.records import Deleted, Deployment, Phase, State, Target
from core.settings import Settings
from operations import deployments
from operations.resolve import Found
from operations.runtime import Runtime

pytestmark = pytest.mark.anyio

_NOW = datetime.now(UTC)


def _told(state: State, phase: str | None = None) -> Deployment:
    return Deployment(
        name="one",
        target="somewhere",
        state=state,
        since=_NOW,
        phase=Phase(name=phase, since=_NOW) if phase else None,
        model="m",
        served_model_name="m",
        engine="vllm",
        revision="0",
        created_at=_NOW,
    )


class Building:
    """Its image is finished while somebody looks; there is nothing of it before the next step."""

    waits_in: ClassVar[frozenset[str]] = frozenset({"building image"})

    def __init__(self) -> None:
        self.built = self.made = False

    async def go_on(self, name: str) -> None:
        """Make it of its image."""
        self.made = self.built

    async def describe(self, name: str) -> Deployment:
        """Say what there is; the image is finished meanwhile."""
        self.built = True
        if self.made:
            return _told(State.LOADING, "starting")
        raise DeploymentNotFound("There is none.", fix="Deploy.")


async def test_what_ends_between_two_looks_takes_its_next_step_all_the_same() -> None:
    """Nobody else would take it: whoever follows it gives up what is not found."""
    before = _told(State.CREATING, "building image")
    seen = await deployments.look_again(cast("Backend", Building()), before)
    assert seen.state is State.LOADING


class Removed:
    """A target whose deployment goes at once."""

    target = Target(name="somewhere", backend="local", description="made up")

    async def delete(self, name: str, *, keep_cache: bool = False) -> Deleted:
        """Say that it is gone."""
        return Deleted(name=name, target="somewhere", gone=True)


async def test_what_is_destroyed_is_followed_no_more(tmp_path: Path) -> None:
    runtime = Runtime(Settings(vllm_devops_state_dir=tmp_path), frozenset())
    booting = _told(State.LOADING, "starting")
    runtime.background.start(deployments.following(booting), anyio.sleep_forever)
    found = Found(cast("Backend", Removed()), booting)
    assert (await deployments.destroy(runtime, found, purge=False)).gone
    assert not runtime.background.does("follow ")
