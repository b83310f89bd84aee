"""vLLM's boot log."""

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs.boot import PHASES, BootLog, read_boot
from logs.read import clean, head_lines
from tests.logs.boots import GPU_BOOT
from tests.logs.conftest import DATA, NOW

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
    assert since is not None
    assert since.replace(tzinfo=None) == datetime(2026, 11, 20, 11, 0, 2)  # noqa: DTZ001  local


@pytest.mark.parametrize(
    ("stamp", "now", "year"),
    [
        ("12-31 23:59:58", datetime(2027, 1, 1, 0, 5, tzinfo=UTC), 2026),
        ("01-01 00:00:01", datetime(2027, 1, 1, 0, 5, tzinfo=UTC), 2027),
        ("02-29 10:00:00", datetime(2029, 1, 5, tzinfo=UTC), 2028),
        ("02-29 10:00:00", datetime(2028, 2, 20, tzinfo=UTC), None),
        ("02-30 10:00:00", datetime(2028, 3, 20, tzinfo=UTC), None),
        ("13-99 99:99:99", datetime(2028, 3, 20, tzinfo=UTC), None),
    ],
)
def test_the_year_that_a_log_leaves_out_is_the_last_that_fits(
    stamp: str, now: datetime, year: int | None
) -> None:
    """A boot is never of tomorrow: over New Year it was last year's; no such day is no time."""
    since = read_boot([f"INFO {stamp} [x.py:1] Starting to load model m"], now=now).since
    assert (since.year if since else None) == year


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
    assert boot.phase == boot.phases[-1].name
    assert boot.percent is None or 0 <= boot.percent <= 100


def test_a_boot_is_timed_behind_what_a_shipper_puts_before_its_lines() -> None:
    """As docker compose writes them."""
    head = "vllm-1  | (EngineCore pid=7) INFO 11-20 11:32:"
    lines = [f"{head}07 [a.py:1] begun", f"{head}17 [a.py:1] Starting to load model x..."]
    boot = read_boot(lines, now=NOW)
    assert (boot.phases[0].name, boot.phases[0].seconds) == ("starting", 10.0)
