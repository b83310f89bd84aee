""".ci/run: the real script, over recipes that can fail."""

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from core.environment import ROOT
from core.processes import Output
from tests.checkout import Checkout
from tests.processes import lives
from tests.soon import until

pytestmark = pytest.mark.anyio

_FIRST: Final = ("demo", "mcp-config", "deploy", "status", "query", "destroy")
"""The README's first screen."""
_TESTS: Final = (
    "test",
    "conformance",
    "test-lives",
    "test-browser",
    "test-engine",
    "test-cluster",
    "cluster-demo",
)
_STEPS: Final = ("install", *_FIRST, "lint", *_TESTS)
_RECIPES: Final = f"{' '.join(_STEPS)} .venv/.tools:\n\t@echo did $@\n"
_ENGINE: Final = '\t@(exec -a "vllm serve" sleep 30) >/dev/null 2>&1 &\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


async def _ci(checkout: Checkout, recipes: str) -> Output:
    checkout.root.joinpath(".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", checkout.root / ".ci")
    checkout.root.joinpath("Makefile").write_text(f"SHELL := /bin/bash\n{recipes}")
    return await checkout.run(".ci/run")


async def test_ci_runs_what_the_readme_says(checkout: Checkout) -> None:
    """It prints each step and ends well."""
    done = await _ci(checkout, _RECIPES)
    assert done.returncode == 0, done.stderr
    steps = [line.split() for line in done.stdout.splitlines() if line.startswith("== make ")]
    assert list(dict.fromkeys(step[2] for step in steps)) == list(_STEPS)
    for step in _STEPS:
        assert f"did {step}\n" in done.stdout
    screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    typed = {line.split()[1] for line in screen if line.startswith("    make ")}
    assert typed <= {"lint", *_FIRST, *_TESTS}


async def test_ci_fails_when_a_command_of_the_first_screen_fails(checkout: Checkout) -> None:
    """The commands after it are not run, and lint does not go on."""
    lint = "lint:\n\t@echo $$$$ >pid; exec sleep 100\n"
    fails = "deploy:\n\t@until [ -s pid ]; do sleep 0.01; done; exit 1\n"
    others = _RECIPES.replace(" deploy ", " ").replace(" lint ", " ")
    done = await _ci(checkout, f"{others}{lint}{fails}")
    assert done.returncode not in {0, 127}
    assert "did mcp-config" in done.stdout
    assert "did status" not in done.stdout
    pid = int((checkout.root / "pid").read_text())
    await until(lambda: not lives(pid), "the end of lint")


async def test_ci_fails_when_an_engine_is_left_behind(checkout: Checkout) -> None:
    """It names it and ends it."""
    done = await _ci(checkout, _RECIPES + _ENGINE)
    assert done.returncode == 1
    assert "left behind" in done.stderr


async def test_ci_fails_when_a_step_fails(checkout: Checkout) -> None:
    """The steps after it are not run; that of lint goes beside the first screen."""
    done = await _ci(checkout, _RECIPES.replace(" lint ", " ") + "lint:\n\t@echo ill; exit 1\n")
    assert done.returncode not in {0, 127}
    assert "did destroy\n" in done.stdout
    assert "ill\n" in done.stdout
    assert "make test" not in done.stdout


@pytest.mark.parametrize("failing", _TESTS)
async def test_no_test_is_run_a_second_time(checkout: Checkout, failing: str) -> None:
    """What fails once fails; the steps after it are not run."""
    others = _RECIPES.replace(f" {failing}:", ":").replace(f" {failing} ", " ")
    done = await _ci(checkout, f"{others}{failing}:\n\t@echo ran; exit 1\n%:\n\t@echo did $@\n")
    assert done.returncode not in {0, 127}
    assert done.stdout.count("ran\n") == 1
    assert set(re.findall(r"did (\S+)", done.stdout)).isdisjoint(_TESTS[_TESTS.index(failing) :])
    assert done.stdout.rpartition("== make ")[2].split()[0] == failing
