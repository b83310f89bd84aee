"""engine_args: planned, deployed and explained are one and the same."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.conversation import Agent, Reply

pytestmark = pytest.mark.anyio

_KEY = "SECRETVALUE1"
_LENGTH = 200_000
_OWN = '{"max_position_embeddings": 300000}'


async def _plan(agent: Agent, words: Sequence[str], **said: Any) -> Reply:
    wish = {"model": "e4b", "target": "cloud-run-l4", "engine_args": list(words)}
    return await agent.call("plan_deployment", **wish, **said)


async def _deploy(agent: Agent, words: Sequence[str], **said: Any) -> Reply:
    wish = {"model": "google/gemma-4-E4B-it", "target": "local", "name": "two"}
    reply = await agent.call("deploy_vllm", **wish, engine_args=list(words), **said)
    if not reply.failed:
        await agent.call("destroy_vllm", target="local", name="two", purge=True)
    return reply


async def _explain(agent: Agent, words: Sequence[str]) -> Reply:
    return await agent.call("explain_deployment", target="local", name="one", flags=list(words))


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key SECRETVALUE1"],
        ["--hf-token SECRETVALUE1"],
        ['--limit-mm-per-prompt {"image": 2} --api-key SECRETVALUE1'],
        ["--limit-mm-per-prompt", '{"image": 2} --api-key SECRETVALUE1'],
        ["--api-key", "SECRETVALUE1"],
        ["--api-key=SECRETVALUE1"],
        ["--gpu-memory-util=0.4"],
        ["--root-path=/v1"],
    ],
)
async def test_what_may_not_be_said_is_refused_everywhere(served: Agent, words: list[str]) -> None:
    """A key is told nowhere, not even by the list of what was called."""
    asked = (_plan, _deploy, _explain)
    replies = [await ask(served, words) for ask in asked]
    replies.append(await served.call("list_operations"))
    assert [reply.code for reply in replies[:3]] == ["INVALID_ARGUMENT"] * 3
    assert not [reply for reply in replies[:3] if "redacted" in reply.structured["fix"]]
    assert not [reply for reply in replies if _KEY in reply.text + str(reply.structured)]


async def test_the_last_word_on_a_switch_counts(agent: Agent) -> None:
    """Without eager mode there are CUDA graphs, and they take memory."""
    graphs, eager = [await _plan(agent, (), enforce_eager=eager) for eager in (False, True)]
    off = await _plan(agent, ["--no-enforce-eager"], enforce_eager=True)
    assert off.data["memory"] == graphs.data["memory"] != eager.data["memory"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "INVALID_ARGUMENT"),
        (["--hf-overrides={}"], "INVALID_ARGUMENT"),
        (["--hf-overrides", '{"architectures": ["X"]}'], "INVALID_ARGUMENT"),
        (["--hf-overrides.max_position_embeddings=150000"], "INVALID_ARGUMENT"),
        ([f"--hf-overrides={_OWN}"], ""),
        ([f"--hf-overrides {_OWN}"], ""),
        (["--hf-overrides.text_config.rope_scaling.factor=4"], ""),
    ],
)
async def test_only_an_override_of_its_length_makes_a_model_longer(
    served: Agent, words: list[str], code: str
) -> None:
    """The same is said before it is made, when it is made and when it is changed."""
    replies = [
        await _plan(served, words, max_model_len=_LENGTH),
        await _deploy(served, words, max_model_len=_LENGTH),
        await _explain(served, [f"max_model_len={_LENGTH}", *words]),
    ]
    refused = ["beyond the model's" in reply.text for reply in replies]
    assert refused == [bool(code)] * 3
    assert [reply.code for reply in replies] == [code] * 3


async def test_what_is_offered_is_what_was_planned(agent: Agent) -> None:
    """With the words that no argument stands for, once each."""
    words = ["--enable-prefix-caching", "--block-size", "32", "--language-model-only"]
    (offered,) = (await _plan(agent, words, max_num_seqs=4)).structured["next"]
    assert offered["tool"] == "deploy_vllm"
    assert offered["arguments"]["engine_args"] == words
    assert offered["arguments"]["max_num_seqs"] == 4
