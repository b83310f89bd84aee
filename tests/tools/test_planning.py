"""What people ask of one model at one target, and the computed answer of plan_deployment."""

from pathlib import Path
from typing import Any, Final

import pytest

from core.settings import Settings
from tests.conversation import Agent, Reply, agent_of
from tests.planner.folders import expert_folder
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

L4: Final = "cloud-run-l4"
PARSERS: Final = "--enable-auto-tool-choice --tool-call-parser=gemma4 --reasoning-parser=gemma4"
QAT_26B: Final = "google/gemma-4-26B-A4B-it-qat-w4a16-ct"


async def plan(agent: Agent, model: str, target: str = L4, **flags: Any) -> Reply:
    """One plan, of which both halves agree and no number is longer than a person reads."""
    reply = await agent.call("plan_deployment", model=model, target=target, **flags)
    assert_envelope(reply)
    assert_same_facts(reply)
    assert "truncated" not in reply.structured
    assert all(round(number, 4) == number for number in floats(reply.structured)), reply
    return reply


def floats(value: object) -> list[float]:
    """Every number with a fraction in an answer."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in floats(item)]
    if isinstance(value, list):
        return [number for item in value for number in floats(item)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("26AB", "google/gemma-4-26B-A4B-it"),
        ("Gemma4 26AB", "google/gemma-4-26B-A4B-it"),
        ("standard Gemma4 26AB", "google/gemma-4-26B-A4B-it"),
        ("QAT 26AB", QAT_26B),
        ("26B QAT", QAT_26B),
        ("QAT 31B model", "google/gemma-4-31B-it-qat-w4a16-ct"),
        ("Gemma 4 2B", "google/gemma-4-E2B-it"),
        ("Gemma 4 4B", "google/gemma-4-E4B-it"),
        ("4B QAT", "google/gemma-4-E4B-it-qat-w4a16-ct"),
        ("12B non QAT", "google/gemma-4-12B-it"),
        ("gemma 12b", "google/gemma-4-12B-it"),
        ("gemma-4-12B-it", "google/gemma-4-12B-it"),
        (QAT_26B, QAT_26B),
    ],
)
async def test_models_are_known_by_the_names_people_type(
    agent: Agent, typed: str, meant: str
) -> None:
    """A short name, an old habit or the Hub's own: the answer says which model it is of."""
    assert (await plan(agent, typed, max_model_len=2048)).data["model"] == meant


@pytest.mark.parametrize("typed", ["google/gemma-2b", "gemma-2b-it", "gemma-3-4b-it", "gemma 2b"])
async def test_other_generations_are_not_mistaken_for_gemma_4(agent: Agent, typed: str) -> None:
    """What is not known is said to be so, rather than planned as something else."""
    assert (await plan(agent, typed)).code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("typed", "meant"), [("Cloud Run L4", L4), ("v6e-1", "tpu-v6e-1"), ("ACA A100", "aca-a100")]
)
async def test_targets_are_known_by_the_names_people_type(
    agent: Agent, typed: str, meant: str
) -> None:
    """Capitals, blanks and a missing `tpu-` are no hindrance."""
    assert (await plan(agent, "e2b", typed)).data["target"] == meant


@pytest.mark.parametrize(("typed", "word"), [("nowhere", L4), ("l4", "ec2-g6-2xlarge")])
async def test_other_targets_are_answered_with_those_that_are_alike(
    agent: Agent, typed: str, word: str
) -> None:
    """An accelerator is at several places, and each may be meant."""
    reply = await plan(agent, "e2b", typed)
    assert reply.code == "TARGET_NOT_FOUND"
    assert word in reply.structured["fix"]


async def test_the_qat_one(agent: Agent) -> None:
    """Yes with 32 GiB of host: flags, requests at once, a band of speed and a cold start."""
    reply = await plan(agent, "26B QAT", max_model_len=16_384, max_num_seqs=8)
    seen = reply.data["foreseen"]
    assert reply.data["fits"] is True
    assert reply.data["memory"]["weights_gib"] == pytest.approx(16.44, rel=0.05)
    assert reply.data["engine_line"].endswith(f"--max-model-len 16384 --max-num-seqs 8 {PARSERS}")
    assert (seen["host"], seen["weights_from"]) == ("8 vCPU, 32 GiB", "hub")
    assert seen["kv_saturates_at_requests"] >= 1
    low, high = map(float, seen["tokens_per_second_per_user"].split("-"))
    assert low < 61.67 < high
    low, high = map(float, seen["boot_seconds"].replace(",", "").split("(")[1][:-1].split("-"))
    assert low < 664 + 99 < high
    assert any("nobody has measured" in warning for warning in reply.structured["warnings"])


