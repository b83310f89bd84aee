"""Files that are called safetensors and are none."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ModelNotFound
from planner.model import read_headers, read_model
from tests.planner.folders import write_safetensors
from tests.planner.nonsense import odd
from tests.planner.shapes import LLAMA_8B

GOOD = {"dtype": "BF16", "shape": [2, 4], "data_offsets": [0, 16]}


def with_header(file: Path, header: Any, numbers: int = 16) -> Path:
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(numbers))
    return file


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\1\0\0",
        bytes(8),
        b"version https://git-lfs.github.com/spec/v1",
        b"\xff" * 64,
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"\xff\xff",
        (99999).to_bytes(8, "little") + b"[" * 99999,
    ],
)
def test_a_broken_header_is_refused(tmp_path: Path, content: bytes) -> None:
    """Short, huge, no JSON, no object, no text, too deep; the file is named."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelNotFound, match=r"model\.safetensors") as refused:
        read_model(str(tmp_path))
    assert refused.value.fix
    assert refused.value.cause


@pytest.mark.parametrize(
    "wrong",
    [
        {"data_offsets": [-16, 0]},
        {"data_offsets": [16, 0]},
        {"data_offsets": [0, 10**30]},
        {"data_offsets": [0, 17]},
        {"data_offsets": [0]},
        {"data_offsets": None},
        {"data_offsets": ["0", "16"]},
        {"shape": [-2, -4]},
        {"shape": [2.0, 4]},
        {"shape": [10**12] * 16},
        {"shape": [1] * 10**5},
        {"shape": "24"},
        {"dtype": ["BF16"]},
    ],
)
def test_a_tensor_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Outside its file, with more numbers than bits, or not described at all."""
    with pytest.raises(ModelNotFound):
        read_headers([with_header(tmp_path / "model.safetensors", {"a": {**GOOD, **wrong}})])


def test_a_name_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    """Python would not make a number of it."""
    header = {f"model.layers.{'9' * 5000}.k_proj.weight": GOOD}
    with pytest.raises(ModelNotFound):
        read_headers([with_header(tmp_path / "model.safetensors", header)])


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    """A download stopped within the numbers, after a header that is right."""
    file = tmp_path / "model.safetensors"
    write_safetensors(file, {"a": ("BF16", [350], 2)})
    assert read_headers([file])
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(ModelNotFound):
        read_headers([file])


def test_a_pipe_is_no_file_of_weights(tmp_path: Path) -> None:
    """Reading it would wait for ever."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    os.mkfifo(tmp_path / "model.safetensors")
    assert "There is no file behind model.safetensors." in read_model(str(tmp_path)).unknown


@given(st.dictionaries(st.sampled_from(["a", "__metadata__"]), odd | st.just(GOOD)) | odd)
def test_any_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, header: Any
) -> None:
    """There is no other error than ours."""
    folder = tmp_path_factory.getbasetemp()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    with_header(folder / "model.safetensors", header)
    try:
        assert read_model(str(folder)).model_dump_json()
    except ModelNotFound as exc:
        assert exc.fix  # noqa: PT017  either way is right
