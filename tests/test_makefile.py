"""The Makefile's targets, each run in a copy of the checkout with a stub of the server."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from core.environment import ROOT
from core.processes import Output, run
from core.settings import Settings
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

_PROGRAMS: Final = ("awk", "bash", "cp", "echo", "env", "make", "mkdir", "rm", "sh", "touch", "tr")
_SERVER: Final = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
sys.exit("refuse" in sys.argv)
"""
_PYTHON: Final = """#!/bin/sh
echo "$0 $*" >> "$LOG"
case $1 in
-c) echo "$0"; exit {suitable} ;;
-m) case $2 in
    venv) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    pip) exit {pip} ;;
    esac ;;
--version) echo Python 3.99 ;;
esac
"""


class Checkout:
    """A copy with a space in its path, and only the programs that are put on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.bin.mkdir()
        (self.root / ".venv/bin").mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", self.root)
        for name in ("requirements.txt", "requirements-dev.txt"):
            (self.root / name).touch()
        (self.root / "server.py").write_text(_SERVER, encoding="utf-8")
        (self.root / ".venv/bin/python").symlink_to(sys.executable)
        (self.root / ".venv/.installed").touch()
        for name in _PROGRAMS:
            (self.bin / name).symlink_to(shutil.which(name) or f"/missing/{name}")

    def python(self, name: str, *, suitable: bool, pip_works: bool = True) -> None:
        """Put a Python on the PATH, or somewhere here, that writes down what it is asked."""
        file = self.root / name if "/" in name else self.bin / name
        file.unlink(missing_ok=True)
        text = _PYTHON.format(suitable=int(not suitable), pip=int(not pip_works))
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)

    def empty(self) -> None:
        """Take away what an installation made."""
        shutil.rmtree(self.root / ".venv")

    async def make(self, *words: str, **env: str) -> Output:
        """Run make with nothing else in the environment."""
        given = {"PATH": str(self.bin), "LOG": str(self.log), **env}
        pairs = (f"{name}={value}" for name, value in given.items())
        return await run(("/usr/bin/env", "-i", *pairs, "make", *words), cwd=self.root)

    async def called(self, *words: str, **env: str) -> Any:
        """Run make and give what the server was started with."""
        done = await self.make(*words, **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def logged(self) -> str:
        """Say what the Pythons were asked."""
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


async def test_make_alone_lists_every_target(checkout: Checkout) -> None:
    """One line each, and nothing is installed or run."""
    checkout.empty()
    done = await checkout.make()
    assert done.returncode == 0
    listed = re.findall(r"^  make (\S+) +\S", done.stdout, flags=re.MULTILINE)
    assert set(listed) >= {
        *("demo", "test", "test-engine", "lint", "run", "install", "vllm", "deploy", "status"),
        *("endpoint", "metrics", "query", "logs", "destroy", "mcp-config", "clean"),
    }
    assert not (checkout.root / ".venv").exists()


@pytest.mark.parametrize(
    "prompt",
    [
        """it's "quoted" and \\ # % `id`""",
        "costs $5, $HOME and $$, ${PATH} too",
        "what does $(shell touch harmed) or $(foo",
        "two\nlines",
        "--yes",
        "schöne Grüße",
    ],
)
async def test_a_prompt_arrives_as_it_was_typed(checkout: Checkout, prompt: str) -> None:
    """Neither make nor the shell reads what a person asks."""
    told = await checkout.called("query", f"PROMPT={prompt}")
    assert told["argv"] == ["call", "query_gemma4", "--make", "query", f"prompt={prompt}"]
    assert not (checkout.root / "harmed").exists()


async def test_only_what_is_given_is_passed(checkout: Checkout) -> None:
    """The caller's environment names no deployment, and an empty variable names nothing."""
    told = await checkout.called("status", "TARGET=local", "MODEL=", NAME="wsl", PROMPT="> ")
    assert told["argv"] == ["call", "status_vllm", "--make", "status", "target=local"]
    assert "local" not in told["env"]["MAKEFLAGS"]


