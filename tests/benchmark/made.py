"""Cells and samples made up by a known law, for tests of what is computed from them."""

from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np

from benchmark.records import (
    CellResult,
    CellSpec,
    CellState,
    ClientView,
    Code,
    Counts,
    Distribution,
    Host,
    Load,
    Manifest,
    Measured,
    NodeView,
    Provenance,
    RunPlan,
    ServerView,
    Subject,
    Verdict,
)
from benchmark.samples import Finish, Floats, Outcome, Samples
from core.metrics import CacheConfig

T = TypeVar("T")
WHEN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def spread(mean: float, count: int = 100) -> Distribution:
    """A distribution whose tail is twice its mean."""
    return Distribution(
        count=count,
        mean=mean,
        p50=mean * 0.95,
        p90=mean * 1.3,
        p95=mean * 1.5,
        p99=mean * 1.8,
        max=mean * 2,
    )


def a_cell(
    context: int = 512,
    concurrency: int = 8,
    *,
    state: CellState = CellState.MEASURED,
    **fields: object,
) -> CellResult:
    """A cell of an engine that gives 50 tokens/s to each user and 1,600 to all together."""
    spec = CellSpec(context=context, load=Load(concurrency=concurrency))
    if state is not CellState.MEASURED:
        return CellResult.model_validate({"spec": spec, "state": state, "reason": "said", **fields})
    tokens = min(50.0 * concurrency, 1600.0)
    tpot = concurrency / tokens
    ttft = 0.02 + context / 20_000 + max(0, concurrency - 32) * 0.05
    rate = tokens / 64
    made = {
        "spec": spec,
        "state": state,
        "started_at": WHEN,
        "window_seconds": 10.0,
        "wall_seconds": 14.0,
        "counts": Counts(sent=140, measured=100, succeeded=100, cut=8),
        "ttft": spread(ttft),
        "tpot": spread(tpot),
        "itl": spread(tpot, 6300),
        "tokens_per_event": 1.0,
        "e2el": spread(ttft + 63 * tpot),
        "request_throughput": rate,
        "input_token_throughput": rate * context,
        "output_token_throughput": tokens,
        "concurrency_mean": float(concurrency),
        "relative_half_width": 0.02,
        "e2el_relative_half_width": 0.02,
        "server": _engine(context, concurrency, ttft=ttft, itl=tpot),
        "client": CLIENT,
        **_prices(rate, tokens, context),
    }
    return CellResult.model_validate({**made, **fields})


def _prices(rate: float, tokens: float, context: int) -> dict[str, float]:
    usd_per_second = 3.67 / 3600
    return {
        "usd_per_1000_requests": 1000 * usd_per_second / rate,
        "usd_per_million_output_tokens": 1e6 * usd_per_second / tokens,
        "usd_per_million_tokens": 1e6 * usd_per_second / (tokens + rate * context),
    }


CLIENT = ClientView(
    workers=1,
    cpu_share=0.2,
    loop_lag_p99_5_seconds=0.0005,
    send_lateness_p99_seconds=0.0002,
    memory_mib=60,
)


def measured_of(samples: Samples, *, begin: float, end: float, **fields: Any) -> Measured:
    """Those samples as they were measured in a window, by a client that was well."""
    made: dict[str, Any] = {"settled": True, "client": CLIENT, "slices": (), "started_at": WHEN}
    made |= {"wall_seconds": 12, **fields}
    return Measured(samples=samples, window_begin=begin, window_end=end, **made)


def _engine(context: int, concurrency: int, *, ttft: float, itl: float) -> ServerView:
    return ServerView(
        looks=10,
        requests_running_mean=min(concurrency, 32),
        requests_running_max=min(concurrency, 32),
        requests_waiting_mean=max(0, concurrency - 32),
        requests_waiting_max=max(0, concurrency - 32),
        kv_cache_usage_max=min(1.0, concurrency * context / 16384),
        prefix_cache_hit_rate=0.0,
        preemptions=0,
        ttft_mean=ttft,
        itl_mean=itl,
        process_start_time=1.0,
    )


def with_verdict(cell: CellResult, code: Code, because: str = "a figure, a limit") -> CellResult:
    """The same cell, with one thing to say of it."""
    return cell.model_copy(
        update={"verdicts": (*cell.verdicts, Verdict(code=code, because=because))}
    )


