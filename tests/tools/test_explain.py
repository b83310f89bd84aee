"""A deployment explained, wherever it runs, and what is refused."""

import re

import pytest

from tests.conversation import Agent, agent_of
from tests.stories.conftest import Cloud, bare_cloud, cloud
from tests.tools.calls import MODEL
from tests.tools.world import agent_at, assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

__all__ = ["bare_cloud", "cloud"]


async def test_this_machine_is_explained(served: Agent) -> None:
    """Its memory is the host's, its boot is not ended by anybody, and nothing is billed."""
    reply = await served.call("explain_deployment")
    assert_envelope(reply)
    assert_same_facts(reply)
    rows = {row["flag"]: row for row in reply.data["flags"]}
    assert "requests of that length at once" in rows["--max-model-len"]["does"]
    details = await served.call("get_model_details")
    assert rows["--max-model-len"]["value"] == f"{details.data['max_model_len']:,}"
    assert rows["--reasoning-parser"]["value"] == "gemma4"
    assert reply.data["boot"]["long_enough"] == "nothing ends it"
    assert "your own" in rows["min_replicas"]["does"]


async def test_a_chip_is_explained_until_it_is_deleted(bare_cloud: Cloud) -> None:
    """It never sleeps, no probe watches its boot, and no stop is advised that would be refused."""
    settings = bare_cloud.settings
    async with agent_of(settings) as agent:
        await agent.call("setup_target", target="tpu-v6e-1")
        wish = {"model": MODEL, "max_model_len": 4096, "ttl_minutes": 60, "zones": ["us-east5-b"]}
        deployed = await agent.call("deploy_vllm", target="tpu-v6e-1", name="one", **wish)
        assert not deployed.failed, deployed
        ready = await agent.settled("one", target="tpu-v6e-1")
        assert ready.state == "ready", ready
        reply = await agent.call("explain_deployment", flags=["--max-model-len=8192"])
        whole = await agent.call("explain_deployment")
        stopped = await agent.call("stop_vllm", target="tpu-v6e-1", name="one")
    assert not reply.failed, reply
    assert_same_facts(whole)
    assert stopped.code == "UNSUPPORTED"
    assert [step["tool"] for step in stopped.structured["next"]] == ["destroy_vllm"]
    assert "stop_vllm" not in whole.text
    assert whole.data["boot"]["long_enough"] == "nothing ends it"
    assert "billed until" in " ".join(whole.data["boot"]["notes"])
    assert "destroy_vllm" in [one["change"] for one in whole.data["trade_offs"]]
    assert [one["flag"] for one in reply.data["comparison"]["differences"]] == ["--max-model-len"]


async def test_what_does_not_fit_is_said_before_anybody_tries(cloud: Cloud) -> None:
    """With the reason as a warning, and a plan instead of a deployment as the next step."""
    async with agent_of(cloud.settings) as agent:
        wish = {"model": "12b qat", "max_model_len": 4096, "kv_cache_dtype": "fp8"}
        more = {"max_num_seqs": 1, "gpu_memory_utilization": 0.95, "enforce_eager": True}
        deployed = await agent.call(
            "deploy_vllm", target="cloud-run-l4", name="one", **wish, **more
        )
        assert not deployed.failed, deployed
        await agent.settled("one", target="cloud-run-l4")
        reply = await agent.call("explain_deployment", flags=["--gpu-memory-utilization=0.4"])
        offered = (await agent.call("explain_deployment")).data["trade_offs"]
        for change in (one["change"] for one in offered if "=" in one["change"]):
            tried = await agent.call("explain_deployment", flags=[change])
            assert tried.data["comparison"]["differences"], change
    assert_same_facts(reply)
    assert reply.data["comparison"]["fits"] is False
    assert "does not fit" in reply.structured["summary"]
    assert any("KV cache" in one for one in reply.structured["warnings"])
    assert [step["tool"] for step in reply.structured["next"]] == ["plan_deployment"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-model-len=500000"], "131,072 positions"),
        (["--api-key=hf_verysecret"], "random key of its own"),
        (["--api-key {hf_verysecret"], "random key of its own"),
        (["max_replicas=3"], "runs one replica"),
        (["8192"], "no flag"),
    ],
)
async def test_changes_that_cannot_be_are_refused(
    served: Agent, flags: list[str], words: str
) -> None:
    """In our words, and a key that somebody typed is not said again."""
    reply = await served.call("explain_deployment", flags=flags)
    assert reply.code == "INVALID_ARGUMENT"
    assert words in reply.text
    assert "verysecret" not in reply.text


