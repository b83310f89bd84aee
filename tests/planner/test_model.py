"""What a model is, read from its files, its config or the catalog."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from core.errors import ModelNotFound, Unsupported
from planner.catalog import Entry, entries, find
from planner.model import catalog_shape, read_hub_model, read_model, shape_of
from tests.planner.folders import packed_folder
from tests.planner.shapes import (
    DEEPSEEK_MOE_16B,
    GLM_45,
    GLM_45_AIR,
    LLAMA_8B,
    MIXTRAL,
    QWEN3_8B,
    QWEN3_30B_A3B,
    QWEN15_MOE,
    QWEN25_7B,
    catalogued,
    gemma3,
    multimodal_gemma3,
)

QWEN_MOE = {**QWEN3_30B_A3B, "intermediate_size": 6144}
NAMES = {
    "26b qat": "google/gemma-4-26B-A4B-it-qat-w4a16-ct",
    "gemma-4-12b-qat": "google/gemma-4-12B-it-qat-w4a16-ct",
    "google/gemma-4-E2B-it": "google/gemma-4-E2B-it",
    "google/gemma-4-31B-it-qat-w4a16-ct": "google/gemma-4-31B-it-qat-w4a16-ct",
    "standard 26B": "google/gemma-4-26B-A4B-it",
    "gemma4 e4b": "google/gemma-4-E4B-it",
}


@pytest.mark.parametrize("entry", [each for each in entries() if not each.quantized])
def test_a_catalogued_model_has_the_published_parameters_and_bytes(entry: Entry) -> None:
    """The config reproduces the Hub's totals to the last parameter and byte."""
    shape = catalog_shape(entry.model)
    assert shape.parameters == entry.parameters
    assert sum(group.stored_bytes for group in shape.groups) == entry.stored_bytes
    assert {group.provenance for group in shape.groups} == {"catalog"}
    assert shape.unknown == ()


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("e2b qat", 8.32), ("12b qat", 10.26), ("31b qat", 23.3)]
)
def test_a_quantized_file_has_its_published_size(name: str, gigabytes: float) -> None:
    """Linear layers in int4 with scales, the rest in bf16, and the output layer stored again."""
    assert (catalogued(name).weight_bytes or 0) / 1e9 == pytest.approx(gigabytes, rel=0.002)


@pytest.mark.parametrize(
    ("said", "factor"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 8.0),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, 8.0),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}}, 8.0),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, 1.0),
        ({}, 1.0),
    ],
)
def test_positions_are_stretched_as_config_json_says(said: dict[str, Any], factor: float) -> None:
    """In its older forms, and by kind of layer as newer ones have it; a table is as much longer."""
    assert shape_of("llama-8b", {**LLAMA_8B, **said}).rope_factor == factor


@pytest.mark.parametrize(("said", "meant"), NAMES.items())
def test_short_names_find_the_model(said: str, meant: str) -> None:
    """People do not type Hub ids."""
    assert read_model(said).model == meant


@pytest.mark.parametrize(
    "name",
    ["google/gemma-3-4b-it", "RedHatAI/gemma-4-31B-it", "gemma-4-12B-it-qat-q4_0-gguf", "12b 26b"],
)
def test_another_model_is_not_mistaken_for_a_catalogued_one(name: str) -> None:
    """What is not in the catalog has the thin shape, and says so."""
    shape = read_model(name)
    assert find(name) is None
    assert (shape.model, shape.layers, shape.groups) == (name, (), ())
    assert shape.unknown


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_8B, 8_030_261_248),
        (QWEN3_8B, 8_190_735_360),
        (QWEN25_7B, 7_615_616_512),
        (QWEN3_30B_A3B, 30_532_122_624),
        (MIXTRAL, 46_702_792_704),
        (QWEN15_MOE, 14_315_784_192),
        (DEEPSEEK_MOE_16B, 16_375_728_128),
        # 110,468,824,832 and 358,337,791,296 are published: with a layer that only drafts.
        (GLM_45_AIR, 110_468_824_832 - 3_616_573_568),
        (GLM_45, 358_337_791_296 - 5_539_962_272),
        # A dense MLP in place of the experts of three layers, and of every other.
        ({**QWEN_MOE, "mlp_only_layers": [0, 1, 2]}, 28_832_643_072),
        ({**QWEN_MOE, "decoder_sparse_step": 2}, 16_936_286_208),
        (multimodal_gemma3(gemma3(34, 2560, 8, 4, 10240)), 4_300_079_472),
        (gemma3(18, 640, 4, 1, 2048), 268_098_176),
        (gemma3(26, 1152, 4, 1, 6912), 999_885_952),
        (gemma3(34, 2560, 8, 4, 10240), 3_880_099_328),
        (gemma3(48, 3840, 16, 8, 15360), 11_765_788_416),
        (gemma3(62, 5376, 32, 16, 21504), 27_009_002_240),
    ],
)
def test_parameters_are_counted_from_a_config(config: dict[str, Any], parameters: int) -> None:
    """Llama, Qwen, Mixtral, GLM, DeepSeek and Gemma 3 have their published parameter counts."""
    shape = shape_of("x", config)
    assert shape.parameters == parameters
    assert {group.provenance for group in shape.groups} == {"config.json"}