async def test_any_parameter_can_be_given(checkout: Checkout) -> None:
    """A parameter of the tool is the same word in capitals."""
    told = await checkout.called("deploy", "MODEL=google/gemma-4-E4B-it", "MAX_MODEL_LEN=4096")
    assert told["argv"][:4] == ["call", "deploy_vllm", "--make", "deploy"]
    assert set(told["argv"][4:]) == {
        *("model=google/gemma-4-E4B-it", "max_model_len=4096", "--wait"),
    }


async def test_a_benchmark_is_waited_for(checkout: Checkout) -> None:
    """Lists have commas; what makes a run end is an argument like any other."""
    told = await checkout.called("benchmark", "CONTEXTS=8,512", "MAX_COST_USD=1", "RESUME=a-run")
    assert told["argv"][:4] == ["call", "run_benchmark", "--make", "benchmark"]
    assert set(told["argv"][4:]) == {
        *("contexts=8,512", "max_cost_usd=1", "resume=a-run", "--wait"),
    }


async def test_flags_are_switched_on_and_off(checkout: Checkout) -> None:
    """YES=0 does not agree to anything."""
    destroy = ["call", "destroy_vllm", "--make", "destroy"]
    on = await checkout.called("destroy", "YES=1", "JSON=1")
    assert on["argv"] == [*destroy, "--json", "--yes", "--wait"]
    off = await checkout.called("destroy", "YES=0", "JSON=", YES="1")
    assert off["argv"] == [*destroy, "--wait"]


async def test_a_setting_goes_on_as_a_setting(checkout: Checkout) -> None:
    """It is no argument, and its dollar signs stay."""
    told = await checkout.called("list", "ENGINE=simulated", "HF_TOKEN=a$b$(c)")
    assert told["argv"] == ["call", "list_deployments", "--make", "list"]
    assert (told["env"]["ENGINE"], told["env"]["HF_TOKEN"]) == ("simulated", "a$b$(c)")


async def test_a_failing_tool_fails_make(checkout: Checkout) -> None:
    """Scripts can rely on the exit status."""
    done = await checkout.make("call", "TOOL=refuse")
    assert done.returncode != 0


async def test_a_client_can_be_chosen(checkout: Checkout) -> None:
    """Its name may have a space."""
    told = await checkout.called("mcp-config", "CLIENT=Gemini CLI")
    assert told["argv"] == ["mcp-config", "Gemini CLI"]


async def test_settings_given_to_make_reach_the_client(checkout: Checkout) -> None:
    """By name where the environment has them, so that no secret is an argument."""
    given = ("TOOLSETS=all", "HF_TOKEN=hf_x", "CONFIRM=token")
    told = await checkout.called("mcp-config", *given, READ_ONLY="1")
    words = told["argv"]
    sets = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
    assert sorted(sets) == ["CONFIRM=token", "HF_TOKEN", "TOOLSETS"]
    assert (told["env"]["TOOLSETS"], told["env"]["HF_TOKEN"]) == ("all", "hf_x")


async def test_run_prints_nothing_of_its_own(checkout: Checkout) -> None:
    """Standard output belongs to the protocol."""
    assert (await checkout.called("run"))["argv"] == []


async def test_a_finished_environment_is_left_alone(checkout: Checkout) -> None:
    """Nothing is asked of any Python when nothing has changed."""
    checkout.python("python3", suitable=True)
    done = await checkout.make("install")
    assert done.returncode == 0
    assert not checkout.logged()


async def test_a_half_made_environment_is_made_again(checkout: Checkout) -> None:
    """What an interrupted installation left is not trusted, whatever it looks like."""
    checkout.python("python3", suitable=True, pip_works=False)
    checkout.empty()
    assert (await checkout.make("install")).returncode != 0
    (checkout.root / ".venv/rubbish").touch()
    checkout.python("python3", suitable=True)
    assert (await checkout.make("install")).returncode == 0
    assert checkout.logged().count("-m venv .venv") == 2
    assert not (checkout.root / ".venv/rubbish").exists()
    assert (await checkout.make("install")).stderr == ""


