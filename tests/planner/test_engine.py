"""The plan beside a real vLLM: the same blocks, tokens and concurrency, to the digit."""

import contextlib
import json
import shutil
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import pytest

from core.metrics import CacheConfig, MetricsPage
from logs.boot import BootMemory, read_boot
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import read_model
from planner.places import accelerator

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

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


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (REAL_ENGINE / "complete").exists():
        pytest.fail("There is no real vLLM in .vllm: run `make vllm`.")
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    for name in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "1")


@pytest.mark.parametrize("name", MODELS)
async def test_the_plan_is_what_the_engine_says(name: str, tmp_path: Path) -> None:
    """Blocks, tokens and concurrency are those of vLLM's log and of its metrics."""
    # One test takes about 13 s: a real engine boots, its weights made up by itself.
    folder = model_folder(tmp_path, MODELS[name])
    plan = plan_memory(read_model(str(folder)), accelerator("cpu"), Flags.model_validate(FLAGS))
    kv = plan.kv_expected
    async with booted(folder) as (cache, memory):
        assert (cache.num_gpu_blocks, cache.block_size) == (kv.num_blocks, kv.block_size)
        assert cache.kv_cache_size_tokens == memory.kv_cache_tokens == kv.kv_tokens
        assert cache.kv_cache_max_concurrency == kv.max_concurrency
        assert f"{kv.max_concurrency:.2f}" == f"{memory.max_concurrency:.2f}"
    assert plan.fits


def model_folder(tmp_path: Path, config: dict[str, Any]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER:
        shutil.copy(REAL_ENGINE / "tiny-gemma-4" / name, tmp_path)
    return tmp_path


@contextlib.asynccontextmanager
async def booted(folder: Path) -> AsyncIterator[tuple[CacheConfig, BootMemory]]:
    port = _free_port()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in FLAGS.items()]
    where = ("--host", "127.0.0.1", "--port", str(port))
    serve = (str(REAL_ENGINE / "bin" / "vllm"), "serve", str(folder), *where, *flags)
    log = Log(folder / "log")
    async with (
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        await anyio.open_process(
            [*serve, "--load-format=dummy", "--enforce-eager"], stdout=log.file, stderr=log.file
        ) as process,
    ):
        try:
            page = await _metrics(client, process, log)
            yield MetricsPage(page).engine().cache, log.memory()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            log.file.close()


class Log:
    """What an engine writes, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file = path.open("wb")

    def lines(self) -> list[str]:
        return self._path.read_text(errors="replace").splitlines()

    def end(self) -> str:
        return "\n".join(self.lines()[-40:])

    def memory(self) -> BootMemory:
        return read_boot(self.lines(), now=datetime.now(UTC)).memory


async def _metrics(client: httpx2.AsyncClient, process: anyio.abc.Process, log: Log) -> str:
    for _ in range(600):
        assert process.returncode is None, log.end()
        with contextlib.suppress(httpx2.ConnectError):
            return (await client.get("/metrics")).text
        await anyio.sleep(0.2)
    raise TimeoutError(log.end())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
