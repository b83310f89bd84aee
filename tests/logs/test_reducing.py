"""A log and what it comes down to."""

import itertools
from collections.abc import Sequence
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from logs.read import LONGEST, Line, readable
from logs.reduce import Reduced, Reducer
from tests.log_lines import lines
from tests.logs.conftest import NOW


def log(*texts: str) -> list[Line]:
    """Give one line a second."""
    return [Line(NOW + timedelta(seconds=at), text) for at, text in enumerate(texts)]


def reduced(
    lines: Sequence[Line], *, page: int = 7, most: int = 10_000, newest_first: bool = True
) -> Reduced:
    """Reduce lines in pages of so many."""
    reducer = Reducer(newest_first=newest_first)
    pages = [lines[at : at + page] for at in range(0, len(lines), page)]
    for one in reversed(pages) if newest_first else pages:
        reducer.feed(one)
    return reducer.reduced(most)


PIECES = st.sampled_from(
    [
        "(APIServer pid=1) INFO 11-20 11:32:07 [model.py:7] ",
        "ERROR ",
        "prompt: 'secret words', ",
        'INFO:     10.0.0.7:5 - "GET /v1 HTTP/1.1" ',
        "exit code 137",
        "chatcmpl-a269fdcb7c6ce890 ",
        "\x1b[31m",
        "\r",
        "200 OK",
        "500 no",
        "/a/b ",
        "word ",
        "other ",
        "17 ",
        "\ud800",
        "\N{REPLACEMENT CHARACTER}",
        "\u202e",
        "x" * 3000,
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=9), max_size=8).map("".join)
LOGS = st.lists(TEXTS, max_size=60).map(lambda texts: log(*texts))


@given(LOGS, st.integers(1, 20), st.integers(0, 30))
def test_counts_add_up_and_texts_are_bounded(given_log: list[Line], page: int, most: int) -> None:
    """Whatever the lines are, each is counted once, and nothing given is long or unprintable."""
    found = reduced(given_log, page=page, most=most)
    assert found.lines == len(given_log)
    assert sum(one.count for one in found.templates) + found.lines_left_out == found.lines
    assert len(found.templates) <= most
    for one in found.templates:
        for text in (one.text, one.first.text, one.last.text):
            assert len(text) <= 400
            assert text.isprintable()
        assert 1 <= one.first.number <= one.last.number <= found.lines
    assert found.model_dump_json()


@given(LOGS, st.integers(1, 20), st.integers(1, 20))
def test_the_order_of_pages_changes_nothing(given_log: list[Line], page: int, other: int) -> None:
    """Read from its end or from its beginning, in whatever pages, a log comes down to the same."""
    backwards = reduced(given_log, page=page)
    assert backwards == reduced(given_log, page=other, newest_first=False)


def test_the_order_changes_nothing_where_templates_overflow() -> None:
    """Nor does it when more lines begin differently than can be told apart."""
    letters = itertools.product("abcdefgh", "abcdefg", "abcdefg", ("he", "she", "they"))
    texts = [f"{a}{b}{c} said {who} to all" for a, b, c, who in letters]
    texts += [f"now {a}{b} is gone" for a, b in itertools.product("abcdefgh", repeat=2)]
    many = log(*texts, "ERROR no", *texts)
    backwards = reduced(many, page=50)
    assert backwards == reduced(many, page=41, newest_first=False)
    assert [one.count for one in backwards.templates] == [1, 2352, 128]


def test_a_made_up_day_comes_down_to_a_page() -> None:
    """Twenty thousand lines are forty templates, and errors come first."""
    many = log(*lines(20_000))
    found = reduced(many, page=500)
    assert found.lines == 20_000
    assert len(found.templates) <= 40
    order = [one.severity for one in found.templates]
    assert order == sorted(order, key=["error", "warning", "info"].index)
    assert reduced(many, page=333, newest_first=False) == found


def test_samples_are_the_first_and_the_last_line() -> None:
    """Of lines that are alike, the ends are kept, with their times and places."""
    one = reduced(log("took 1 s", "other", "took 20 s", "took 3 s"), page=2).templates
    template = next(each for each in one if each.count == 3)
    assert (template.text, template.first.text, template.last.text) == (
        "took <*> s",
        "took 1 s",
        "took 3 s",
    )
    assert (template.first.number, template.last.number) == (1, 4)
    assert (template.first.at - NOW).seconds == 0


