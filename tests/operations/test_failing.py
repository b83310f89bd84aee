"""Every way a boot can fail, as an agent is told of it."""

from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from core.settings import Settings
from simulators.engine.flags import FAILURES
from tests.conversation import Reply, agent_of
from tests.simulators.models import write_tiny_model
from tests.soon import HANGS
from tests.tools.calls import MODEL
from tests.tools.world import assert_envelope, assert_same_facts

MODES: Final = {
    "oom": "DOES_NOT_FIT",
    "tpu-program-allocation": "TPU_HBM_EXCEEDED",
    "tpu-hlo-memory": "TPU_HBM_EXCEEDED",
    "chunked-mm-input": "MM_BATCH_TOO_SMALL",
    "wna16-kernel": "NO_KERNEL_FOR_ACCELERATOR",
    "limit-mm-json": "BAD_ENGINE_ARGUMENT",
    "triton-shared-memory": "NO_KERNEL_FOR_ACCELERATOR",
    "per-layer-attribute": "VERSION_MISMATCH",
    "kv-cache-too-small": "KV_CACHE_TOO_SMALL",
    "hub-gated": "MODEL_GATED",
    "hub-forbidden": "MODEL_GATED",
    "hub-not-found": "MODEL_NOT_FOUND",
    "hub-offline": "HUB_OFFLINE",
    "disk-full": "DISK_FULL",
    "cpu-memory-taken": "CPU_MEMORY_TAKEN",
    "unknown-error": "UNKNOWN_CAUSE",
    "exit-in:compiling": "ENGINE_EXITED",
    "kill-in:loading": "KILLED",
}
UNPLANNED: Final = "acme/a-model"
"""Nothing is known of it beforehand: what the planner would refuse, the engine has to."""
FLAGS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "unknown-flag": ({"engine_args": ["--no-such-flag"]}, "BAD_ENGINE_ARGUMENT"),
    "wrong-choice": ({"kv_cache_dtype": "int1"}, "BAD_ENGINE_ARGUMENT"),
    "too-long": ({"max_model_len": 1_000_000}, "MAX_MODEL_LEN_TOO_LONG"),
    "no-room": ({"kv_cache_memory_bytes": "1M"}, "KV_CACHE_TOO_SMALL"),
}
EVERY: Final = {**MODES, **{name: code for name, (_, code) in FLAGS.items()}}


async def _fail_all(settings: Settings, patch: pytest.MonkeyPatch) -> dict[str, Reply]:
    async with agent_of(settings) as agent:
        wishes: dict[str, dict[str, Any]] = {mode: {} for mode in MODES}
        for case, flags in {
            **wishes,
            **{name: flags for name, (flags, _) in FLAGS.items()},
        }.items():
            patch.setenv("SIMULATED_ENGINE_FAIL", case if case in MODES else "")
            await agent.call("deploy_vllm", model=UNPLANNED, name=_name(case), **flags)
        return {case: await agent.settled(_name(case)) for case in EVERY}


def _name(case: str) -> str:
    return case.replace(":", "-")


def test_every_mode_of_the_simulated_engine_is_walked() -> None:
    known = FAILURES
    assert {mode.partition(":")[0] for mode in MODES} == {*known["boot"], *known["silent"]} - {
        "never-ready"
    }


@pytest.mark.anyio
@pytest.mark.life
async def test_every_failed_boot_is_told_with_cause_fix_and_last_lines(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status call has everything: no second call is needed to know what to change.

    Four seconds: nineteen engines boot side by side.
    """
    told = await _fail_all(settings, monkeypatch)
    assert {case: reply.state for case, reply in told.items()} == dict.fromkeys(EVERY, "failed")
    failures = {case: reply.data["failure"] for case, reply in told.items()}
    assert {case: failure["code"] for case, failure in failures.items()} == EVERY
    silent = {case for case, failure in failures.items() if not failure["evidence"]}
    assert silent <= {"exit-in:compiling"}
    for case, reply in told.items():
        assert failures[case]["fix"], case
        assert failures[case]["cause"] in reply.structured["summary"], case
        assert_envelope(reply)
        assert_same_facts(reply)


@pytest.mark.anyio
async def test_an_engine_that_never_gets_ready_is_not_called_failed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is loading, and since when: the agent can decide. A second: an engine is started."""
    monkeypatch.setenv("SIMULATED_ENGINE_FAIL", "never-ready@loading")
    async with agent_of(settings) as agent:
        await agent.call("deploy_vllm", model=MODEL, name="one")
        with anyio.fail_after(HANGS):
            while (reply := await agent.call("status_vllm", wait_s=0.3)).data["phase"][
                "name"
            ] != "loading weights":
                continue
        assert reply.state == "loading"
        assert reply.data["phase"]["since"]
        health = await agent.call("verify_model_health")
        assert health.data["healthy"] is False
        assert (await agent.call("query_gemma4", prompt="Hello")).code == "NOT_READY"
        assert (await agent.call("destroy_vllm")).data["gone"] is True


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fail", "code"),
    [("unhealthy", "UNHEALTHY"), ("bad-json", "BAD_REPLY"), ("broken-stream", "BROKEN_STREAM")],
)
async def test_an_open_port_is_not_yet_ready(
    fail: str, code: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the model has answered, nothing is called ready. A second: an engine is started."""
    monkeypatch.setenv("SIMULATED_ENGINE_FAIL", fail)
    async with agent_of(settings) as agent:
        reply = await agent.call("deploy_vllm", model=MODEL, name="one")
        with anyio.fail_after(HANGS):
            while reply.data.get("failure", {}).get("code") != code:
                reply = await agent.call("status_vllm", wait_s=0.1)
                assert reply.state in {"loading", "unknown"}
        assert (await agent.call("verify_model_health")).data["healthy"] is False


@pytest.mark.anyio
async def test_after_a_failure_the_corrected_wish_goes_through(
    settings: Settings, tmp_path: Path
) -> None:
    """By the call that diagnose offers, without the flag: ready, and the log is the new one's."""
    model = str(write_tiny_model(tmp_path / "tiny"))
    async with agent_of(settings) as agent:
        wish = {"name": "one", "model": model}
        await agent.call("deploy_vllm", **wish, engine_args=["--no-such-flag"])
        assert (await agent.settled("one")).state == "failed"
        (offered,) = (await agent.call("diagnose", name="one")).structured["next"]
        assert offered["tool"] == "deploy_vllm"
        assert "--no-such-flag" not in offered["arguments"].get("engine_args", [])
        await agent.call(offered["tool"], **offered["arguments"])
        ready = await agent.settled("one")
        assert (ready.state, ready.data["served_model_name"]) == ("ready", "tiny")
        found = await agent.call("get_logs", contains="no-such-flag")
        assert found.data["lines"] == []
