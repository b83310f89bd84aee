"""Tools that measure a deployment, watch and compare the runs, and read other people's."""

from typing import Annotated, Literal

import anyio
from fastmcp.dependencies import CurrentContext
from fastmcp.server.context import Context
from pydantic import Field

from core.records import Answer
from operations import comparing, measuring, runs, wishes
from operations.kept import folder_of
from operations.runtime import Runtime
from tools.confirming import agree
from tools.surface import (
    CREATES,
    LOOKS,
    MEASURES,
    RT,
    Number,
    Numbers,
    Text,
    Whole,
    Wholes,
    ops_tool,
    said,
)
from tools.telling import saying

Wait = Annotated[float, Field(ge=0, le=runs.MAX_WAIT_SECONDS)]
_NOT_PLAN = ("target", "name", "resume", "wait_s", "deadline", "confirm", "ctx", "rt")


@ops_tool("benchmark", MEASURES, default=True)
async def run_benchmark(
    profile: Literal["quick", "standard", "full", "article", "find-capacity"] = "quick",
    target: Text = None,
    name: Text = None,
    contexts: Wholes = None,
    concurrencies: Wholes = None,
    requests_per_second: Numbers = None,
    arrivals: Literal["poisson", "constant", "bursts"] = "poisson",
    output_tokens: Whole = None,
    dataset: Text = None,
    ttft_ms: Number = None,
    tpot_ms: Number = None,
    e2el_ms: Number = None,
    cell_seconds: Number = None,
    workers: Whole = None,
    max_cost_usd: Number = None,
    max_minutes: Number = None,
    resume: Text = None,
    wait_s: Wait = runs.MAX_WAIT_SECONDS,
    confirm: Text = None,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> runs.BenchmarkRun:
    """Measure a deployment: starts the sweep and waits a little; then call get_benchmark.

    Args:
        contexts: Prompt tokens, one row of cells each.
        concurrencies: Users at once, one cell each.
        requests_per_second: Open loop instead.
        dataset: JSONL or ShareGPT file of prompts.
        ttft_ms: With tpot_ms and e2el_ms, what is good enough.
        cell_seconds: At most, each cell.
        resume: Run to go on with.
        confirm: Token from the preview.
    """
    deadline = anyio.current_time() + wait_s
    wanted = said(locals(), without=_NOT_PLAN)
    if resume:
        wish = await wishes.wish_to_resume(rt, resume, wanted)
    else:
        wish = await wishes.wish(rt, wanted, target=target, name=name)
    await agree(rt, wishes.to_measure(wish), confirm)
    folder = await measuring.begin(rt, wish)
    return await runs.watch(rt, folder, deadline=deadline, tell=saying(ctx))


@ops_tool("benchmark", LOOKS, default=True)
async def get_benchmark(
    run: Text = None,
    wait_s: Wait = 0,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> runs.BenchmarkRun:
    """Give a benchmark's progress or, when it is over, its report; the newest run if none is named.

    Args:
        wait_s: Seconds to wait for its end.
    """
    deadline = anyio.current_time() + wait_s
    return await runs.watch(rt, folder_of(rt, run), deadline=deadline, tell=saying(ctx))


@ops_tool("benchmark", LOOKS)
async def list_benchmarks(rt: Runtime = RT) -> runs.BenchmarkRuns:
    """List the benchmark runs that are kept here, newest first."""
    return runs.list_all(rt)


@ops_tool("benchmark", CREATES)
async def stop_benchmark(
    run: Text = None, ctx: Context = CurrentContext(), rt: Runtime = RT
) -> runs.BenchmarkRun:
    """End a benchmark early; what was measured stays, with its report."""
    return await runs.stop(folder_of(rt, run, running=True), saying(ctx))


@ops_tool("benchmark", CREATES)
async def compare_benchmarks(benchmarks: list[str], file: Text = None, rt: Runtime = RT) -> Answer:
    """Set runs of the same workload side by side; writes the comparison as a Markdown file.

    Args:
        benchmarks: Run ids, the reference first.
        file: Name of the file, such as tpu_v6e4_vs_v6e1_comparison.md.
    """
    return await comparing.compare(rt, benchmarks, file)


@ops_tool("benchmark", CREATES)
async def import_benchmark(
    file: str,
    model: Text = None,
    accelerator: Text = None,
    accelerator_count: Whole = None,
    usd_per_hour: Number = None,
    max_model_len: Whole = None,
    output_tokens: Whole = None,
    timeout_seconds: Number = None,
    rt: Runtime = RT,
) -> runs.BenchmarkRun:
    """Read another tool's results, audit them, and keep them as a run.

    Reads the articles' CSV and the JSON of vllm bench serve, guidellm and aiperf.

    Args:
        model: What the file does not say of itself, like all that follow.
    """
    claims = said(locals(), without=("file", "rt"))
    return await comparing.import_file(rt, file, claims)
