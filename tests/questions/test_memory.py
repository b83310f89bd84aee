"""Memory and precision, asked as people ask it; what is told is reckoned here anew."""

from collections.abc import Callable
from math import ceil
from typing import Any, Final

import pytest

from tests.conversation import Reply
from tests.questions.typed import Asking, typed
from tests.stories.conftest import Azure, Cloud
from tests.stories.life import Life

pytestmark = pytest.mark.anyio

L4: Final = "cloud-run-l4"
GIB: Final = 2**30
BLOCK_26B: Final = 5 * 16 * 8 * 2 * 256
"""Bytes of an fp8 block: groups of 5 layers, 16 tokens, 8 heads, keys and values of 256."""
BLOCK_12B: Final = 8 * 16 * 8 * 2 * 256
"""The same of groups of 8 layers."""
IN_FLIGHT: Final = 2 * 2496
"""Two batches, each as long as Gemma 4's largest video."""


def blocks_12b(length: int) -> int:
    """Blocks of one request: one group of full layers, five of sliding ones."""
    return ceil(length / 64) + 5 * (ceil(min(1023 + IN_FLIGHT, length) / 16) + 1)


def blocks_26b(length: int) -> int:
    """Blocks of one request: one group of full layers, five of sliding ones."""
    return ceil(length / 32) + 5 * (ceil(min(1023 + IN_FLIGHT, length) / 16) + 1)


async def deployed(question: Asking, target: str, model: str, **flags: Any) -> Life:
    life = Life(question.agent, target)
    await life.call("deploy_vllm", model=model, **flags)
    await life.becomes("ready")
    return life


def typed_of_one(*words: str) -> Callable[[Callable[..., Any]], Any]:
    """Mark a test that looks at one deployment for all of these words."""
    typed(*words)
    return pytest.mark.parametrize("words", [words], ids=["one deployment"])


@typed_of_one(
    "what is the memory breakdown on the GPU?",
    "summarize memory usage on the L4 GPU",
    "what is the memory layout",
    "what is the quant for the kv cache",
    "what is quant in this model? weights? kv cache? fptype?",
    "what is the context size",
)
async def test_memory_precision_and_context_of_what_runs(
    asked: Callable[..., Any], words: tuple[str, ...], cloud: Cloud
) -> None:
    """One look tells where 24 GiB go, in which types, and how long a request may be."""
    async with asked(cloud.settings) as ask:
        flags: dict[str, Any] = {"max_model_len": 8192, "max_num_seqs": 4, "kv_cache_dtype": "fp8"}
        questions = [ask(each) for each in words]
        await deployed(questions[0], L4, "12b qat", **flags)
        replies = [
            await question.call("get_model_details", target=L4, name="one")
            for question in questions
        ]
        load = await questions[1].call("get_metrics", target=L4, name="one")
    assert len({str(reply.data["each_gib"]) for reply in replies}) == 1
    reply = replies[0]
    _breakdown(reply)
    _cache(reply)
    assert load.data["metrics"]["kv_cache_usage"] == reply.data["capacity"]["used_percent"] == 0
    assert reply.data["precision"] == {
        "weights": "4-bit compressed-tensors, the rest bfloat16",
        "kv_cache": "fp8, 8 bits",
        "compute": "bfloat16",
        "quantization": "compressed-tensors",
    }


def _breakdown(reply: Reply) -> None:
    each = reply.data["each_gib"]
    parts = {name: gib for name, gib in each.items() if name != "sold"}
    assert sum(parts.values()) == pytest.approx(each["sold"], abs=0.03)
    assert each["sold"] == 24
    assert each["weights"] == pytest.approx(8.27, rel=0.05)
    beyond = 0.08 * 21.96
    assert each["left"] == pytest.approx(beyond, abs=0.03)
    assert f"weights {each['weights']:g}" in reply.structured["summary"]
    assert f"KV cache {each['KV cache']:g}" in reply.structured["summary"]


