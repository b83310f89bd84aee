"""What Google, a VM's script or a TPU's engine says of a failure, among thousands of lines."""

import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.conversation import Agent, Reply, agent_of
from tests.logs.failures import Seen
from tests.stories.chips import HERE
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life
from tests.stories.noise import (
    LINES,
    Said,
    age_of,
    noise,
    platform_noise,
    remarked,
    seen_of,
    stamped,
    told,
)

pytestmark = pytest.mark.anyio

TARGET: Final = "tpu-v6e-1"
ONE: Final = {"target": TARGET, "name": "one"}
CAUSES: Final = seen_of("tpu", "cause")
OTHERS: Final = seen_of("tpu", "result", "warning")
OF_ENGINES: Final = [one for one in seen_of("engine", "cause") if one.code.startswith("TPU_")]
EVERY: Final = (*CAUSES, *OF_ENGINES)
EACH: Final = 6
"""Of the causes one of so many: `tests/logs` asks all of them. One second each."""
_PHASE: Final = re.compile(r"(?:vllm-devops: )?(failed|ended): (.*)")


@pytest.fixture
async def agent(cloud: Cloud) -> AsyncIterator[Agent]:
    async with agent_of(cloud.settings) as agent:
        yield agent


async def deployed(agent: Agent, state: str) -> Reply:
    """Deploy on a chip of the queue, and watch until its state stays, and is this one."""
    life = Life(agent, TARGET, at="https://127.77.")
    await life.call(
        "deploy_vllm", model=MODEL, max_model_len=4096, zones=[HERE], control_plane="queued"
    )
    return await life.becomes(state)


def says(cloud: Cloud, lines: Sequence[Said], **more: Any) -> None:
    cloud.controls.say(cloud.project, lines, vm="one", **more)


def say(cloud: Cloud, seen: Seen, at: float, *, without: str = "") -> str:
    """Let the engine, the startup script or Google say a line; gives it as it was said."""
    if seen.writer == "engine":
        text, more = stamped(seen.line, at), {}
    elif match := _PHASE.fullmatch(seen.line):
        text, more = match[2], {"phase": match[1], "severity": "ERROR"}
    else:
        text, more = seen.line, {"platform": True, "severity": "ERROR"}
    says(cloud, [(at, text)], without=without, **more)
    return text


async def test_a_cause_on_a_chip_is_recognized_in_a_noisy_log(agent: Agent, cloud: Cloud) -> None:
    """Its engine ended, and one line among all says why."""
    ends = {"SIMULATED_ENGINE_FAIL": "exit-in:loading"}
    cloud.set(engine_environment={"SIMULATED_ENGINE_TIME_SCALE": "0", **ends})
    failed = await deployed(agent, "failed")
    lines, text = list(noise(lasts=age_of(failed))), ""
    assert len(lines) == LINES
    says(cloud, lines)
    for seen in EVERY[::EACH]:
        text = say(cloud, seen, datetime.now(UTC).timestamp(), without=text)
        data = told(await agent.call("diagnose", **ONE))
        assert (data["code"], data["healthy"]) == (seen.code, False), (seen, data)
        assert seen.words in data["cause"], (seen, data)


async def test_what_was_told_of_one_that_is_well_now_is_only_remarked(
    agent: Agent, cloud: Cloud
) -> None:
    """Without such lines nothing is remarked of all the others; with them each is, once."""
    ready = await deployed(agent, "ready")
    lines = list(noise(lasts=age_of(ready)))
    says(cloud, lines)
    quiet = list(platform_noise("tpu", 300, lasts=age_of(ready)))
    says(cloud, quiet, platform=True, severity="WARNING")
    assert remarked(await agent.call("diagnose", **ONE)) == set()
    for seen in OTHERS:
        says(cloud, [(lines[LINES // 2][0], seen.line)], platform=True, severity="WARNING")
    assert remarked(await agent.call("diagnose", **ONE)) == {one.code for one in OTHERS}