def test_a_gemma_has_a_full_layer_in_six_where_its_config_does_not_say() -> None:
    """Gemma 3's configs leave their pattern out."""
    kinds = [layer.attention for layer in shape_of("x", gemma3(26, 1152, 4, 1, 6912)).layers]
    assert kinds.count("full") == 4
    assert kinds[:6] == ["sliding"] * 5 + ["full"]


def test_layers_that_transformers_wrote_one_by_one_are_read() -> None:
    """Since 5.15 it writes per_layer_config in place of the global head size."""
    config = {
        **gemma3(2, 640, 4, 2, 2048),
        "model_type": "gemma4_text",
        "layer_types": ["sliding_attention", "full_attention"],
        "per_layer_config": {"1": {"head_dim": 512, "num_key_value_heads": 1}},
    }
    sliding, full = shape_of("x", config).layers
    assert (sliding.head_size, sliding.kv_heads) == (256, 2)
    assert (full.head_size, full.kv_heads, full.window) == (512, 1, None)


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, [4096] * 4),
        ({"sliding_window": 4096}, [None] * 4),
        (
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 2},
            [None, None, 4096, 4096],
        ),
        ({"sliding_window": 512, "sliding_window_pattern": 2}, [512, None, 512, None]),
    ],
)
def test_windows_are_read_as_each_family_writes_them(
    more: dict[str, Any], windows: list[int | None]
) -> None:
    """A window that is given is not always used."""
    shape = shape_of("x", {**LLAMA_8B, "num_hidden_layers": 4, **more})
    assert [layer.window for layer in shape.layers] == windows


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"hybrid_override_pattern": "M-M*"}, "state-space"),
        ({"attn_type_list": [0, 1]}, "linear attention"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"model_type": "novel"}, "novel"),
        ({"quantization_config": {"quant_method": "newest"}}, "newest"),
        ({"vision_config": {"model_type": "eye"}}, "eye"),
    ],
)
def test_what_cannot_be_read_is_said(more: dict[str, Any], words: str) -> None:
    """Nothing is guessed: there are no parameters, and a sentence says why."""
    shape = shape_of("x", {**LLAMA_8B, **more})
    assert shape.groups == ()
    assert words in " ".join(shape.unknown)


def test_headers_count_to_the_byte(tmp_path: Path) -> None:
    """Packed weights are unpacked, scales are bytes and no parameters, a tied head is not held."""
    shape = read_model(str(packed_folder(tmp_path)))
    linear, head = shape.group("linear"), shape.group("lm_head")
    assert linear
    assert (linear.parameters, linear.stored_bytes) == (64 * 64, 64 * 32 + 64 * 2 * 2)
    assert head
    assert (head.stored_bytes, head.resident_bytes) == (100 * 64 * 2, 0)
    assert shape.parameters == 64 * 64 + 100 * 64 + 64
    assert linear.provenance == "safetensors headers"
    assert (shape.quantization, shape.quantization_bits) == ("compressed-tensors", 4)
    assert shape.quantization_ignored == ("lm_head",)


def test_a_missing_file_is_said_and_the_config_is_computed(tmp_path: Path) -> None:
    """A half-copied model is not planned as a smaller one."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shape = read_model(str(tmp_path))
    assert "model-00001-of-00002.safetensors" in shape.unknown[0]


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    """A Git LFS pointer in place of weights is the usual case."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        read_model(str(tmp_path))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """Neither a missing folder nor one without config.json is a model."""
    with pytest.raises(ModelNotFound, match="no folder"):
        read_model(str(tmp_path / "nothing"))
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        read_model(str(tmp_path))


def test_without_its_library_the_hub_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do instead."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(Unsupported, match="huggingface_hub is not installed") as refused:
        read_hub_model("google/gemma-3-4b-it")
    assert "catalog" in refused.value.fix


def test_the_layers_of_a_copy_are_counted_anew() -> None:
    """A plan for fewer layers is not made with those of the whole model."""
    shape = catalog_shape("google/gemma-4-E2B-it")
    assert sum(count for _, count in shape.layer_kinds) == len(shape.layers)
    fewer = shape.model_copy(update={"layers": shape.layers[:3]})
    assert sum(count for _, count in fewer.layer_kinds) == 3
