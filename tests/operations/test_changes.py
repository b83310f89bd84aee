"""A deployment changed by naming it, and questions to one that does not run."""

from pathlib import Path
from typing import Any, Final

import pytest

from core.records import Deployment, Failure, State
from core.settings import Settings
from operations.agreement import preview
from tests.conversation import agent_of
from tests.operations.diagnosis.made import deployment, just_now
from tests.tools.asked import ONE, Open, opened, yes
from tests.tools.calls import MODEL
from tests.tools.recorded import every_cloud
from tests.tools.world import plant, snapshot

__all__ = ["opened"]

PARSERS: Final = "--enable-auto-tool-choice --tool-call-parser=gemma4 --reasoning-parser=gemma4"
"""What every Gemma 4 is started with."""
pytestmark = pytest.mark.anyio


def paid(state_dir: Path) -> Settings:
    """A server with one project, whose yes is a token."""
    named = {"google_cloud_project": "p", "toolsets": ("all",), "confirm": "token"}
    return Settings.model_validate({"vllm_devops_state_dir": state_dir, **named})


@pytest.fixture
def mode() -> str:
    """The newest protocol."""
    return "auto"


async def test_what_is_not_given_again_stays_as_it_is(opened: Open, state_dir: Path) -> None:
    """The question lists every difference and what stays; the same again is nothing to ask."""
    async with opened(yes) as agent:
        await agent.call("deploy_vllm", **ONE, model=MODEL, max_model_len=512, ttl_minutes=30)
        again = await agent.call("deploy_vllm", **ONE)
        assert agent.asked == [], "nothing differs"
        changed = await agent.call("deploy_vllm", name="one", max_num_seqs=2)
        assert changed.data["revision"] != again.data["revision"]
        assert changed.data["expires_at"]
    (question,) = agent.asked
    assert "max_num_seqs: default -> 2" in question
    assert f"max_model_len 512; engine_args {PARSERS}; ttl_minutes 30" in question


async def test_a_flag_goes_back_to_its_default_when_that_is_said(
    opened: Open, state_dir: Path
) -> None:
    """By `reset`, and a list by giving it empty; nothing else is touched."""
    words = {"engine_args": ["--seed 7"]}
    async with opened(yes) as agent:
        await agent.call("deploy_vllm", **ONE, model=MODEL, max_model_len=512, **words)
        await agent.call("deploy_vllm", **ONE, reset=["max_model_len"], engine_args=[])
        unknown = await agent.call("deploy_vllm", **ONE, reset=["name"])
    assert unknown.code == "INVALID_ARGUMENT"
    (question,) = agent.asked
    engine_args = f"engine_args: {PARSERS} --seed 7 -> {PARSERS}"
    assert f"max_model_len: 512 -> default; {engine_args}" in question


async def test_the_change_that_was_explained_is_the_one_that_is_made(
    opened: Open, state_dir: Path
) -> None:
    """Its next step takes out what was left out again, also of engine_args."""
    async with opened(yes) as agent:
        eager = {"enforce_eager": True, "engine_args": ["--max-num-seqs 8"]}
        await agent.call("deploy_vllm", **ONE, model=MODEL, max_model_len=512, **eager)
        words = ["--no-enforce-eager", "--max-num-seqs=16"]
        explained = await agent.call("explain_deployment", flags=words)
        (step,) = explained.structured["next"]
        assert not (await agent.call(step["tool"], **step["arguments"])).failed
    (question,) = agent.asked
    changes = "max_num_seqs: default -> 16; enforce_eager: on -> off; engine_args: "
    assert f"{changes}{PARSERS} --max-num-seqs 8 -> {PARSERS}" in question


async def test_another_model_does_not_take_over_the_weights_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    kept = every_cloud(monkeypatch, "http://127.0.0.1:9")
    kept.put("cloud-run-l4", State.READY)
    kept.specs["cloud-run-l4", "one"] = {"weights": "gs://b/e2b", "max_model_len": 4096}
    async with agent_of(paid(state_dir)) as agent:
        reply = await agent.call("deploy_vllm", name="one", model="google/gemma-4-E4B-it")
    assert reply.data["changes"] == [
        f"model: {MODEL} -> google/gemma-4-E4B-it",
        "weights: gs://b/e2b -> default",
    ]
    assert reply.data["keeps"] == ["max_model_len 4096"]


ONLY_IN_CLOUDS: Final[tuple[dict[str, Any], ...]] = (
    {"access": "public"},
    {"network": "a/b"},
    {"image": "vllm/vllm-openai"},
    {"weights": "gs://bucket/folder"},
    {"engine": "ollama"},
    {"zones": ["us-east5-b"]},
    {"max_replicas": 2},
)


@pytest.mark.parametrize("flags", ONLY_IN_CLOUDS, ids=lambda flags: next(iter(flags)))
async def test_this_machine_refuses_what_only_a_cloud_has(
    opened: Open, state_dir: Path, flags: dict[str, Any]
) -> None:
    """Before anybody is asked, and what runs is left as it is."""
    before = snapshot(plant(state_dir).path)
    async with opened(yes) as agent:
        reply = await agent.call("deploy_vllm", **ONE, **flags)
    assert reply.code == "INVALID_ARGUMENT", reply
    assert agent.asked == []
    assert snapshot(state_dir / "real" / "local" / "one") == before


