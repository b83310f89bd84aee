"""A model's folder, as people leave it: missing, half copied, nonsense inside."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from core.errors import ModelNotFound
from core.records import ModelShape
from planner.model import is_path, read_model, shape_of
from tests.planner.folders import write_safetensors
from tests.planner.nonsense import nearly_right, odd_configs
from tests.planner.shapes import LLAMA_8B


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
    shape = read_model("acme/some-model")
    assert (shape.weight_bytes, shape.layers) == (None, ())
    assert shape.unknown


def test_a_checkpoint_says_what_it_is(folder: Path) -> None:
    """Architecture, longest sequence, type of number, and the size of its weights."""
    write_safetensors(folder / "model-00001-of-00002.safetensors", {"a": ("BF16", [350], 2)})
    write_safetensors(folder / "model-00002-of-00002.safetensors", {"b": ("BF16", [150], 2)})
    (folder / "model.safetensors.index.json").write_bytes(b"{}")
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "compressed-tensors"},
    }
    shape = read_model(write(folder, config))
    files = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert (shape.model, shape.architecture) == (str(folder), "Gemma3ForCausalLM")
    assert (shape.max_position_embeddings, shape.dtype) == (32768, "bfloat16")
    assert (shape.quantization, shape.weight_bytes) == ("compressed-tensors", files)
    assert sum(group.stored_bytes for group in shape.groups) == 1000


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
    """As an interrupted download leaves them: neither they nor what is there are counted."""
    write_safetensors(folder / "model-00001-of-00002.safetensors", {"a": ("BF16", [350], 2)})
    (folder / "model-00002-of-00002.safetensors").symlink_to(folder / "gone")
    shape = read_model(write(folder, LLAMA_8B))
    assert shape.weight_bytes is None
    assert shape.unknown == ("There is no file behind model-00002-of-00002.safetensors.",)
    assert {group.provenance for group in shape.groups} == {"config.json"}


@pytest.mark.parametrize(
    "index",
    ["", "[]", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": []}}'],
)
def test_an_index_that_lists_nothing_is_said(folder: Path, index: str) -> None:
    """Whether the files are all there is then not known."""
    (folder / "model.safetensors.index.json").write_text(index, "utf-8")
    assert "model.safetensors.index.json cannot be read" in read_model(write(folder, {})).unknown[0]


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "../x", "", "\ud800"])
def test_an_index_may_list_impossible_names(folder: Path, name: str) -> None:
    """They are files that are not there."""
    index = {"weight_map": {str(number): f"{name}{number}" for number in range(9)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    said = read_model(write(folder, {})).unknown[0]
    assert "not there" in said
    assert "and 4 more" in said


@pytest.mark.parametrize(
    "model",
    [
        "/nowhere/at/all",
        "~nobody-of-that-name/x",
        "~\0",
        "/a\0b",
        "/\ud800",
        "/" + "x" * 5000,
        "/dev/null",
    ],
)
def test_a_folder_that_is_none_is_told(model: str) -> None:
    """Missing, of nobody, too long to exist, or no folder."""
    with pytest.raises(ModelNotFound) as caught:
        read_model(model)
    assert caught.value.summary.startswith("There is no folder")
    assert caught.value.summary.encode()
    assert caught.value.fix


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    """It could not be written into a reply."""
    made = tmp_path / os.fsdecode(b"gemma-\xff")
    made.mkdir()
    with pytest.raises(ModelNotFound):
        read_model(write(made, LLAMA_8B))


@pytest.mark.parametrize(
    ("name", "words"), [("model.safetensors", "config.json"), ("model-Q4_K_M.gguf", "made from")]
)
def test_a_file_is_no_folder(folder: Path, name: str, words: str) -> None:
    """Weights named instead of their folder: "There is no folder" sent people to check the path."""
    (folder / name).touch()
    with pytest.raises(ModelNotFound, match="is no folder") as caught:
        read_model(str(folder / name))
    assert words in caught.value.fix


@pytest.mark.parametrize(
    ("name", "words"),
    [("adapter_config.json", "--enable-lora"), ("model-Q4_K_M.gguf", "GGUF"), ("x", "config.json")],
)
def test_what_a_folder_holds_instead_of_a_model_has_its_own_next_step(
    folder: Path, name: str, words: str
) -> None:
    (folder / name).touch()
    with pytest.raises(ModelNotFound) as caught:
        read_model(str(folder))
    assert words in caught.value.fix


@pytest.mark.parametrize("text", [None, "", "{", '{"a": \udcff}', "\x00", "[" * 99999])
def test_a_folder_without_a_readable_configuration_holds_no_model(
    folder: Path, text: str | None
) -> None:
    """None, an empty one, half a one, bytes that are no text, too deep a one."""
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
        {"num_hidden_layers": "32", "hidden_size": 1e999, "num_attention_heads": -1},
        {"architectures": "x", "dtype": 1, "model_type": {}, "vocab_size": True},
        {"dtype": "\ud800", "vision_config": [], "audio_config": 1},
    ],
)
def test_what_a_configuration_does_not_say_is_not_known(folder: Path, config: object) -> None:
    """Lists and words where records are expected are passed over, and that is said."""
    shape = read_model(write(folder, config))
    assert shape.unknown
    assert shape.model_copy(update={"unknown": ()}) == ModelShape(model=str(folder))


def test_a_device_is_no_configuration(folder: Path) -> None:
    """It would be read for ever."""
    (folder / "config.json").symlink_to("/dev/zero")
    with pytest.raises(ModelNotFound):
        read_model(str(folder))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers of config.json"),
        ({"num_key_value_heads": [8, 8]}, "num_key_value_heads of config.json"),
        ({"layer_types": ["full_attention"]}, "names 1 of 32 layers"),
        ({"layer_types": [{}]}, "layer_types of config.json"),
        ({"per_layer_config": {"0": 1}}, "0 is no JSON object"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings of config.json"),
        ({"quantization_config": [1]}, "quantization_config is no JSON object"),
        ({"quantization_config": {"quant_method": "awq", "bits": "4"}}, "bits of"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}},
            "weight_block_size of quantization_config",
        ),
        (
            {"quantization_config": {"quant_method": "awq", "ignore": ["re:("]}},
            "re:( is no pattern",
        ),
        (
            {"vision_config": {"model_type": "siglip_vision_model", "patch_size": 0}},
            "patch_size of vision_config",
        ),
    ],
)
def test_nothing_is_computed_from_nonsense(more: dict[str, Any], words: str) -> None:
    """There are no parameters, and a sentence names the field."""
    shape = shape_of("x", {**LLAMA_8B, **more})
    assert shape.groups == ()
    assert words in " ".join(shape.unknown)


def test_nonsense_that_is_not_needed_costs_nothing(folder: Path) -> None:
    """Files say what they weigh, whatever their config says of MLPs."""
    write_safetensors(folder / "model.safetensors", {"a": ("BF16", [350], 2)})
    shape = read_model(write(folder, {**LLAMA_8B, "intermediate_size": [1] * 32}))
    assert (len(shape.layers), len(shape.groups)) == (32, 1)
    assert "intermediate_size" in shape.unknown[0]


@given(nearly_right)
def test_any_configuration_is_read(config: dict[str, Any]) -> None:
    """Whatever stands where in it, there is a shape, and it can be written down."""
    assert shape_of("x", config).model_dump_json()


@given(odd_configs)
def test_any_configuration_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, config: Any
) -> None:
    """Whatever stands in a file, there is no other error than ours."""
    folder = write(tmp_path_factory.getbasetemp(), config)
    try:
        assert read_model(folder).model == folder
    except ModelNotFound as exc:
        assert exc.fix  # noqa: PT017  either way is right