async def test_an_environment_made_by_hand_is_filled(checkout: Checkout) -> None:
    """It may be in use: nothing of it is taken away."""
    (checkout.root / ".venv/.installed").unlink()
    checkout.python(".venv/bin/python", suitable=True)
    (checkout.root / ".venv/mine").touch()
    assert (await checkout.make("install")).returncode == 0
    assert "-m pip install" in checkout.logged()
    assert "-m venv" not in checkout.logged()
    assert (checkout.root / ".venv/mine").exists()


async def test_a_change_of_the_requirements_is_installed(checkout: Checkout) -> None:
    """The environment follows the files that say what is in it."""
    checkout.python(".venv/bin/python", suitable=True)
    os.utime(checkout.root / ".venv/.installed", (1, 1))
    assert (await checkout.make("install")).returncode == 0
    assert "-m pip install" in checkout.logged()
    assert "-m venv" not in checkout.logged()


async def test_a_user_installs_no_tools_of_developers(checkout: Checkout) -> None:
    """What only tests and checks need is installed by these: it cannot break a first deployment."""
    checkout.python("python3", suitable=True)
    checkout.empty()
    assert (await checkout.make("deploy")).returncode == 0
    assert "-r requirements.txt" in checkout.logged()
    assert "-r requirements-dev.txt" not in checkout.logged()
    assert (await checkout.make("test")).returncode == 0
    assert "-r requirements-dev.txt" in checkout.logged()


async def test_an_environment_without_its_python_is_made_again(checkout: Checkout) -> None:
    """A Python that was upgraded away leaves a dangling link."""
    checkout.python("python3", suitable=True)
    (checkout.root / ".venv/bin/python").unlink()
    (checkout.root / ".venv/bin/python").symlink_to("/missing/python")
    assert (await checkout.make("install")).returncode == 0
    assert "-m venv .venv" in checkout.logged()


async def test_an_old_python_is_passed_over(checkout: Checkout) -> None:
    """The first one that is new enough and has venv makes the environment."""
    checkout.python("python3", suitable=False)
    checkout.python("python3.12", suitable=True)
    checkout.empty()
    assert (await checkout.make("install")).returncode == 0
    assert "python3.12 -m venv" in checkout.logged()
    assert "python3 -m venv" not in checkout.logged()


async def test_a_missing_python_is_said_in_one_line(checkout: Checkout) -> None:
    """It says what to install, or how to name one; standard output stays empty."""
    checkout.python("python3", suitable=False)
    checkout.empty()
    done = await checkout.make("run")
    assert done.returncode != 0
    assert not done.stdout
    assert len([line for line in done.stderr.splitlines() if not line.startswith("make")]) == 1
    assert "3.11" in done.stderr


def _makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")


async def test_every_tool_of_the_makefile_exists() -> None:
    """A target never names a tool that is not there."""
    named = set(re.findall(r"\$\(call tool,([a-z0-9_]+)\)", _makefile()))
    assert named
    assert named <= set(TOOLS)


def _patterns(name: str) -> list[str]:
    (words,) = re.findall(rf"^{name} +:= (.*)$", _makefile(), flags=re.MULTILINE)
    words = re.sub(r"\$\(if .*,ENGINE\)", "", words)
    return [word.replace("%", ".*") for word in words.split()]


async def test_every_setting_is_known_as_one() -> None:
    """But for those that are parameters of tools as well; ENGINE is either, by its value."""
    known = re.compile("|".join(_patterns("SETTING")))
    strange = {name for name in Settings.model_fields if not known.fullmatch(name.upper())}
    assert strange == {"tensor_parallel_size", "confirm", "engine"}


async def test_no_parameter_is_kept_from_a_tool() -> None:
    """What is a setting, or steers make, is no parameter of any tool."""
    kept = re.compile("|".join((*_patterns("SETTING"), *_patterns("STEER"))))
    parameters = {name for one in TOOLS.values() for name in one.tool.parameters["properties"]}
    assert {name for name in parameters if kept.fullmatch(name.upper())} == set()
