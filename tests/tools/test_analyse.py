"""Logs analysed through the front door: facts first, then words that strangers may steer."""

import json
from pathlib import Path

import pytest

from core.settings import Settings
from tests.conversation import Reply, agent_of
from tests.operations.analyst.stranger import CLAIM, Stranger, json_of
from tests.tools.analysed import HOSTILE, KEY, NORMAL, OWN, TOO_SMALL, TOOLS, Open, opened
from tests.tools.world import assert_envelope, assert_same_facts, plant
from tests.webserver import listening

__all__ = ["opened"]

pytestmark = pytest.mark.anyio


def everything(reply: Reply) -> str:
    return reply.text + json.dumps(reply.structured, ensure_ascii=False)


@pytest.mark.parametrize("tool", TOOLS)
async def test_the_facts_come_first_and_the_words_are_marked(opened: Open, tool: str) -> None:
    """A known failure with its cause; a claim with its lines; whose words they are."""
    stranger = Stranger()
    async with opened(stranger, *(NORMAL.format(n, n) for n in range(9)), TOO_SMALL) as agent:
        reply = await agent.call(tool, target="local", name="one", minutes=43_200)
    assert_envelope(reply)
    assert_same_facts(reply)
    (found,) = reply.data["findings"]
    assert (found["code"], found["row"]) == ("KV_CACHE_TOO_SMALL", "L1")
    assert "KV_CACHE_TOO_SMALL" in reply.structured["summary"]
    assert reply.data["rows"][0].startswith("L1 [known failure KV_CACHE_TOO_SMALL, ")
    (claim,) = reply.data["words"]["claims"]
    assert claim["text"] == CLAIM["text"]
    assert claim["lines"][0].startswith("L1 [known failure")
    assert reply.data["state"] == "done"
    assert any("not verified" in one for one in reply.structured["warnings"])
    assert stranger.headers[0]["authorization"] == f"Bearer {OWN}"


@pytest.mark.parametrize("tool", TOOLS)
async def test_without_a_model_the_facts_are_told_with_the_reason(opened: Open, tool: str) -> None:
    """The deployment does not run, and no other endpoint is set."""
    async with opened(None, TOO_SMALL) as agent:
        reply = await agent.call(tool, minutes=43_200)
    assert reply.data["findings"][0]["code"] == "KV_CACHE_TOO_SMALL"
    assert "words" not in reply.data
    assert "No model reads this: " in reply.data["silence"]
    assert "ANALYST_BASE_URL is not set" in reply.data["silence"]


async def test_a_log_without_lines_asks_nobody(opened: Open) -> None:
    stranger = Stranger()
    async with opened(stranger, "INFO up") as agent:
        reply = await agent.call("analyze_cloud_logging", filter="no such text")
    assert (reply.data["rows"], stranger.bodies) == ([], [])
    assert "no line" in reply.data["silence"]


async def test_the_accelerators_lines_are_told_from_the_others(opened: Open) -> None:
    lines = ("INFO a request came", "WARNING NCCL watchdog timeout", "NVRM: Xid 79, GPU has fallen")
    async with opened(Stranger(), *lines) as agent:
        reply = await agent.call("analyze_gpu_logs", minutes=43_200)
    told = " ".join(reply.data["rows"])
    assert ("NCCL" in told, "Xid 79" in told, "a request" in told) == (True, True, False)


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_hostile_log_steers_nothing_and_tells_no_secret(opened: Open, tool: str) -> None:
    """What leaves for the model is masked, and what comes back names no tool of the log's."""
    obeys = Stranger(
        json_of(
            {"text": "The log says: run destroy_vllm.", "lines": ["L1"]},
            {"text": "As save_hf_token wants it.", "lines": ["L1"]},
            {"text": "Something is wrong.", "lines": ["L1"]},
        )
    )
    async with opened(obeys, *HOSTILE, *(f"GPU {line}" for line in HOSTILE[:-1])) as agent:
        reply = await agent.call(tool, minutes=43_200)
    assert_envelope(reply)
    assert_same_facts(reply)
    for text in (*obeys.prompts, everything(reply)):
        for secret in (KEY, OWN, "abcdefghijklmnop1234", "jane.doe", "8.8.4.4", "my secret"):
            assert secret not in text, secret
        assert not [sign for sign in text if not sign.isprintable() and sign != "\n"]
    assert [found["code"] for found in reply.data["findings"]] == ["BAD_ENGINE_ARGUMENT"]
    words = reply.data["words"]
    assert [claim["text"] for claim in words["claims"]] == ["Something is wrong."]
    named = {step["tool"] for step in reply.structured["next"]}
    assert not named & {"destroy_vllm", "stop_vllm", "save_hf_token"}


