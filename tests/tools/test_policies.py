"""Who is asked for what: policies, prices and what is harmless."""

from pathlib import Path
from typing import Final

import pytest

from core.records import Deployment, State
from core.settings import Settings
from operations import agreement
from operations.resolve import Found
from operations.runtime import Stage
from tests.conversation import agent_of
from tests.tools.asked import ONE, Open, mode, opened, token_of, yes
from tests.tools.calls import MODEL
from tests.tools.recorded import every_cloud
from tests.tools.sentinels import talker
from tests.tools.world import LONG_AGO, plant, snapshot, targets
from tests.webserver import listening

__all__ = ["mode", "opened"]

pytestmark = pytest.mark.anyio

PARSERS: Final = (
    "--enable-auto-tool-choice",
    "--tool-call-parser=gemma4",
    "--reasoning-parser=gemma4",
)
"""What a deployment has that was made today."""


async def test_replacing_asks_and_the_same_again_does_not(opened: Open, state_dir: Path) -> None:
    """Deploying what is there is harmless; deploying something else in its place is not."""
    plant(state_dir, engine_args=PARSERS, max_model_len=1024)
    async with opened(yes) as agent:
        same = await agent.call("deploy_vllm", **ONE, model=MODEL)
        assert same.structured["ok"], same
        assert agent.asked == []
        other = await agent.call("deploy_vllm", **ONE, model=MODEL, max_model_len=512)
        assert other.data["revision"] != same.data["revision"]
    (question,) = agent.asked
    assert "max_model_len: 1024 -> 512" in question


async def test_what_costs_nothing_is_not_asked_for(opened: Open, state_dir: Path) -> None:
    """On one's own machine, deploying, stopping, starting and scaling go ahead."""
    async with opened(lambda _question: "decline") as agent:
        for tool, arguments in (
            ("deploy_vllm", {"model": MODEL}),
            ("stop_vllm", {}),
            ("start_vllm", {}),
            ("update_vllm_scaling", {"min_replicas": 0, "max_replicas": 0}),
            ("update_vllm_scaling", {"min_replicas": 1, "max_replicas": 1}),
        ):
            reply = await agent.call(tool, **arguments)
            assert reply.structured["ok"], reply
    assert agent.asked == []


PAID: Final = (
    ("deploy_vllm", {"model": MODEL, "name": "two", "target": "rented"}, "Deploy"),
    ("start_vllm", {"name": "one"}, "Start one on rented"),
    ("update_vllm_scaling", {"min_replicas": 1, "max_replicas": 1}, "Run 1 to 1 replicas"),
)


@pytest.mark.parametrize(("tool", "arguments", "words"), PAID)
async def test_what_costs_is_asked_for_with_its_price(
    opened: Open,
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    arguments: dict[str, object],
    words: str,
) -> None:
    """The human sees dollars an hour, and a no starts nothing."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    before = snapshot(plant(state_dir, target="rented").path)
    async with opened(lambda _question: "decline") as agent:
        reply = await agent.call(tool, **arguments)
    assert reply.code == "CANCELLED"
    (question,) = agent.asked
    assert words in question
    assert "$2.50 an hour" in question
    assert snapshot(state_dir / "real" / "rented" / "one") == before
    assert not (state_dir / "real" / "rented" / "two").exists()


async def test_a_yes_to_some_flags_is_none_to_others(
    opened: Open, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    wish = {"target": "rented", "name": "two", "model": MODEL}
    async with opened() as agent:
        token = token_of(await agent.call("deploy_vllm", **wish, max_model_len=512))
        other = await agent.call("deploy_vllm", **wish, max_model_len=1024, confirm=token)
    assert other.code == "CONFIRMATION_STALE"
    assert not (state_dir / "real" / "rented" / "two").exists()


async def test_what_saves_money_is_not_asked_for(
    opened: Open, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping and scaling down of something paid go ahead."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    plant(state_dir, target="rented")
    async with opened() as agent:
        assert (await agent.call("stop_vllm")).state == "stopped"
        down = await agent.call("update_vllm_scaling", min_replicas=0, max_replicas=0)
        assert down.state == "stopped"


async def test_nonsense_is_refused_before_anybody_is_asked(
    opened: Open, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A human is not asked to agree to what cannot be done."""
    targets(monkeypatch, tmp_path / "targets.toml", rented=2.5)
    plant(state_dir, target="rented")
    async with opened(yes) as agent:
        reply = await agent.call("update_vllm_scaling", min_replicas=2, max_replicas=1)
        assert reply.code == "INVALID_ARGUMENT"
    assert agent.asked == []


