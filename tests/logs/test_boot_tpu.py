"""vLLM's boot log on a TPU: the lines of a real boot, read by the same reader."""

from datetime import UTC, datetime
from typing import Final

import pytest

from logs.boot import BootLog, read_boot

NOW: Final = datetime(2026, 8, 11, 12, tzinfo=UTC)
FULL: Final = """\
ERROR 08-11 02:14:48 [tpu_info.py:40] Unable to poll TPU GCE Metadata. Got status code: 404
INFO 08-11 02:14:48 [__init__.py:76] TPU info: node_name=None | tpu_type=v6e-1 | worker_id=0 | \
num_chips=1 | num_cores_per_chip=1
(APIServer pid=1) INFO 08-11 02:15:01 [api_utils.py:273] non-default args: {'model': 'm'}
(APIServer pid=1) INFO 08-11 02:15:13 [model.py:645] Resolved architecture: \
Gemma4ForConditionalGeneration
(EngineCore pid=372) INFO 08-11 02:16:06 [core.py:121] Initializing a V1 LLM engine \
(v0.26.1rc1.dev256+gf5bb701fa) with config: model='m', dtype=torch.bfloat16
(EngineCore pid=372) INFO 08-11 02:16:12 [tpu_runner.py:885] Init mesh | mesh=Mesh('data': 1, \
'model': 1, axis_types=(Auto, Auto))
(EngineCore pid=372) INFO 08-11 02:16:12 [utils.py:211] Prepared token paddings: [16, 32, 64]
(EngineCore pid=372) INFO 08-11 02:16:12 [compilation_manager.py:66] Enabling JAX compile cache.
(EngineCore pid=372) INFO 08-11 02:16:12 [tpu_worker.py:471] Init worker | rank=0 | \
hbm=[(0.0, 31.24)]GiB |
(EngineCore pid=372) INFO 08-11 02:16:12 [model_loader.py:625] Loading model with \
MODEL_IMPL_TYPE=auto
(EngineCore pid=372) INFO 08-11 02:16:29 [weight_utils.py:530] Time spent downloading weights for \
google/gemma-4-E2B-it: 9.273059 seconds
Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:50<00:00, 50.45s/it]
(EngineCore pid=372) INFO 08-11 02:17:19 [default_loader.py:430] Loading weights took 50.47 seconds
(EngineCore pid=372) INFO 08-11 02:17:22 [tpu_runner.py:1264] Init model | hbm=[(8.97, 31.24)]GiB
(EngineCore pid=372) INFO 08-11 02:17:22 [tpu_worker.py:557] Memory statistics | \
total_hbm_limit_gb=31.24GiB | total_hbm_limit_cap_gb=28.74GiB | total_hbm_used_gb=8.97GiB | \
total_hbm_avail_gb=19.77GiB
(EngineCore pid=372) INFO 08-11 02:17:22 [kv_cache_utils.py:2235] GPU KV cache size: 1,151,744 \
tokens
(EngineCore pid=372) INFO 08-11 02:17:22 [kv_cache_utils.py:2236] Maximum concurrency for 32,768 \
tokens per request: 35.15x
(EngineCore pid=372) INFO 08-11 02:17:22 [compilation_manager.py:949] Compiling sampling with \
different input shapes.
(EngineCore pid=372) INFO 08-11 02:17:22 [compilation_manager.py:137] Precompile worker0 sample \
--> {'num_reqs': 8, 'do_sampling': True, 'logprobs': True}
(EngineCore pid=372) INFO 08-11 02:17:23 [compilation_manager.py:188] Compilation of worker0 \
sample --> {'num_reqs': 8} finished in 0.67 [secs].
(EngineCore pid=372) INFO 08-11 02:17:42 [compilation_manager.py:1043] Compiling gather_logprobs \
with different input shapes.
(EngineCore pid=372) INFO 08-11 02:18:16 [kv_cache_manager.py:991] Init kv-cache | \
num_total_layers=15 |
(EngineCore pid=372) INFO 08-11 02:18:16 [compilation_manager.py:236] Precompile all the \
subgraphs with possible input shapes.
(EngineCore pid=372) INFO 08-11 02:18:16 [compilation_manager.py:137] Precompile worker0 backbone \
--> {'num_tokens': 16}
(EngineCore pid=372) INFO 08-11 02:18:16 [compilation_manager.py:160] AOT lower skipped for \
worker0 backbone (not a jit); will compile in warmup.
(EngineCore pid=372) INFO 08-11 02:21:26 [compilation_manager.py:228] Warm-up call pass finished \
in 189.56 [secs] over 9 tasks.
(EngineCore pid=372) INFO 08-11 02:24:38 [compilation_manager.py:1885] Compiling \
structured_decoding with different input shapes.
(EngineCore pid=372) INFO 08-11 02:24:52 [core.py:348] init engine (profile, create kv cache, \
warmup model) took 450.03 s (compilation: 396.29 s)
(APIServer pid=1) INFO 08-11 02:25:54 [base.py:235] Multi-modal warmup completed in 34.159s
(APIServer pid=1) INFO 08-11 02:25:55 [api_server.py:682] Starting vLLM server on \
http://0.0.0.0:8000
(APIServer pid=1) INFO:     Application startup complete.
"""
"""Of one v6e-1 on Compute Engine, 2026-08-11: a public log; long dumps are cut short."""


