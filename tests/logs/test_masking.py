"""Personal data in lines."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs.reduce import is_card, mask

QUOTED = st.sampled_from(["'", '"'])


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        (
            "Received request cmpl-1: prompt: 'How do I \\'win\\'?', params: None.",
            "Received request cmpl-1: prompt: [prompt], params: None.",
        ),
        ("prompt: 'it was cut of", "prompt: [prompt]"),
        ("prompt_token_ids: [1, 2, 3], x", "prompt_token_ids: [prompt], x"),
        ('output: "I\'d say", finish_reason: stop', "output: [prompt], finish_reason: stop"),
        ("params: P(stop=['Bob:', \"x\"], n=1)", "params: P(stop=[prompt], n=1)"),
        ('{"role": "user", "content": "hi \\"you\\""}', '{"role": "user", "content": [prompt]}'),
        ("mail from jo.do+x@mail.example.com now", "mail from [email] now"),
        ("GET /v1?user=jo&n=1", "GET /v1?user=[user]&n=1"),
        (
            'INFO: 203.0.113.9:80 and 8.8.8.8:443 - "GET',
            'INFO: 203.0.113.9:80 and [address]:443 - "GET',
        ),
        ("from 2001:4860:4860::8888 now", "from [address] now"),
        ("card 4111-1111-1111-1111, thanks", "card [card], thanks"),
        ("call +1 415-555-0132 now", "call [phone] now"),
    ],
)
def test_what_is_personal_is_masked(line: str, masked: str) -> None:
    """The words of users, how to reach them and how they pay go; the rest of the line stays."""
    assert mask(line) == masked


@pytest.mark.parametrize(
    "line",
    [
        "prompt: None, params: SamplingParams(stop=[], bad_words=[])",
        "Avg prompt throughput: 0.8 tokens/s",
        "listening on 0.0.0.0:8000, 127.0.0.1, 10.1.2.3, 192.168.0.1, 169.254.169.254, ::1",
        "nvidia-cudnn-cu12==9.1.0.70",
        "at 12:30:45, logger.py:36:4",
        "trace 1700000000000000000",
        "KV cache of 4294967296 bytes",
        "model google/gemma-4-E4B-it@main",
    ],
)
def test_what_names_machines_and_measures_stays(line: str) -> None:
    """A mask where nothing is personal would hide what a person needs."""
    assert mask(line) == line


@given(st.integers(min_value=4 * 10**14, max_value=5 * 10**14 - 1))
def test_a_card_is_known_by_its_check_digit(front: int) -> None:
    """Of ten numbers that begin alike, one is a card's."""
    assert sum(is_card(f"{front}{last}") for last in range(10)) == 1


@given(st.text(st.characters(exclude_characters="'\"\\"), min_size=1), QUOTED)
def test_no_word_of_a_prompt_stays(words: str, quote: str) -> None:
    """Whatever a user wrote, only the mask is left of it."""
    masked = mask(f"a prompt: {quote}{words}{quote}, b")
    assert masked == "a prompt: [prompt], b"


@given(st.text(max_size=300))
def test_masking_twice_is_masking_once(text: str) -> None:
    """A masked line has nothing more to mask."""
    once = mask(text)
    assert mask(once) == once


def test_what_was_masked_is_counted_by_kind() -> None:
    """A reader learns that something is gone, not what."""
    counts: Counter[str] = Counter()
    mask("a@b.example c@d.example from 8.8.8.8", counts)
    assert counts == {"email": 2, "address": 1}
