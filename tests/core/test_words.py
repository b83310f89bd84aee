"""Flags that came as one word, taken apart."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records import apart

_PIECES = ("--seed", "-tp", "=", " ", "4", '{"a": 1}', "{", "'", '"', "x", "\\", "\t", "[")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("--gpu-memory-utilization 0.4", ["--gpu-memory-utilization", "0.4"]),
        ("--enforce-eager ", ["--enforce-eager"]),
        (" --api-key\tS", ["--api-key", "S"]),
        ("--seed=1 --api-key S", ["--seed=1", "--api-key", "S"]),
        ("-tp 2 -q fp8", ["-tp", "2", "-q", "fp8"]),
        ('--limit {"image": 2} --seed 4', ["--limit", '{"image": 2}', "--seed", "4"]),
        ('--limit={"image": 2} --seed=4', ['--limit={"image": 2}', "--seed=4"]),
        ("--limit '{\"image\": 2}' --seed 4", ["--limit", '{"image": 2}', "--seed", "4"]),
        ('{"image": 2} --seed 4', ['{"image": 2}', "--seed", "4"]),
        ("--stop='a --b' --seed 4", ["--stop", "a --b", "--seed", "4"]),
        ('--stop "it --api-key S', ["--stop", '"it', "--api-key", "S"]),
    ],
)
def test_several_words_become_several(said: str, words: list[str]) -> None:
    """JSON ends at its own brace, and quotes are a shell's."""
    assert list(apart(said)) == words


@pytest.mark.parametrize(
    "word",
    [
        "",
        " ",
        "0.4",
        "-1",
        "--enforce-eager",
        "--chat-template=a b",
        "{% if x -%} --- {{ y }}",
        "two words",
        '{"image": 2}',
        '--limit={"text": "x --y"}',
        "[" * 100_000,
    ],
)
def test_a_value_with_blanks_of_its_own_stays(word: str) -> None:
    """It was one word, and the engine gets it as one."""
    assert apart(word) == (word,)


@given(st.lists(st.sampled_from(_PIECES)).map("".join))
def test_what_is_apart_stays_so(said: str) -> None:
    """A spec is read back from where it was kept, and must be the same."""
    once = apart(said)
    again = [part for word in once for part in apart(word)]
    assert list(once) == again


@pytest.mark.parametrize("piece", ['"', "'", "\\", "[ ", "{", "--a ", " -tp"])
def test_long_words_take_no_time(piece: str) -> None:
    """Whoever calls may say anything."""
    begun = time.process_time()
    apart(f"--x {piece * 20_000}")
    assert time.process_time() - begun < 5  # if it took its square: minutes
