"""What engine_args may not hold, and what of them the planner reads."""

from typing import Any

import pytest

from core.errors import InvalidArgument
from core.records import DeploymentSpec
from planner.flags import Flags, engine_flags, engine_words


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key SECRET"],
        ["--api-key=SECRET"],
        ["--api_key", "SECRET"],
        ["--api-key.a", "SECRET"],
        ["--seed=1 --hf-token SECRET"],
        ["--max-num-seqs", "4 --api-key SECRET"],
        ['{"image": 2} --api-key SECRET'],
        ["--x", '"a --api-key SECRET'],
        ["--api-key\u00a0SECRET"],
    ],
)
def test_a_key_is_refused_however_it_is_written(words: list[str]) -> None:
    """The refusal has the flag, never its value."""
    with pytest.raises(InvalidArgument) as refused:
        engine_words(words)
    assert "SECRET" not in f"{refused.value.summary}{refused.value.fix}"


@pytest.mark.parametrize(
    ("word", "whole"),
    [
        ("--gpu-memory-util=0.4", "--gpu-memory-utilization"),
        ("--gpu_memory_util 0.4", "--gpu-memory-utilization"),
        ("--no-enforce", "--no-enforce-eager"),
        ("--hf-over.max_position_embeddings=9", "--hf-overrides"),
        ("--pipeline=2", "--pipeline-parallel-size"),
        ("-qfp8", "--quantization"),
    ],
)
def test_an_abbreviation_is_refused_with_the_whole_name(word: str, whole: str) -> None:
    """vLLM's parser takes it; whatever guards or plans would look for the name."""
    with pytest.raises(InvalidArgument) as refused:
        engine_words([word])
    assert whole in refused.value.fix


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "1", "--model-impl=auto", "--limit-mm-per-prompt", '{"image": 4}'],
        ["--quantization-param-path=/a", "-q=fp8", "-q", "fp8", "-tp", "2", "-1"],
        ["--hf-overrides.max_position_embeddings=9", "--chat-template=a -- b"],
    ],
)
def test_other_words_stay(words: list[str]) -> None:
    """They are the engine's own business."""
    assert list(engine_words(words)) == words


@pytest.mark.parametrize(
    "switch",
    [
        "enforce_eager",
        "async_scheduling",
        "language_model_only",
        "disable_chunked_mm_input",
        "disable_hybrid_kv_cache_manager",
    ],
)
def test_a_switch_can_be_turned_off_again(switch: str) -> None:
    """vLLM takes the last one said."""
    flag = switch.replace("_", "-")
    assert engine_flags([f"--{flag}", f"--no-{flag}"]) == {switch: False}
    assert engine_flags([f"--no-{flag}", f"--{flag}"]) == {switch: True}


def test_a_switch_that_is_turned_off_wins_over_its_field() -> None:
    """engine_args come last on the command line."""
    spec = DeploymentSpec(
        name="a", model="b", enforce_eager=True, engine_args=("--no-enforce-eager",)
    )
    assert Flags.of(spec).enforce_eager is False


@pytest.mark.parametrize("words", [["--enforce-eager=False"], ["--no-enforce-eager=1"]])
def test_a_switch_has_no_value(words: list[str]) -> None:
    """vLLM refuses to start with one."""
    with pytest.raises(InvalidArgument, match="takes no value"):
        engine_flags(words)


@pytest.mark.parametrize(
    "words", [("--gpu-memory-utilization 0.4",), ("--device-memory-utilization=0.4",)]
)
def test_a_specs_words_are_one_flag_or_value_each(words: tuple[str, ...]) -> None:
    """However they came; the other name of a flag is read too."""
    spec = DeploymentSpec(name="a", model="b", engine_args=words)
    assert Flags.of(spec).gpu_memory_utilization == 0.4


def test_a_value_that_cannot_be_is_not_told() -> None:
    """It may be a key that slipped."""
    said: dict[str, Any] = {"name": "a", "model": "b"}
    spec = DeploymentSpec(**said, engine_args=("--block-size", "SECRET"))
    with pytest.raises(InvalidArgument) as refused:
        Flags.of(spec)
    assert "SECRET" not in refused.value.summary