async def test_the_qat_one_with_vllms_default_flags_says_which_flags_would_do(agent: Agent) -> None:
    """Not even 8,192 tokens fit beside 256 sequences; the next step does."""
    reply = await plan(agent, "26B QAT")
    assert reply.data["fits"] is False
    assert "8,192 tokens" in reply.structured["summary"]
    assert "What fits:" in reply.structured["summary"]
    first = reply.structured["next"][0]
    assert first["tool"] == "plan_deployment"
    assert (await plan(agent, **first["arguments"])).data["fits"] is True


async def test_31b_qat_dies_while_loading(agent: Agent) -> None:
    """22.10 GiB at the peak of 21.96: 2.62 of them pass; without the towers for images it loads."""
    reply = await plan(agent, "QAT 31B")
    assert reply.data["memory"]["load_peak_gib"] == pytest.approx(22.1, abs=0.05)
    assert "while loading" in reply.structured["summary"]
    assert "2.62" in reply.structured["summary"]
    assert [*reply.data["layouts"]] == ["text only", "offload"]
    step = reply.structured["next"][0]["arguments"]
    assert step["engine_args"] == ["--language-model-only"]
    assert (await plan(agent, **step)).data["fits"] is True


async def test_a_host_that_is_too_small_does_not_fit_either(agent: Agent) -> None:
    """On Cloud Run the files count against 32 GiB, and what is offloaded comes on top."""
    offloaded: dict[str, Any] = {
        "cpu_offload_gb": 14,
        "kv_cache_dtype": "fp8",
        "max_model_len": 8192,
    }
    reply = await plan(agent, "QAT 31B", **offloaded)
    assert (reply.data["fits"], reply.data["memory"]["fits"]) == (False, True)
    assert "35.67 GiB" in reply.structured["summary"]
    assert "foreseen" not in reply.data


async def test_are_there_any_better_memory_layouts(agent: Agent) -> None:
    """Three in one answer, each computed and each different; asking for one gives it."""
    layouts = (await plan(agent, "26B QAT")).data["layouts"]
    assert len({*layouts.values()}) == 4
    assert "--language-model-only" in layouts.pop("text only")
    for name, line in layouts.items():
        reply = await plan(agent, "26B QAT", layout=name)
        assert reply.data["fits"] is True
        assert line.partition(":")[0] in reply.data["engine_line"]
    assert "--kv-cache-dtype fp8" in layouts["concurrency"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"model": "nonsense"}, "catalog"),
        ({"max_model_len": 1_000_000_000}, "131072"),
        ({"tensor_parallel_size": 2}, "at most 1"),
        ({"quantization": "awq"}, "fp8"),
        ({"kv_cache_dtype": "nonsense"}, "fp8"),
        ({"kv_cache_memory_bytes": "lots"}, "K, M, G"),
        ({"gpu_memory_utilization": 1.5}, "value"),
        ({"vllm_version": "newest"}, "0.32.0"),
        ({"layout": "magic"}, "layout"),
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused_with_a_fix(
    agent: Agent, flags: dict[str, Any], word: str
) -> None:
    """Nothing impossible is planned as if it were merely too large."""
    reply = await plan(agent, **{"model": "e2b", **flags})
    assert reply.code == "INVALID_ARGUMENT"
    assert word in reply.structured["summary"] + reply.structured["fix"]


async def test_a_place_that_nothing_is_deployed_to_is_planned_for_and_not_checked(
    agent: Agent,
) -> None:
    """The fix names the argument that asked for it."""
    asked = {"model": "e2b", "target": "h100"}
    assert (await agent.call("plan_deployment", **asked)).structured["ok"]
    refused = await agent.call("plan_deployment", **asked, check=True)
    assert refused.code == "UNSUPPORTED"
    assert refused.structured["fix"].startswith("Leave `check` out")


async def test_flags_that_are_the_only_fault_are_set_right(agent: Agent) -> None:
    """A T4 has no fp8 cache: the same length without it is what fits."""
    reply = await plan(agent, "e2b", "aca-t4", max_model_len=8192, kv_cache_dtype="fp8")
    assert reply.data["nearest"][0].startswith("with other flags: ")
    assert reply.structured["next"][0]["arguments"]["max_model_len"] == 8192
    assert "kv_cache_dtype" not in reply.structured["next"][0]["arguments"]


async def test_a_cache_that_is_given_on_this_machine_is_deployed_as_it_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMULATED_ENGINE_DEVICE_MEMORY_GIB", "16")
    async with agent_of(settings) as agent:
        given = await plan(agent, "e2b", "local", kv_cache_memory_bytes="2G")
    assert given.data["fits"] is True
    (step,) = given.structured["next"]
    assert step["tool"] == "deploy_vllm"
    assert step["arguments"]["kv_cache_memory_bytes"] == str(2**31)


