"""vLLM's boot log."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records import Phase
from logs.boot import PHASES, BootLog, boot_of, phase_of, read_boot
from logs.boot_phases import SPLIT
from logs.read import Line, clean, head_lines
from tests.logs.conftest import DATA, NOW
from tests.logs.test_boot_wordings import LINES

GPU_BOOT: Final = """\
(APIServer pid=1) INFO 11-20 11:00:00 [utils.py:1] non-default args: {'model': 'm', 'port': 1}
(EngineCore pid=2) INFO 11-20 11:00:01 [core.py:1] Initializing a V1 LLM engine (v0.27.1) with \
config: model='m', dtype=torch.bfloat16, quantization=None, kv_cache_dtype=auto, seed=0
(EngineCore pid=2) INFO 11-20 11:00:02 [gpu_model_runner.py:1] Starting to load model m...
Loading safetensors checkpoint shards:   0% Completed | 0/3 [00:00<?, ?it/s]
Loading safetensors checkpoint shards:  66% Completed | 2/3 [00:02<00:01, 1.00it/s]
(EngineCore pid=2) INFO 11-20 11:00:05 [gpu_model_runner.py:1] Model loading took 7.73 GiB memory \
and 3.250000 seconds
(EngineCore pid=2) INFO 11-20 11:00:06 [backends.py:1] Using cache directory: /c for vLLM's \
torch.compile
(EngineCore pid=2) INFO 11-20 11:00:09 [backends.py:1] Dynamo bytecode transform time: 3.52 s
(EngineCore pid=2) INFO 11-20 11:00:19 [monitor.py:1] torch.compile takes 12.25 s in total
(EngineCore pid=2) INFO 11-20 11:00:20 [gpu_worker.py:1] Available KV cache memory: 9.11 GiB
(EngineCore pid=2) INFO 11-20 11:00:20 [kv_cache_utils.py:1] GPU KV cache size: 98,304 tokens
(EngineCore pid=2) INFO 11-20 11:00:20 [kv_cache_utils.py:1] Maximum concurrency for 32,768 \
tokens per request: 3.00x
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  35%|███       | 18/51 [00:01<00:02]
(EngineCore pid=2) INFO 11-20 11:00:24 [gpu_model_runner.py:1] Graph capturing finished in 3 \
secs, took 0.54 GiB
(EngineCore pid=2) INFO 11-20 11:00:24 [core.py:1] init engine (profile, create kv cache, warmup \
model) took 18.75 seconds
(APIServer pid=1) INFO 11-20 11:00:25 [api_server.py:1] Starting vLLM API server 0 on \
http://0.0.0.0:8000
INFO:     Application startup complete.
"""
"""Of a CUDA build, in the words of 0.27."""


def test_what_became_of_the_carried_cache_is_told_while_it_boots() -> None:
    """The newest word counts: an engine that ended with it starts again in the same log."""
    carried, aside = "carried k, 118 MiB in 1.2 s", "put aside k: the engine ended with 1"
    lines = [f"compile-cache: {carried}", *GPU_BOOT.splitlines()[:3]]
    assert phase_of([Line(text=one, at=NOW) for one in lines]).detail == (
        f"compile cache: {carried}"
    )
    lines += [f"compile-cache: {aside}", *GPU_BOOT.splitlines()]
    assert read_boot(lines, now=NOW).compile_cache == aside
    assert read_boot([*lines, "compile-cache: saved k"], now=NOW).compile_cache == aside


ORDER = list(PHASES)


def prefixes(path: Path) -> list[BootLog]:
    """What is said after each further line."""
    lines = list(head_lines(path))
    return [read_boot(lines[:end], now=NOW) for end in range(len(lines) + 1)]


def test_a_real_boot_only_moves_forward(real_log: Path) -> None:
    """Whenever a boot is looked at, its phase is the one before or a later one."""
    seen = prefixes(real_log)
    ranks = [ORDER.index(boot.phase) for boot in seen]
    assert all(before <= after for before, after in pairwise(ranks))
    assert [boot.started for boot in seen] == sorted(boot.started for boot in seen)
    assert (seen[0].phase, seen[0].started) == ("starting", False)
    assert (seen[-1].phase, seen[-1].started) == ("warming", True)


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("eager", ["starting", "loading weights", "warming"]),
        ("default", ["starting", "loading weights", "compiling", "warming"]),
    ],
)
def test_a_real_boot_goes_through_its_own_phases(name: str, phases: list[str]) -> None:
    """An eager engine compiles nothing, and none is said to."""
    seen = prefixes(DATA / f"boot-{name}.log")
    assert list(dict.fromkeys(boot.phase for boot in seen)) == phases


def test_a_real_boot_says_its_memory_and_configuration(real_log: Path) -> None:
    """The CPU build's one line on the KV cache, the engine's version and its own configuration."""
    boot = read_boot(head_lines(real_log), now=NOW)
    assert boot.version == "0.32.0"
    assert boot.config["dtype"] == "torch.bfloat16"
    assert boot.config["kv_cache_dtype"] == "auto"
    assert "'max_model_len': 2048" in boot.arguments
    assert boot.memory.kv_cache_tokens == 63_550
    assert boot.memory.max_concurrency == 31.03
    assert boot.memory.max_concurrency_tokens == 2048
    assert boot.memory.engine_seconds is not None
    assert boot.memory.weights_gib is None


def test_nothing_after_the_start_is_read(real_log: Path) -> None:
    """What the engine serves or logs once it is up tells nothing of its boot."""
    lines = list(head_lines(real_log))
    up = next(i for i, line in enumerate(lines) if "Application startup complete" in line)
    later = [*lines[: up + 1], "INFO 11-20 11:59:59 Starting to load model other..."]
    assert read_boot(later, now=NOW) == read_boot(lines[: up + 1], now=NOW)


def test_a_gpu_boot_tells_every_figure_of_its_memory() -> None:
    """The wordings of the CUDA build, with the KV cache on two lines as up to 0.27."""
    boot = read_boot(GPU_BOOT.splitlines(), now=NOW)
    assert boot.memory.model_dump(exclude_none=True) == {
        "weights_gib": 7.73,
        "weights_seconds": 3.25,
        "kv_cache_gib": 9.11,
        "kv_cache_tokens": 98_304,
        "max_concurrency": 3.0,
        "max_concurrency_tokens": 32_768,
        "graphs_gib": 0.54,
        "graphs_seconds": 3.0,
        "compile_seconds": 12.25,
        "engine_seconds": 18.75,
    }
    assert boot.version == "0.27.1"
    assert boot.config["quantization"] == "None"
    assert boot.started


def test_a_gpu_boot_goes_through_every_phase() -> None:
    """Weights, compiling, graphs: each is named while it lasts, with how much of it is done."""
    lines = GPU_BOOT.splitlines()
    seen = [read_boot(lines[:end], now=NOW) for end in range(1, len(lines))]
    percents: dict[str, list[int | None]] = {}
    for boot in seen:
        percents.setdefault(boot.phase, []).append(boot.percent)
    assert list(percents) == ORDER
    assert percents["loading weights"] == [None, 0, 66, 66]
    assert next((boot.done, boot.total) for boot in seen if boot.percent == 66) == (2, 3)
    assert set(percents["compiling"]) == {None}
    assert percents["capturing graphs"] == [35]
    assert set(percents["warming"]) == {None}


def test_a_progress_bar_counts_while_it_is_drawn(tmp_path: Path) -> None:
    """Steps written over each other with carriage returns are steps, and the last one counts."""
    log = tmp_path / "engine.log"
    bar = "\r".join(f"Capturing CUDA graphs: {n:3}%|{'█' * (n // 10)}| " for n in (0, 40, 80))
    log.write_bytes(f"\x1b[32mStarting to load model m\x1b[0m\n{bar}".encode())
    boot = read_boot(head_lines(log), now=NOW)
    assert (boot.phase, boot.percent) == ("capturing graphs", 80)


def test_no_percentage_is_beyond_a_hundred() -> None:
    """A bar that overshoots is full."""
    assert read_boot(["Loading x checkpoint shards: 999% Completed"], now=NOW).percent == 100


def test_colours_and_control_characters_are_no_part_of_a_line() -> None:
    """What steers a terminal is taken out; letters of any script and tabs stay."""
    assert clean("\x1b[1;31mré\x00d\x07\x1b[0m\tü\x9b█\x7f") == "réd\tü█"


def test_a_phase_began_when_its_first_line_was_written() -> None:
    """Later lines of the same phase do not move its beginning."""
    lines = GPU_BOOT.splitlines()[:6]
    since = read_boot(lines, now=NOW).since
    assert since == datetime(2026, 11, 20, 11, 0, 2).astimezone()


@pytest.mark.parametrize(
    ("stamp", "now", "year"),
    [
        ("12-31 23:59:58", datetime(2027, 1, 1, 0, 5).astimezone(), 2026),
        ("01-01 00:00:01", datetime(2027, 1, 1, 0, 5).astimezone(), 2027),
        ("02-29 10:00:00", datetime(2029, 1, 5).astimezone(), 2028),
        ("02-29 10:00:00", datetime(2028, 2, 20).astimezone(), None),
        ("02-30 10:00:00", datetime(2028, 3, 20).astimezone(), None),
        ("13-99 99:99:99", datetime(2028, 3, 20).astimezone(), None),
    ],
)
def test_the_year_that_a_log_leaves_out_is_the_last_that_fits(
    stamp: str, now: datetime, year: int | None
) -> None:
    """A boot is never of tomorrow: over New Year it was last year's; no such day is no time."""
    line = f"INFO {stamp} [x.py:1] Starting to load model m"
    since = read_boot([line], now=now).since
    assert (since.astimezone().year if since else None) == year


