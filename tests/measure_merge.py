"""How ten million samples of sixteen nodes become one cell: `python -m tests.measure_merge`.

The nodes are played: each leaves its file of samples. A process of its own makes the cell of them,
judges it and writes its Parquet; how long that took, its memory and its worst percentile are told.
"""

import json
import resource
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
import numpy as np

from benchmark import samples as rows
from benchmark.figures import compute, judged
from benchmark.histogram import PERCENTILES
from benchmark.records import CellSpec, Load, NodeView, RunPlan, Subject
from benchmark.samples import Floats, Samples
from core.environment import ROOT
from core.processes import run
from tests.benchmark.made import answered, measured_of, some_samples

NODES: Final = 16
SAMPLES: Final = 10**7 + NODES
"""One of each node more than percentiles are exact for."""
WINDOW: Final = 20.0
MOST_SECONDS: Final = 60
MOST_GIB: Final = 1.5
MOST_ERROR: Final = 0.001


def of_node(number: int) -> Samples:
    """Answers of two tokens, evenly begun in the window."""
    rng, count = np.random.default_rng(number), SAMPLES // NODES
    first = rng.lognormal(-3, 0.7, count)
    gaps = rng.lognormal(-5, 0.5, count).astype(np.float32)
    two = np.full(count, 2)
    return answered(
        np.linspace(100.0, 100.0 + WINDOW, count, endpoint=False, dtype=np.float64),
        first,
        first + gaps,
        worker=np.full(count, number),
        output_tokens=two,
        events=two,
        gap_counts=two - 1,
        gaps=gaps,
    )


def main() -> None:
    """Print what it took and fail where it was too much."""
    exact: dict[str, list[Floats]] = {"ttft": [], "itl": [], "e2el": []}
    with TemporaryDirectory() as folder:
        for number in range(NODES):
            part = of_node(number)
            part.save(Path(folder) / f"{number}.npz")
            exact["ttft"].append(part.first_token - part.intended)
            exact["e2el"].append(part.last_token - part.intended)
            exact["itl"].append(part.gaps.astype(np.float64))
        argv = [sys.executable, "-m", "tests.measure_merge", folder]
        said = anyio.run(partial(run, argv, timeout=600, cwd=ROOT))
    found = json.loads(said.stdout)
    worst = 0.0
    for name, parts in exact.items():
        wanted = np.percentile(np.concatenate(parts), PERCENTILES, method="inverted_cdf")
        for percent, value in zip(PERCENTILES, wanted, strict=True):
            worst = max(worst, abs(found["cell"][name][f"p{percent}"] / value - 1))
    assert found["cell"]["counts"]["succeeded"] == SAMPLES
    print(
        f"merge: {SAMPLES:,} samples of {NODES} nodes in {found['seconds']:.1f} s (at most"
        f" {MOST_SECONDS}), {found['gib']:.2f} GiB (at most {MOST_GIB}), worst percentile off by"
        f" {worst:.3%} (at most {MOST_ERROR:.1%})"
    )
    if found["seconds"] > MOST_SECONDS or found["gib"] > MOST_GIB or worst > MOST_ERROR:
        sys.exit("merge: too much")


def merge(folder: Path) -> None:
    """Make the cell of the files in a folder."""
    began = time.perf_counter()
    measured = measured_of(
        some_samples(0),
        begin=100.0,
        end=100.0 + WINDOW,
        files=tuple(sorted(folder.glob("*.npz"))),
        nodes=tuple(NodeView(node=str(n), workers=(n,)) for n in range(NODES)),
    )
    load = Load(concurrency=50_000)
    plan, spec = RunPlan(contexts=(512,), loads=(load,)), CellSpec(context=512, load=load)
    cell = compute(spec, measured, server=None, plan=plan, usd_per_hour=None)
    cell = judged(cell, measured=measured, plan=plan, subject=Subject(model="m"), before=())
    rows.write(folder / "cell.parquet", measured.parts(), cell="cell")
    found = {
        "seconds": time.perf_counter() - began,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "cell": cell.model_dump(mode="json"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    merge(Path(sys.argv[1])) if sys.argv[1:] else main()
