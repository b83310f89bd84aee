"""The client's word on its errors, held to the truth: `python -m tests.measure_truth [WINDOWS]`.

Short windows of several latencies and loads, beside programs that do nothing but take the client's
core. The endpoint has a core of its own and knows when it wrote each token. A figure that is off
by more than the limit of CLIENT_SATURATED must be marked, and none may be further beyond the
bound that is printed with it than that limit. How often a window is marked whose figures are
right is the price.
"""

import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from benchmark.figures import limit_of
from benchmark.records import Code, Load, Measured
from benchmark.workload import bodies
from tests.benchmark.test_truth import codes
from tests.our_client import a_job, measured
from tests.truth.claims import Errors, compare, figures
from tests.truth.serving import serving
from tests.watched import cores

WINDOWS: Final = 216
TOKENS: Final = 32
SECONDS: Final = 1.0
LATENCIES: Final = ((5, 2), (30, 5), (100, 10), (300, 20))
"""TTFT and ITL, ms."""
LOADS: Final = (1, 8, 48)
BUSY: Final = (0, 1, 3)
"""Programs that take the client's core."""
_DECIDING: Final = ("mean", "p50")
_LOOP: Final = "while True: pass"


class Scene(NamedTuple):
    """One kind of window."""

    ttft_ms: int
    itl_ms: int
    concurrency: int
    busy: int


class Window(NamedTuple):
    """One that was measured."""

    scene: Scene
    codes: frozenset[Code]
    unmarked: tuple[str, ...]
    """Figures off by more than the limit, without the mark that they need."""
    unbounded: tuple[str, ...]
    """Figures further off than the client says, by more than the limit."""
    is_right: bool
    """Whether every figure that decisions rest on is within the limit."""


def judge(scene: Scene, told: Measured, errors: Errors, marks: frozenset[Code]) -> Window:
    """Hold every figure of a window against the truth."""
    share, floor = limit_of("error_share"), limit_of("error_floor_seconds")
    unmarked, unbounded, is_right = [], [], True
    every = {name: (errors.claimed[name], getattr(errors, name)) for name in errors.claimed}
    steps = TOKENS - 1
    every["tpot"] = (
        (every["e2el"][0] - every["ttft"][0]) / steps,
        (every["e2el"][1] - every["ttft"][1]) / steps,
    )
    for name, (claimed, error) in every.items():
        for point, value, true in figures(claimed, claimed - error):
            off = abs(value - true)
            if off <= max(floor, share * value):
                continue
            words = f"{name} {point} {value * 1e3:.3f} ms off by {off * 1e3:.3f}"
            decides = name != "itl" and point in _DECIDING
            is_right = is_right and not decides
            wanted = {Code.CLIENT_SATURATED} | (set() if decides else {Code.CLIENT_NOISE})
            if not marks & wanted:
                unmarked.append(words)
            bound = told.client.error_bounds.get(f"{name}_{point}", 0.0)
            if off > bound + max(floor, share * value):
                unbounded.append(f"{words}, bound {bound * 1e3:.3f}")
    return Window(scene, marks, tuple(unmarked), tuple(unbounded), is_right)


async def window(scene: Scene, folder: Path, core: int) -> Window:
    """Measure one window; the endpoint gets the core, everything else is where this program is."""
    async with AsyncExitStack() as stack:
        for _ in range(scene.busy):
            loop = await anyio.open_process((sys.executable, "-c", _LOOP))
            stack.push_async_callback(loop.wait)
            stack.callback(loop.kill)
        ways = {"ttft_ms": scene.ttft_ms, "itl_ms": scene.itl_ms, "core": core}
        async with serving(folder, **ways) as mock:
            with suppress(PermissionError):  # else what others do on its core is in the truth
                os.sched_setscheduler(mock.pid, os.SCHED_FIFO, os.sched_param(1))
            job = a_job(
                mock.base_url, scene.concurrency, folder, output_tokens=TOKENS, seconds=SECONDS
            )
            told = await measured(job, folder / "client.log")
            truth = await mock.truth()
    body = bodies(job)
    return judge(
        scene, told, compare(told, truth, body), codes(Load(concurrency=job.concurrency), told)
    )


def table(windows: list[Window]) -> Iterator[str]:
    """Yield a row for each number of busy programs and load, then what must hold."""
    yield f"{'busy':>5}{'load':>6}{'windows':>9}{'wrong':>7}{'marked':>8}{'right':>7}{'marked':>8}"
    for busy, load in itertools.product(BUSY, LOADS):
        mine = [w for w in windows if (w.scene.busy, w.scene.concurrency) == (busy, load)]
        count = Counter((w.is_right, Code.CLIENT_SATURATED in w.codes) for w in mine)
        wrong, good = (count[side, True] + count[side, False] for side in (False, True))
        yield (
            f"{busy:5}{load:6}{len(mine):9}{wrong:7}{count[False, True]:8}"
            f"{good:7}{count[True, True]:8}"
        )
    right = [one for one in windows if one.is_right]
    spoiled = sum(Code.CLIENT_SATURATED in one.codes for one in right)
    yield f"     {spoiled} of {len(right)} windows with right figures are marked (nothing wanted)"
    for title, field in (
        ("wrong and not marked", "unmarked"),
        ("off by more than the printed bound and the limit", "unbounded"),
    ):
        bad = [(one.scene, getattr(one, field)) for one in windows if getattr(one, field)]
        yield f"{'FAIL' if bad else 'PASS'} {title}: {len(bad)} of {len(windows)} windows"
        yield from (f"     {scene}: {'; '.join(words[:3])}" for scene, words in bad[:10])


async def main(count: int) -> bool:
    """Print everything; return whether all that must hold does."""
    mine, core = cores()
    os.sched_setaffinity(0, {mine})
    kinds = [
        Scene(*latency, load, busy)
        for latency, load, busy in itertools.product(LATENCIES, LOADS, BUSY)
    ]
    windows = []
    for scene in itertools.islice(itertools.cycle(kinds), count):
        with tempfile.TemporaryDirectory(prefix="vllm-devops-measure-") as name:
            windows.append(await window(scene, Path(name), core))
    print("\n".join(table(windows)))
    return not any(one.unmarked or one.unbounded for one in windows)


if __name__ == "__main__":
    sys.exit(not anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else WINDOWS))
