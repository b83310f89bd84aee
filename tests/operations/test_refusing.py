"""What cannot be deployed is refused with a code and a fix, and leaves nothing behind."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from core.settings import Settings
from tests.conftest import processes_of
from tests.conversation import Agent, agent_of
from tests.tools.calls import MODEL
from tests.tools.world import assert_envelope, still_engine

pytestmark = pytest.mark.anyio

WRONG: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"max_model_len": 0}, "INVALID_ARGUMENT"),
    ({"max_model_len": -1}, "INVALID_ARGUMENT"),
    ({"gpu_memory_utilization": 0}, "INVALID_ARGUMENT"),
    ({"gpu_memory_utilization": 1.5}, "INVALID_ARGUMENT"),
    ({"kv_cache_memory_bytes": "plenty"}, "INVALID_ARGUMENT"),
    ({"max_num_seqs": 0}, "INVALID_ARGUMENT"),
    ({"tensor_parallel_size": 0}, "INVALID_ARGUMENT"),
    ({"cpu_offload_gb": -1}, "INVALID_ARGUMENT"),
    ({"port": 70_000}, "INVALID_ARGUMENT"),
    ({"ttl_minutes": -1}, "INVALID_ARGUMENT"),
    ({"ttl_minutes": 99_999_999_999}, "INVALID_ARGUMENT"),
    ({"max_idle_minutes": 99_999_999_999}, "INVALID_ARGUMENT"),
    ({"max_replicas": 2}, "INVALID_ARGUMENT"),
    ({"min_replicas": 2, "max_replicas": 2}, "INVALID_ARGUMENT"),
    ({"model": "/no/such/folder"}, "MODEL_NOT_FOUND"),
    ({"model": "~/no/such/folder"}, "MODEL_NOT_FOUND"),
    ({"model": "gema 12b"}, "INVALID_ARGUMENT"),
    ({"engine_args": ["--api-key", "mine"]}, "INVALID_ARGUMENT"),
    ({"engine_args": ["--api_key=mine"]}, "INVALID_ARGUMENT"),
    ({"engine_args": ["--port=1"]}, "INVALID_ARGUMENT"),
    ({"engine_args": ["--host", "0.0.0.0"]}, "INVALID_ARGUMENT"),  # noqa: S104  refused
    ({"engine_args": ["--hf-token", "hf_mine"]}, "INVALID_ARGUMENT"),
    ({"name": "Not A Name"}, "INVALID_ARGUMENT"),
)


@pytest.fixture
async def still(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """A server whose engine is a process that does nothing, and costs nothing."""
    still_engine(monkeypatch)
    async with agent_of(settings) as agent:
        yield agent


async def deploy(agent: Agent, **flags: Any) -> Any:
    return await agent.call("deploy_vllm", **{"model": MODEL, "name": "one", **flags})


@pytest.mark.parametrize(("flags", "code"), WRONG)
async def test_a_wish_that_cannot_be_is_refused_and_leaves_nothing(
    agent: Agent, state_dir: Path, flags: dict[str, Any], code: str
) -> None:
    """The error names what is wrong; no folder, no process, no half of a deployment."""
    reply = await deploy(agent, **flags)
    assert reply.code == code
    assert_envelope(reply)
    assert not (state_dir / "real" / "local" / "one").exists()
    assert processes_of(state_dir) == []


async def test_a_value_that_cannot_be_is_refused_in_one_sentence(agent: Agent) -> None:
    """That it may also be left out is no news to whoever gave it."""
    told = (await deploy(agent, ttl_minutes=-5)).structured["summary"]
    assert told.count("ttl_minutes") == 1
    assert "None" not in told


async def test_a_folder_that_holds_no_model_is_refused(agent: Agent, tmp_path: Path) -> None:
    """An empty folder is told apart from one that is not there."""
    assert (await deploy(agent, model=str(tmp_path))).code == "MODEL_NOT_FOUND"


async def test_a_taken_port_is_told_at_once(agent: Agent, state_dir: Path) -> None:
    """Before a boot of minutes, and nothing is left running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        reply = await deploy(agent, port=taken.getsockname()[1])
    assert reply.code == "PORT_IN_USE"
    assert_envelope(reply)
    assert processes_of(state_dir) == []


async def test_a_taken_port_keeps_what_runs(still: Agent) -> None:
    """A replacement that cannot start does not end what it would replace."""
    before = await deploy(still)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert (await deploy(still, port=taken.getsockname()[1])).code == "PORT_IN_USE"
    after = await still.call("status_vllm")
    assert after.data["instance"] == before.data["instance"]


async def test_a_journal_that_cannot_be_written_stops_the_call(
    settings: Settings, state_dir: Path
) -> None:
    (state_dir / "real" / "journal.db").mkdir(parents=True)
    async with agent_of(settings) as agent:
        reply = await deploy(agent)
    assert reply.code == "HOST_ERROR"
    assert "journal.db" in reply.structured["summary"]
    assert processes_of(state_dir) == []


async def test_without_an_engine_it_says_what_to_install(settings: Settings) -> None:
    """ENGINE=real without a vLLM is a coded error with the command that makes one."""
    chosen = {"engine": "real", "vllm_executable": "/no/such/vllm"}
    async with agent_of(settings.model_copy(update=chosen)) as agent:
        reply = await deploy(agent)
        targets = await agent.call("list_targets")
    assert reply.code == "COMMAND_NOT_FOUND"
    assert "make vllm" in reply.structured["fix"]
    assert "make vllm" in targets.data["targets"][0]["missing"]
