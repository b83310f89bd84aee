"""Calls as spans of OpenTelemetry: what they say, what they do not, and when there are none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import fastmcp
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from core.records import State
from core.settings import Settings
from tests.conversation import agent_of
from tests.tools.asked import mode
from tests.tools.recorded import recorded
from tests.tools.recorded_cloud import RecordedCloud
from tests.tools.sentinels import KEY, OURS, named_in

__all__ = ["mode"]

pytestmark = pytest.mark.anyio

ONE: Final = {"target": "run", "name": "one"}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Let an SDK be there, as `opentelemetry-instrument` would set it up."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    before = fastmcp.settings.telemetry_mode
    yield exporter
    fastmcp.settings.telemetry_mode = before
    provider.shutdown()


@pytest.fixture
def traced(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A world with one deployment, and a server that tells of its calls."""
    recorded(monkeypatch, tmp_path / "targets.toml").put("run", State.STOPPED)
    return Settings(
        vllm_devops_state_dir=state_dir, toolsets=("all",), confirm="never", telemetry=True, **OURS
    )


def ours(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    """Give the spans of calls; a client in this process makes some of its own."""
    finished = exporter.get_finished_spans()
    return [span for span in finished if span.kind is trace.SpanKind.SERVER]


async def test_a_call_is_one_span(traced: Settings, spans: InMemorySpanExporter, mode: str) -> None:
    """Named like FastMCP's own, with what it was about and how it ended."""
    async with agent_of(traced, mode=mode) as agent:
        await agent.call("stop_vllm", **ONE)
    (span,) = ours(spans)
    assert span.name == "tools/call stop_vllm"
    assert dict(span.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "stop_vllm",
        "vllm_devops.target": "run",
        "vllm_devops.name": "one",
        "vllm_devops.result": "ok",
        "vllm_devops.retryable": False,
        "vllm_devops.rehearsal": False,
    }


async def test_a_failure_is_told_by_its_code(traced: Settings, spans: InMemorySpanExporter) -> None:
    """Whoever watches sees how often which one comes."""
    async with agent_of(traced) as agent:
        await agent.call("stop_vllm", target="run", name="nobody")
        await agent.call("no_such_tool")
    codes = [(span.attributes or {})["vllm_devops.result"] for span in ours(spans)]
    assert codes == ["DEPLOYMENT_NOT_FOUND", "NOT_FOUND"]
    assert all(span.status.status_code is trace.StatusCode.ERROR for span in ours(spans))


async def test_no_span_has_a_secret_or_the_words_of_an_exception(
    traced: Settings, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in what was said, nor in what went wrong, nor in a name that is none."""

    async def broken(_self: RecordedCloud, _name: str) -> NoReturn:
        raise RuntimeError(f"cannot use {OURS['hf_token']} or {KEY}: the-inner-words")

    async with agent_of(traced) as agent:
        for secret in (*OURS.values(), KEY):
            await agent.call("save_hf_token", token=secret, target="run")
            await agent.call("stop_vllm", target="run", name=secret)
            await agent.call("get_logs", lines=secret)
            await agent.call(secret)
        monkeypatch.setattr(RecordedCloud, "describe", broken)
        assert (await agent.call("stop_vllm", **ONE)).code == "INTERNAL_ERROR"
    told = "\n".join(_whole(span) for span in spans.get_finished_spans() if span in ours(spans))
    assert "INTERNAL_ERROR" in told
    assert named_in(told) == []
    assert "the-inner-words" not in told


def _whole(span: ReadableSpan) -> str:
    return json.dumps(json.loads(span.to_json())) + str(span.events)


@pytest.mark.parametrize("on", [True, False])
async def test_an_outer_span_is_the_parent_where_it_is_on(
    traced: Settings, spans: InMemorySpanExporter, *, on: bool
) -> None:
    """Off, nothing is made, read or passed on, though an SDK is there."""
    settings = traced.model_copy(update={"telemetry": on})
    made: list[Any] = []
    async with agent_of(settings) as agent:
        with trace.get_tracer("agent").start_as_current_span("a turn of the agent") as turn:
            await agent.call("stop_vllm", **ONE)
        made = ours(spans)
    assert len(made) == int(on)
    assert fastmcp.settings.telemetry_mode == ("propagation_only" if on else "off")
    for span in made:
        assert span.context.trace_id == turn.get_span_context().trace_id
