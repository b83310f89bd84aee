"""Tools that measure a deployment, watch and compare the runs, and read other people's."""

from typing import Annotated, Literal

import anyio
from fastmcp.dependencies import CurrentContext
from fastmcp.server.context import Context
from pydantic import Field

from core.records import Answer
from operations.resolve import remember_use
from operations.runtime import MAX_RUN_WAIT_SECONDS, Runtime
from tools.confirm import agree, saying
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
    Words,
    args_of,
    ops_tool,
)

Wait = Annotated[float, Field(ge=0, le=MAX_RUN_WAIT_SECONDS)]
_NOT_PLAN = ("target", "name", "resume", "wait_s", "deadline", "confirm", "ctx", "rt")


@ops_tool(
    "benchmark",
    MEASURES,
    default=True,
    seldom=("arrivals", "dataset", "workers", "cell_seconds", "cluster", "nodes"),
)
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
    cluster: Text = None,
    nodes: Whole = None,
    max_cost_usd: Number = None,
    max_minutes: Number = None,
    resume: Text = None,
    wait_s: Wait = MAX_RUN_WAIT_SECONDS,
    confirm: Text = None,
    ctx: Context = CurrentContext(),
    rt: Runtime = RT,
) -> Answer:
    """Measure throughput and latency of a deployment under the load of users: starts a sweep.

    Then call get_benchmark.

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
    wanted = args_of(locals(), without=_NOT_PLAN)
    from operations import benchmarks, measurement

    if resume:
        wish = await measurement.wish_to_resume(rt, resume, wanted)
    else:
        wish = await measurement.wish(rt, wanted, target=target, name=name)
    await agree(rt, measurement.to_measure(wish), confirm)
    folder = await measurement.begin(rt, wish)
    remember_use(rt, wish.found.deployment)
    return await benchmarks.watch(rt, folder, deadline=deadline, tell=saying(ctx))


@ops_tool("benchmark", LOOKS, default=True)
async def get_benchmark(
    run: Text = None, wait_s: Wait = 0, ctx: Context = CurrentContext(), rt: Runtime = RT
) -> Answer:
    """Summarize a benchmark: its report, performance results, what limits; or how far it is."""
    deadline = anyio.current_time() + wait_s
    from operations import benchmarks, measurement

    return await benchmarks.watch(
        rt, measurement.folder_of(rt, run), deadline=deadline, tell=saying(ctx)
    )


@ops_tool("benchmark", LOOKS)
async def list_benchmarks(rt: Runtime = RT) -> Answer:
    """List the benchmarks that are kept here, every old run, newest first."""
    from operations import benchmarks

    return benchmarks.list_all(rt)


@ops_tool("benchmark", CREATES)
async def stop_benchmark(
    run: Text = None, ctx: Context = CurrentContext(), rt: Runtime = RT
) -> Answer:
    """End, cancel or abort a sweep; what was measured stays, with its report."""
    from operations import benchmarks, measurement

    return await benchmarks.stop(measurement.folder_of(rt, run, running=True), saying(ctx))


@ops_tool("benchmark", CREATES)
async def compare_benchmarks(
    benchmarks: Words = None, file: Text = None, rt: Runtime = RT
) -> Answer:
    """Compare the results of runs side by side: which is faster, and the cost.

    Writes the comparison, with scaling and crossovers, as a Markdown file.

    Args:
        benchmarks: Run ids, a campaign, models or targets, the reference first.
        file: Such as tpu_v6e4_vs_v6e1_comparison.md; alone: print it.
    """
    from operations.benchmarks import compare

    # `make` gives one word for all of them; no id of a run holds a comma.
    meant = [part.strip() for each in benchmarks or () for part in each.split(",")]
    return await compare(rt, [word for word in meant if word], file)


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
) -> Answer:
    """Read another tool's results, audit them, and keep them as a run.

    Reads vllm bench, guidellm, aiperf, sglang, llmperf, inference-perf, articles' CSVs.

    Args:
        model: What the file does not say of itself, like all that follow.
    """
    claims = args_of(locals(), without=("file", "rt"))
    from operations import benchmarks

    return await benchmarks.import_file(rt, file, claims)
