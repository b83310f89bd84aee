"""The phases of a boot: how long each took, and that none comes back."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records import Phase
from logs.boot import PHASES, boot_of, phase_of, read_boot
from logs.read import Line, head_lines
from tests.logs.boots import GPU_BOOT
from tests.logs.conftest import NOW
from tests.logs.test_boot_wordings import LINES


def test_each_phase_has_its_length() -> None:
    """By the log's own stamps: from its first line to the next phase's, the newest to the end."""
    boot = read_boot(GPU_BOOT.splitlines(), now=NOW)
    assert [(phase.name, phase.seconds) for phase in boot.phases] == [
        ("starting", 2.0),
        ("loading weights", 4.0),
        ("compiling", 14.0),
        ("capturing graphs", 4.0),
        ("warming", 1.0),
    ]


def test_a_real_boots_phases_add_up_to_its_length(real_log: Path) -> None:
    """Nothing is counted twice, and nothing is left out: from the first stamp to the last."""
    boot = read_boot(head_lines(real_log), now=NOW)
    assert all(phase.seconds is not None for phase in boot.phases)
    stamps = [
        datetime.strptime(match.group(1), "%H:%M:%S")  # noqa: DTZ007  a difference
        for line in head_lines(real_log)
        if (match := re.search(r" 11-20 (\d\d:\d\d:\d\d) ", line)) and "shutdown" not in line
    ]
    length = (stamps[-1] - stamps[0]).total_seconds()
    assert sum(phase.seconds or 0 for phase in boot.phases) == length > 0


def test_a_log_without_stamps_has_phases_of_no_known_length() -> None:
    """A length is never made up."""
    boot = read_boot(["Starting to load model m", "Capturing CUDA graphs: 10%|"], now=NOW)
    assert [phase.name for phase in boot.phases] == [
        "starting",
        "loading weights",
        "capturing graphs",
    ]
    assert {phase.seconds for phase in boot.phases} == {None}


def test_clocks_that_differ_make_no_length_below_nothing() -> None:
    """Two processes may stamp their lines out of order."""
    lines = ["INFO 11-20 10:00:09 Starting to load model m", "INFO 11-20 10:00:01 Dynamo bytecode"]
    assert all((phase.seconds or 0) >= 0 for phase in read_boot(lines, now=NOW).phases)


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
    assert [phase.name for phase in boot.phases] == ["starting", "loading weights"]


def test_a_cloud_s_boot_began_when_its_lines_came() -> None:
    """A container's own clock has another zone; the lengths of phases are by it all the same."""
    began = datetime(2026, 11, 20, 23, tzinfo=UTC)
    lines = [
        Line(began + timedelta(seconds=number), text)
        for number, text in enumerate(GPU_BOOT.splitlines()[:5])
    ]
    boot = boot_of(lines)
    assert boot.since == began + timedelta(seconds=2)
    assert boot.phases[0].seconds == 2.0
    assert phase_of(lines) == Phase(
        name="loading weights", since=boot.since, percent=66, detail="2 of 3 shards"
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
        ranks = [PHASES.index(phase.name) for phase in boot.phases]
        assert ranks == sorted(set(ranks))
        assert boot.percent is None or 0 <= boot.percent <= 100
        anew = end > 0 and re.search("version [0-9]", lines[end - 1])
        assert anew or ranks[-1] >= reached
        reached = ranks[-1]