words = st.sampled_from([
    "Model loading took ", " GiB", " memory and ", "KV cache size: ", " tokens", "x", "% ", ",",
    "Maximum concurrency for ", " tokens per request: ", "Loading a checkpoint shards: ", ".", "1",
    "\u0663", "9" * 5000, "INFO 02-29 10:00:00 ", "INFO \u0660\u0662-29 10:00:00 ", " s", "a=",
    "LLM engine (v", ") ", "with config: ", "non-default args: {", "}", "init engine (x) took ",
    "Available KV cache memory: ", "Starting to load model ", "\r", "\n", "\x1b[",
])  # fmt: skip


@given(st.lists(st.lists(words | st.text(max_size=5), max_size=12).map("".join), max_size=6))
def test_no_log_is_too_broken_to_be_read(lines: list[str]) -> None:
    """Half lines, figures that are none, other scripts' digits: less is known, no error."""
    boot = read_boot(lines, now=NOW)
    assert boot.phase in PHASES
    assert all(seconds >= 0 for seconds in boot.split.values())
    assert boot.percent is None or 0 <= boot.percent <= 100


def test_a_boot_is_timed_behind_what_a_shipper_puts_before_its_lines() -> None:
    """As docker compose writes them."""
    head = "vllm-1  | (EngineCore pid=7) INFO 11-20 11:32:"
    lines = [f"{head}07 [a.py:1] begun", f"{head}17 [a.py:1] Starting to load model x..."]
    boot = read_boot(lines, now=NOW)
    assert boot.split == {"start": 10.0}