@pytest.mark.parametrize("target", ["cloud-run-l4", "aca-a100", "tpu-v6e-1", "local"])
@pytest.mark.parametrize("purge", [False, True])
async def test_a_deletion_is_shown_with_all_that_goes_and_all_that_stays(
    state_dir: Path, target: str, *, purge: bool
) -> None:
    """By name, as the real clouds call it: whoever agrees to a purge reads what else is lost."""
    settings = Settings(
        vllm_devops_state_dir=state_dir,
        google_cloud_project="p",
        azure_subscription_id="00000000-0000-4000-8000-000000000001",
        engine="simulated",
    )
    backend = Stage(settings).backend(target)
    values = {"name": "one", "target": target, "state": "stopped", "since": LONG_AGO}
    values |= {"model": MODEL, "served_model_name": MODEL, "engine": "vLLM", "revision": "r"}
    one = Deployment.model_validate({**values, "created_at": LONG_AGO, "usd_per_hour": 2.5})
    shown = agreement.to_destroy(Found(backend, one), purge=purge)
    assert "$2.50 an hour" not in shown.what  # nothing of it runs
    runs = Found(backend, one.model_copy(update={"state": "ready", "replicas": 1}))
    assert "$2.50 an hour" in agreement.to_destroy(runs, purge=purge).question
    assert all(what in shown.question for what in (*shown.deletes, *shown.stays))
    assert any("key" in what for what in shown.deletes)
    both = " ".join((*shown.deletes, *shown.stays))
    if target == "aca-a100":
        assert "all weights" in both
        assert ("all weights" in " ".join(shown.deletes)) is purge
        assert ("all secrets" in " ".join(shown.deletes)) is purge
        assert "with its logs" in both
        assert not (purge and shown.stays)  # secrets go with the vault, the share with its account
    if target == "cloud-run-l4":
        assert ("image vllm-devops/one" in " ".join(shown.deletes)) is purge


@pytest.mark.parametrize("state", State)
async def test_what_is_there_and_does_not_say_how_is_replaced_by_nobody_unasked(
    state: State, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody took its label away: it may be another deployment that answers, or sleeps."""
    async with listening(talker()) as url:
        kept = every_cloud(monkeypatch, url)
        kept.put("cloud-run-l4", state, revision="none")
        settings = Settings(vllm_devops_state_dir=state_dir, toolsets=("all",), confirm="token")
        async with agent_of(settings) as agent:
            wish = {"target": "cloud-run-l4", "name": "one", "model": MODEL, "max_model_len": 4096}
            reply = await agent.call("deploy_vllm", **wish)
    assert reply.code == "CONFIRMATION_REQUIRED", reply
    assert f"in place of the one there ({state}, revision none)" in reply.text
    assert kept.writes == []


async def test_what_was_never_made_is_nothing_that_could_be_replaced(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment that was interrupted before its engine was known is made anew, unasked."""
    kept = every_cloud(monkeypatch, "http://127.0.0.1:9")
    kept.put("local", State.FAILED, revision="none", engine="none", usd_per_hour=0)
    settings = Settings(vllm_devops_state_dir=state_dir, toolsets=("all",), confirm="deny")
    async with agent_of(settings) as agent:
        reply = await agent.call("deploy_vllm", **ONE, model=MODEL)
    assert reply.structured["ok"], reply
    assert kept.writes == ["apply local/one"]