def _cache(reply: Reply) -> None:
    kept, context = reply.data["capacity"], reply.data["context"]
    assert kept["blocks"] == pytest.approx(
        reply.data["each_gib"]["KV cache"] * GIB / BLOCK_12B, 0.003
    )
    held = kept["blocks"] / blocks_12b(8192)
    assert kept["full_length_requests"] == pytest.approx(held, rel=0.002)
    assert kept["kv_cache_tokens"] == pytest.approx(held * 8192, rel=0.002)
    assert (context["max_model_len"], context["model_max_len"]) == (8192, 262_144)
    # vLLM keeps one block for itself; of long requests only the full layers hold more.
    sliding = blocks_12b(64 * 10_000) - 10_000
    longest = 64 * (kept["blocks"] - 1 - sliding)
    assert context["longest_that_fits"] == min(longest, 262_144)


@typed("breakdown the 32GB TPU memory per chip and the use")
async def test_each_chip_of_four_and_what_is_in_it(
    asked: Callable[..., Any], words: str, cloud: Cloud
) -> None:
    """Weights are shared out, the cache is what vLLM's share leaves, programs live in the rest."""
    async with asked(cloud.settings) as ask:
        question = ask(words)
        await deployed(question, "tpu-v6e-4", "12b", max_model_len=8192)
        reply = await question.call("get_model_details", target="tpu-v6e-4", name="one")
        plan = await question.call(
            "plan_deployment", target="tpu-v6e-4", model="12b", max_model_len=8192
        )
    each = reply.data["each_gib"]
    assert plan.data["each_gib"] == pytest.approx(each, abs=0.01)
    assert reply.data["accelerators"] == "4 x Google TPU v6e (Trillium) of 32 GiB"
    shared = 2 * 11_959_730_224 / GIB / 4
    assert each["weights"] == pytest.approx(shared, rel=0.02)
    assert each["KV cache"] == pytest.approx(0.92 * 31.24 - each["weights"], abs=0.02)
    assert each["left for compiled programs"] == pytest.approx(0.08 * 31.24, abs=0.02)
    assert each["not visible"] == pytest.approx(32 - 31.24, abs=0.01)
    assert each["sold"] == 32
    assert sum(each.values()) - 32 == pytest.approx(32, abs=0.03)
    # tpu-inference attends in full: 40 sliding layers with 2 heads for each chip, 8 with one.
    bytes_per_token = 2 * 2 * (40 * 2 * 256 + 8 * 1 * 512)
    held = reply.data["capacity"]["kv_cache_tokens"] * bytes_per_token / GIB
    assert held == pytest.approx(each["KV cache"], rel=0.002)
    assert "Each of 4 x Google TPU v6e" in reply.structured["summary"]


@typed("can the L4 use 4 bit quant for kv")
async def test_four_bits_of_cache_are_in_vllm_and_not_in_plans(
    asked: Callable[..., Any], words: str
) -> None:
    """One of three kinds could run; what nobody measured is not planned with, and it says so."""
    async with asked() as ask:
        question = ask(words)
        reply = await question.call(
            "plan_deployment", model="26b qat", target=L4, max_model_len=8192
        )
        tried = await question.call(
            "plan_deployment", model="26b qat", target=L4, kv_cache_dtype="int4_per_token_head"
        )
    said = reply.data["kv_precisions"]
    four = {name: text[:3] for name, text in said.items() if "4 bits" in text}
    assert four == {"int4_per_token_head": "yes", "turboquant_4bit_nc": "no,", "nvfp4": "no,"}
    assert said["fp8"].startswith("yes, 8 bits:")
    assert tried.code == "INVALID_ARGUMENT"
    assert "vLLM has it for Gemma 4 there (4 bits)" in tried.structured["summary"]
    assert tried.data["kv_precisions"] == said


async def test_a_card_without_fp8_says_so_of_its_cache(asked: Callable[..., Any]) -> None:
    """An A100 has SM 8.0; fp8 begins at 8.9, and what is planned instead is what fits."""
    async with asked() as ask:
        reply = await ask("can the L4 use 4 bit quant for kv").call(
            "plan_deployment", model="12b qat", target="aca-a100", max_model_len=8192
        )
    assert "needs SM 8.9" in reply.data["kv_precisions"]["fp8"]


