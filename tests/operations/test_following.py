"""A deployment in several steps, followed from one to the next."""

from datetime import UTC, datetime
from typing import ClassVar, cast

import pytest

from backends.base import Backend
from core.errors import DeploymentNotFound
from core.records import Deployment, Phase, State
from operations import deployments

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
    seen = await deployments.looked(cast("Backend", Building()), before)
    assert seen.state is State.LOADING
