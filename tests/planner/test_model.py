"""Checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ModelNotFound
from core.records import ModelShape
from planner.model import is_path, read_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "gemma"
    made.mkdir()
    return made


def write(folder: Path, config: object) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("/models/gemma", True),
        ("~/gemma", True),
        ("./gemma", True),
        ("../gemma", True),
        ("google/gemma-4-E2B-it", False),
        ("gpt2", False),
    ],
)
def test_a_folder_is_told_from_a_hub_id(model: str, *, path: bool) -> None:
    """By how it begins, as a shell would."""
    assert is_path(model) is path


def test_a_hub_id_says_nothing_of_itself() -> None:
    """Nothing is looked up and nothing guessed."""
    assert read_model("google/gemma-4-E2B-it") == ModelShape(model="google/gemma-4-E2B-it")


def test_a_checkpoint_says_what_it_is(folder: Path) -> None:
    """Architecture, longest sequence, type of number, and the size of its weights."""
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"x" * 700)
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"x" * 300)
    (folder / "model.safetensors.index.json").write_bytes(b"{}")
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "compressed-tensors"},
    }
    assert read_model(write(folder, config)) == ModelShape(
        model=str(folder),
        architecture="Gemma3ForCausalLM",
        max_position_embeddings=32768,
        dtype="bfloat16",
        quantization="compressed-tensors",
        weight_bytes=1000,
    )


def test_a_multimodal_model_keeps_its_length_inside(folder: Path) -> None:
    """What its text part says counts; what that leaves out is said outside."""
    config = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "max_position_embeddings": 1,
        "dtype": "float16",
        "text_config": {"max_position_embeddings": 131072},
        "vision_config": {"max_position_embeddings": 7},
    }
    shape = read_model(write(folder, config))
    assert (shape.max_position_embeddings, shape.dtype) == (131072, "float16")


def test_a_folder_is_given_by_its_real_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it was named: a link, a home, the folder one stands in."""
    write(folder, {})
    link = folder.parent / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder)
    for name in (str(link), "~/gemma", ".", "../gemma", f"{folder}/"):
        assert read_model(name).model == str(folder)


def test_a_link_to_weights_that_are_gone_weighs_nothing(folder: Path) -> None:
    """As an interrupted download leaves them."""
    (folder / "model.safetensors").symlink_to(folder / "gone")
    assert read_model(write(folder, {})).weight_bytes is None


@pytest.mark.parametrize(
    "model", ["/nowhere/at/all", "~nobody-of-that-name/x", "/" + "x" * 5000, "/dev/null"]
)
def test_a_folder_that_is_none_is_told(model: str) -> None:
    """Missing, of nobody, too long to exist, or no folder."""
    with pytest.raises(ModelNotFound) as caught:
        read_model(model)
    assert caught.value.summary.startswith("There is no folder")


def test_a_file_is_no_folder(folder: Path) -> None:
    """Weights named instead of their folder."""
    (folder / "model.safetensors").touch()
    with pytest.raises(ModelNotFound):
        read_model(str(folder / "model.safetensors"))


@pytest.mark.parametrize("text", [None, "", "{", '{"a": \udcff}', "\x00"])
def test_a_folder_without_a_readable_configuration_holds_no_model(
    folder: Path, text: str | None
) -> None:
    """None, an empty one, half a one, bytes that are no text."""
    if text is not None:
        (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ModelNotFound) as caught:
        read_model(str(folder))
    assert "config.json" in caught.value.summary
    assert caught.value.cause


@pytest.mark.parametrize(
    "config",
    [
        [],
        "x",
        {"text_config": None, "quantization_config": None, "architectures": None},
        {"text_config": [1], "quantization_config": "awq"},
    ],
)
def test_what_a_configuration_does_not_say_is_not_known(folder: Path, config: object) -> None:
    """Lists and words where records are expected are passed over."""
    assert read_model(write(folder, config)) == ModelShape(model=str(folder))


odd: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("x"), inner),
    max_leaves=3,
)
NAMES = ["text_config", "architectures", "dtype", "max_position_embeddings", "quantization_config"]


@given(st.dictionaries(st.sampled_from(NAMES), odd))
def test_any_configuration_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    """Whatever stands in it, there is no other error than ours."""
    folder = write(tmp_path_factory.getbasetemp(), config)
    try:
        assert read_model(folder).model == folder
    except ModelNotFound as exc:
        assert exc.fix  # noqa: PT017  either way is right
