"""Which parsers a command line gets by default, by model, version and what it says itself."""

import pytest

from planner.flags import added_in, parsers_for, without

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser=gemma4")
REASONING = ("--reasoning-parser=gemma4",)


@pytest.mark.parametrize(
    ("model_type", "version", "words", "added"),
    [
        ("gemma4", "0.32.0", (), (*TOOLS, *REASONING)),
        ("gemma4_unified", "0.33.0", (), (*TOOLS, *REASONING)),
        ("gemma4_text", "0.30.0", ("--seed", "1"), (*TOOLS, *REASONING)),
        ("gemma4", "0.32.0", ("--tool-call-parser=x",), REASONING),
        ("gemma4", "0.32.0", ("--no_enable_auto_tool_choice",), REASONING),
        ("gemma4", "0.32.0", ("--no-enable-auto-tool-choice", "--reasoning-parser="), ()),
        ("gemma3", "0.32.0", (), ()),
        (None, "0.32.0", (), ()),
    ],
)
def test_gemma_4_gets_what_it_does_not_name_itself(
    model_type: str | None, version: str, words: tuple[str, ...], added: tuple[str, ...]
) -> None:
    """Nobody is told anything: nothing is missing that was wanted."""
    assert parsers_for(model_type, version, words) == (added, ())


@pytest.mark.parametrize(
    ("version", "added", "why"),
    [
        ("0.28.0", TOOLS, "structured output off"),
        ("0.27.0", TOOLS, "pull/52430"),
        ("0.19.0", TOOLS, "structured output off"),
        ("0.18.1", (), "before 0.19.0"),
        (None, (), "nobody knows which vLLM"),
        ("0.29.0", (*TOOLS, *REASONING), "issues/54881"),
    ],
)
def test_a_version_where_one_would_do_harm_goes_without_and_says_why(
    version: str | None, added: tuple[str, ...], why: str
) -> None:
    """Never a parser that switches structured output off silently."""
    found = parsers_for("gemma4", version, ())
    assert found.words == added
    (note,) = found.notes
    assert why in note


@pytest.mark.parametrize("own", [(), ("--seed", "7")])
def test_what_was_added_can_be_told_from_what_was_said(own: tuple[str, ...]) -> None:
    """Another image does not take over flags that nobody asked for."""
    for added in ((*TOOLS, *REASONING), TOOLS, (*REASONING, *TOOLS), ()):
        assert without((*added, *own)) == own
        assert added_in((*added, *own)) == added