def test_errors_are_kept_before_the_rest() -> None:
    """However often something harmless is said, a rare error is not left out for it."""
    found = reduced(log(*["all is well"] * 1500, "ValueError: no"), page=100, most=1)
    assert [one.text for one in found.templates] == ["ValueError: no"]
    assert found.templates[0].rare
    assert (found.templates_left_out, found.lines_left_out) == (1, 1500)


def test_answers_are_told_apart_by_status() -> None:
    """A line that failed is not counted with those like it that did not."""
    said = [f'INFO:     10.0.0.7:{n} - "GET /v1 HTTP/1.1" {200 + 300 * (n % 2)}' for n in range(9)]
    counts = {one.severity: one.count for one in reduced(log(*said)).templates}
    assert counts == {"error": 4, "info": 5}


def test_a_long_line_is_cut_and_counted() -> None:
    """A megabyte on one line costs no more than two thousand characters."""
    found = reduced(log("word " * 200_000, "short"))
    assert found.cut == 1
    assert found.characters == 1_000_005


def test_platforms_speak_for_themselves() -> None:
    """The same words of a platform and of a container are two things."""
    both = [Line(NOW, "restarted"), Line(NOW, "restarted", "cloud run")]
    assert sorted(one.platform for one in reduced(both).templates) == ["", "cloud run"]


def test_nothing_comes_down_to_nothing() -> None:
    """An empty log has no time."""
    found = reduced([])
    assert (found.lines, found.since, found.until, found.templates) == (0, None, None, ())


def test_a_kind_says_itself_in_one_line() -> None:
    """How grave, who says it, how often, and its newest line."""
    said = [Line(NOW, "ERROR no 1"), Line(NOW, "ERROR no 2")]
    both = [*said, Line(NOW, "all is well", "Cloud Run")]
    assert list(map(str, reduced(both).templates)) == [
        f"[error, 2 times, last {NOW:%m-%d %H:%M:%S}] ERROR no 2",
        f"[info by Cloud Run, {NOW:%m-%d %H:%M:%S}] all is well",
    ]


SECRETS = (
    "hf_abcdefghijklmnopqrstuv",
    "jo.secretive@mail.example.com",
    "4111 1111 1111 1111",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN",
    "opensesame-known",
)


@given(
    st.sampled_from(SECRETS),
    st.integers(0, 3 * LONGEST),
    st.sampled_from(["", "\x1b[0m", "\u200b", "\x00"]),
    st.sampled_from([" ", "'", ": "]),
)
def test_no_secret_survives(secret: str, before: int, inside: str, around: str) -> None:
    """Wherever it stands, also where the line is cut, and whatever is hidden in it."""
    middle = len(secret) // 2
    planted = f"{secret[:middle]}{inside}{secret[middle:]}"
    text = ("word " * before)[:before] + around + planted + around + "end"
    reducer = Reducer(known=["opensesame-known"])
    reducer.feed(log(text, text.replace("word", "were")))
    said = reducer.reduced().model_dump_json()
    assert secret not in said
    for part in (secret[:12], secret[-12:]):
        assert part not in said


def test_a_cut_halves_no_secret() -> None:
    """Half a key would be known by nothing, so the word that the cut meets goes whole."""
    for secret in SECRETS[:2]:
        for before in range(LONGEST - len(secret), LONGEST):
            text, is_cut = readable("x" * (before - 1) + f" {secret} and on")
            assert is_cut
            assert secret[:3] not in text or secret in text


@given(st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=12, max_size=40))
def test_no_word_of_a_user_survives(words: str) -> None:
    """The request logger's line is a template, and the prompt is not in it."""
    line = f"INFO 11-20 [logger.py:1] Received request cmpl-1: prompt: '{words} it', params: None."
    found = reduced(log(line, line.replace("cmpl-1", "cmpl-2")))
    assert [one.count for one in found.templates] == [2]
    assert words not in found.model_dump_json()
    assert found.masked == {"prompt": 2}