def test_each_phase_has_the_seconds_that_the_engine_says_and_the_rest_by_stamps() -> None:
    """Compiling took 12.25 of the 15 s before there was a KV cache, graphs 3 of the 4 after it."""
    assert read_boot(GPU_BOOT.splitlines(), now=NOW).split == {
        "start": 2.0,
        "load": 3.0,
        "compile": 12.2,
        "profile": 2.8,
        "capture": 3.0,
        "warm-up": 2.0,
    }


def test_a_real_boots_phases_add_up_to_its_length(real_log: Path) -> None:
    """Nothing is counted twice, and nothing is left out: from the first stamp to the last."""
    boot = read_boot(head_lines(real_log), now=NOW)
    stamps = [
        datetime.strptime(match.group(1), "%H:%M:%S")  # noqa: DTZ007  a difference
        for line in head_lines(real_log)
        if (match := re.search(r" 11-20 (\d\d:\d\d:\d\d) ", line)) and "shutdown" not in line
    ]
    length = (stamps[-1] - stamps[0]).total_seconds()
    assert sum(boot.split.values()) == pytest.approx(length, abs=0.2)
    assert length > 0


def test_a_log_without_stamps_has_phases_of_no_known_length() -> None:
    """A length is never made up."""
    boot = read_boot(["Starting to load model m", "Capturing CUDA graphs: 10%|"], now=NOW)
    assert (boot.phase, boot.split) == ("capturing graphs", {})


