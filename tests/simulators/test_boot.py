"""Boots on accelerators that are not there, told as the planner foresees them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.records import KvPlan, MemoryPlan
from logs.boot import COMPILING, read_boot
from logs.verdict import recognize
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import read_model
from planner.places import accelerator
from simulators.engine.__main__ import assemble, main
from simulators.engine.boot import Boot
from simulators.engine.flags import FAILURES, BootError, Failure, Knobs, parse, read_failure
from simulators.engine.room import Room, load_model, room_of
from simulators.engine.scheduler import Request, Scheduler

pytestmark = pytest.mark.anyio

NAME = "google/gemma-4-E4B-it"
E2B = "google/gemma-4-E2B-it"
QAT_12B = "google/gemma-4-12B-it-qat-w4a16-ct"
PUBLISHED = (
    *("--gpu-memory-utilization", "0.95", "--max-model-len", "32768", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "4096", "--no-async-scheduling"),
)
"""Of a boot on an A100 that its owner published."""


def rehearsal(where: str, *argv: str, **knobs: Any) -> Room:
    return room_of(parse(argv), Knobs(accelerator=where, boot_seconds=0, **knobs))


async def boot(*argv: str, where: str = "", fail: str = "", **knobs: Any) -> KvPlan:
    argv = argv if argv and not argv[0].startswith("-") else (NAME, *argv)
    room = rehearsal(where, *argv, **knobs)
    return await Boot(room, parse(argv), read_failure(fail)).run()


def planned(model: str, where: str, **flags: Any) -> MemoryPlan:
    flags = {"vllm_version": "0.32.0", **flags}
    return plan_memory(read_model(model), accelerator(where), Flags(**flags))


def in_order(text: str, words: Sequence[str]) -> bool:
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places)


async def test_a_boot_tells_its_phases_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines that a log reader tells the phases by."""
    await boot("--max-model-len", "8192", "--dtype", "half")
    said = capsys.readouterr()
    phases = (
        "Using max model len 8192",
        "Initializing a V1 LLM engine (v0.32.0) with config:",
        "dtype=torch.float16, ",
        "Starting to load model",
        "Loading weights took",
        "Model loading took",
        "Dynamo bytecode transform time",
        "torch.compile took",
        "Available KV cache memory:",
        "KV cache size:",
        "Graph capturing finished in",
        "init engine (profile, create kv cache, warmup model) took",
    )
    assert in_order(said.out, phases)
    shards = "Loading safetensors checkpoint shards:  50% Completed | 1/2"
    assert in_order(said.err, (shards, "Capturing CUDA graphs"))


@pytest.mark.parametrize("mode", sorted(FAILURES["boot"]))
async def test_every_way_to_fail_says_its_words(mode: str) -> None:
    """In the phase where vLLM says them, or in another one if told so."""
    with pytest.raises(BootError) as failed:
        await boot(fail=mode)
    assert str(failed.value) == FAILURES["boot"][mode]["text"]
    with pytest.raises(BootError):
        await boot(fail=f"{mode}@graphs")


