"""A server that may only look, beside what another one has made on a cloud whose calls are seen."""

import re
from typing import Any, Final, NamedTuple

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Azure, Cloud
from tests.stories.life import MODEL, Life
from tests.tools.calls import CLOUD, EVERY, OLD
from tests.tools.world import snapshot
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

READS: Final = re.compile(
    r"(GET|HEAD) .*|POST (app/\S+|query|metrics:getBatch|\S+/getAuthtoken)"
    r"|(?i:\S*[./](get|access|list|aggregatedlist)[a-z]*|metadata/(identity|list))"
)
"""Such calls of either cloud change nothing; those of `app` are the model's own."""
MOVING: Final = ("calls", "needed", "tested", "log", "events", "instances", "replicas")
"""What an engine that is looked at does by itself: it serves, and says so."""


class Stood(NamedTuple):
    """A deployment whose maker is gone."""

    target: str
    cloud: Cloud | Azure

    def seen(self) -> dict[str, Any]:
        """Give all there is, and every call that was made."""
        cloud = self.cloud
        return cloud.get() if isinstance(cloud, Azure) else cloud.controls.get(cloud.project)


@pytest.fixture(params=["cloud-run-l4", "aca-a100"])
async def stood(request: pytest.FixtureRequest) -> Stood:
    fixture = "ready_azure" if request.param == "aca-a100" else "cloud"
    stood = Stood(request.param, request.getfixturevalue(fixture))
    async with agent_of(stood.cloud.settings) as agent:
        await Life(agent, stood.target).begins(MODEL, max_model_len=4096)
    return stood


async def test_everything_is_called_and_nothing_is_changed(stood: Stood) -> None:
    """Every tool, of any profile; the cloud itself says what was done."""
    folder = stood.cloud.settings.vllm_devops_state_dir
    assert folder
    files, before = snapshot(folder), stood.seen()
    reader = stood.cloud.settings.model_copy(update={"read_only": True})
    async with agent_of(reader) as agent:
        for tool, registered in TOOLS.items():
            reply = await agent.call(tool, **_said(tool, stood.target))
            assert (reply.code == "READ_ONLY") is registered.writes, (tool, reply)
    after = stood.seen()
    made = after["calls"][len(before["calls"]) :]
    assert len(set(made)) > 10
    assert [one for one in made if not READS.fullmatch(one)] == []
    assert _standing(after) == _standing(before)
    assert snapshot(folder) == files


async def test_a_change_is_seen(stood: Stood) -> None:
    """The same looks, beside a server that may: the test above can say no."""
    before = stood.seen()
    async with agent_of(stood.cloud.settings) as agent:
        await Life(agent, stood.target).call("destroy_vllm")
    after = stood.seen()
    assert [one for one in after["calls"][len(before["calls"]) :] if not READS.fullmatch(one)]
    assert _standing(after) != _standing(before)


def _standing(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: what for name, what in seen.items() if name not in MOVING}


def _said(tool: str, target: str) -> dict[str, Any]:
    said = {**EVERY, **CLOUD, **OLD}[tool]
    takes = TOOLS[tool].parameters
    here = {"target": target, "name": "one"}
    return {**said, **{key: value for key, value in here.items() if key in takes}}
