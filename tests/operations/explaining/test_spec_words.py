"""Flags as people write them, put into a spec."""

from typing import Any

import pytest

from core.errors import InvalidArgument
from core.records import DeploymentSpec
from operations.explain_case import changed, plain, rest

SPEC = DeploymentSpec(name="one", model="acme/m", max_model_len=4096)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-model-len=8192"], {"max_model_len": 8192}),
        (["--max-model-len", "8192"], {"max_model_len": 8192}),
        (["--max-model-len 8192 --enforce-eager"], {"max_model_len": 8192, "enforce_eager": True}),
        (["--max-model-len=32K"], {"max_model_len": 32768}),
        (["max_model_len=32k"], {"max_model_len": 32000}),
        (["--enforce-eager", "min_replicas=0"], {"enforce_eager": True, "min_replicas": 0}),
        (["--no-enforce-eager"], {"enforce_eager": False}),
        (["-tp", "2"], {"tensor_parallel_size": 2}),
        (["--gpu-memory-utilization=0.9"], {"gpu_memory_utilization": 0.9}),
        (["zones=a,b"], {"zones": ("a", "b")}),
        (["--max-model-len = 8192"], {"max_model_len": 8192}),
        (["max_model_len 8192"], {"max_model_len": 8192}),
        (["--max-model-len", "=", "8192"], {"max_model_len": 8192}),
        (["--block-size 32"], {"engine_args": ("--block-size", "32")}),
        (["max_num_seqs 4 --max-model-len 8192"], {"max_num_seqs": 4, "max_model_len": 8192}),
    ],
)
def test_a_flag_is_read_however_it_is_written(words: list[str], said: dict[str, Any]) -> None:
    """With a blank, an equals sign, several in one word, in vLLM's form or ours."""
    after = changed(SPEC, words)
    assert {name: getattr(after, name) for name in said} == said


def test_a_flag_that_is_given_again_takes_the_place_of_the_old_one() -> None:
    """Others stay; a value with blanks, such as JSON, is one word."""
    spec = SPEC.model_copy(
        update={"engine_args": ("--limit-mm-per-prompt", '{"image": 1}', "--block-size=16")}
    )
    after = changed(spec, ['--limit-mm-per-prompt={"image": 2}'])
    assert rest(after) == ("--block-size 16", '--limit-mm-per-prompt {"image": 2}')


def test_a_plain_spec_has_no_flag_in_two_places() -> None:
    """engine_args stand last on the command line, so there they would win."""
    spec = SPEC.model_copy(update={"engine_args": ("--max-model-len=1k", "--enforce-eager")})
    found = plain(spec)
    assert (found.max_model_len, found.enforce_eager, found.engine_args) == (1000, True, ())


@pytest.mark.parametrize(
    "words",
    [
        ['--block-size 16 --limit-mm-per-prompt {"image": 2}'],
        ["--block-size 16 --limit-mm-per-prompt '{\"image\": 2}'"],
        ["--block-size 16", '--limit-mm-per-prompt = {"image": 2}'],
        ['--block-size 16 --limit-mm-per-prompt {"image": 2} --max-num-seqs 4'],
    ],
)
def test_a_flag_and_its_json_in_one_string_are_two_words(words: list[str]) -> None:
    """A command line has them apart, as whatever guards a flag expects; the JSON stays whole."""
    found = changed(SPEC, words).engine_args
    assert found == ("--block-size", "16", "--limit-mm-per-prompt", '{"image": 2}')


@pytest.mark.parametrize(
    "words",
    [["8192"], ["--max-model-len"], ["--max-model-len=much"], ["--max-num-seqs=0"], ['"']],
)
def test_what_is_no_flag_is_refused(words: list[str]) -> None:
    """In our words, with what to give instead."""
    with pytest.raises(InvalidArgument) as refused:
        changed(SPEC, words)
    assert refused.value.fix


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key SECRET"],
        ['--limit-mm-per-prompt {"image": 2} --api-key SECRET'],
        ["--max-model-len", "4 --api-key SECRET"],
        ["--api-key", "SECRET", "SECRET"],
    ],
)
def test_a_key_is_refused_and_not_told(words: list[str]) -> None:
    """Wherever it stands among the words."""
    with pytest.raises(InvalidArgument) as refused:
        changed(SPEC, words)
    assert "SECRET" not in f"{refused.value.summary}{refused.value.fix}"


def test_what_was_deployed_once_can_be_read() -> None:
    """Its flags may be such as are refused today."""
    spec = SPEC.model_copy(update={"engine_args": ("--gpu-memory-util=0.4",)})
    assert plain(spec).engine_args == ("--gpu-memory-util", "0.4")
