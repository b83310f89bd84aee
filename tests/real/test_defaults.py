"""A first deployment on this machine, with nothing said but where."""

import psutil
import pytest

from tests.real.conftest import Served

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]


async def test_with_nothing_said_the_model_answers_where_vllms_own_share_is_not_free(
    served: Served,
) -> None:
    """A tenth of the machine's memory is held by somebody else, and vLLM would reserve 92 %."""
    held = bytearray(b"\1") * (psutil.virtual_memory().total // 10)
    deployed = await served.call("deploy_vllm", target="local")
    assert not deployed.failed, deployed
    name = deployed.data["name"]
    ready, through = await served.until(name)
    assert ready.state == "ready", ready
    assert "compiling" in through
    assert "KV cache" in ready.data["resources"]["memory"]
    answer = await served.brief("query_gemma4", prompt="hi", max_tokens=8)
    assert not answer.failed, answer
    assert "random weights" in answer.text
    gone = await served.call("destroy_vllm", target="local", name=name)
    assert gone.data["gone"], gone
    assert len(held)