@pytest.mark.parametrize(
    ("argv", "where", "status", "words"),
    [
        (["/nowhere/model"], "", 1, "HFValidationError: Repo id must be in the form"),
        (["."], "", 1, "Invalid repository ID or local directory specified"),
        ([NAME, "--max-model-len", "999999"], "", 1, "User-specified max_model_len (999999) is"),
        ([NAME, "--kv-cache-memory-bytes", "1M"], "", 1, "(131072), ("),
        ([E2B], "abacus", 2, "No accelerator is called abacus. Use one of l4, "),
        ([E2B, "--kv-cache-dtype", "nvfp4"], "l4", 2, "nvfp4 is not planned. Use fp8 or one of"),
    ],
)
def test_a_boot_that_cannot_work_ends_with_a_status(
    argv: list[str],
    where: str,
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 and a traceback in vLLM's words; 2 and one line for what cannot be rehearsed."""
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")
    monkeypatch.setenv("SIMULATED_ENGINE_ACCELERATOR", where)
    assert main(["serve", *argv, "--port", "0", "--host", "127.0.0.1"]) == status
    said = capsys.readouterr().err
    assert ("Traceback (most recent call last):" in said) == (status == 1)
    assert words in said


def test_a_model_that_nobody_can_plan_has_a_stand_in(tiny_model: Path) -> None:
    """With its own name, length and words."""
    room = rehearsal("", str(tiny_model))
    assert (room.shape.model, room.plan.max_model_len) == (str(tiny_model), 4096)
    assert (room.shape.vocab_size, room.plan.fits) == (2048, True)
    assert not load_model("somebody/elses").layers
    assert rehearsal("l4", "somebody/elses", "--max-model-len", "4096").shape.layers


async def test_an_a100_logs_the_tokens_that_an_a100_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1,050,170 tokens and 32.05 requests were published, with one batch in flight."""
    kv = await boot(QAT_12B, *PUBLISHED, where="a100-80")
    said = capsys.readouterr().out
    logged = re.search(r"GPU KV cache size: ([\d,]+) tokens", said)
    assert logged
    assert int(logged[1].replace(",", "")) == pytest.approx(1_050_170, rel=0.01)
    assert kv.max_concurrency == pytest.approx(32.05, rel=0.01)
    assert kv.num_blocks == pytest.approx(67_847, rel=0.01)
    assert "Model loading took 8.27 GiB" in said
    available = re.search(r"Available KV cache memory: ([\d.]+) GiB", said)
    assert available
    assert float(available[1]) == pytest.approx(66.34, rel=0.005)


def blocks_in_use(engine: Scheduler, tokens: int) -> float:
    """The share of the cache that one request of so many tokens holds."""
    alone = Scheduler(replace(engine.limits, prefix_caching=False))
    alone.add(Request(prompt=range(tokens - 1), max_tokens=1))
    while not alone.running or alone.running[0].computed < tokens - 1:
        alone.commit(alone.plan())
    return alone.pool.usage


async def test_the_metrics_and_the_blocks_are_those_of_the_plan() -> None:
    """A request of full length takes the part of the cache that was foreseen for one."""
    room = rehearsal("a100-80", QAT_12B, *PUBLISHED)
    kv = room.cache()
    app, engine = assemble(parse([QAT_12B, *PUBLISHED]), room, kv, Failure())
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://engine") as client:
        page = (await client.get("/metrics")).text
    for label, value in {
        "num_gpu_blocks": kv.num_blocks,
        "kv_cache_size_tokens": kv.kv_tokens,
        "kv_cache_max_concurrency": kv.max_concurrency,
        "block_size": kv.block_size,
    }.items():
        assert f'{label}="{value}"' in page
    used = blocks_in_use(engine.scheduler, 32_768)
    assert used == pytest.approx(1 / kv.max_concurrency, rel=0.001)


@pytest.mark.parametrize(
    ("model", "wanted", "free"),
    [
        ("google/gemma-4-31B-it-qat-w4a16-ct", "2.62", "2.00"),
        ("google/gemma-4-26B-A4B-it", "1.62", "0.47"),
    ],
)
async def test_a_model_too_heavy_dies_while_loading(
    model: str, wanted: str, free: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The 31B for its second token table, the 26B for its layers; both are told as that."""
    with pytest.raises(BootError) as died:
        await boot(
            *(model, "--gpu-memory-utilization", "0.95", "--max-model-len", "8192"), where="l4"
        )
    said = capsys.readouterr()
    assert "Starting to load model" in said.out
    assert "Model loading took" not in said.out
    assert died.value.process == "EngineCore"
    known = recognize(str(died.value).splitlines())
    assert known
    assert known.code == "DOES_NOT_FIT"
    assert f"{wanted} GiB" in known.cause
    assert f"21.96 GiB of which {free} GiB is free" in str(died.value)


async def test_the_length_that_a_refusal_names_boots() -> None:
    """Needed, available and longest are the figures that the planner refuses with."""
    argv = ("google/gemma-4-26B-A4B-it-qat-w4a16-ct", "--max-model-len")
    with pytest.raises(BootError) as died:
        await boot(*argv, "262144", where="l4")
    known = recognize(str(died.value).splitlines())
    assert known
    assert known.code == "KV_CACHE_TOO_SMALL"
    low = planned(argv[0], "l4", max_model_len=262_144).kv_low
    assert f"{round(low.kv_cache_bytes / 2**30, 2)} GiB" in known.cause
    longest = low.max_len_that_fits
    assert f"estimated maximum model length is {longest}." in str(died.value)
    assert (await boot(*argv, str(longest), where="l4")).max_len_that_fits >= longest
    assert rehearsal("l4", *argv, "auto").plan.max_model_len == longest


REFUSALS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "no room at all": ("l4", (QAT_12B, "--gpu-memory-utilization", "0.1"), "No available memory"),
    "heads": ("l4", (QAT_12B, "-tp", "3"), "ValueError"),
    "fp8 cache": ("a100-80", (QAT_12B, "--kv-cache-dtype", "fp8"), "ValueError"),
    "bf16": ("t4", (E2B, "--dtype", "bfloat16"), "ValueError"),
    "cache by hand": (
        "l4",
        (QAT_12B, "--kv-cache-memory-bytes", "40G", "--max-model-len", "8192"),
        "ValueError",
    ),
    "blocks by hand": (
        "a100-80",
        (QAT_12B, "--num-gpu-blocks-override", "9"),
        "available KV cache memory (0.01 GiB)",
    ),
    "tpu programs": (
        "v5e",
        (E2B, "--gpu-memory-utilization", "0.95", "--max-model-len", "16384"),
        "ValueError",
    ),
    "tpu memory": ("v5e", ("google/gemma-4-31B-it",), "Attempting to allocate"),
    "cpu": ("cpu", (E2B, "--gpu-memory-utilization=0.3"), "No available memory"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_the_planner_refuses_the_engine_refuses(name: str) -> None:
    """In the engine's words for memory, in the planner's for all else."""
    where, argv, words = REFUSALS[name]
    with pytest.raises(BootError, match=re.escape(words)):
        await boot(*argv, where=where)


async def test_a_host_whose_memory_others_have_is_refused() -> None:
    """A cache of a size that is free boots there."""
    argv = (E2B, "--max-model-len", "4096")
    with pytest.raises(BootError, match="is less than desired CPU memory utilization"):
        await boot(*argv, where="cpu", device_memory_gib=24, device_free_gib=16)
    cache = ("--kv-cache-memory-bytes", "1G")
    taken: dict[str, Any] = {"device_memory_gib": 24, "device_free_gib": 16}
    assert (await boot(*argv, *cache, where="cpu", **taken)).num_blocks > 0


async def test_a_tpu_has_blocks_of_its_own_size(capsys: pytest.CaptureFixture[str]) -> None:
    """17,996 blocks of 64 tokens were logged on a v6e, within 0.2 %."""
    kv = await boot(E2B, "--max-model-len", "32768", where="v6e")
    assert kv.num_blocks == pytest.approx(17_996, rel=0.002)
    assert kv.block_size == 64
    assert "KV cache size: 1,15" in capsys.readouterr().out


async def on_chips(*more: str, chips: int, count: int | None = None, fail: str = "") -> KvPlan:
    argv = (E2B, "--max-model-len", "8192", "--tensor-parallel-size", str(chips), *more)
    return await boot(*argv, where="v6e", fail=fail, count=count)


@pytest.mark.parametrize("chips", [1, 4, 8])
async def test_the_log_of_a_tpu_is_read_as_that_of_a_real_one(
    chips: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the figures that the planner foresees."""
    kv = await on_chips(chips=chips)
    expected = planned(E2B, "v6e", tensor_parallel_size=chips, max_model_len=8192)
    seen = read_boot(capsys.readouterr().out.splitlines(), now=datetime.now(UTC))
    assert seen.chips == chips
    assert seen.compiled > 10
    assert seen.memory.kv_cache_tokens == expected.kv_expected.kv_tokens == kv.kv_tokens
    assert seen.memory.weights_gib == pytest.approx(expected.weights_gib, abs=0.01)


async def test_a_long_compilation_is_seen_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it hangs, the last line is one of compiling."""
    with pytest.raises(BootError, match="RESOURCE_EXHAUSTED: XLA:TPU runtime"):
        await on_chips(chips=1, fail="tpu-program-allocation")
    seen = read_boot(capsys.readouterr().out.splitlines(), now=datetime.now(UTC))
    assert seen.phase == COMPILING
    assert seen.memory.kv_cache_tokens


@pytest.mark.parametrize(("chips", "count"), [(1, 4), (4, 1), (8, 4)])
async def test_chips_that_are_left_over_or_missing_are_refused(chips: int, count: int) -> None:
    """JAX takes all that it sees."""
    with pytest.raises(BootError, match=rf"Number of devices {count} must equal .*\(1, {chips}\)"):
        await on_chips(chips=chips, count=count)