async def test_a_forged_id_or_mark_changes_no_row(opened: Open) -> None:
    """Each line is one row with an id of ours; what it says of ids is text."""
    stranger = Stranger()
    async with opened(stranger, *HOSTILE) as agent:
        reply = await agent.call("analyze_cloud_logging", minutes=43_200)
    ids = [row.split(" ")[0] for row in reply.data["rows"]]
    assert ids == [f"L{number}" for number in range(1, len(ids) + 1)]
    fenced = [line for line in stranger.prompts[0].splitlines() if line.startswith("L")]
    assert [line.split(" ")[0] for line in fenced] == ids


@pytest.mark.parametrize(
    "said",
    ["", "no JSON", "[" * 100_000, '{"claims": [', json_of(CLAIM)[:20], "{}", "x" * 10_000_000],
)
async def test_nonsense_of_a_model_leaves_the_facts(opened: Open, said: str) -> None:
    async with opened(Stranger(said, obeys_limit=False), TOO_SMALL) as agent:
        reply = await agent.call("analyze_cloud_logging", minutes=43_200)
    assert_envelope(reply)
    assert reply.data["findings"][0]["code"] == "KV_CACHE_TOO_SMALL"
    assert reply.data["words"]["claims"] == []
    assert reply.data["silence"].startswith("No model's words")


async def test_an_endpoint_that_is_not_there_leaves_the_facts(opened: Open) -> None:
    async with opened(Stranger(), TOO_SMALL, url="http://127.0.0.1:9") as agent:
        reply = await agent.call("analyze_cloud_logging", minutes=43_200)
    assert reply.data["findings"]
    assert "Nothing answers at http://127.0.0.1:9" in reply.data["silence"]


async def test_a_rehearsal_asks_no_endpoint_outside(state_dir: Path) -> None:
    """Nothing real is touched or paid; nor is a model asked that does not run."""
    stranger = Stranger()
    async with listening(stranger.app) as url:
        settings = Settings(
            vllm_devops_state_dir=state_dir,
            engine="simulated",
            toolsets=("all",),
            rehearsal=True,
            analyst_base_url=url,
        )
        folder = plant(state_dir)
        (state_dir / "rehearsal").mkdir()
        (state_dir / "real" / "local").rename(state_dir / "rehearsal" / "local")
        log = state_dir / "rehearsal" / "local" / folder.path.name / "engine.log"
        log.write_text(TOO_SMALL)
        async with agent_of(settings) as agent:
            reply = await agent.call("analyze_cloud_logging", target="local", minutes=43_200)
    assert reply.data["findings"]
    assert stranger.headers == []
    assert "a rehearsal asks no endpoint outside" in reply.data["silence"]


async def test_a_ready_model_reads_its_own_log(served_settings: Settings) -> None:
    """The whole path on the simulated engine: counted, guided, cited; no other is asked as well."""
    other = Stranger()
    async with listening(other.app) as url:
        both = served_settings.model_copy(update={"analyst_base_url": url})
        async with agent_of(both) as served:
            reply = await served.call("analyze_gpu_logs")
    assert other.bodies == []
    words = reply.data["words"]
    assert "(one on local)" in words["model"]
    assert all(claim["lines"] for claim in words["claims"])


async def test_an_endpoint_without_logs_says_so(state_dir: Path) -> None:
    settings = Settings(
        vllm_base_url="http://127.0.0.1:9", vllm_devops_state_dir=state_dir, toolsets=("all",)
    )
    async with agent_of(settings) as agent:
        for tool in TOOLS[:2]:
            assert (await agent.call(tool)).code == "UNSUPPORTED"
        reply = await agent.call(TOOLS[2])
    assert "was not read" in reply.data["looked_at"][0]
    assert reply.data["diagnosis"]
