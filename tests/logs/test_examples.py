"""What no entry of the catalogue knows is named by the failures that it is worded like."""

import pytest

from logs.examples import FILE, closest, examples
from logs.failures import (
    SPEAKERS,
    WRITERS,
    Writer,
    catalogue,
)
from logs.verdict import UNKNOWN_CAUSE, Judge, Verdict
from tests.measure_diagnosis import examples as written

HEADS = (
    "(EngineCore pid=7) ERROR 11-20 11:32:07 [core.py:1510] EngineCore failed to start.",
    "(EngineCore pid=7) ERROR 11-20 11:32:07 [core.py:1510] Traceback (most recent call last):",
)
GREATER = (
    "WorkloadError: User-specified window is greater than the derived window in model's"
    " config.json. This may lead to incorrect model outputs"
)
"""In words of nobody's, near to those of a known refusal."""
ODD = "WorkloadError: the moon stands in the seventh house and no kettle boils"


def judged(
    line: str, writer: Writer = "engine", *, by_example: bool = True, head: str = ""
) -> Verdict | None:
    judge = Judge(writer, mixed=True, by_example=by_example)
    judge.feed([*HEADS, *filter(None, [head]), f"(EngineCore pid=7) {line}"])
    return judge.verdict()


def test_the_examples_are_those_of_the_public_failures() -> None:
    """Of the open ones: `python -m tests.measure_diagnosis --examples` writes them anew."""
    assert FILE.read_text("utf-8") == written()


def test_an_example_is_of_a_kind_that_the_catalogue_has_advice_for() -> None:
    """Or of none."""
    known = {entry.code for writer in WRITERS for entry in catalogue(writer)}
    assert {one.kind for one in examples()} - known == {"-"}
    assert {one.writer for one in examples()} == set(WRITERS)


def test_what_no_entry_knows_is_named_by_what_it_is_worded_like() -> None:
    """With the advice of that kind, the line's own words, and words to search for if it is not."""
    known, unknown = judged(GREATER), judged(GREATER, by_example=False)
    assert known is not None
    assert unknown is not None
    assert (known.failure.code, unknown.failure.code) == ("MAX_MODEL_LEN_TOO_LONG", UNKNOWN_CAUSE)
    assert GREATER in known.failure.cause
    assert "In words most like" in known.failure.cause
    assert "{" not in known.failure.fix
    assert "github.com/vllm-project/vllm" in known.failure.fix
    assert known.search
    assert known.number == unknown.number == 3
    assert known.rank == "cause"
    assert known.failure.evidence[0] == GREATER
    assert set(unknown.failure.evidence) <= set(known.failure.evidence)


def test_of_several_entries_of_a_kind_the_one_that_fits_the_example_advises() -> None:
    """A kernel that wants more shared memory is not told of DeepGEMM, which stands first."""
    line = "Triton out of resource shared memory Required 66560 Hardware limit 65536,"
    verdict = judged(f"WorkloadError: {line} reduce block sizes or num_stages")
    assert verdict is not None
    assert verdict.failure.code == "NO_KERNEL_FOR_ACCELERATOR"
    assert "65536 bytes" in verdict.failure.fix


@pytest.mark.parametrize("writer", ["engine", "aca", "cloud_run", "tpu", "ollama"])
def test_what_is_worded_like_nothing_stays_unknown(writer: Writer) -> None:
    """And no few words, frame or header are ever like one."""
    speakers = SPEAKERS[writer]
    assert closest([ODD], speakers) is None
    assert closest(["max_lora_rank", 'File "/srv/a.py", line 3, in rank'], speakers) is None
    assert closest([], speakers) is None


def test_what_healthy_logs_say_and_faults_of_the_engine_name_nothing() -> None:
    """Nearest to such a line is nearest to no kind."""
    for one in [one for one in examples() if one.kind == "-"][::40]:
        found = closest([one.text], SPEAKERS["engine"])
        assert found is None or found.example.text != one.text


def test_a_kind_of_another_writer_is_no_log_s_own() -> None:
    """An engine is never told what only Ollama has."""
    for one in [one for one in examples() if one.writer == "ollama"][::20]:
        found = closest([one.text], SPEAKERS["engine"])
        assert found is None or found.example.writer == "engine"


def test_what_a_known_cause_explains_is_left_to_it() -> None:
    """A likeness speaks only where no entry does."""
    verdict = judged("torch.OutOfMemoryError: CUDA out of memory.", head=GREATER)
    assert verdict is not None
    assert verdict.failure.code == "DOES_NOT_FIT"
