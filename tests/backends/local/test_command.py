"""A local deployment as commands for a person."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from backends.local.plan import deployment_config, serve_argv
from backends.local.process import Engine
from core.processes import run
from core.records import DeploymentSpec

ODD_WORDS = ["two words", "it's", '{"image": 4}', "$HOME", "back\\slash", "ü€", "a:b", "#x", "&*!"]
GPU = Engine(kind="vllm", command=("/opt/my vllm/bin/vllm",), version="0.32.0", env={"A": "b c"})
CPU = GPU.model_copy(update={"version": "0.32.0+cpu"})

words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=12)


def spec(**wanted: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate(
        {"name": "one", "model": "google/gemma-4-E2B-it", **wanted}
    )


def written(engine: Engine = GPU, **wanted: Any) -> Any:
    return deployment_config(engine, spec(**wanted), 8123, Path("/state dir/one/api-key"))


def service(text: str, name: str = "one") -> dict[str, Any]:
    """One service of a compose file, as Compose reads it."""
    read = yaml.safe_load(text)["services"][name]
    assert isinstance(read, dict)
    read["command"] = [word.replace("$$", "$") for word in read["command"]]
    return read


def test_the_engine_listens_on_this_machine_only() -> None:
    """And no key stands where every user can read it."""
    argv = serve_argv(GPU, spec(), 8123)
    assert argv[:3] == ("/opt/my vllm/bin/vllm", "serve", "google/gemma-4-E2B-it")
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--port") + 1] == "8123"
    assert "--api-key" not in argv


@pytest.mark.parametrize(
    ("version", "quiet"),
    [
        ("0.32.0", True), ("0.33.1+cpu", True), ("1.0", True),
        ("0.31.9", False), ("0.9.2", False), ("dev", False), (None, False),
    ],
)  # fmt: skip
def test_our_own_looks_are_kept_out_of_a_log_that_can_do_so(
    version: str | None, *, quiet: bool
) -> None:
    """An older vLLM would refuse the flag."""
    argv = serve_argv(GPU.model_copy(update={"version": version}), spec(), 1)
    assert any(word.startswith("--disable-access-log") for word in argv) is quiet


@pytest.mark.anyio
async def test_the_shell_line_starts_what_runs(tmp_path: Path) -> None:
    """A shell reads back every word, the environment and the key."""
    key = tmp_path / "the key"
    key.write_text("sk-mine")
    program = tmp_path / "my vllm"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$A" "$VLLM_API_KEY" "$@"\n')
    program.chmod(0o700)
    engine = GPU.model_copy(update={"command": (str(program),)})
    wanted = spec(engine_args=ODD_WORDS)
    config = deployment_config(engine, wanted, 8123, key)
    output = await run(("sh", "-c", config.command))
    assert output.stdout.splitlines() == ["b c", "sk-mine", *serve_argv(engine, wanted, 8123)[1:]]


@given(st.lists(words.filter(lambda word: not word.startswith("--")), max_size=4))
def test_every_word_survives_docker_and_compose(engine_args: list[str]) -> None:
    """Spaces, quotes, dollars, backslashes, other scripts."""
    args = ["--x", *engine_args]
    config = written(engine_args=args)
    line = shlex.split(config.docker_run)
    end = ["--host", "0.0.0.0", "--port", "8000"]  # noqa: S104  of the container
    assert line[-len(args) - 4 :] == [*args, *end]
    assert service(config.yaml)["command"][-len(args) - 4 :] == [*args, *end]


@pytest.mark.parametrize("name", ["on", "no", "null", "true", "e1", "y"])
def test_a_name_that_yaml_takes_for_something_else_stays_a_name(name: str) -> None:
    """`on` is a fine name, and yes to some YAML readers."""
    assert service(written(name=name).yaml, name)["image"]


def test_a_hub_model_is_kept_in_a_volume() -> None:
    """Docker and Compose say the same: image, port, cache, key and token by name."""
    config = written()
    line, one = shlex.split(config.docker_run), service(config.yaml)
    assert "vllm/vllm-openai:v0.32.0" in line
    assert one["image"] == "vllm/vllm-openai:v0.32.0"
    assert line[line.index("-p") + 1] == one["ports"][0] == "127.0.0.1:8123:8000"
    assert line[line.index("-v") + 1] == one["volumes"][0] == "hf-cache:/hf"
    assert one["environment"] == {
        "VLLM_API_KEY": "${VLLM_API_KEY:?set it}",
        "HF_TOKEN": "${HF_TOKEN:-}",
        "HF_HOME": "/hf",
    }
    assert line[(at := line.index("VLLM_API_KEY") - 1) : at + 2] == ["-e", "VLLM_API_KEY"]
    assert {"HF_TOKEN", "HF_HOME=/hf"} <= set(line)
    assert (one["gpus"], "--gpus" in line) == ("all", True)
    assert yaml.safe_load(config.yaml)["volumes"] == {"hf-cache": None}


def test_a_folder_is_mounted_and_never_looked_up() -> None:
    """Under its own name, read-only, offline; the CPU's image asks for no GPU."""
    config = written(CPU, model="/models/my gemma$1")
    line, one = shlex.split(config.docker_run), service(config.yaml)
    assert one["image"] == "vllm/vllm-openai-cpu:v0.32.0"
    assert line[line.index("-v") + 1] == "/models/my gemma$1:/model:ro"
    assert one["volumes"] == ["/models/my gemma$$1:/model:ro"]
    assert one["environment"]["HF_HUB_OFFLINE"] == "1"
    assert one["command"][:4] == ["serve", "/model", "--served-model-name", "my gemma$1"]
    assert "gpus" not in one
    assert "--gpus" not in line
    assert "volumes" not in yaml.safe_load(config.yaml)


def test_no_text_holds_the_key() -> None:
    """It is read from its file by whoever runs the command."""
    config = written()
    for text in (config.command, config.docker_run):
        assert "VLLM_API_KEY=\"$(cat '/state dir/one/api-key')\"" in text
    assert "sk-" not in config.model_dump_json()


def test_a_simulated_engine_says_that_docker_runs_another() -> None:
    """The files are of a real vLLM."""
    simulated = GPU.model_copy(update={"kind": "simulated"})
    assert len(written(simulated).notes) == len(written().notes) + 1
