"""The plan beside a real vLLM: the same blocks, tokens and concurrency, to the digit."""

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from core.environment import inherited_environment
from logs.boot import read_boot
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import read_model
from planner.places import accelerator

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("planner")]

REAL_ENGINE = Path(__file__).parents[2] / ".vllm"
TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json")
KV_BYTES: Final = 50_000_001
FLAGS: Final = {
    "max_model_len": 4096,
    "max_num_batched_tokens": 1024,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": KV_BYTES,
}
SMALL: Final = {
    "dtype": "bfloat16",
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "max_position_embeddings": 8192,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def pattern(letters: str) -> list[str]:
    return [{"s": "sliding_attention", "f": "full_attention"}[letter] for letter in letters]


def gemma4(letters: str, **more: Any) -> dict[str, Any]:
    return {
        **SMALL,
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "tie_word_embeddings": True,
        "layer_types": pattern(letters),
        "num_hidden_layers": len(letters),
        "sliding_window": 256,
        "head_dim": 32,
        "global_head_dim": 64,
        "num_key_value_heads": 4,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 2048,
        **more,
    }


MODELS: Final = {
    "shared cache, keys that are values, larger heads in full layers": gemma4(
        "sssfsssfsf", num_kv_shared_layers=2, attention_k_eq_v=True, num_global_key_value_heads=2
    ),
    "pages that do not divide each other, nearly as many full layers": gemma4(
        "sfsfsff",
        num_attention_heads=12,
        num_key_value_heads=3,
        attention_k_eq_v=True,
        num_global_key_value_heads=2,
    ),
    "one head size, one full layer in six": {
        **SMALL,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": 512,
        "layer_types": pattern("sssssfss"),
    },
    "full attention everywhere": {
        **SMALL,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "tie_word_embeddings": False,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
    },
}


ENGINES: Final = """
import json, os, sys
from vllm import LLM
for folder in sys.argv[2:]:
    if os.fork():
        os.wait()
        continue
    os.dup2(os.open(f"{folder}/log", os.O_CREAT | os.O_WRONLY), 1)
    os.dup2(1, 2)
    engine = LLM(folder, load_format="dummy", enforce_eager=True, **json.loads(sys.argv[1]))
    with open(f"{folder}/cache.json", "w") as file:
        json.dump(vars(engine.llm_engine.vllm_config.cache_config), file, default=str)
    os._exit(0)
"""
"""Makes an engine for each folder; vLLM is imported once, which takes longer than all of them."""
OFFLINE: Final = ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Of each model its folder, with what a real vLLM said of it; 25 s."""
    if not (REAL_ENGINE / "complete").exists():
        pytest.fail("There is no real vLLM in .vllm: run `make vllm`.")
    folders = {name: tmp_path_factory.mktemp("model") for name in MODELS}
    for name, folder in folders.items():
        (folder / "config.json").write_text(json.dumps(MODELS[name]))
        for file in TOKENIZER:
            shutil.copy(REAL_ENGINE / "tiny-gemma-4" / file, folder)
    env = {**inherited_environment(), **dict.fromkeys(OFFLINE, "1")}
    env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    python = str(REAL_ENGINE / "bin" / "python")
    argv = [python, "-c", ENGINES, json.dumps(FLAGS), *map(str, folders.values())]
    anyio.run(partial(anyio.run_process, argv, env=env))
    return folders


@pytest.mark.parametrize("name", MODELS)
def test_the_plan_is_what_the_engine_says(name: str, folders: Mapping[str, Path]) -> None:
    """Blocks, tokens and concurrency are those of vLLM's log and of its own records."""
    folder = folders[name]
    plan = plan_memory(read_model(str(folder)), accelerator("cpu"), Flags.model_validate(FLAGS))
    kv, log = plan.kv_expected, (folder / "log").read_text(errors="replace")
    assert (folder / "cache.json").exists(), log[-4000:]
    cache = json.loads((folder / "cache.json").read_text())
    memory = read_boot(log.splitlines(), now=datetime.now(UTC)).memory
    assert (cache["num_gpu_blocks"], cache["block_size"]) == (kv.num_blocks, kv.block_size)
    assert cache["kv_cache_size_tokens"] == memory.kv_cache_tokens == kv.kv_tokens
    assert cache["kv_cache_max_concurrency"] == kv.max_concurrency
    assert f"{kv.max_concurrency:.2f}" == f"{memory.max_concurrency:.2f}"
    assert plan.fits