@typed_of_one("what is quant in this model? weights? kv cache? fptype?", "what is the context size")
async def test_types_and_lengths_are_told_before_anything_is_deployed(
    asked: Callable[..., Any], words: tuple[str, ...]
) -> None:
    """A plan says both, and on a card without bf16 what it computes in instead."""
    async with asked() as ask:
        quant, context_size = (ask(each) for each in words)
        plan = await quant.call("plan_deployment", model="26b qat", target=L4, max_model_len=4096)
        older = await context_size.call("plan_deployment", model="e2b", target="aca-t4")
    weights = "weights 4-bit compressed-tensors, the rest bfloat16"
    cache = "KV cache bfloat16 (auto), 16 bits; computes in bfloat16"
    assert plan.data["precision"] == f"{weights}; {cache}"
    assert older.data["precision"].endswith("KV cache float16 (auto), 16 bits; computes in float16")
    context = plan.data["context"]
    assert (context["max_model_len"], context["model_max_len"]) == (4096, 262_144)
    blocks = plan.data["memory"]["kv_cache_gib"]["low"] * GIB / (2 * BLOCK_26B)
    assert blocks_26b(context["longest_that_fits"]) == pytest.approx(blocks, rel=0.01)


@typed("what are the A100 hardware details? Memory, VM, etc")
async def test_a_target_tells_its_hardware_and_so_does_what_runs_there(
    asked: Callable[..., Any], words: str, ready_azure: Azure
) -> None:
    """GPU, processors, memory, disk and network, with and without a deployment."""
    async with asked(ready_azure.settings) as ask:
        question = ask(words)
        await deployed(question, "aca-a100", "12b qat", max_model_len=8192)
        listed = await question.call("list_targets")
        runs = await question.call("get_model_details", target="aca-a100", name="one")
    row = next(row for row in listed.data["targets"] if row["name"] == "aca-a100")
    for fact in (
        "1 x NVIDIA A100 80 GB",
        "79.25 GiB visible of 80",
        "2,039 GB/s",
        "312 TFLOPS bf16",
        "24 vCPU and 220 GiB",
        "disk: 9.6 GiB of files from the Hub were seen to fit",
        "network: HTTPS ingress; a request ends after 240 s",
    ):
        assert fact in row["hardware"]
    assert row["usd_per_hour"] > 0
    assert runs.data["hardware"]["vcpu"] == 24
    assert runs.data["hardware"]["ram_gib"] == 220
    assert runs.data["accelerators"] == "1 x NVIDIA A100 80 GB of 80 GiB"


async def test_a_deployment_tells_the_host_that_it_has_not_the_largest(
    asked: Callable[..., Any], cloud: Cloud
) -> None:
    """Small weights need a small instance, which costs less."""
    async with asked(cloud.settings) as ask:
        question = ask("what are the A100 hardware details? Memory, VM, etc")
        await deployed(question, L4, "e2b qat", max_model_len=4096)
        runs = await question.call("get_model_details", target=L4, name="one")
    found = runs.data["hardware"]
    assert (found["vcpu"], found["ram_gib"]) == (4, 16)


async def test_every_target_with_an_accelerator_tells_hardware_and_price(
    asked: Callable[..., Any],
) -> None:
    """What the description promises, of each cloud; this machine tells none."""
    async with asked() as ask:
        reply = await ask("what are the A100 hardware details? Memory, VM, etc").call(
            "list_targets"
        )
    for row in reply.data["targets"]:
        assert ("hardware" in row) == (row["name"] != "local")
        assert row["usd_per_hour"] >= 0
        assert "look_seconds" not in row
    (four,) = (row for row in reply.data["targets"] if row["name"] == "tpu-v6e-4")
    assert four["hardware"].startswith("4 x Google TPU v6e (Trillium) (31.24 GiB visible of 32")
