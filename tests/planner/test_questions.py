"""What people type, and the computed figures that an answer rests on."""

import pytest

from planner.advise import Goal, Offer
from planner.flags import Flags
from planner.kv import kv_precisions
from planner.layouts import Ground, Wish, offload
from planner.memory import plan_memory
from planner.places import accelerator
from planner.speed import decode
from tests.planner.shapes import advised, catalogued, offer, refusal

L4 = "cloud-run-l4"


def test_summary_qat_26ab_model_deployment_options() -> None:
    """It fits an L4 with 32 GiB of host, and everything larger, each with flags, boot and price."""
    advice = advised(Goal(model="26b qat", max_model_len=16_384))
    offers = {name: one for name, one in advice.items() if isinstance(one, Offer)}
    l4 = offers[L4]
    assert l4.size
    assert (l4.size.vcpu, l4.size.ram_gib) == (8, 32)
    assert l4.memory.weights_gib == pytest.approx(16.44, rel=0.05)
    assert l4.boot.seconds.low < 664 + 99 < l4.boot.seconds.high
    assert l4.price.usd_per_hour == pytest.approx(1.421, rel=0.005)
    assert "--max-model-len 16384" in l4.engine_line
    assert {"aca-a100", "cloud-run-rtx-pro-6000"} <= offers.keys()
    assert "0.27.0" in advice["tpu-v6e-1"].reason


def test_summary_qat_31b_model_deployment_options_on_nvidia_l4_cloud_run() -> None:
    """No: it dies while loading. Offloading would load it, at a crawl."""
    found = refusal(Goal(model="31b qat"), L4)
    assert found.load_peak_gib == pytest.approx(22.1, abs=0.05)
    assert "while loading" in found.reason
    assert "2.62" in found.reason
    assert found.offload
    assert found.offload.roof_tokens_per_second < 5
    assert offer(Goal(model="31b qat"), "aca-a100")


def offered_gib(gigabytes: int) -> bool:
    """Whether 31B QAT fits an L4 with so much of it in the host's memory."""
    flags = {"max_model_len": 8192, "gpu_memory_utilization": 0.95, "max_num_seqs": 1}
    given = Flags.model_validate({**flags, "cpu_offload_gb": gigabytes})
    return plan_memory(catalogued("31b qat"), accelerator("l4"), given).fits


@pytest.mark.parametrize(("model", "count"), [("31b qat", 1), ("31b", 2)])
def test_the_host_must_spare_what_every_accelerator_offloads(model: str, count: int) -> None:
    """vLLM counts --cpu-offload-gb per GPU: a host of two holds it twice."""
    ground, wish = Ground(catalogued(model), accelerator("l4"), count), Wish(max_model_len=8192)
    found = offload(ground, wish, None)
    assert found
    needed = found.cpu_offload_gb * count
    said = [getattr(offload(ground, wish, gib), "why_not", "") for gib in (needed, needed - 1)]
    assert [words.partition(" ")[0] for words in said] == ["It", "No:"]
    assert f"(at most {needed - 1} GiB beside its files)" in said[1]


def test_why_is_cpu_offloading_not_recommended() -> None:
    """PCIe against memory: 32 against 300 GB/s; 14 GiB offloaded were measured at 0.8-1.6."""
    found = refusal(Goal(model="31b qat"), L4).offload
    assert found
    assert "32 GB/s against 300 GB/s" in found.why_not
    assert "9 times slower" in found.why_not
    assert found.slower > 3
    assert offered_gib(found.cpu_offload_gb)
    assert not offered_gib(found.cpu_offload_gb - 1)
    flags = Flags(cpu_offload_gb=14)
    band = decode(catalogued("31b qat"), accelerator("l4"), flags).tokens_per_second
    assert band.low <= 0.8
    assert band.high >= 1.6


def test_is_v6e_1_an_option() -> None:
    """For 31B QAT, with an image of 0.32; for 12B in bf16, with two users of 8k, not with four."""
    goal = Goal(model="31b qat")
    assert "no int4 weights, and this is 0.27.0" in refusal(goal, "tpu-v6e-1").reason
    assert offer(goal.model_copy(update={"vllm_version": "0.32.0"}), "tpu-v6e-1").memory.fits
    nearest = refusal(Goal(model="12b", users=4), "tpu-v6e-1").nearest
    assert [near.gives_up.split(":")[0] for near in nearest] == ["length", "users"]
    assert "users: 2" in nearest[1].gives_up
    assert nearest[0].buys.endswith(" instead of 2.16 requests of 8,192 tokens at once")


def test_can_the_l4_use_fp8_for_kv_and_what_does_it_buy() -> None:
    """Yes, SM 8.9: twice the tokens. An A100, a 3090, a T4 and TPUs cannot or need not."""
    model, flags = catalogued("26b qat"), Flags(max_model_len=16_384, max_num_seqs=8)
    plain = plan_memory(model, accelerator("l4"), flags)
    fp8 = plan_memory(model, accelerator("l4"), flags.model_copy(update={"kv_cache_dtype": "fp8"}))
    assert fp8.kv_expected.num_blocks == pytest.approx(2 * plain.kv_expected.num_blocks, abs=2)
    fp8_flags = Flags(max_model_len=8192, kv_cache_dtype="fp8")
    for name in ("a100-80", "rtx-3090", "t4"):
        assert any(
            "fp8 KV" in why for why in plan_memory(model, accelerator(name), fp8_flags).reasons
        )


def test_can_the_l4_use_4_bit_quant_for_kv() -> None:
    """vLLM has an int4 cache that an L4 can run; it is not planned with, and fp8 is."""
    found = {each.kv_cache_dtype: each for each in kv_precisions(accelerator("l4"))}
    assert found["fp8"].possible
    assert found["fp8"].planned
    assert found["int4_per_token_head"].possible
    assert not found["int4_per_token_head"].planned
    assert not found["nvfp4"].possible
    assert "TRITON_ATTN" in found["nvfp4"].why
    older = {each.kv_cache_dtype: each for each in kv_precisions(accelerator("a100-80"))}
    assert not older["fp8"].possible
    assert "SM 8.9" in older["fp8"].why
    chip = [each for each in kv_precisions(accelerator("v6e")) if each.possible]
    assert [each.kv_cache_dtype for each in chip] == ["auto"]
