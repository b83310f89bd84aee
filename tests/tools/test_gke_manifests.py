"""Manifests for Kubernetes, as a tool gives them."""

import json
from pathlib import Path

import pytest
import yaml

from core.redaction import MASK
from server import main
from tests.conversation import Agent

pytestmark = pytest.mark.anyio


async def test_a_manifest_comes_out_as_it_was_written(agent: Agent) -> None:
    reply = await agent.call("get_vllm_gpu_deployment_config", model="26b qat", name="one")
    written = yaml.safe_load_all(reply.data["manifest"])
    assert [each["kind"] for each in written] == ["Deployment", "Service"]


@pytest.mark.parametrize("weights", ["hub", "gs://weights/google/gemma-4-12B-it", "pvc:disk/12b"])
@pytest.mark.parametrize("hosts", [1, 2])
async def test_the_commands_around_a_manifest_can_be_typed(
    agent: Agent, weights: str, hosts: int
) -> None:
    """The key comes from standard input: a place, and no secret that an answer would mask."""
    wanted = {"model": "12b", "name": "one", "gpus": 2, "hosts": hosts, "weights": weights}
    reply = await agent.call("get_vllm_gpu_deployment_config", **wanted)
    commands = " ; ".join(step["command"] for step in reply.data["steps"])
    assert "--from-file=api-key=/dev/stdin" in commands
    assert MASK not in reply.text + json.dumps(reply.structured)


def test_the_command_line_prints_them_so_too(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `make` and shells show goes through the same masks."""
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(state_dir))
    words = ("get_vllm_gpu_deployment_config", "model=12b", "gpus=2", "detail=full")
    assert main(["call", *words]) == 0
    printed = capsys.readouterr().out
    assert "--from-file=api-key=/dev/stdin" in printed
    assert MASK not in printed