def after(words: str) -> BootLog:
    """Read the boot up to the first line that holds these words."""
    lines = FULL.splitlines()
    end = next(number for number, line in enumerate(lines) if words in line)
    return read_boot(lines[: end + 1], now=NOW)


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        ("TPU info", "starting"),
        ("Enabling JAX compile cache", "starting"),
        ("MODEL_IMPL_TYPE", "loading weights"),
        ("downloading weights", "loading weights"),
        ("total_hbm_avail_gb", "loading weights"),
        ("Compiling sampling", "compiling"),
        ("AOT lower skipped", "compiling"),
        ("Warm-up call pass", "compiling"),
        ("structured_decoding", "compiling"),
        ("init engine", "warming"),
        ("Multi-modal warmup", "warming"),
    ],
)
def test_a_tpus_boot_is_told_phase_by_phase(words: str, phase: str) -> None:
    """XLA's compiling is one, from its first graph to the end of its warm-up calls."""
    assert after(words).phase == phase


def test_graphs_are_counted_as_the_log_names_them() -> None:
    """There is no total to be read, and none is made up."""
    counted = [after(words).compiled for words in ("Init mesh", "Compiling gather", "AOT lower")]
    assert counted == [0, 1, 2]
    assert after("Warm-up call").percent is None


def test_a_tpus_memory_is_told_as_a_gpus_is() -> None:
    """Weights and room for the KV cache of one chip, its tokens, and how long it all took."""
    boot = read_boot(FULL.splitlines(), now=NOW)
    assert boot.memory.model_dump(exclude_none=True) == {
        "weights_gib": 8.97,
        "weights_seconds": 50.47,
        "download_seconds": 9.273059,
        "kv_cache_gib": 19.77,
        "kv_cache_tokens": 1_151_744,
        "max_concurrency": 35.15,
        "max_concurrency_tokens": 32_768,
        "compile_seconds": 396.29,
        "engine_seconds": 450.03,
    }
    assert (boot.version, boot.started) == ("0.26.1rc1.dev256+gf5bb701fa", True)


def test_a_tpus_phases_have_their_lengths() -> None:
    """Most of its boot is compiling, which is told."""
    boot = read_boot(FULL.splitlines(), now=NOW)
    assert boot.split == {
        "start": 84.0,
        "download": 9.3,
        "load": 60.7,
        "compile": 450.0,
        "warm-up": 63.0,
    }


def test_the_room_of_several_chips_is_told_of_each() -> None:
    """Its log gives the sum of all."""
    four = ", ".join(["(4.5, 31.24)"] * 4)
    boot = read_boot(
        [
            f"INFO 08-11 02:17:22 [tpu_runner.py:1264] Init model | hbm=[{four}]GiB",
            "INFO 08-11 02:17:22 Memory statistics | total_hbm_avail_gb=80.00GiB",
        ],
        now=NOW,
    )
    assert (boot.chips, boot.memory.weights_gib, boot.memory.kv_cache_gib) == (4, 4.5, 20.0)
