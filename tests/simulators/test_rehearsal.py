"""Boots on accelerators that are not there, told as the planner foresees them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.records import MemoryPlan
from logs.failures import recognize
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import read_model
from planner.places import accelerator
from simulators.engine.__main__ import assemble, main
from simulators.engine.boot import boot_of
from simulators.engine.flags import BootError, Environment, Failure, Knobs, parse
from simulators.engine.model import load_model
from simulators.engine.room import CachePlan, PlannedRoom, Room, room_of
from simulators.engine.scheduler import Request, Scheduler
from tests.simulators.models import CONFIG, write_tiny_model

pytestmark = pytest.mark.anyio

E2B = "google/gemma-4-E2B-it"
QAT_12B = "google/gemma-4-12B-it-qat-w4a16-ct"
QAT_31B = "google/gemma-4-31B-it-qat-w4a16-ct"
BF16_26B = "google/gemma-4-26B-A4B-it"
PUBLISHED = (
    *("--gpu-memory-utilization", "0.95", "--max-model-len", "32768", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "4096", "--no-async-scheduling"),
)
"""Of a boot on an A100 that its owner published."""


def rehearsal(where: str, *argv: str, allow_long: bool = False, **knobs: Any) -> PlannedRoom:
    flags, settings = parse(argv), Knobs(accelerator=where, boot_seconds=0, **knobs)
    environment = Environment(vllm_allow_long_max_model_len=allow_long)
    room = room_of(flags, load_model(flags.model), settings, environment)
    assert isinstance(room, PlannedRoom)
    return room


async def boot(where: str, *argv: str, allow_long: bool = False, **knobs: Any) -> CachePlan:
    room = rehearsal(where, *argv, allow_long=allow_long, **knobs)
    return await boot_of(room, parse(argv), Knobs(boot_seconds=0), Failure()).run()


async def scheduler(where: str, *argv: str) -> tuple[Scheduler, str]:
    """Return that of an engine which booted there, and its page of metrics."""
    room, plan, knobs = rehearsal(where, *argv), await boot(where, *argv), Knobs(accelerator=where)
    app, engine = assemble(parse(argv), room, plan, knobs, Failure())
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://engine") as client:
        return engine.scheduler, (await client.get("/metrics")).text


def planned(model: str, where: str, **flags: Any) -> MemoryPlan:
    flags = {"vllm_version": "0.32.0", **flags}
    return plan_memory(read_model(model), accelerator(where), Flags(**flags))


def blocks_in_use(engine: Scheduler, tokens: int) -> float:
    """The share of the cache that one request of so many tokens holds."""
    alone = Scheduler(replace(engine.limits, prefix_caching=False))
    alone.add(Request(prompt=range(tokens - 1), max_tokens=1))
    while not alone.running or alone.running[0].computed < tokens - 1:
        alone.commit(alone.plan())
    return alone.pool.usage


async def test_an_a100_logs_the_tokens_that_an_a100_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1,050,170 tokens and 32.05 requests were published, with one batch in flight."""
    plan = await boot("a100-80", QAT_12B, *PUBLISHED)
    said = capsys.readouterr().out
    logged = re.search(r"GPU KV cache size: ([\d,]+) tokens", said)
    assert logged
    assert int(logged[1].replace(",", "")) == pytest.approx(1_050_170, rel=0.01)
    assert plan.max_concurrency == pytest.approx(32.05, rel=0.01)
    assert plan.num_blocks == pytest.approx(67_847, rel=0.01)
    assert "Model loading took 8.27 GiB" in said
    available = re.search(r"Available KV cache memory: ([\d.]+) GiB", said)
    assert available
    assert float(available[1]) == pytest.approx(66.34, rel=0.005)


async def test_the_metrics_say_what_was_planned() -> None:
    """In the labels of `vllm:cache_config_info`."""
    _, page = await scheduler("a100-80", QAT_12B, *PUBLISHED)
    kv = planned(
        QAT_12B,
        "a100-80",
        gpu_memory_utilization=0.95,
        max_model_len=32_768,
        max_num_seqs=8,
        max_num_batched_tokens=4096,
        async_scheduling=False,
    ).kv_expected
    for label, value in {
        "num_gpu_blocks": kv.num_blocks,
        "kv_cache_size_tokens": kv.kv_tokens,
        "kv_cache_max_concurrency": kv.max_concurrency,
        "block_size": kv.block_size,
    }.items():
        assert f'{label}="{value}"' in page


