"""Templates, where they become one and where they do not."""

import itertools
from collections.abc import Sequence

import pytest

from logs.read import Gravity, Line
from logs.reduce import (
    ANY,
    MOST_ALIKE,
    MOST_BEGINNINGS,
    MOST_TOKENS,
    Forest,
    Group,
    coarser,
    tokens,
)
from tests.logs.conftest import NOW

INFO = Gravity("info")


def mined(texts: Sequence[str]) -> dict[str, int]:
    """Give each template of some lines with its count."""
    forest = Forest()
    for number, text in enumerate(texts):
        group, _ = forest.find(Group(tokens(text), INFO, number, Line(NOW, text)))
        group.count += 1
    return {" ".join(group.words): group.count for group in forest.groups()}


@pytest.mark.parametrize(
    "varying",
    [
        "request chatcmpl-a269fdcb7c6ce890-a8a65d16 added",
        "request chatcmpl-0f69fdcb7c6ce891-18a65d17 added",
        "request chatcmpl-3f2504e0-4f89-11d3-9a0c-0305e82c3301 added",
        "request chatcmpl-[redacted] added",
    ],
)
def test_an_id_is_masked_whole(varying: str) -> None:
    """Its letters vary as its digits do."""
    assert " ".join(tokens(varying)) == "request chatcmpl-<*> added"


def test_a_date_is_one_thing_that_varies() -> None:
    """Date and time, and an address with its port, leave one mark each."""
    assert " ".join(tokens("at 2026-11-20 11:32:07.123 from 10.0.0.7:80")) == "at <*> from <*>"


def test_lines_that_differ_in_a_plain_word_stay_apart() -> None:
    """Startup is not shutdown, however alike the lines are."""
    both = ["Application startup complete.", "Application shutdown complete."]
    assert mined(both) == dict.fromkeys(both, 1)


def test_numbers_that_decide_stay_apart() -> None:
    """An exit by signal 9 is not one by signal 15."""
    both = ["worker ended with signal 9", "worker ended with signal 15"]
    assert mined(both) == dict.fromkeys(both, 1)


def test_many_lines_that_differ_in_a_path_become_one() -> None:
    """A scanner that asks for everything is one thing that happens."""
    asked = [f"asked for /{a}{b} and got none" for a, b in itertools.product("abcxyz", repeat=2)]
    assert mined(asked) == {"asked for <*> and got none": 36}


def test_few_lines_that_differ_in_a_path_are_kept() -> None:
    """Which of three endpoints was called is worth its line."""
    asked = [f"asked for /{path} today" for path in ("health", "metrics", "load")]
    assert mined(asked) == dict.fromkeys(asked, 1)


def test_very_many_lines_that_begin_alike_become_one_that_says_what_they_share() -> None:
    """A plain word that is ever another one is a variable in the end."""
    names = ["".join(letters) for letters in itertools.product("abc", repeat=4)]
    said = [f"user {name} logged in" for name in names]
    assert mined(said) == {"user <*> logged in": 81}
    assert mined([*said, "user a walked in"]) == {"user <*> <*> in": 82}


def test_templates_are_bounded_whatever_comes() -> None:
    """Every line with words of its own does not make every line a template."""
    letters = itertools.product("abcdefghij", repeat=4)
    found = mined(["".join(four) + " says so" for four in letters])
    assert sum(found.values()) == 10_000
    assert len(found) <= MOST_ALIKE * MOST_BEGINNINGS
    assert found == {"<*> says so": 10_000}


def test_a_long_line_has_so_many_words_and_a_rest() -> None:
    """Its end is one thing that varies."""
    words = tokens("word " * 1000)
    assert len(words) == MOST_TOKENS + 1
    assert words[-1] == ANY


@pytest.mark.parametrize("level", range(4))
def test_coarser_again_is_as_coarse(level: int) -> None:
    """What was compared coarsely is compared so again, whatever it was before."""
    words = tokens("a /b/c says d=1 to e and f")
    for finer in range(level + 1):
        assert coarser(coarser(words, finer), level) == coarser(words, level)
