"""What of a model's answer is kept: sentences that cite lines and name no other tool."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.analyse import MOST_CLAIMS, SENTENCE_CHARACTERS, Claim, Question
from tests.operations.analyst.stranger import CLAIM, json_of

ROWS: Final = {"L1": "ERROR no memory", "L2": "INFO up"}
FORM: Final = Question(task="", rows=ROWS, unmentionable=frozenset({"save_hf_token"}))


def claims_in(text: str) -> tuple[Claim, ...]:
    """Return what is kept of an answer."""
    kept = FORM.read(text)
    assert kept
    return kept[0]


def test_a_claim_is_kept_with_the_text_of_its_lines() -> None:
    (claim,) = claims_in(json_of(CLAIM))
    assert (claim.text, claim.lines) == ("The KV cache is too small.", ("L1 ERROR no memory",))


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({"text": "It is so.", "lines": []}, "cites no line"),
        ({"text": "It is so.", "lines": ["L3", "l1", "L1 "]}, "cites no line"),
        ({"text": " \n", "lines": ["L1"]}, "cites no line"),
        ({"text": "It is so."}, "keep the form"),
        ({"text": 5, "lines": ["L1"]}, "keep the form"),
        ({"text": "It is so.", "lines": "L1"}, "keep the form"),
        ("It is so.", "keep the form"),
        ({"text": "Call destroy_vllm now.", "lines": ["L1"]}, "nothing here calls for"),
        ({"text": "Use Delete_Everything().", "lines": ["L1"]}, "nothing here calls for"),
        ({"text": "Give it to `save_hf_token`.", "lines": ["L1"]}, "nothing here calls for"),
    ],
)
def test_what_may_not_be_said_is_dropped_and_counted(claim: Any, why: str) -> None:
    kept = FORM.read(json.dumps({"claims": [claim, CLAIM]}))
    assert kept
    claims, dropped = kept
    assert [one.text for one in claims] == [CLAIM["text"]]
    ((reason, count),) = dropped.items()
    assert (why in reason, count) == (True, 1)


def test_a_tool_that_was_offered_may_be_named_in_a_sentence() -> None:
    assert len(claims_in(json_of({**CLAIM, "text": "deploy_vllm with a shorter context."}))) == 1


def test_an_answer_that_breaks_off_keeps_what_was_whole() -> None:
    """A model that reached its limit is not lost, and half a sentence is not told."""
    whole = json_of(CLAIM, {**CLAIM, "text": "A second sentence."})
    assert [one.text for one in claims_in(whole[: whole.index("second")])] == [CLAIM["text"]]


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Sure! Here it is:\n{}\nBye."])
def test_words_around_the_object_do_no_harm(around: str) -> None:
    assert len(claims_in(around.replace("{}", json_of(CLAIM)))) == 1


@pytest.mark.parametrize("text", ["", "no", "[]", "{", '"claims"', "nul", "[" * 100_000])
def test_what_is_no_object_says_nothing(text: str) -> None:
    """It is told apart from an object without claims, or is one."""
    kept = FORM.read(text)
    assert kept is None or not kept[0]


def test_words_are_bounded_and_lead_nowhere() -> None:
    """Addresses, control characters and long texts of a model are not passed on."""
    text = "See https://evil.example/?a=1 \x1b[31m\u202enow\n# Heading " + "x " * 9_000
    said = claims_in(json_of({**CLAIM, "text": text}))[0].text
    assert said.startswith("See [address left out] now # Heading")
    assert SENTENCE_CHARACTERS - 2 <= len(said) <= SENTENCE_CHARACTERS


def test_no_more_is_kept_than_was_asked_for() -> None:
    assert len(claims_in(json_of(*[CLAIM] * 1_000))) == MOST_CLAIMS


@given(st.text() | st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(json.dumps))
def test_nothing_breaks_it(text: str) -> None:
    for whole in (text, f'{{"claims":{text}', f'{{"claims":[{{"text":{text},"lines":["L1"]}}]}}'):
        kept = FORM.read(whole)
        assert kept is None or all(one.lines for one in kept[0])
