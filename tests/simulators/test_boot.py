"""Boots that work and boots that fail, in this process."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from simulators.engine.__main__ import main
from simulators.engine.boot import boot_of
from simulators.engine.flags import (
    BootError,
    Environment,
    Knobs,
    known_failures,
    parse,
    read_failure,
)
from simulators.engine.model import load_model
from simulators.engine.room import CachePlan, room_of

pytestmark = pytest.mark.anyio

NAME = "google/gemma-4-E4B-it"


async def boot(*argv: str, fail: str = "", **knobs: float) -> CachePlan:
    flags = parse([NAME, "--max-model-len", "8192", *argv])
    settings = Knobs(boot_seconds=0, **knobs)  # type: ignore[arg-type]  # floats stand for all
    room = room_of(flags, load_model(flags.model), settings, Environment())
    return await boot_of(room, flags, settings, read_failure(fail)).run()


def in_order(text: str, words: Sequence[str]) -> bool:
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places)


async def test_a_boot_tells_its_phases_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines that a log reader tells the phases by."""
    await boot()
    said = capsys.readouterr()
    phases = (
        "Using max model len 8192",
        "Initializing a V1 LLM engine (v0.32.0) with config:",
        "Starting to load model",
        "Loading weights took",
        "Model loading took 9.97 GiB",
        "Dynamo bytecode transform time",
        "torch.compile took",
        "Available KV cache memory:",
        "GPU KV cache size:",
        "Graph capturing finished in",
        "init engine (profile, create kv cache, warmup model) took",
    )
    assert in_order(said.out, phases)
    shards = "Loading safetensors checkpoint shards:  50% Completed | 1/2"
    assert in_order(said.err, (shards, "Capturing CUDA graphs"))


async def test_an_eager_boot_compiles_and_captures_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And has the graphs' memory for its cache."""
    eager, usual = await boot("--enforce-eager"), await boot()
    assert eager.num_blocks > usual.num_blocks
    eager_log = capsys.readouterr().out.partition("init engine")[0]
    assert "torch.compile took" not in eager_log
    assert "Graph capturing" not in eager_log


@pytest.mark.parametrize(
    ("asked", "told"), [("auto", "bfloat16"), ("half", "float16"), ("float32", "float32")]
)
async def test_a_boot_computes_in_what_was_asked_for(
    capsys: pytest.CaptureFixture[str], asked: str, told: str
) -> None:
    """And says so where vLLM does."""
    await boot("--dtype", asked)
    assert f"dtype=torch.{told}, " in capsys.readouterr().out


async def test_flags_move_the_cache(tiny_model: Path) -> None:
    """Utilization, fp8, offload and overrides, each in its direction."""
    usual = (await boot()).num_blocks
    assert (await boot("--gpu-memory-utilization", "0.95")).num_blocks > usual
    assert (await boot("--kv-cache-dtype", "fp8")).num_blocks == pytest.approx(2 * usual, rel=0.01)
    assert (await boot("--cpu-offload-gb", "4")).num_blocks > usual
    assert (await boot("--num-gpu-blocks-override", "4000")).num_blocks == 4000


@pytest.mark.parametrize("mode", sorted(known_failures()["boot"]))
async def test_every_way_to_fail_says_its_words(mode: str) -> None:
    """In the phase where vLLM says them, or in another one if told so."""
    with pytest.raises(BootError) as failed:
        await boot(fail=mode)
    assert str(failed.value) == known_failures()["boot"][mode]["text"]
    with pytest.raises(BootError):
        await boot(fail=f"{mode}@graphs")


async def test_weights_that_do_not_fit_are_out_of_memory() -> None:
    """Without having been asked to fail."""
    with pytest.raises(BootError, match="CUDA out of memory"):
        await boot(device_memory_gib=9.0)


@pytest.mark.parametrize("wrong", ["nonsense", "oom@nowhere"])
def test_an_unknown_way_to_fail_is_named(wrong: str) -> None:
    """With those that there are."""
    with pytest.raises(ValueError, match=r"There are: .*"):
        read_failure(wrong)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/nowhere/model"], "HFValidationError: Repo id must be in the form"),
        ([NAME, "--max-model-len", "999999"], "User-specified max_model_len (999999) is greater"),
        ([NAME, "--kv-cache-memory-bytes", "1M"], "(131072), ("),
    ],
)
def test_a_boot_that_cannot_work_ends_with_status_1(
    argv: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A traceback on stderr that ends in vLLM's words."""
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")
    assert main(["serve", *argv, "--port", "0", "--host", "127.0.0.1"]) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last):" in said
    assert words in said


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    """vLLM says what it looked for."""
    with pytest.raises(BootError, match="Invalid repository ID or local directory specified"):
        load_model(str(tmp_path))


def test_a_folder_says_what_the_model_is(tiny_model: Path) -> None:
    """Nested text settings count, as do several end-of-sequence tokens."""
    model = load_model(str(tiny_model))
    assert (model.max_position_embeddings, model.vocab_size) == (4096, 2048)
    assert load_model(NAME).max_position_embeddings == 131072


def test_a_wrong_command_line_outside_of_serve_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Only `serve` is simulated."""
    assert main(["bench"]) == 2
    assert "serve MODEL" in capsys.readouterr().err


def test_phases_take_their_own_time_if_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others keep their share."""
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "10")
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_PHASES", '{"loading": 3}')
    assert (Knobs().seconds_of("loading"), Knobs().seconds_of("compiling")) == (3, 2)
    with pytest.raises(ValueError, match="less than no time"):
        Knobs(boot_phases={"loading": -1})
