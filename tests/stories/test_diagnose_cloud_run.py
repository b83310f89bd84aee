"""What Cloud Run says of a failure, among thousands of lines that say nothing."""

from collections.abc import Sequence
from typing import Any, Final

import anyio
import pytest

from tests.conversation import SETTLED, Agent, Reply, agent_of
from tests.soon import HANGS
from tests.stories.conftest import Cloud
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

ONE: Final = {"target": "cloud-run-l4", "name": "one"}
WISH: Final = {**ONE, "model": "google/gemma-4-E2B-it", "max_model_len": 4096}
CAUSES: Final = seen_of("cloud_run", "cause")
OTHERS: Final = seen_of("cloud_run", "result", "warning")
OF_ENGINES: Final = seen_of("engine", "cause")
EACH: Final = 5
OF_ENGINES_EACH: Final = 40
"""Of the causes one of so many: `tests/logs` asks all of them. Three seconds each."""


async def deployed(agent: Agent, state: str) -> Reply:
    """Deploy it and watch it until its state stays, and is this one."""
    reply = await agent.call("deploy_vllm", **WISH)
    assert not reply.failed, reply
    with anyio.fail_after(HANGS):
        while reply.state not in SETTLED:
            reply = await agent.call("status_vllm", **ONE, wait_s=10)
    assert reply.state == state, reply
    return reply


def says(cloud: Cloud, lines: Sequence[Said], **more: Any) -> None:
    cloud.controls.say(cloud.project, lines, service=ONE["name"], **more)


async def test_a_cause_that_google_or_an_engine_tells_is_recognized_in_a_noisy_log(
    cloud: Cloud,
) -> None:
    """Its probe failed, and one line among all says why."""
    cloud.set(rollout="probe-fails", probe_scale=0.0005)
    async with agent_of(cloud.settings) as agent:
        failed = await deployed(agent, "failed")
        lines, text = list(noise(lasts=age_of(failed))), ""
        assert len(lines) == LINES
        says(cloud, lines)
        at = lines[-1][0]
        for seen in (*CAUSES[::EACH], *OF_ENGINES[::OF_ENGINES_EACH]):
            line = stamped(seen.line, at)
            says(cloud, [(at, line)], platform=seen.writer != "engine", without=text)
            text = line
            data = told(await agent.call("diagnose", **ONE))
            assert (data["code"], data["healthy"]) == (seen.code, False), (seen, data)
            assert seen.words in data["cause"], (seen, data)
            assert line.strip()[:400] in [row["text"] for row in data["evidence"]], (seen, data)


async def test_what_google_told_of_one_that_is_well_now_is_only_remarked(cloud: Cloud) -> None:
    """Without such lines nothing is remarked of all the others; with them each is, once."""
    async with agent_of(cloud.settings) as agent:
        ready = await deployed(agent, "ready")
        lines = list(noise(lasts=age_of(ready)))
        says(cloud, lines)
        says(cloud, list(platform_noise("cloud_run", 500, lasts=age_of(ready))), platform=True)
        assert remarked(await agent.call("diagnose", **ONE)) == set()
        codes = list(dict.fromkeys(one.code for one in OTHERS))[:8]  # so many are remarked at most
        said = [(lines[LINES // 2][0], one.line) for one in OTHERS if one.code in codes]
        says(cloud, said, platform=True)
        assert remarked(await agent.call("diagnose", **ONE)) == set(codes)
