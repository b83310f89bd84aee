"""The client against its peers: `.venv/bin/python -m tests.measure_client [--quick]`.

Client on one core, endpoint on another; the clients take turns in every round, so that a busy
machine slows all of them; medians count. All stream with `include_usage` and `ignore_eos`, and
have prompts of 8 tokens. Rates, errors and CPU «at full load» are of the time between the
concurrency being full and the last request that came: starting, building prompts and ramps are
in nobody's figures. CPU of the «whole run» has them, over 16 requests a connection.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import anyio
import numpy as np

from tests.peers import OURS, PYTHON, RUST, Ask, Claims, Client, ours, python, rust
from tests.truth.claims import P50_SECONDS, P99_SECONDS
from tests.truth.recorded import Floats, Truth
from tests.truth.serving import serving
from tests.watched import Usage, cores, run_watched

ROUNDS: Final = 3
"""The last one is of vLLM's Python client alone."""
_MOST_SECONDS: Final = 480.0
"""On two calm cores it takes about 430."""
_QUIET_SHARE: Final = 0.05
_CPU, _WHOLE = "cpu_seconds_per_1000", "whole_cpu_seconds_per_1000"
_ONE, _TOKENS = "requests_per_second", "tokens_per_second"
PACED_KIND, RATE_KIND, STREAM_KIND = _KINDS = ("paced", "one token", "stream")
_SECONDS_PER_ANSWER: Final = 0.68
"""TTFT 50 ms and 63 gaps of 10 ms."""
_PACED_SECONDS: Final = 14 * _SECONDS_PER_ANSWER
"""And two answers a connection for the ramps make 16."""


class Scene(NamedTuple):
    """What the endpoint does, and how many wait for it."""

    kind: str
    concurrency: int
    output_tokens: int
    ttft_ms: float = 0
    itl_ms: float = 0

    @property
    def paced(self) -> bool:
        """Whether the endpoint, not the client, sets the rate."""
        return self.kind == PACED_KIND


