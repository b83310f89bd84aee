"""Benchmarks, asked for as people ask for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from benchmark.records import Code
from core.settings import Settings
from tests.benchmark.made import a_grid, with_verdict
from tests.conversation import Reply
from tests.questions.planted import CONTEXTS, LOADS, measured
from tests.questions.typed import typed
from tests.tools.world import hurry

pytestmark = pytest.mark.anyio

Asked = Callable[..., Any]
E4B: Final = "google/gemma-4-E4B-it"
L4: Final = "cloud-run-l4"


def a_sweep(state_dir: Path) -> None:
    """A sweep that saturates at 32 in flight, and one cell that no figure may come from."""
    cells = list(a_grid(CONTEXTS, LOADS))
    boast = cells[3].model_copy(update={"output_token_throughput": 99_999.0})
    cells[3] = with_verdict(boast, Code.PREFIX_CACHED, "61 % of prompts came from the cache")
    measured(
        state_dir, "20261121-120000-quick-one", model=E4B, target=L4, cells=cells, accelerator="L4"
    )


@typed("run the benchmark sweep")
async def test_a_sweep_begins_and_says_how_to_follow_it(
    asked: Asked, settings: Settings, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Of the only deployment, without any argument that must be known."""
    hurry(monkeypatch)
    async with asked(settings) as ask:
        question = ask(words)
        await question.agent.serve("one")
        begun = await question.call("run_benchmark", wait_s=0)
        assert (begun.state, begun.data["target"]) == ("running", "local")
        (step,) = begun.structured["next"]
        assert (step["tool"], step["arguments"]["run"]) == ("get_benchmark", begun.data["run"])
        ended = await question.agent.call("stop_benchmark")
        assert ended.state == "stopped"


@typed("summarize benchmark_report.md", "summarize results")
async def test_results_are_decisions_and_actions_from_valid_cells(
    asked: Asked, settings: Settings, state_dir: Path, words: str
) -> None:
    """What limits, from which load on, what to change; the cell that boasts is measured anew.

    By the law of the cells 1,600 tokens/s are the most, reached at 32 in flight; beyond them
    requests wait, and from 512 tokens on it is the KV cache of 16,384 that is full.
    """
    a_sweep(state_dir)
    named = {"run": "benchmark_report.md"} if "report" in words else {}
    async with asked(settings) as ask:
        reply = await ask(words).call("get_benchmark", **named)
    decisions, actions = " ".join(reply.data["key_decisions"]), reply.data["action_items"]
    assert "1,600 output tokens/s" in reply.structured["summary"]
    assert f"{E4B} on {L4}" in reply.structured["summary"]
    assert "11 of 12 measured cells are valid" in reply.structured["summary"]
    assert "The KV cache limits from 128 in flight (512, 4,096 prompt tokens) on" in decisions
    assert "96 requests wait while 32 run" in decisions
    assert "95 % of the best throughput is reached with 32 in flight" in decisions
    assert any(item.startswith("Set --kv-cache-dtype fp8") for item in actions), actions
    assert any("contexts=[8], concurrencies=[64, 128]" in item for item in actions), actions
    assert any("prompts that share nothing (PREFIX_CACHED in 1" in item for item in actions)
    assert "~~99,999~~" in reply.data["report"]
    assert "99,999" not in decisions + " ".join(actions)


@typed("what are the performance characteristics of the deployment?")
async def test_what_it_does_at_which_load_is_a_table(
    asked: Asked, settings: Settings, state_dir: Path, words: str
) -> None:
    """Throughput, first token and time of a token by prompt length and users."""
    a_sweep(state_dir)
    async with asked(settings) as ask:
        reply = await ask(words).call("get_benchmark")
    report = reply.data["report"]
    for heading in ("Output throughput (tokens/s)", "TTFT p50 (ms)", "TPOT p50 (ms)"):
        assert heading in report, report
    assert "| 512 | 50 | 400 | 1,600 | 1,600 |" in report, report
    assert "throughput per latency is best with" in " ".join(reply.data["key_decisions"])


def assert_twice_as_fast(reply: Reply) -> None:
    """The second run over the first, which is the reference."""
    assert "2 times the throughput" in reply.structured["summary"], reply
    assert reply.data["axes"] == ["model", "precision"], reply.data["axes"]
    assert all(each["factor"] == pytest.approx(2.0) for each in reply.data["scaling"])


@typed("compare the QAT 26AB vs the non QAT benchmarks")
async def test_two_models_are_named_as_people_name_them(
    asked: Asked, settings: Settings, state_dir: Path, words: str
) -> None:
    """No id of a run has to be known: of each model the newest run is taken."""
    plain = "google/gemma-4-26B-A4B-it"
    where = "cloud-run-rtx-pro-6000"
    measured(state_dir, "20261121-120000-quick-one", model=plain, target=where)
    qat = f"{plain}-qat-w4a16-ct"
    measured(state_dir, "20261121-130000-quick-one", model=qat, target=where, times=2.0)
    async with asked(settings) as ask:
        reply = await ask(words).call("compare_benchmarks", benchmarks=["26AB", "QAT 26AB"])
    assert not reply.failed, reply
    assert_twice_as_fast(reply)


async def test_a_model_that_nobody_measured_is_foreseen_instead(
    asked: Asked, settings: Settings, state_dir: Path
) -> None:
    """The error leads to the tool that can answer, with the models as they were typed."""
    a_sweep(state_dir)
    async with asked(settings) as ask:
        question = ask("compare the QAT 26AB vs the non QAT benchmarks")
        reply = await question.call("compare_benchmarks", benchmarks=["26AB", "e4b"])
    assert reply.code == "NOT_FOUND"
    assert "'26AB'" in reply.structured["summary"]
    assert "'e4b'" not in reply.structured["summary"]
    first = reply.structured["next"][0]
    assert (first["tool"], first["arguments"]) == ("compare_targets", {"models": ["26AB", "e4b"]})
