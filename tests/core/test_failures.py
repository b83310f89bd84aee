"""The catalogue of failures."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.failures import Pattern, catalogue, died_of, evidence, recognize
from core.logfile import head_lines
from tests.core.conftest import DATA

SEEN = [
    (row["code"], row["line"], row["words"])
    for row in tomllib.loads((DATA / "failures.toml").read_text(encoding="utf-8"))["seen"]
]


@pytest.mark.parametrize(("code", "line", "words"), SEEN)
def test_a_line_that_was_seen_is_recognized(code: str, line: str, words: str) -> None:
    """Each known failure gets its code, and the figures of the line stand in the cause."""
    failure = recognize(["INFO something before", f"\x1b[31m{line}\x1b[0m", "INFO after"])
    assert failure is not None
    assert failure.code == code
    assert words in failure.cause
    assert failure.fix
    assert failure.evidence[0] == line.strip()[:400]


def test_every_entry_has_a_line_that_it_recognizes() -> None:
    """No entry stands there untested, and none hides behind an earlier one."""
    hit = set()
    for _, line, _ in SEEN:
        hit.add(next(entry for entry in catalogue() if re.search(entry.pattern, line)).pattern)
    assert {entry.pattern for entry in catalogue()} == hit


def test_a_healthy_boot_is_no_failure(real_log: Path) -> None:
    """None of the catalogue's wordings occurs when all is well, the shut-down included."""
    assert recognize(list(head_lines(real_log))) is None


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.code)
def test_the_placeholders_of_an_entry_are_groups_of_its_pattern(entry: Pattern) -> None:
    """Cause and fix can always be filled, also by groups that took no part."""
    names = dict.fromkeys(re.compile(entry.pattern).groupindex, "{x}")
    for text in (entry.cause, entry.fix):
        assert text.format(**names)


def test_what_the_line_leaves_out_is_said_to_be_left_out() -> None:
    """An older wording without the longest possible length."""
    line = "max seq len (8192), 1.0 GiB KV cache is needed, which is larger than the available"
    failure = recognize([f"{line} KV cache memory (0.5 GiB)"])
    assert failure is not None
    assert "not said" in failure.fix


@given(st.text())
def test_the_words_of_a_log_are_never_read_as_a_format(words: str) -> None:
    """Braces and percent signs in an engine's words stay what they are."""
    line = f"vllm serve: error: {{0}} {{words}} {words}".splitlines()[0]
    failure = recognize([line])
    assert failure is not None
    assert "{0} {words}" in failure.cause


def test_the_first_entry_wins_over_the_first_line() -> None:
    """A cause is told before the core process that died of it, wherever it stands."""
    lines = ["Engine core initialization failed", ("torch.OutOfMemoryError: CUDA out of memory. "
             "Tried to allocate 20.00 MiB.")]  # fmt: skip
    failure = recognize(lines)
    assert failure is not None
    assert failure.code == "DOES_NOT_FIT"


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (-9, "KILLED", "signal 9 (often the kernel"),
        (-11, "KILLED", "signal 11"),
        (-15, "KILLED", "signal 15"),
        (0, "ENGINE_EXITED", "exit status 0"),
        (1, "ENGINE_EXITED", "exit status 1"),
        (None, "ENGINE_GONE", ""),
    ],
)
def test_an_unknown_death_is_told_by_its_status(status: int | None, code: str, words: str) -> None:
    """Signal, exit status, or that nobody saw it; with the last lines as evidence."""
    failure = died_of(status, ["one", "", "two"])
    assert (failure.code, failure.evidence) == (code, ("one", "two"))
    assert words in failure.cause


def test_a_known_cause_is_told_before_the_signal() -> None:
    """What the engine wrote says more than how it ended."""
    assert died_of(-9, ["No space left on device"]).code == "DISK_FULL"


def test_the_evidence_is_the_last_lines_that_say_anything() -> None:
    """Twelve, newest last, cut and without colours."""
    lines = [f"\x1b[1mline {n}\x1b[0m  " for n in range(20)] + ["", "   ", "x" * 1000]
    found = evidence(lines)
    assert found[:-1] == tuple(f"line {n}" for n in range(9, 20))
    assert found[-1] == "x" * 400