SCENES: Final = (
    *(Scene(PACED_KIND, c, 64, 50, 10) for c in (64, 256, 512)),
    *(Scene(RATE_KIND, c, 1) for c in (64, 256, 1024)),
    *(Scene(STREAM_KIND, c, 128) for c in (64, 256)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run of one client."""

    requests_per_second: float
    tokens_per_second: float
    cpu_seconds_per_1000: float
    """Of all its processes, for so many requests."""
    whole_cpu_seconds_per_1000: float
    """The same with what starting and ending took, over every request of the run."""
    memory_mib: float
    others_share: float
    """Of the client's core, taken by other programs at full load."""
    ttft_error_p50: float | None = None
    """Seconds, of what it claims and the endpoint did; None where claims were not asked for."""
    ttft_error_p99: float | None = None


def tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


Runs = dict[tuple[str, Scene], list[Figures]]


async def one(client: Client, scene: Scene, seconds: float, folder: Path) -> Figures:
    """Run a client once against an endpoint of its own."""
    mine, its = cores()
    async with serving(folder, ttft_ms=scene.ttft_ms, itl_ms=scene.itl_ms, core=its) as mock:
        ask = Ask(
            base_url=mock.base_url,
            concurrency=scene.concurrency,
            output_tokens=scene.output_tokens,
            seconds=seconds,
            requests_per_second=_about(client, scene),
            result=folder / "claims.npz",
            detailed=scene.paced,
        )
        usage = await run_watched(client.argv(ask), client.environment, core=mine)
        truth = await mock.truth()
    return figures(truth, usage, ask, client.claims(ask.result) if ask.detailed else None)


def _about(client: Client, scene: Scene) -> float:
    if scene.paced:
        return scene.concurrency / _SECONDS_PER_ANSWER
    return client.guesses[scene.output_tokens > 1]


def figures(truth: Truth, usage: Usage, ask: Ask, claims: Claims | None) -> Figures:
    """Compute what one run was worth, of the time when the concurrency was full."""
    begin, end = float(truth.received[ask.concurrency]), float(truth.received[-1])
    sent = truth.sends[(truth.sends["ns"] >= begin * 1e9) & (truth.sends["ns"] < end * 1e9)]
    tokens = int(sent["tokens"].sum())
    # Answers that began together end together: so many tokens' worth of requests, not ends.
    requests = tokens / ask.output_tokens
    errors = None if claims is None else ttft_errors(truth, claims, ask.concurrency)
    return Figures(
        requests_per_second=requests / (end - begin),
        tokens_per_second=tokens / (end - begin),
        cpu_seconds_per_1000=usage.cpu_between(begin, end) / requests * 1000,
        whole_cpu_seconds_per_1000=float(usage.cpu_seconds[-1]) / len(truth) * 1000,
        memory_mib=usage.memory_mib,
        others_share=usage.others_share(begin, end),
        ttft_error_p50=None if errors is None else float(np.median(errors)),
        ttft_error_p99=None if errors is None else float(np.percentile(errors, 99)),
    )


def ttft_errors(truth: Truth, claims: Claims, concurrency: int) -> Floats:
    """Give |claim - truth| of each request after the first wave, in seconds.

    Clients name no request, so the n-th that began is held against the n-th that came. Two that
    changed places on the way are held against each other's truth, which differs by what the
    endpoint was late: microseconds.
    """
    # A trial request that a client does not tell of comes before all others.
    extra = len(truth) - len(claims.ttft)
    done = (truth.first_token - truth.received)[extra:]
    errors = np.abs(claims.ttft - done)[concurrency:]
    return errors[~np.isnan(errors)]


async def rounds(clients: Sequence[Client], folder: Path, *, is_quick: bool) -> Runs:
    """Run every client in every scene, all of them in turn, round after round, while there is time.

    vLLM's Python client, which takes a minute for some, has its one round when the others have
    theirs. What the time does not reach is not measured, and the table says so.
    """
    runs: Runs = defaultdict(list)
    slow = [client for client in clients if client.name == PYTHON]
    quick = [client for client in clients if client.name != PYTHON]
    parts = [
        (f"{number} of {ROUNDS}", scene, client)
        for number, able in enumerate([quick] * (ROUNDS - 1) + [slow], 1)
        for scene in SCENES
        for client in able
    ]
    began = time.monotonic()
    for number, scene, client in parts:
        seconds = 2.0 if is_quick else _PACED_SECONDS if scene.paced else 3.0
        spent = time.monotonic() - began
        tell(
            f"{spent:3.0f} s: round {number}, {scene.kind}, c = {scene.concurrency}: {client.name}"
        )
        with anyio.move_on_after(_MOST_SECONDS - spent) as scope:
            runs[client.name, scene].append(await one(client, scene, seconds, folder))
        if scope.cancelled_caught:
            tell(f"{_MOST_SECONDS:.0f} s: the time is used up, and the rest is not measured.")
            break
    return runs


class Table:
    """Medians of the runs, as Markdown."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def value(self, name: str, scene: Scene, field: str) -> float | None:
        """Give the median of one figure; None where it was not measured."""
        values = [getattr(run, field) for run in self._runs.get((name, scene), [])]
        return median(values) if values and None not in values else None

    def of(self, kind: str) -> list[Scene]:
        """Give the scenes of one kind."""
        return [scene for scene in SCENES if scene.kind == kind]

    def lines(self, clients: Sequence[Client]) -> Iterator[str]:
        """Give the table, one line for each client."""
        at = {
            kind: f"c = {' / '.join(str(scene.concurrency) for scene in self.of(kind))}"
            for kind in _KINDS
        }
        heads = (
            "client",
            f"CPU s per 1,000 requests at full load, {at[PACED_KIND]}",
            "the same over the whole run, with its start",
            f"error of TTFT p50 / p99 in ms, {at[PACED_KIND]}",
            "requests/s at the highest of these",
            "RSS MiB",
            f"one-token requests/s, {at[RATE_KIND]}",
            f"thousand tokens/s, {at[STREAM_KIND]}",
        )
        yield f"| {' | '.join(heads)} |"
        yield "|---" * len(heads) + "|"
        for client in clients:
            none = (f"not measured: {client.missing}", *"------")
            cells = none if client.missing else self._cells(client.name)
            yield f"| {' | '.join((client.name, *cells))} |"

    def _cells(self, name: str) -> Iterator[str]:
        paced = self.of(PACED_KIND)
        yield self._row(name, paced, (_CPU, 1, 2))
        yield self._row(name, paced, (_WHOLE, 1, 2))
        yield " · ".join(
            f"{self._one(name, scene, ('ttft_error_p50', 1000, 2))} /"
            f" {self._one(name, scene, ('ttft_error_p99', 1000, 2))}"
            for scene in paced
        )
        yield self._one(name, paced[-1], (_ONE, 1, 0))
        yield self._one(name, paced[-1], ("memory_mib", 1, 0))
        yield self._row(name, self.of(RATE_KIND), (_ONE, 1, 0))
        yield self._row(name, self.of(STREAM_KIND), (_TOKENS, 0.001, 0))

    def _row(self, name: str, scenes: Sequence[Scene], how: tuple[str, float, int]) -> str:
        return " / ".join(self._one(name, scene, how) for scene in scenes)

    def _one(self, name: str, scene: Scene, how: tuple[str, float, int]) -> str:
        field, factor, digits = how
        value = self.value(name, scene, field)
        return "-" if value is None else f"{value * factor:,.{digits}f}"


class Demand(NamedTuple):
    """One ratio that must hold at each load of a kind; of paced ones, at the highest."""

    words: str
    kind: str
    field: str
    above: str
    below: str
    least: float = 0
    most: float = inf


DEMANDS: Final = (
    Demand("CPU, ours / Rust, full load", PACED_KIND, _CPU, OURS, RUST, most=1.15),
    Demand("CPU, ours / Rust, whole run", PACED_KIND, _WHOLE, OURS, RUST, most=1.15),
    Demand("CPU, vllm bench serve / ours, full load", PACED_KIND, _CPU, PYTHON, OURS, least=4),
    Demand("CPU, vllm bench serve / ours, whole run", PACED_KIND, _WHOLE, PYTHON, OURS, least=4),
    Demand("one-token requests/s, ours / Rust", RATE_KIND, _ONE, OURS, RUST, least=1.5),
    Demand("the same for a second of CPU", RATE_KIND, _CPU, RUST, OURS, least=1.5),
    Demand("streamed tokens/s, ours / Rust", STREAM_KIND, _TOKENS, OURS, RUST, least=1.5),
    Demand("the same for a second of CPU", STREAM_KIND, _CPU, RUST, OURS, least=1.5),
)


def ratios(table: Table) -> Iterator[str]:
    """Say of each demand whether it holds; what was not measured never does."""
    for demand in DEMANDS:
        for scene in table.of(demand.kind)[-1 if demand.kind == PACED_KIND else 0 :]:
            above = table.value(demand.above, scene, demand.field)
            below = table.value(demand.below, scene, demand.field)
            said = "not measured"
            if above is not None and below:
                holds = demand.least <= above / below <= demand.most
                said = f"{'PASS' if holds else 'FAIL'} {above / below:.2f}"
            bound = f"at least {demand.least:g}" if demand.least else f"at most {demand.most:g}"
            yield f"- {demand.words}, c = {scene.concurrency}: {said} ({bound})"


def quiet(runs: Runs) -> str:
    """Say how much others took of the client's core, from the median run to the worst."""
    shares = [run.others_share for several in runs.values() for run in several]
    most = max(shares)
    said = "quiet" if most <= _QUIET_SHARE else "BUSY: rates and errors are worth little"
    return f"Of the client's core others took {median(shares):.1%} to {most:.1%}: {said}."


def exactness(table: Table) -> Iterator[str]:
    """Say of our own TTFT whether it is as near the truth as promised."""
    for scene in table.of(PACED_KIND):
        for field, limit in (("ttft_error_p50", P50_SECONDS), ("ttft_error_p99", P99_SECONDS)):
            value = table.value(OURS, scene, field)
            said = "not measured"
            if value is not None:
                said = f"{'PASS' if value <= limit else 'FAIL'} {value * 1000:.3f} ms"
            yield f"- our {field}, c = {scene.concurrency}: {said} (at most {limit * 1000:g} ms)"


async def main(*, is_quick: bool) -> None:
    """Measure, and print one table and every demand."""
    clients = [ours(), await rust(tell), *(() if is_quick else (python(),))]
    able = [client for client in clients if not client.missing]
    tell(f"This takes up to {_MOST_SECONDS / 60:.0f} minutes: {ROUNDS} rounds of loads.")
    with tempfile.TemporaryDirectory(prefix="vllm-devops-client-") as name:
        runs = await rounds(able, Path(name), is_quick=is_quick)
    table = Table(runs)
    print(
        "\n".join((*table.lines(clients), "", *ratios(table), *exactness(table), "", quiet(runs)))
    )


if __name__ == "__main__":
    anyio.run(lambda: main(is_quick="--quick" in sys.argv))