def on_nodes(cell: CellResult, lost: str | None = None) -> CellResult:
    """The same cell by three nodes; the third is a third slower and the busiest, or lost."""
    assert cell.ttft
    nodes = []
    for number, slower in enumerate((1.0, 1.01, 4 / 3)):
        ttft = spread(cell.ttft.mean * slower, 33)
        client = CLIENT.model_copy(update={"cpu_share": 0.2 + number / 10})
        node = NodeView(
            node=f"10.0.0.{number}", workers=(number,), clock_bound_seconds=0.0005, client=client,
            requests=33, failed=number, ttft=ttft, ttft_half_width_seconds=ttft.mean / 50,
        )  # fmt: skip
        nodes.append(node)
    if lost:
        nodes[-1] = NodeView(node="10.0.0.2", workers=(2,), lost=lost)
    return cell.model_copy(update={"nodes": tuple(nodes)})


def a_grid(
    contexts: tuple[int, ...] = (8, 512, 4096), loads: tuple[int, ...] = (1, 8, 32, 128)
) -> tuple[CellResult, ...]:
    """A whole grid of such cells."""
    return tuple(a_cell(context, load) for context in contexts for load in loads)


def a_manifest(
    run_id: str = "20261121-120000-quick",
    contexts: tuple[int, ...] = (8, 512, 4096),
    loads: tuple[int, ...] = (1, 8, 32, 128),
    **provenance: object,
) -> Manifest:
    """What `a_grid` was measured by."""
    return Manifest(
        run_id=run_id,
        created_at=WHEN,
        base_url="http://127.0.0.1:8000",
        plan=RunPlan(contexts=contexts, loads=tuple(Load(concurrency=load) for load in loads)),
        subject=Subject(
            model="google/gemma-4-E4B-it",
            max_model_len=8192,
            vllm_version="0.32.0",
            cache=CacheConfig(kv_cache_size_tokens=65536, kv_cache_max_concurrency=8.0),
            process_start_time=1.0,
        ),
        provenance=Provenance.model_validate(
            {"target": "aca-a100", "accelerator": "A100 80GB", "accelerator_count": 1}
            | {"usd_per_hour": 3.67}
            | provenance
        ),
        host=Host(
            system="Linux",
            cpu="a CPU",
            cores=2,
            memory_gib=24,
            python="3.11.7",
            versions={"uvloop": "1"},
        ),
    )


def answered(intended: Floats, first: Floats, last: Floats, **columns: Any) -> Samples:
    """Requests that went well, but for the columns that are given; times are since they began."""
    whole = np.zeros(len(intended), dtype=np.int64)
    made: dict[str, Any] = {
        "request": np.arange(len(intended)),
        "intended": intended,
        "sent": intended + 0.0001,
        "connect_seconds": np.full(len(intended), np.nan),
        "headers": intended + first / 2,
        "first_token": intended + first,
        "last_token": intended + last,
        "done": intended + last + 0.0001,
        "prompt_tokens": whole + 512,
        "cached_tokens": whole - 1,
        "status": whole + 200,
        "outcome": whole + Outcome.OK,
        "finish": whole + Finish.LENGTH,
        **dict.fromkeys(("worker", "reasoning_tokens"), whole),
    }
    return Samples(**{**made, **columns})


def some_samples(
    requests: int = 100,
    *,
    ttft: float = 0.05,
    gap: float = 0.01,
    tokens: int = 64,
    every: float = 0.1,
) -> Samples:
    """Requests that begin at 100.0, one each `every` seconds, all well."""
    start = np.asarray(100.0 + np.arange(requests) * every, dtype=np.float64)
    whole = np.zeros(requests, dtype=np.int64)
    first = np.full(requests, ttft, dtype=np.float64)
    return answered(
        start,
        first,
        first + gap * (tokens - 1),
        output_tokens=whole + tokens,
        events=whole + tokens,
        gap_counts=whole + (tokens - 1),
        gaps=np.full(requests * (tokens - 1), gap, dtype=np.float32),
    )


def known(value: T | None) -> T:
    """What must be there."""
    assert value is not None
    return value
