"""`overrides.toml` in the state folder: constants of the clouds, replaced by their users."""

from pathlib import Path

import pytest

from core.settings import Settings
from tests.conversation import agent_of

pytestmark = pytest.mark.anyio

PLAN = {"model": "e2b", "target": "cloud-run-l4", "max_model_len": 4096}
OWN = "docker.io/you/vllm-openai:v0.32.0"


def written(folder: Path, text: str) -> Settings:
    """Return settings whose state folder holds this file."""
    (folder / "overrides.toml").write_text(text, encoding="utf-8")
    return Settings(vllm_devops_state_dir=folder, google_cloud_project="p", confirm="token")


async def test_a_constant_of_ones_own_is_planned_with_and_named(tmp_path: Path) -> None:
    """In the short answer too, before the other warnings, with what is shipped."""
    settings = written(
        tmp_path,
        f"[cloud_run.gpus.nvidia-l4]\nimage = {OWN!r}\n[cloud_run.limits]\ntimeout_seconds = 600\n",
    )
    async with agent_of(settings) as agent:
        reply = await agent.brief("plan_deployment", **PLAN)
        elsewhere = await agent.brief("plan_deployment", **{**PLAN, "target": "aca-a100"})
    said = [line for line in reply.structured["warnings"] if "overrides.toml" in line]
    assert said[0] == "overrides.toml: cloud_run.limits.timeout_seconds is 600 (shipped: 3600)"
    assert OWN in said[1]
    assert "overrides.toml" not in elsewhere.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[cloudrun]\n", "cloudrun"),
        ("[cloud_run.limits]\ntimeout = 1\n", "cloud_run.limits.timeout"),
        ("[cloud_run.limits]\ntimeout_seconds = 'soon'\n", "cloud_run.limits.timeout_seconds"),
        ("cloud_run = 1\n", "cloud_run is no table"),
        ("[cloud_run\n", "line 1"),
    ],
)
async def test_a_wrong_file_is_refused_by_plans_alone(tmp_path: Path, text: str, why: str) -> None:
    async with agent_of(written(tmp_path, text)) as agent:
        refused = await agent.brief("plan_deployment", **PLAN)
        listed = await agent.brief("list_targets")
    assert "overrides.toml" in refused.text
    assert why in refused.text
    assert not listed.failed
