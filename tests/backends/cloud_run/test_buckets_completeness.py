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


def but(**sizes: int | None) -> dict[str, int]:
    """Give the whole with other sizes of some files; None takes one away."""
    found: dict[str, int] = {}
    for name, size in WHOLE.items():
        other = next((value for key, value in sizes.items() if NAMES[key] == name), size)
        if other is not None:
            found[name] = other
    return found


NAMES = {"config": CONFIG, "tokenizer": "tokenizer.json", "one": ONE, "two": TWO}


@pytest.mark.parametrize(
    ("files", "said", "complete", "words"),
    [
        (WHOLE, index(), True, ""),
        (but(config=None), index(), False, "config"),
        (but(tokenizer=None), index(), False, "tokenizer"),
        (but(one=None), index(), False, ONE),
        (but(two=None), index(), False, TWO),
        (but(two=800), index(), False, "2,000"),
        (but(two=0), index(0), False, f"Empty: {TWO}."),
        ({"model.gguf": 5}, None, None, ""),
        ({CONFIG: 1, "tokenizer.model": 1}, None, False, "No weights"),
        (WHOLE, {"weight_map": {}}, False, ""),
        (WHOLE, {"weight_map": ["wrong"]}, False, ""),
    ],
)
def test_a_folder_is_judged_by_its_files(
    files: dict[str, int], said: dict[str, Any] | None, *, complete: bool | None, words: str
) -> None:
    judged = judge_files(files, said)
    assert judged[0] is complete
    assert words in judged[1]


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
