"""A folder is a whole model, or the sentence says what is missing."""

import json
from typing import Any

import pytest

from backends.common.models import (
    CONFIG,
    INDEX,
    header_length,
    judge_files,
    model_of,
    parts,
    whole_size,
)

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WHOLE = {CONFIG: 700, INDEX: 900, "tokenizer.json": 4000, ONE: 1100, TWO: 1100}


def index(total: int = 2000) -> dict[str, Any]:
    return {"metadata": {"total_size": total}, "weight_map": {"a": ONE, "b": TWO, "c": TWO}}


def test_a_folder_with_everything_is_whole() -> None:
    assert judge_files(WHOLE, index()) == (True, "")


@pytest.mark.parametrize("name", [CONFIG, "tokenizer.json", ONE, TWO])
def test_a_folder_without_one_of_its_files_names_it(name: str) -> None:
    complete, detail = judge_files(
        {key: size for key, size in WHOLE.items() if key != name}, index()
    )
    assert complete is False
    assert name.removesuffix(".json") in detail


def test_files_that_hold_less_than_the_index_counts_are_not_whole() -> None:
    complete, detail = judge_files({**WHOLE, TWO: 800}, index())
    assert complete is False
    assert "2,000" in detail
    assert "1,900" in detail


def test_an_empty_file_is_not_whole() -> None:
    assert judge_files({**WHOLE, TWO: 0}, index(0)) == (False, f"Empty: {TWO}.")


def test_numbered_files_without_an_index_miss_what_they_number() -> None:
    complete, detail = judge_files({CONFIG: 1, "tokenizer.json": 1, TWO: 5}, None)
    assert complete is False
    assert ONE in detail


def test_a_part_of_a_gguf_model_misses_the_others() -> None:
    complete, detail = judge_files({"m-00001-of-00003.gguf": 5, "m-00003-of-00003.gguf": 5}, None)
    assert (complete, detail) == (False, "Not there: m-00002-of-00003.gguf.")


def test_a_single_gguf_file_cannot_be_judged() -> None:
    assert judge_files({"model.gguf": 5}, None).complete is None


def test_a_config_alone_holds_no_weights() -> None:
    complete, detail = judge_files({CONFIG: 1, "tokenizer.model": 1}, None)
    assert complete is False
    assert "No weights" in detail


def test_an_index_of_nothing_is_not_whole() -> None:
    assert judge_files(WHOLE, {"weight_map": {}}).complete is False
    assert judge_files(WHOLE, {"weight_map": ["wrong"]}).complete is False


def test_only_files_that_the_index_names_count() -> None:
    files = {**WHOLE, "consolidated.safetensors": 9}
    assert parts(files, index()) == [ONE, TWO]
    assert "consolidated.safetensors" in parts(files, None)


def test_a_header_tells_how_long_its_file_is() -> None:
    entry = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": entry}).encode()
    assert whole_size(header) == 8 + len(header) + 8
    assert header_length(len(header).to_bytes(8, "little")) == len(header)


@pytest.mark.parametrize("header", [b"", b"[]", b'{"w": 1}', b'{"w": {"data_offsets": [0]}}'])
def test_what_is_no_header_has_no_length(header: bytes) -> None:
    assert whole_size(header) is None


def test_a_pointer_of_git_lfs_is_no_header() -> None:
    assert header_length(b"version ") is None
    assert header_length(b"\x01") is None


@pytest.mark.parametrize(
    ("named", "model"),
    [("google/gemma-3-4b-it", "google/gemma-3-4b-it"), ("/srv/out/x", None), ("", None), (3, None)],
)
def test_a_config_names_a_model_of_the_hub_or_none(named: object, model: str | None) -> None:
    assert model_of({"_name_or_path": named}) == model
