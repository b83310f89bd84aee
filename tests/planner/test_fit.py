"""`python -m planner fit`, as a person and a program use it."""

import json
from typing import Any

import pytest

from planner.__main__ import main

PROMISED = {
    "weights_gib",
    "load_peak_gib",
    "kv_cache_gib",
    "num_blocks",
    "block_size",
    "kv_tokens",
    "max_concurrency",
    "max_len_that_fits",
    "fits",
    "reasons",
}
L4 = ("--accelerator", "l4")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["fit", *words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, found


def test_a_program_reads_the_promised_names(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has them all, and the status is the verdict."""
    status, found = answer(capsys, "12b qat", *L4, "--max-model-len", "32768")
    assert status == 0
    assert set(found) >= PROMISED
    assert set(found["kv_cache_gib"]) == {"low", "expected", "high"}
    assert found["fits"] is True
    assert found["reasons"] == []


def test_what_does_not_fit_has_another_status(capsys: pytest.CaptureFixture[str]) -> None:
    """And its reason."""
    status, found = answer(capsys, "31b qat", *L4)
    assert (status, found["fits"]) == (1, False)
    assert "22.10 GiB to load" in found["reasons"][0]


def test_a_given_cache_is_divided(capsys: pytest.CaptureFixture[str]) -> None:
    """Its GiB, and vLLM's own flags, are enough for blocks and tokens."""
    _, found = answer(
        capsys,
        *("gemma-4-26b", "--accelerator", "rtx-3090", "--count", "2"),
        *("--kv-cache-memory-gib", "10.17", "--max-model-len", "8192"),
        *("--max-num-batched-tokens", "4096", "--vllm-version", "0.21.0"),
    )
    assert (found["num_blocks"], found["block_size"]) == (33_325, 16)
    assert found["kv_tokens"] == pytest.approx(146_668, rel=0.002)
    assert found["max_concurrency"] == pytest.approx(17.9, abs=0.02)


def test_switches_are_vllms(capsys: pytest.CaptureFixture[str]) -> None:
    """--enforce-eager takes no graphs, --no-async-scheduling one batch less."""
    _, plain = answer(capsys, "12b qat", *L4)
    _, eager = answer(capsys, "12b qat", *L4, "--enforce-eager", "--no-async-scheduling")
    assert eager["kv_cache_gib"]["expected"] > plain["kv_cache_gib"]["expected"]
    assert "CUDA graphs" not in {part["name"] for part in eager["parts"]}


def test_a_person_sees_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, work, cache and what stays free, and the verdict in the first line."""
    assert main(["fit", "12b qat", *L4, "--max-model-len", "32768"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("fits")
    drawn = next(line for line in lines if "[" in line).strip()
    assert len(drawn) == 62
    assert drawn.index("#") < drawn.index("+") < drawn.index("=") < drawn.index(".")
    assert "requests of 32,768 tokens at once" in "\n".join(lines)


def test_a_person_sees_why_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Above the bar."""
    assert main(["fit", "31b qat", *L4]) == 1
    assert "! It runs out of memory while loading" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("someone/something", *L4), "cannot be planned"),
        (("/nowhere/at/all", *L4), "no folder"),
        (("e2b", *L4, "--kv-cache-memory-bytes", "much"), "not a size"),
        (("e2b", *L4, "--gpu-memory-utilization", "2"), "cannot be"),
        (("e2b", *L4, "--count", "2", "--tensor-parallel-size", "4"), "4 accelerators"),
    ],
)
def test_what_is_not_understood_is_neither(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Status 2, and the sentence on stderr."""
    assert main(["fit", *words]) == 2
    assert said in capsys.readouterr().err


def test_an_unknown_accelerator_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """argparse lists the ones that there are."""
    with pytest.raises(SystemExit) as refused:
        main(["fit", "e2b", "--accelerator", "abacus"])
    assert refused.value.code == 2
    assert "rtx-3090" in capsys.readouterr().err


def test_another_size_of_memory_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    """A host's memory, or a slice of a card."""
    _, found = answer(capsys, "e2b qat", *L4, "--accelerator-memory-gib", "11")
    assert found["visible_gib"] == 11
