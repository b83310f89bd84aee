"""`python -m planner`, as a shell calls it."""

import json

import pytest

from planner.__main__ import main

L4 = ("--accelerator", "l4")


def test_a_program_reads_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM's own flags say how it would be served; the status is the verdict."""
    given = "-tp 2 --vllm-version=0.21.0 --kv-cache-memory-bytes=10.17G --max-model-len=8k"
    pair = ("26b", "--accelerator", "rtx-3090", *given.split(), "--max-num-batched-tokens=4096")
    rows = (
        (("12b qat", *L4, "--max-model-len", "32768"), True),
        (("31b qat", *L4), False),
        (pair, False),
    )
    for words, fits in rows:
        assert main([*words, "--json"]) == (0 if fits else 1)
        found = json.loads(capsys.readouterr().out)
        assert (found["fits"], bool(found["reasons"])) == (fits, not fits)
    assert (found["max_model_len"], found["count"]) == (8000, 2)
    assert found["kv_expected"]["num_blocks"] == 33_325


def test_flags_that_change_no_plan_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """So that a misspelt one is not taken for obeyed."""
    given = ("--max-modle-len=8k", "--max_num_seqs", "8", "--hf-overrides.rope_theta=1", "-tp", "1")
    main(["e2b qat", *L4, *given, "--enable-lora"])
    said = capsys.readouterr().err
    assert "does not look at --max-modle-len, --enable-lora." in said


def test_a_person_sees_a_bar_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, work, cache and what stays free, and the verdict in the first line."""
    assert main(["12b qat", *L4, "--max-model-len", "32768"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("fits")
    drawn = next(line for line in lines if "[" in line).strip()
    assert len(drawn) == 62
    assert drawn.index("#") < drawn.index("+") < drawn.index("=") < drawn.index(".")
    assert "requests of 32,768 tokens at once" in "\n".join(lines)
    assert main(["e2b qat", *L4, "--accelerator-memory-gib", "4"]) == 1
    assert "! It runs out of memory while loading" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("someone/something", *L4), "cannot be planned"),
        (("/nowhere/at/all", *L4), "no folder"),
        (("e2b", *L4, "--kv-cache-memory-bytes", "much"), "not a size"),
        (("e2b", *L4, "--gpu-memory-utilization", "2"), "cannot be"),
    ],
)
def test_what_is_not_understood_is_neither(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Status 2, and the sentence on stderr."""
    assert main(list(words)) == 2
    written = capsys.readouterr()
    assert (said in written.err, written.out) == (True, "")


def test_an_unknown_accelerator_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """argparse lists the ones that there are."""
    with pytest.raises(SystemExit) as refused:
        main(["e2b", "--accelerator", "abacus"])
    assert refused.value.code == 2
    assert "rtx-3090" in capsys.readouterr().err