async def test_a_request_of_full_length_takes_the_planned_part_of_the_cache() -> None:
    """As many blocks of the plan's as it foresees for one."""
    engine, _ = await scheduler("a100-80", QAT_12B, *PUBLISHED)
    kv = rehearsal("a100-80", QAT_12B, *PUBLISHED).cache()
    used = blocks_in_use(engine, 32_768)
    assert used == pytest.approx(1 / kv.max_concurrency, rel=0.001)


@pytest.mark.parametrize(
    ("model", "wanted", "free"), [(QAT_31B, "2.62", "2.00"), (BF16_26B, "1.62", "0.47")]
)
async def test_a_model_too_heavy_dies_while_loading(
    model: str, wanted: str, free: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The 31B for its second token table, the 26B for its layers; both are told as that."""
    with pytest.raises(BootError) as died:
        await boot("l4", model, "--gpu-memory-utilization", "0.95", "--max-model-len", "8192")
    said = capsys.readouterr()
    assert "Starting to load model" in said.out
    assert "Model loading took" not in said.out
    assert died.value.process == "EngineCore"
    known = recognize(str(died.value).splitlines())
    assert known
    assert known.code == "DOES_NOT_FIT"
    assert f"{wanted} GiB" in known.cause
    assert f"21.96 GiB of which {free} GiB is free" in str(died.value)


async def test_the_length_that_a_refusal_names_boots(capsys: pytest.CaptureFixture[str]) -> None:
    """Needed, available and longest are the figures that the planner refuses with."""
    argv = ("google/gemma-4-26B-A4B-it-qat-w4a16-ct", "--max-model-len")
    with pytest.raises(BootError) as died:
        await boot("l4", *argv, "262144")
    known = recognize(str(died.value).splitlines())
    assert known
    assert known.code == "KV_CACHE_TOO_SMALL"
    low = planned(argv[0], "l4", max_model_len=262_144).kv_low
    assert f"{round(low.kv_cache_bytes / 2**30, 2)} GiB" in known.cause
    longest = low.max_len_that_fits
    assert f"estimated maximum model length is {longest}." in str(died.value)
    assert "Loading weights took" in capsys.readouterr().out
    assert (await boot("l4", *argv, str(longest))).max_model_len == longest
    assert (await boot("l4", *argv, "auto")).max_model_len == longest


REFUSALS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "no room at all": ("l4", (QAT_12B, "--gpu-memory-utilization", "0.1"), "No available memory"),
    "heads": ("l4", (QAT_12B, "-tp", "3"), "attention heads (16) must be divisible"),
    "heads of caches": ("l4", (E2B, "-tp", "3"), "attention heads (8) must be divisible"),
    "utilization": (
        "rtx-3090",
        (QAT_12B, "--gpu-memory-utilization", "0.99"),
        "cuda:0 (23.04/23.56 GiB) on startup is less than desired GPU memory utilization (0.99, ",
    ),
    "fp8 cache": ("a100-80", (QAT_12B, "--kv-cache-dtype", "fp8"), "type fp8e4nv not supported"),
    "fp8 weights": ("t4", (E2B, "--quantization", "fp8"), "Current capability: 75."),
    "bf16": ("t4", (E2B, "--dtype", "bfloat16"), "Bfloat16 is only supported"),
    "image": (
        "l4",
        (QAT_12B, "--disable-chunked-mm-input", "--max-num-batched-tokens", "2048"),
        "max_tokens_per_mm_item (2496) is larger than max_num_batched_tokens (2048)",
    ),
    "cache by hand": (
        "l4",
        (QAT_12B, "--kv-cache-memory-bytes", "40G", "--max-model-len", "8192"),
        "CUDA out of memory. Tried to allocate 0.83 GiB",
    ),
    "blocks by hand": (
        "a100-80",
        (QAT_12B, "--num-gpu-blocks-override", "9"),
        "available KV cache memory (0.01 GiB)",
    ),
    "tpu programs": (
        "v5e",
        (E2B, "--gpu-memory-utilization", "0.95", "--max-model-len", "16384"),
        "RuntimeProgramAllocationFailure",
    ),
    "tpu memory": ("v5e", ("google/gemma-4-31B-it",), "Attempting to allocate"),
    "cpu": ("cpu", (E2B, "--gpu-memory-utilization=0.3"), "No available memory"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_the_planner_refuses_the_engine_refuses(name: str) -> None:
    """In the engine's words, where they are known."""
    where, argv, words = REFUSALS[name]
    with pytest.raises(BootError, match=re.escape(words)):
        await boot(where, *argv)


async def test_a_cpu_has_the_cache_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """As the planner knows a host's memory from the knobs alone."""
    argv = (E2B, "--max-model-len", "4096", "--kv-cache-memory-bytes", "1G")
    assert (await boot("cpu", *argv)).num_blocks > 0
    assert "CPU KV cache size" in capsys.readouterr().out


async def test_a_folder_can_be_rehearsed(tmp_path: Path) -> None:
    """By its own config.json, where the weights are not there."""
    folder = write_tiny_model(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    config = {**CONFIG, "hidden_size": 128, "intermediate_size": 256}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    plan = await boot("l4", str(folder), "--max-model-len", "2048")
    assert plan.tokens == planned(str(folder), "l4", max_model_len=2048).kv_expected.kv_tokens


async def test_more_accelerators_than_there_are_cannot_work_together() -> None:
    """As many as are asked for, where nobody said how many there are."""
    argv = (QAT_31B, "-tp", "2", "--max-model-len", "8192")
    assert (await boot("l4", *argv)).num_blocks > 0
    assert (await boot("l4", *argv, count=8)).num_blocks > 0
    with pytest.raises(BootError, match=r"World size \(2\) is larger .* available GPUs \(1\)"):
        await boot("l4", *argv, count=1)


async def test_a_tpu_has_blocks_of_its_own_size(capsys: pytest.CaptureFixture[str]) -> None:
    """17,996 blocks of 64 tokens were logged on a v6e, within 0.2 %."""
    argv = (E2B, "--max-model-len", "32768")
    assert (await boot("v6e", *argv)).num_blocks == pytest.approx(17_996, rel=0.002)
    assert rehearsal("v6e", *argv).setup.block_size == 64
    assert "KV cache size: 1,15" in capsys.readouterr().out


async def test_a_prompt_that_may_not_be_cut_needs_a_batch_of_its_length() -> None:
    """And a length beyond the model's is taken where the environment allows it."""
    argv = (E2B, "--no-enable-chunked-prefill", "--max-model-len")
    assert rehearsal("a100-80", *argv, "8192").setup.max_num_batched_tokens == 8192
    assert (await boot("a100-80", E2B, "--max-model-len", "140000", allow_long=True)).num_blocks


@pytest.mark.parametrize(
    ("where", "argv", "words"),
    [
        ("abacus", (E2B,), "No accelerator is called abacus. Use one of l4, "),
        ("l4", ("somebody/elses",), "somebody/elses cannot be planned. Give a folder"),
        ("l4", (E2B, "--kv-cache-dtype", "nvfp4"), "nvfp4 is not planned. Use fp8 or one of"),
    ],
)
def test_what_cannot_be_rehearsed_is_an_error_of_usage(
    where: str,
    argv: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, and status 2."""
    monkeypatch.setenv("SIMULATED_ENGINE_ACCELERATOR", where)
    assert main(["serve", *argv, "--port", "0", "--host", "127.0.0.1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"SIMULATED_ENGINE_ACCELERATOR: {words}")
    assert said.count("\n") == 1


def test_without_an_accelerator_nothing_is_rehearsed(tiny_model: Path) -> None:
    """Then its memory is the knobs', and a name that nobody knows is served as well."""
    flags, knobs = parse([str(tiny_model)]), Knobs()
    room = room_of(flags, load_model(flags.model), knobs, Environment())
    assert type(room) is Room
    assert load_model("somebody/elses").max_position_embeddings == 131_072
    assert load_model(QAT_12B).vocab_size
