"""The startup script as text: what is decided stands in front, in one form, and nothing secret."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from backends.tpu import vm
from backends.tpu.vm import container_command, docker_arguments, startup_script
from core.environment import ROOT
from core.processes import run
from tests.backends.tpu.planned import EVERY, drawn
from tests.backends.tpu.sites import offline

_LINE = re.compile(r"readonly ([A-Z_]+)=(\(?)('.*')(\)?)")
_WISHES: dict[str, dict[str, Any]] = {
    "hub": {},
    "words": {"engine_args": ("--x", "it's; $(rm -rf /) `id` \"&|é", "")},
    "internal": {"access": "internal", "network": "mine/inner"},
    "baked": {"weights": "baked", "image": "us-docker.pkg.dev/p/r/baked:1"},
}
wishes = pytest.mark.parametrize("wish", _WISHES)


def _decided(text: str) -> dict[str, list[str]]:
    """Read it as the simulated VM does: line by line, without a shell."""
    part = text.partition(vm.DECIDED)[2].partition(vm.TO_DO)[0]
    matches = [_LINE.fullmatch(line) for line in part.splitlines()]
    assert all(matches)
    return {match[1]: shlex.split(match[3]) for match in matches if match}


@wishes
def test_what_is_decided_is_read_back_word_for_word(wish: str) -> None:
    """Quotes, spaces and dollars of somebody's flags are words, never shell."""
    made = drawn(offline(hf_token="hf_x"), **_WISHES[wish])
    said = _decided(startup_script(made, image="image@sha256:0"))
    assert list(said) == [
        *("DEPLOYMENT", "PROJECT", "IMAGE", "KEY_SECRET", "TOKEN_SECRET", "PORT", "TLS", "LOG"),
        *("CACHE", "GUARD_IMAGE", "DOCKER", "COMMAND", "GUARD_DOCKER", "GUARD_COMMAND"),
    ]
    assert said["DOCKER"] == list(docker_arguments(made))
    assert said["COMMAND"] == list(container_command(made))
    assert said["IMAGE"] == ["image@sha256:0"]
    assert said["KEY_SECRET"] == ["vllm-devops-tpu-gemma-api-key"]
    assert said["TOKEN_SECRET"] == [made.container.secrets.get("HF_TOKEN", "")]
    assert said["TLS"] == ["yes" if made.opened else "no"]


def test_the_rest_is_the_same_for_everybody() -> None:
    """What is done is fixed text, read and tested once; nothing is woven into it."""
    bodies = {
        startup_script(drawn(target, **wish), image="i").partition(vm.TO_DO)[2]
        for target in EVERY
        for wish in _WISHES.values()
    }
    template = Path(vm.__file__).with_name("startup.sh").read_text("utf-8")
    assert bodies == {template.partition(vm.TO_DO)[2]}


@pytest.mark.anyio
@pytest.mark.parametrize("wish", ["hub", "internal"])
async def test_shellcheck_has_nothing_to_say(tmp_path: Path, wish: str) -> None:
    """Of what a VM is given, and so of the file in the repository as well."""
    path = tmp_path / "startup.sh"
    path.write_text(startup_script(drawn(**_WISHES[wish]), image="i"), encoding="utf-8")
    fakes = ROOT / "tests" / "backends" / "tpu" / "fake_programs.sh"
    checked = await run([str(ROOT / ".venv" / "bin" / "shellcheck"), str(path), str(fakes)])
    assert checked.stdout == ""
    assert checked.returncode == 0


@wishes
def test_no_secret_is_in_it(wish: str) -> None:
    """T45: whoever is on the VM reads its metadata, and so does every viewer of the project."""
    made = drawn(offline(hf_token="hf_secret"), **_WISHES[wish])
    text = startup_script(made, image="i")
    assert "hf_secret" not in text
    assert "VLLM_API_KEY=" not in "".join(docker_arguments(made))


@pytest.mark.parametrize("target", EVERY)
def test_a_container_may_use_the_chips(target: str) -> None:
    """T49, T58: 64 MB of /dev/shm and an unprivileged container end in a bus error, or no TPU."""
    words = docker_arguments(drawn(target))
    assert {"--privileged", "--net=host"} <= set(words)
    (shm,) = [word for word in words if word.startswith("--shm-size=")]
    assert int(shm.removeprefix("--shm-size=").removesuffix("gb")) >= 10
    assert "/dev/shm:/dev/shm" in words  # noqa: S108  the engine's


@pytest.mark.parametrize("target", EVERY)
def test_compiled_programs_are_kept_on_the_host(target: str) -> None:
    """T50: the container's own cache goes with it, and a bucket as cache never hit."""
    made = drawn(target)
    words = docker_arguments(made)
    path = made.container.env["VLLM_XLA_CACHE_PATH"]
    (mounted,) = [word for word in words if word.endswith(":/cache")]
    assert path.startswith("/cache/")
    assert mounted.startswith("/var/lib/vllm-devops/")


def test_a_bucket_carries_what_is_compiled_by_a_program_of_one_line() -> None:
    """Each decision of the script is a line; with the program it still fits into metadata."""
    script = startup_script(drawn(offline(bucket_name="theirs")), image="i")
    (line,) = [one for one in script.splitlines() if one.startswith("readonly DOCKER=(")]
    words = shlex.split(line.removeprefix("readonly DOCKER=(").removesuffix(")"))
    env = dict(word.split("=", 1) for word in words if re.match("[A-Z_]+=", word))
    names: dict[str, object] = {"__name__": "imported"}
    exec(env["COMPILE_CACHE_PROGRAM"], names)  # noqa: S102  ours
    assert callable(names["Supervisor"])
    assert json.loads(env["COMPILE_CACHE"])["store"] == "gs://theirs/vllm-devops-cache/gemma/tpu"
    assert env["VLLM_XLA_CACHE_PATH"].startswith(env["VLLM_CACHE_ROOT"])
    assert len(script.encode()) < 64 * 1024


def test_its_output_goes_to_a_log_that_outlives_the_vm() -> None:
    """By its deployment's label, in the deployment's project, and without holding up the engine."""
    words = docker_arguments(drawn())
    options = [words[at + 1] for at, word in enumerate(words) if word == "--log-opt"]
    assert "--log-driver=gcplogs" in words
    assert options == ["gcp-project=proj", "labels=deployment", "mode=non-blocking"]
    assert words[words.index("--label") + 1] == "deployment=gemma"


def test_the_whole_command_is_given() -> None:
    """The image's entrypoint runs what it is given: bare flags would be no program."""
    words = container_command(drawn("tpu-v6e-4"))
    assert words[:3] == ("vllm", "serve", "google/gemma-4-E4B-it")
    assert "--entrypoint" not in docker_arguments(drawn())
    limit = words[words.index("--limit-mm-per-prompt") + 1]
    assert json.loads(limit) == {"image": 4, "audio": 1}


@pytest.mark.parametrize("target", EVERY)
def test_it_fits_into_metadata(target: str) -> None:
    """Google takes 256 KiB of one value."""
    assert len(startup_script(drawn(target), image="i").encode()) < 32 * 1024
