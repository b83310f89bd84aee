"""How a deployment is run, asked as people ask it."""

import re
from collections.abc import Callable
from typing import Any, Final

import pytest

from core.settings import Settings
from operations import diagnose
from tests.conversation import Agent, Reply
from tests.operations.diagnosis.made import Engine, page
from tests.questions.typed import typed
from tests.stories.conftest import Azure, Cloud
from tests.webserver import listening

pytestmark = pytest.mark.anyio

MODEL: Final = "google/gemma-4-12B-it-qat-w4a16-ct"
L4: Final = "cloud-run-l4"


async def run(agent: Agent, target: str, name: str = "one", **flags: Any) -> None:
    """Deploy, and see it ready."""
    wish = {"model": MODEL, "max_model_len": 16384, **flags}
    deployed = await agent.call("deploy_vllm", target=target, name=name, **wish)
    assert not deployed.failed, deployed
    ready = await agent.settled(name, target=target)
    assert ready.state == "ready", ready


def row(reply: Reply, flag: str) -> dict[str, Any]:
    """Give what is said of one flag."""
    (found,) = (one for one in reply.data["flags"] if one["flag"] == flag)
    return dict(found)


@typed(
    "is the health check timer long enough to load the model",
    "is the startup time enough for the health check timeout on cloud run",
)
async def test_the_startup_probe_is_held_against_the_boot(
    asked: Callable[..., Any], words: str, cloud: Cloud
) -> None:
    """The probe is the one that Cloud Run was given, the boot the one that the planner foresees."""
    async with asked(cloud.settings) as ask:
        asking = ask(words)
        await run(asking.agent, L4)
        reply = await asking.call("explain_deployment")
        written = await asking.call("get_vllm_deployment_config")
    boot = reply.data["boot"]
    assert f"failureThreshold: {boot['budget_seconds'] // 10}" in written.text
    assert boot["longest_seconds"] == 1800
    assert boot["long_enough"] == "yes"
    expected, low, high = (int(part) for part in _numbers(boot["predicted_seconds"]))
    assert low < expected < high <= boot["budget_seconds"]
    assert f"allows {boot['budget_seconds']} s" in reply.structured["summary"]


def _numbers(span: str) -> list[str]:
    return span.replace(",", "").replace("(", "").replace(")", "").replace("-", " ").split()


@typed("what are the trade-offs on the deployment?")
async def test_trade_offs_are_computed_for_what_runs(
    asked: Callable[..., Any], words: str, ready_azure: Azure
) -> None:
    """In tokens, requests, seconds and dollars of this model on this accelerator."""
    async with asked(ready_azure.settings) as ask:
        asking = ask(words)
        await run(asking.agent, "aca-a100", min_replicas=0)
        reply = await asking.call("explain_deployment")
        planned = await asking.call(
            "plan_deployment", model=MODEL, target="aca-a100", max_model_len=16384
        )
    trades = {one["change"]: "; ".join(one["moves"]) for one in reply.data["trade_offs"]}
    memory = planned.data["memory"]
    assert f"{memory['kv_tokens']:,} tokens: " in row(reply, "--max-model-len")["does"]
    assert f"{memory['max_concurrency']:.1f} of 16,384 tokens -> " in trades["max_model_len=8192"]
    price = planned.data["foreseen"]["usd_per_hour"]
    assert re.search(rf"idle: nothing .* -> \${price:.2f}/h", trades["min_replicas=1"])
    assert any("needs SM 8.9" in one["rule"] for one in reply.data["practices"])
    assert row(reply, "--max-model-len")["differs"]
    assert not row(reply, "--kv-cache-dtype")["differs"]
    assert any("cooldownPeriod" in note for note in reply.data["boot"]["notes"])
    assert True in {one.get("followed") for one in reply.data["practices"]}


@typed("what do these changes do")
async def test_changes_are_explained_one_by_one_and_together(
    asked: Callable[..., Any], words: str, cloud: Cloud
) -> None:
    """Each flag's own effect, that of all, and the call that makes them."""
    changes = ["--max-model-len=8192", "--kv-cache-dtype fp8", "--enforce-eager", "min_replicas=1"]
    async with asked(cloud.settings) as ask:
        asking = ask(words)
        await run(asking.agent, L4)
        reply = await asking.call("explain_deployment", flags=changes)
        after = await asking.call(
            "plan_deployment", model=MODEL, target=L4, max_model_len=8192, kv_cache_dtype="fp8",
            enforce_eager=True,
        )  # fmt: skip
    found = reply.data["comparison"]
    told = {one["flag"]: (one["before"], one["after"]) for one in found["differences"]}
    assert told == {
        "--max-model-len": ("16,384", "8,192"),
        "--kv-cache-dtype": ("auto", "fp8"),
        "--enforce-eager": ("off", "on"),
        "min_replicas": ("0", "1"),
    }
    alone = {one["flag"]: one["does"] for one in found["differences"]}
    assert "of 16,384 tokens" in alone["--kv-cache-dtype"]
    assert "cold start" in alone["--enforce-eager"]
    assert f"{after.data['memory']['max_concurrency']:.1f} of 8,192" in found["together"][1]
    assert found["fits"]
    assert "started anew" in found["restarts"]
    (step,) = reply.structured["next"]
    assert step["tool"] == "deploy_vllm"
    wanted = {"max_model_len": 8192, "kv_cache_dtype": "fp8", "min_replicas": 1}
    assert wanted.items() <= step["arguments"].items()


@typed("what are the key inference issues", "why is it slow?")
async def test_a_full_cache_is_named_as_the_cause(
    asked: Callable[..., Any],
    words: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cause has the engine's figures, and the fix the flags that help."""
    monkeypatch.setattr(diagnose, "FIRST_GAP_SECONDS", 0.0)
    monkeypatch.setattr(diagnose, "WATCH_SECONDS", 0.0)
    engine = Engine()
    engine.pages = [
        page(waiting=4, running=8, kv=0.97, preempted=3),
        page(waiting=4, running=8, kv=0.97, preempted=5),
    ]
    async with listening(engine.app) as url:
        own = settings.model_copy(update={"vllm_base_url": url})
        async with asked(own) as ask:
            reply = await ask(words).call("diagnose")
    assert reply.data["code"] == "PREEMPTING"
    assert "2 requests were preempted" in reply.structured["summary"]
    assert "kv_cache_dtype" in reply.text
    assert "KV cache use 0.97" in reply.text