QUESTIONS: Final[dict[str, dict[str, Any]]] = {
    "query_gemma4": {"prompt": "Why is the sky blue?"},
    "query_gemma4_with_stats": {"prompt": "Why is the sky blue?"},
    "query_vllm": {"messages": [{"role": "user", "content": "Why is the sky blue?"}]},
    "run_benchmark": {"contexts": [16]},
    "get_metrics": {},
    "verify_model_health": {},
}
EXPIRED: Final = Failure(code="EXPIRED", cause="Its time was over.", fix="Deploy it again.")
CRASHED: Final = Failure(code="CUDA_OOM", cause="Out of memory.", fix="Give less.")
DEAD: Final = {
    "STOPPED": (State.STOPPED, None, "start_vllm"),
    "EXPIRED": (State.EXPIRED, EXPIRED, "deploy_vllm"),
    "FAILED": (State.FAILED, CRASHED, "diagnose"),
}


@pytest.mark.parametrize("code", DEAD)
async def test_nobody_waits_for_what_does_not_run(
    code: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code says how it is, trying again is no use, and the next step changes it as it stands.

    The health check of what failed, and the diagnosis, name the same cause.
    """
    state, failure, helps = DEAD[code]
    kept = every_cloud(monkeypatch, "http://127.0.0.1:9")
    kept.put("cloud-run-l4", state, failure=failure)
    kept.specs["cloud-run-l4", "one"] = {"max_model_len": 4096}
    async with agent_of(paid(state_dir)) as agent:
        for tool, said in QUESTIONS.items():
            reply = await agent.call(tool, **said)
            if tool == "verify_model_health" and failure:
                assert (reply.data["healthy"], reply.data["fix"]) == (False, failure.fix)
                continue
            assert (reply.code, reply.structured["retryable"]) == (code, False), (tool, reply)
            assert failure is None or failure.fix == reply.structured["fix"]
            (step,) = reply.structured["next"]
            assert step["tool"] == helps
        done = await agent.call(step["tool"], **step["arguments"])
        assert done.code in {"", "CONFIRMATION_REQUIRED"}, done
        diagnosis = await agent.call("diagnose")
    assert diagnosis.data["healthy"] is (failure is None), diagnosis
    assert diagnosis.data.get("fix") == (failure.fix if failure else None)


async def test_what_sleeps_is_woken_by_the_same_question(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step of ASLEEP repeats what was asked; what asks nothing invents no prompt."""
    kept = every_cloud(monkeypatch, "http://127.0.0.1:9")
    kept.put("cloud-run-l4", State.ASLEEP)
    here = {"target": "cloud-run-l4", "name": "one", "wake": True}
    async with agent_of(paid(state_dir)) as agent:
        for tool in ("query_gemma4", "query_gemma4_with_stats", "query_vllm"):
            said = {**QUESTIONS[tool], "max_tokens": 7}
            reply = await agent.call(tool, **said)
            assert reply.structured["next"] == [{"tool": tool, "arguments": {**said, **here}}]
        for tool in ("get_metrics", "verify_model_health"):
            (step,) = (await agent.call(tool)).structured["next"]
            assert step == {"tool": "verify_model_health", "arguments": here}
        nothing = await agent.call("query_vllm", wake=True)
    assert nothing.code == "INVALID_ARGUMENT", "nobody is asked to pay for no question"
    assert kept.writes == []


@pytest.mark.parametrize("target", ["cloud-run-l4", "aca-a100", "tpu-v6e-1"])
async def test_without_a_login_nobody_is_asked_for_a_price(
    target: str, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cloud is looked at first, and what it lacks is the answer."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    async with opened(lambda _question: "decline") as agent:
        wish = {"target": target, "model": MODEL, "max_model_len": 4096}
        reply = await agent.call("deploy_vllm", **wish)
    assert reply.code in {"NOT_AUTHENTICATED", "NOT_CONFIGURED"}, reply
    assert agent.asked == []


async def test_a_person_reads_that_an_unknown_model_was_not_planned(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    """With the names it is near to: a plan refuses it, a deployment would bill."""
    every_cloud(monkeypatch, "http://127.0.0.1:9")
    async with agent_of(paid(state_dir).model_copy(update={"rehearsal": True})) as agent:
        reply = await agent.call("deploy_vllm", target="cloud-run-l4", name="new", model="gema-12b")
    (doubt,) = reply.data["doubts"]
    assert doubt.startswith("whether it fits is not known: Did you mean 'gemma-4-12b'")


async def test_whoever_scales_what_is_stopped_reads_that_it_starts(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    kept = every_cloud(monkeypatch, "http://127.0.0.1:9")
    kept.put("cloud-run-l4", State.STOPPED)
    async with agent_of(paid(state_dir)) as agent:
        reply = await agent.call("update_vllm_scaling", name="one", min_replicas=0, max_replicas=2)
    assert "which starts it again" in reply.data["what"]


async def test_more_time_than_a_year_is_refused_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    kept = every_cloud(monkeypatch, "http://127.0.0.1:9")
    kept.put("cloud-run-l4", State.READY)
    async with agent_of(paid(state_dir)) as agent:
        reply = await agent.call("update_vllm_scaling", name="one", ttl_minutes=10**9)
    assert reply.code == "INVALID_ARGUMENT"
    assert "364 days" in reply.text


def test_a_yes_is_bound_to_what_was_shown() -> None:
    """To the subject as it was, its price and what was asked for: each change asks anew."""
    one = deployment(usd_per_hour=2.0)

    def bound(present: Deployment = one, price: float = 2.0, asked: str = "") -> str:
        what = "Delete one"
        return preview("destroy_vllm", "run", "one", what, price, present, asked).bound_to

    changed = {"revision": "other", "state": State.STOPPED, "created_at": just_now()}
    tokens = {bound(), bound(price=3.0), bound(asked="purge")}
    tokens |= {bound(one.model_copy(update={name: value})) for name, value in changed.items()}
    assert len(tokens) == 6
    assert bound() == bound()