async def test_a_change_that_its_target_refuses_is_refused_here(bare_cloud: Cloud) -> None:
    """Nothing is said to fit, or offered, that deploying would not take: the rules are its own."""
    async with agent_of(bare_cloud.settings) as agent:
        await agent.call("setup_target", target="tpu-v6e-4")
        wish = {"model": MODEL, "max_model_len": 4096, "ttl_minutes": 60, "zones": ["us-east5-b"]}
        deployed = await agent.call("deploy_vllm", target="tpu-v6e-4", name="one", **wish)
        assert not deployed.failed, deployed
        spread = await agent.call("explain_deployment", flags=["tensor_parallel_size=2"])
        more = await agent.call("explain_deployment", flags=["max_replicas=3"])
    assert (spread.code, more.code) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert "spread over all 4 chips" in spread.text
    assert "max_replicas out" in more.text


async def test_two_deployments_are_compared(cloud: Cloud) -> None:
    """Flag by flag, with what all of it changes; the other one is named with its target."""
    async with agent_of(cloud.settings) as agent:
        await _on_an_l4(agent)
        wish = {"model": "google/gemma-4-E4B-it", "name": "two", "max_model_len": 4096}
        await agent.call("deploy_vllm", target="cloud-run-l4", **wish)
        reply = await agent.call("explain_deployment", name="one", other="two on cloud-run-l4")
    comparison = reply.data["comparison"]
    assert comparison["compared_with"] == "two on cloud-run-l4"
    told = {one["flag"]: (one["before"], one["after"]) for one in comparison["differences"]}
    assert told["--max-model-len"][1] == "4,096"
    assert "nothing is restarted" in comparison["restarts"]


async def test_counts_of_two_lengths_are_told_with_both(cloud: Cloud) -> None:
    """A count of long requests and one of short ones are not each other's before and after."""
    async with agent_of(cloud.settings) as agent:
        await _on_an_l4(agent)
        flags = ["kv_cache_dtype=fp8", "max_model_len=16384"]
        reply = await agent.call("explain_deployment", flags=flags)
    comparison = reply.data["comparison"]
    alone = {one["flag"]: one["does"] for one in comparison["differences"]}
    said = {one.partition(":")[0]: one for one in comparison["together"]}
    held = said["requests of full length at once"]
    for words in (alone["--max-model-len"], held):
        assert re.search(r" of 32,768 tokens -> [\d.]+( to [\d.]+)? of 16,384", words), words
    assert "of 16,384" not in alone["--kv-cache-dtype"]
    assert re.search("at 16,384 tokens -> .* at 8,192", said["tokens/s of one request"])


async def test_the_call_that_is_offered_to_scale_works_as_it_is(cloud: Cloud) -> None:
    """Both numbers are in it; fewer at most than at least is refused before."""
    async with agent_of(cloud.settings) as agent:
        await _on_an_l4(agent)
        refused = await agent.call("explain_deployment", flags=["min_replicas=3"])
        reply = await agent.call("explain_deployment", flags=["min_replicas=1"])
        (step,) = reply.structured["next"]
        scaled = await agent.call(step["tool"], **step["arguments"])
    assert refused.code == "INVALID_ARGUMENT"
    assert "more than max_replicas 1" in refused.text
    assert step["tool"] == "update_vllm_scaling"
    assert not scaled.failed, scaled


async def _on_an_l4(agent: Agent) -> None:
    wish = {"model": "google/gemma-4-E4B-it", "name": "one"}
    deployed = await agent.call("deploy_vllm", target="cloud-run-l4", **wish)
    assert not deployed.failed, deployed
    await agent.settled("one", target="cloud-run-l4")


async def test_an_endpoint_of_ones_own_was_not_asked_for_here(
    served: Agent, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nobody knows its flags: what its engine says of itself is the next best."""
    url = (await served.call("get_endpoint")).data["url"]
    async with agent_at(url, tmp_path_factory.mktemp("own")) as agent:
        reply = await agent.call("explain_deployment")
    assert reply.code == "UNSUPPORTED"
    assert "get_model_details" in reply.structured["fix"]
