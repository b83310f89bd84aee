"""A first deployment on this machine, with nothing said but where, and its sudden end."""

from pathlib import Path

import psutil
import pytest

from tests.conftest import processes_of
from tests.real.conftest import stdio
from tests.real.test_ends import core_of, wrapped
from tests.soon import soon
from tests.survival.world import assert_nothing_left, kill

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]


async def test_with_nothing_said_the_model_answers_and_a_core_killed_then_is_told(
    state_dir: Path, tmp_path: Path
) -> None:
    """A tenth of the machine's memory is held by somebody else, and vLLM would reserve 92 %.

    Its main process notices that its core died, ends, and is reported as such an engine.
    """
    held = bytearray(b"\1") * (psutil.virtual_memory().total // 10)
    async with stdio(state_dir, VLLM_EXECUTABLE=wrapped(tmp_path)) as agent:
        deployed = await agent.call("deploy_vllm", target="local")
        assert not deployed.failed, deployed
        name = deployed.data["name"]
        ready, through = await agent.until(name)
        assert ready.state == "ready", ready
        assert "compiling" in through
        assert "KV cache" in ready.data["resources"]["memory"]
        answer = await agent.brief("query_gemma4", prompt="hi", max_tokens=8)
        assert not answer.failed, answer
        assert "random weights" in answer.text
        (core,) = core_of(agent, name)
        kill(core)

        async def state() -> str:
            return (await agent.status(name)).state

        await soon(state, "failed".__eq__)
        failed = await agent.status(name)
        assert failed.data["failure"]["code"] == "ENGINE_CORE_DIED", failed
        assert processes_of(agent.state_dir) == []
        gone = await agent.call("destroy_vllm", target="local", name=name)
        assert gone.data["gone"], gone
        assert_nothing_left(agent.state_dir)
    assert len(held)
