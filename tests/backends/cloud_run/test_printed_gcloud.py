"""Every command that a plan prints for Cloud Run is one that the real gcloud reads to its end."""

import shutil
from pathlib import Path
from typing import Final

import pytest

from core.processes import run
from tests.backends.cloud_run.planned import L4, RTX, planned, site
from tests.backends.cloud_run.test_text import _WISHES

pytestmark = [pytest.mark.anyio, pytest.mark.gcloud]
_NO_ACCOUNT: Final = "You do not currently have an active account selected"
"""What gcloud says once it has read a command line and found nothing wrong with it."""


@pytest.mark.parametrize("wish", _WISHES)
@pytest.mark.parametrize("target", [L4, RTX])
async def test_gcloud_reads_every_command_of_a_plan(target: str, wish: str, tmp_path: Path) -> None:
    """It comes as far as asking for a login: nothing is sent to anybody."""
    assert shutil.which("gcloud"), "gcloud is not installed here"
    opened = site(target, google_cloud_project="mine", hf_token="hf_x")
    for step in planned(opened, **_WISHES[wish]).steps:
        told = await _said(step.command, tmp_path)
        assert _NO_ACCOUNT in told, f"{step.command}\n{told[:600]}"


async def _said(command: str, folder: Path) -> str:
    env = {
        "HOME": str(folder),
        "CLOUDSDK_CONFIG": str(folder),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
    }
    told = await run(("/bin/bash", "-c", command), cwd=folder, env=env, timeout=120)
    return told.stderr
