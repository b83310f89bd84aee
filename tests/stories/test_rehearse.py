"""`make rehearse` as people run it: a whole life on each simulated cloud, told in few words."""

import re
import sys
from pathlib import Path
from typing import Final

import pytest

from core.environment import ROOT
from core.processes import Output, run

pytestmark = pytest.mark.anyio

TOLD: Final = (*("cloud-run-l4 person", "aca-a100", "tpu-v6e-1"),)
"""A target, who calls, and what their organisation forbids; each in a project that is new."""
_MOST_TOKENS: Final = 7_500
_LONGEST_SECONDS: Final = 400


async def _rehearse(folder: Path, *arguments: str) -> Output:
    program = (sys.executable, str(ROOT / "rehearse.py"), *arguments)
    env = {"VLLM_DEVOPS_STATE_DIR": str(folder)}
    return await run(program, cwd=ROOT, env=env, timeout=_LONGEST_SECONDS)


async def test_a_target_that_is_not_there_ends_it_at_once(tmp_path: Path) -> None:
    told = await _rehearse(tmp_path, "foo")
    assert told.returncode == 1
    assert told.stdout.count("TARGET_NOT_FOUND") == 1
    assert "deploy_vllm(" not in told.stdout


@pytest.mark.parametrize("target", ["cloud-run-l4", "aca-a100", "tpu-v6e-1"])
async def test_a_rehearsal_goes_from_nothing_to_nothing(target: str, tmp_path: Path) -> None:
    """Without colours where nobody has a terminal, and with what it cost to read."""
    told = await _rehearse(tmp_path, target)
    cleaned = await _rehearse(tmp_path, "clean")
    assert told.returncode == 0, told.stdout[-4000:]
    assert "The rehearsal's clouds are gone." in cleaned.stdout
    assert "\033" not in told.stdout
    counted = re.search(r"answered with ([0-9,]+) tokens", told.stdout)
    assert counted
    assert int(counted[1].replace(",", "")) < _MOST_TOKENS
