"""Which engines carry what they compile, under which name, and by which command."""

import json
from typing import Any

import pytest

from backends.compile_cache import CompileCache, carried, compile_cache, may_carry
from backends.container import Container
from core.records import DeploymentSpec


def spec(**wanted: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"name": "one", "model": "google/gemma-4-E2B-it"} | wanted)


def cache(
    image: str = "vllm:v0.32.0", accelerator: str = "nvidia-l4", **wanted: Any
) -> CompileCache:
    store = "gs://bucket/vllm-devops-cache/one"
    return compile_cache(spec(**wanted), image=image, accelerator=accelerator, store=store)


@pytest.mark.parametrize(
    "other",
    [
        {"image": "vllm:v0.33.0"},
        {"accelerator": "nvidia-a100-80gb"},
        {"model": "google/gemma-4-E4B-it"},
        {"engine_args": ["--revision", "abc"]},
        {"engine_args": ["-O1"]},
        {"max_model_len": 4096},
        {"dtype": "half"},
        {"env": ["VLLM_USE_V2=1"]},
    ],
)
def test_what_may_change_compiled_code_changes_its_key(other: dict[str, Any]) -> None:
    assert cache(**other).key != cache().key


def test_what_changes_nothing_compiled_keeps_its_key() -> None:
    """Nor does the deployment's name: its folder has it."""
    same = cache(name="two", max_replicas=3, ttl_minutes=5, access="public", cpu=8)
    assert same.key == cache().key


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({}, ""),
        ({"compile_cache": "carried"}, ""),
        ({"compile_cache": "off"}, "compile_cache=off"),
        ({"engine": "ollama"}, "ollama"),
        ({"enforce_eager": True}, "enforce_eager"),
        ({"engine_args": ["--enforce-eager"]}, "enforce_eager"),
        ({"env": ["VLLM_CACHE_ROOT=/mine"]}, "VLLM_CACHE_ROOT"),
        ({"env": ["VLLM_DISABLE_COMPILE_CACHE=1"]}, "VLLM_DISABLE_COMPILE_CACHE"),
    ],
)
def test_who_compiles_nothing_or_keeps_it_elsewhere_carries_nothing(
    wanted: dict[str, Any], reason: str
) -> None:
    assert (reason in may_carry(spec(**wanted))) if reason else may_carry(spec(**wanted)) == ""


@pytest.mark.parametrize(("accelerator", "xla"), [("nvidia-l4", False), ("tpu-v6e", True)])
def test_the_program_stands_before_vllm_whose_words_stay(accelerator: str, xla: bool) -> None:  # noqa: FBT001
    """It asks the engine itself, also behind a proxy, and holds no comment."""
    plain = Container(
        image="i",
        command=("vllm",),
        args=("serve", "m", "--port", "8001"),
        env={"HF_HUB_OFFLINE": "1", "VLLM_XLA_CACHE_PATH": "/mnt/xla"},
        port=8000,
        health="/health",
    )
    made = carried(plain, cache(accelerator=accelerator))
    assert made.args == plain.args
    assert made.command[0] == "python3"
    assert made.command[-1] == "vllm"
    assert json.loads(made.env["COMPILE_CACHE"])["health"] == "http://127.0.0.1:8001/health"
    assert made.env["HF_HUB_OFFLINE"] == "1"
    assert made.env["VLLM_XLA_CACHE_PATH"].startswith(made.env["VLLM_CACHE_ROOT"]) is xla
    program = made.env["COMPILE_CACHE_PROGRAM"]
    assert len(program) < 16_000
    assert not any(line.lstrip().startswith("#") for line in program.splitlines())
    compile(program, "program", "exec")