def test_clocks_that_differ_make_no_length_below_nothing() -> None:
    """Two processes may stamp their lines out of order."""
    lines = ["INFO 11-20 10:00:09 Starting to load model m", "INFO 11-20 10:00:01 Dynamo bytecode"]
    assert read_boot(lines, now=NOW).split == {"start": 8.0}


def test_a_slow_worker_does_not_bring_a_phase_back() -> None:
    """Of two processes one still loads weights when the other compiles already."""
    lines = ["Starting to load model m", "Dynamo bytecode transform time: 3 s"]
    straggler = "Loading safetensors checkpoint shards: 50% Completed | 1/2"
    boot = read_boot([*lines, straggler], now=NOW)
    assert (boot.phase, boot.percent) == ("compiling", None)


@pytest.mark.parametrize(
    "first",
    [
        "INFO 03-22 api_server.py:912] vLLM API server version 0.7.3",
        "(APIServer pid=101) INFO 11-20 11:32:07  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0",
    ],
)
def test_a_second_server_in_the_same_log_is_a_new_boot(first: str) -> None:
    """What died before it was up is forgotten when the next one says its name."""
    died = GPU_BOOT.splitlines()[:-1]
    boot = read_boot([*died, first, "Starting to load model m"], now=NOW)
    assert (boot.phase, boot.memory.weights_gib, boot.compiled) == ("loading weights", None, 0)
    assert boot.split.keys() <= {"start", "load"}


def test_a_cloud_s_boot_began_when_its_lines_came() -> None:
    """A container's own clock has another zone; the lengths of phases are by it all the same."""
    began = datetime(2026, 11, 20, 23, tzinfo=UTC)
    lines = [
        Line(began + timedelta(seconds=number), text)
        for number, text in enumerate(GPU_BOOT.splitlines()[:5])
    ]
    boot = boot_of(lines)
    assert boot.since == began + timedelta(seconds=2)
    assert boot.split == {"start": 2.0}
    assert phase_of(lines) == Phase(
        name="loading weights",
        since=boot.since,
        percent=66,
        detail="2 of 3 shards",
        spent={"start": 2.0},
    )


PROGRESS = st.builds(
    "{} {}: {}% Completed | {}/{}".format,
    st.sampled_from(["Loading", "Capturing CUDA graphs", "Multi-thread loading"]),
    st.sampled_from(["shards", "x checkpoint shards", "safetensors using Runai Model Streamer"]),
    *[st.integers(0, 2_000)] * 3,
)
SAID = st.sampled_from([row["text"] for row in LINES])


@given(st.lists(SAID | PROGRESS | st.text(max_size=40), max_size=30))
def test_no_order_of_lines_brings_a_boot_back(lines: list[str]) -> None:
    """Phases follow each other in one order, whatever comes; no percentage is beyond its bounds."""
    reached = 0
    for end in range(len(lines) + 1):
        boot = read_boot(lines[:end], now=NOW)
        assert list(boot.split) == [name for name in SPLIT if name in boot.split]
        assert boot.percent is None or 0 <= boot.percent <= 100
        anew = end > 0 and re.search("version [0-9]", lines[end - 1])
        assert anew or PHASES.index(boot.phase) >= reached
        reached = PHASES.index(boot.phase)