async def test_this_machine_is_judged_by_its_accelerator(settings: Settings) -> None:
    """With ACCELERATOR_TYPE, plan and deployment say the same of it."""
    async with agent_of(settings.model_copy(update={"accelerator_type": "l4"})) as agent:
        reply = await plan(agent, "31B QAT", "local")
        assert "while loading" in reply.structured["summary"]
        fits = await plan(agent, "26B QAT", "local", layout="concurrency")
    assert "--kv-cache-dtype fp8" in fits.data["engine_line"]
    assert fits.structured["next"][0]["arguments"]["kv_cache_dtype"] == "fp8"


async def test_a_price_that_sources_disagree_on_is_told_as_a_range(agent: Agent) -> None:
    """The first line gives both ends, not the one that may be low."""
    reply = await agent.call("plan_deployment", model="12b qat", target="aca-a100")
    assert "$6.35 to $8.86 an hour" in reply.structured["summary"]
    assert any("$6.793/h" in each for each in reply.structured["warnings"])


async def test_a_checkpoint_that_the_hub_has_not_is_refused_before_anything_starts(
    agent: Agent,
) -> None:
    """Planned for whoever has its files in a bucket; the error names what the Hub has instead."""
    asked: dict[str, Any] = {"max_model_len": 8192, "max_num_seqs": 4}
    refused = await plan(agent, "26b qat", weights="hub", **asked)
    assert refused.code == "MODEL_NOT_FOUND"
    assert "404 on 2026-07-31" in refused.structured["summary"]
    assert "google/gemma-4-12B-it-qat-w4a16-ct" in refused.structured["fix"]
    said = await agent.call("plan_deployment", model="26b qat", target="cloud-run-l4", **asked)
    assert "weights=gs://BUCKET/FOLDER" in said.structured["summary"]
    assert [step["tool"] for step in said.structured["next"]] == ["list_models"]
    bucket = await plan(agent, "26b qat", weights="gs://weights/gemma/26b-qat", **asked)
    assert bucket.structured["next"][-1]["tool"] == "deploy_vllm"


@pytest.mark.parametrize(
    ("target", "model", "words"),
    [
        ("local", "e2b", PARSERS),
        ("cloud-run-l4", "12b qat", PARSERS),
        ("aca-a100", "12b qat", PARSERS),
        ("tpu-v6e-1", "12b", "--enable-auto-tool-choice --tool-call-parser=gemma4"),
    ],
)
async def test_gemma_4_is_served_with_its_parsers_wherever_they_do_no_harm(
    agent: Agent, target: str, model: str, words: str
) -> None:
    """On TPUs the reasoning parser of that version is left out, which the plan says."""
    reply = await plan(agent, model, target, max_model_len=4096, max_num_seqs=8)
    assert reply.data["engine_line"].endswith(f" {words}")
    said = " ".join(reply.structured["warnings"])
    assert ("--reasoning-parser" in said) is (words != PARSERS)


@pytest.mark.parametrize(
    "experts", ["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"]
)
async def test_experts_are_counted_by_whatever_name_a_config_gives_their_number(
    agent: Agent, tmp_path: Path, experts: str
) -> None:
    """GLM and DeepSeek say n_routed_experts: a token reads two of 16, and a layer that only drafts
    is not loaded."""
    said = {experts: 16, "num_experts_per_tok": 2, "num_nextn_predict_layers": 1}
    data = (await plan(agent, str(expert_folder(tmp_path, **said)), "h100", detail="full")).data
    parts = data["memory"]["parts_gib"]
    assert (parts["experts"], parts["embedding"]) == (0.75, 0.979)
    assert "draft" not in parts
    assert parts["experts' workspace"] > 0
    assert data["foreseen"]["tokens_per_second"] == "735-1,654"


async def test_all_experts_are_read_where_nobody_says_how_many_a_token_takes(
    agent: Agent, tmp_path: Path
) -> None:
    """A speed without its experts would be out of reach, and what is not known is said."""
    folder = expert_folder(tmp_path, n_routed_experts=16)
    reply = await plan(agent, str(folder), "h100", detail="full")
    assert reply.data["foreseen"]["tokens_per_second"] == "530-1,193"
    assert any("how many experts a token takes" in said for said in reply.structured["warnings"])


@pytest.mark.parametrize(
    ("length", "target"), [(8192, "tpu-v6e-1"), (12_288, "tpu-v6e-1"), (16_384, "tpu-v6e-4")]
)
async def test_what_was_seen_not_to_boot_is_no_plan_that_fits(
    agent: Agent, length: int, target: str
) -> None:
    """A v6e booted the 12B at 8,192 tokens and not at 16,384, which its figures allow: one verdict
    says so, what it offers instead was seen to boot, and more chips are another matter."""
    reply = await plan(agent, "12b", target, max_model_len=length)
    summary = reply.structured["summary"]
    if length != 12_288:
        assert summary.startswith("Fits")
        return
    assert "was seen to boot it at 8,192 tokens and not at 16,384" in summary
    assert "What fits: with another length: 8,192 tokens" in summary
    assert reply.data["context"]["longest_that_fits"] == 8192
    assert not any("was seen to boot" in said for said in reply.structured["warnings"])
