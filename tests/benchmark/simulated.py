"""A closed loop played without an engine or a clock: what a sound client would hand over."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmark import figures
from benchmark.figures import compute, judged
from benchmark.records import (
    CellResult,
    CellSpec,
    Load,
    Measured,
    NodeView,
    RunPlan,
    ServerView,
    Slice,
    StopRule,
    Subject,
    Workload,
)
from benchmark.samples import Outcome, Samples
from core.metrics import CacheConfig
from tests.benchmark.made import answered, measured_of

CONTEXT = 512
SLICE_SECONDS = 0.25


@dataclass(frozen=True)
class Run:
    """One cell with all that it is judged by; `with_` plants a flaw."""

    measured: Measured
    server: ServerView
    plan: RunPlan
    subject: Subject
    spec: CellSpec

    def with_(self, **parts: Any) -> "Run":
        return replace(self, **parts)

    def with_samples(self, **columns: Any) -> "Run":
        samples = replace(self.measured.samples, **columns)
        return self.with_(measured=replace(self.measured, samples=samples))

    def with_client(self, **fields: Any) -> "Run":
        client = self.measured.client.model_copy(update=fields)
        return self.with_(measured=replace(self.measured, client=client))

    def with_server(self, **fields: Any) -> "Run":
        return self.with_(server=self.server.model_copy(update=fields))

    def on_nodes(self, count: int = 3, **last: Any) -> "Run":
        """The same requests, sent in turn by so many nodes; `last` is said of the last of them."""
        workers = np.arange(len(self.measured.samples)) % count
        nodes = [
            NodeView(
                node=f"10.0.0.{number}",
                workers=(number,),
                clock_bound_seconds=0.0005,
                client=self.measured.client,
            )
            for number in range(count)
        ]
        nodes[-1] = nodes[-1].model_copy(update=last)
        run = self.with_samples(worker=workers)
        return run.with_(measured=replace(run.measured, nodes=tuple(nodes)))

    def cell(self) -> CellResult:
        return compute(
            self.spec, self.measured, server=self.server, plan=self.plan, usd_per_hour=3.6
        )

    def judged(self, *before: CellResult) -> CellResult:
        plan, subject = self.plan, self.subject
        cell = self.cell()
        return judged(cell, measured=self.measured, plan=plan, subject=subject, before=before)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Users who ask again and again, and how long they are answered, in seconds."""

    users: int = 8
    ttft: float = 0.05
    tpot: float = 0.01
    tokens: int = 16
    jitter: float = 0.05
    seed: int = 1

    @property
    def e2el(self) -> float:
        return self.ttft + self.tpot * (self.tokens - 1)


def played(loop: Loop, *, rule: StopRule | None = None) -> Run:
    """Let users ask until the interval is narrow, then cut off the rest."""
    rule = rule or StopRule(max_seconds=1e9)
    measured, load = _measured(loop, rule), Load(concurrency=loop.users)
    return Run(
        measured=measured,
        server=ServerView(
            looks=10,
            requests_waiting_mean=0.0,
            kv_cache_usage_max=0.4,
            prefix_cache_hit_rate=0.0,
            ttft_mean=loop.ttft,
            process_start_time=1000.0,
            requests_finished=len(measured.samples),
            other_requests=0,
        ),
        plan=RunPlan(
            contexts=(CONTEXT,),
            loads=(load,),
            workload=Workload(output_tokens=loop.tokens),
            stop=rule.model_copy(update={"min_requests": 30}),
        ),
        subject=Subject(
            model="m", cache=CacheConfig(kv_cache_size_tokens=65536), process_start_time=1000.0
        ),
        spec=CellSpec(context=CONTEXT, load=load),
    )


def _measured(loop: Loop, rule: StopRule) -> Measured:
    begin, e2el = 100.0 + 3 * loop.e2el, loop.e2el
    most = max(8 * rule.min_seconds, 15 * rule.min_requests * e2el / loop.users, 120 * e2el)
    samples = _asked(loop, begin + most + 4 * e2el)
    slices = _until_enough(_sliced(samples, begin, begin + most), rule)
    end = slices[-1].begin + SLICE_SECONDS
    return measured_of(
        _stopped(samples, end + 3 * e2el),
        begin=begin,
        end=end,
        slices=slices,
        wall_seconds=end + 3 * e2el - 100.0,
    )


def _asked(loop: Loop, until: float) -> Samples:
    rng = np.random.default_rng(loop.seed)
    each = int(1.3 * (until - 100.0) / loop.e2el) + 20
    size = (loop.users, each, loop.tokens - 1)
    firsts = loop.ttft * rng.lognormal(0, loop.jitter, size[:2])
    gaps = (loop.tpot * rng.lognormal(0, loop.jitter, size)).astype(np.float32)
    lasts = firsts + gaps.sum(axis=2, dtype=np.float64)
    ends = 100.0 + rng.uniform(0, loop.e2el, (loop.users, 1)) + np.cumsum(lasts, axis=1)
    begun = ends - lasts < until
    rows = np.full(int(begun.sum()), loop.tokens, dtype=np.int64)
    return answered(
        (ends - lasts)[begun],
        firsts[begun],
        lasts[begun],
        output_tokens=rows,
        events=rows,
        gap_counts=rows - 1,
        gaps=gaps[begun].reshape(-1),
    )


def _sliced(samples: Samples, begin: float, end: float) -> tuple[Slice, ...]:
    edges = np.arange(begin, end, SLICE_SECONDS)
    steps = np.cumsum(samples.gaps.reshape(len(samples), -1), axis=1, dtype=np.float64)
    events = np.sort(np.append(samples.first_token, (samples.first_token[:, None] + steps).ravel()))
    order = np.argsort(samples.done)
    times = np.append(0.0, np.cumsum((samples.done - samples.intended)[order]))
    arrived = np.searchsorted(events, edges)
    ended = np.searchsorted(samples.done[order], edges)
    return tuple(
        Slice(
            begin=float(edges[i]),
            seconds=SLICE_SECONDS,
            requests=int(ended[i + 1] - ended[i]),
            failed=0,
            output_tokens=int(arrived[i + 1] - arrived[i]),
            ttft_sum=0.0,
            e2el_sum=float(times[ended[i + 1]] - times[ended[i]]),
        )
        for i in range(len(edges) - 1)
    )


def _until_enough(slices: tuple[Slice, ...], rule: StopRule) -> tuple[Slice, ...]:
    ask = figures.enough(rule)
    looks = range(1, len(slices), max(1, len(slices) // 20))
    return next((slices[:n] for n in looks if ask(slices[:n])), slices)


def _stopped(samples: Samples, at: float) -> Samples:
    """Cut what is still in flight, and leave out what had not begun."""
    kept = samples.rows(samples.intended < at)
    cut = kept.done >= at
    return replace(
        kept,
        done=np.where(cut, at, kept.done),
        outcome=np.where(cut, np.int64(Outcome.CUT), kept.outcome),
    )
