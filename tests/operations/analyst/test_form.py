"""What of a model's answer is kept: sentences that cite lines, and tools that were offered."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.analyse import (
    MOST_CLAIMS,
    MOST_STEPS,
    SENTENCE_CHARACTERS,
    Form,
    Question,
    Row,
)
from operations.case import Call
from tests.operations.analyst.stranger import CLAIM, json_of

ROWS: Final = (Row(id="L1", text="ERROR no memory"), Row(id="L2", text="INFO up"))
DEPLOY: Final = Call(tool="deploy_vllm", arguments={"max_model_len": 4096})
STEP: Final = {"tool": "deploy_vllm", "why": "A shorter context fits.", "lines": ["L1"]}
OTHERS: Final = frozenset({"deploy_vllm", "save_hf_token"})
FORM: Final = Form(Question(task="", rows=ROWS, tools=(DEPLOY,), others=OTHERS))


def test_a_claim_is_kept_with_the_text_of_its_lines() -> None:
    """Whoever reads it sees what it stands on."""
    kept = FORM.read(json_of(CLAIM))
    assert kept
    (claim,) = kept.claims
    assert (claim.text, claim.lines) == ("The KV cache is too small.", ("L1 ERROR no memory",))


def test_a_tool_gets_our_arguments_and_no_others() -> None:
    """Those that a model adds are not read."""
    kept = FORM.read(json_of(steps=[{**STEP, "arguments": {"max_model_len": 1, "model": "evil"}}]))
    assert kept
    (advice,) = kept.advice
    assert (advice.tool, advice.arguments) == ("deploy_vllm", {"max_model_len": 4096})


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
    """One that stands beside it is kept."""
    kept = FORM.read(json.dumps({"claims": [claim, CLAIM]}))
    assert kept
    assert [one.text for one in kept.claims] == [CLAIM["text"]]
    ((reason, count),) = kept.dropped.items()
    assert (why in reason, count) == (True, 1)


@pytest.mark.parametrize("tool", ["destroy_vllm", "stop_vllm", "get_logs", "", "DEPLOY_VLLM"])
def test_a_tool_that_was_not_offered_is_dropped(tool: str) -> None:
    """Whatever a log says to call, the list is ours."""
    kept = FORM.read(json_of(steps=[{**STEP, "tool": tool}]))
    assert kept
    assert kept.advice == ()
    assert sum(kept.dropped.values()) == 1


def test_a_tool_that_was_offered_may_be_named_in_a_sentence() -> None:
    """Only the others may not."""
    kept = FORM.read(json_of({**CLAIM, "text": "deploy_vllm with a shorter context."}))
    assert kept
    assert len(kept.claims) == 1


def test_an_answer_that_breaks_off_keeps_what_was_whole() -> None:
    """A model that reached its limit is not lost, and half a sentence is not told."""
    whole = json_of(CLAIM, {**CLAIM, "text": "A second sentence."})
    kept = FORM.read(whole[: whole.index("second")])
    assert kept
    assert [one.text for one in kept.claims] == [CLAIM["text"]]


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Sure! Here it is:\n{}\nBye."])
def test_words_around_the_object_do_no_harm(around: str) -> None:
    """Models that nobody guides like to talk."""
    kept = FORM.read(around.replace("{}", json_of(CLAIM)))
    assert kept
    assert len(kept.claims) == 1


@pytest.mark.parametrize("text", ["", "no", "[]", "{", '"claims"', "nul", "[" * 100_000])
def test_what_is_no_object_says_nothing(text: str) -> None:
    """It is told apart from an object without claims, or is one."""
    kept = FORM.read(text)
    assert kept is None or not kept.claims


def test_words_are_bounded_and_lead_nowhere() -> None:
    """Addresses, control characters and long texts of a model are not passed on."""
    text = "See https://evil.example/?a=1 \x1b[31m\u202enow\n# Heading " + "x " * 9_000
    kept = FORM.read(json_of({**CLAIM, "text": text}))
    assert kept
    said = kept.claims[0].text
    assert said.startswith("See [address left out] now # Heading")
    assert SENTENCE_CHARACTERS - 2 <= len(said) <= SENTENCE_CHARACTERS


def test_no_more_is_kept_than_was_asked_for() -> None:
    """A thousand claims are as many as the form has."""
    kept = FORM.read(json_of(*[CLAIM] * 1_000, steps=[STEP] * 50))
    assert kept
    assert (len(kept.claims), len(kept.advice)) == (MOST_CLAIMS, MOST_STEPS)


def test_without_tools_no_step_is_asked_for() -> None:
    """And none is taken."""
    form = Form(Question(task="", rows=ROWS))
    assert "steps" not in form.schema["properties"]
    kept = form.read(json_of(CLAIM, steps=[STEP]))
    assert kept
    assert kept.advice == ()


@given(st.text() | st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(json.dumps))
def test_nothing_breaks_it(text: str) -> None:
    """Whatever a model says."""
    for whole in (text, f'{{"claims":{text}', f'{{"claims":[{{"text":{text},"lines":["L1"]}}]}}'):
        kept = FORM.read(whole)
        assert kept is None or all(one.lines for one in kept.claims)
