"""Runs that can be set side by side, made by a known law."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmark import compare
from benchmark import samples as kept
from benchmark.compare import Blocks, Loaded, Ratio, load, ratio
from benchmark.folder import RunFolder
from benchmark.records import CellResult, Counts, Manifest, Workload
from benchmark.samples import Outcome, Samples
from tests.benchmark.made import a_cell, a_manifest, some_samples, spread

WINDOW = (100.0, 120.0)
REQUEST_SECONDS = 0.5
USERS = 16


def one_chip() -> Manifest:
    return a_manifest("one", target="tpu-v6e-1", accelerator="v6e", accelerator_count=1)


def four_chips() -> Manifest:
    chips = a_manifest("four", target="tpu-v6e-4", accelerator="v6e", accelerator_count=4)
    priced = chips.provenance.model_copy(update={"usd_per_hour": 14.68})
    return chips.model_copy(update={"provenance": priced})


def faster(
    cells: Sequence[CellResult], by: Callable[[CellResult], float]
) -> tuple[CellResult, ...]:
    """Cells of an engine that is so many times as fast and four times as dear."""
    return tuple(
        a_cell(
            cell.spec.context,
            cell.spec.load.concurrency or 1,
            request_throughput=(cell.request_throughput or 0) * by(cell),
            output_token_throughput=(cell.output_token_throughput or 0) * by(cell),
            e2el=spread((cell.e2el.mean if cell.e2el else 0) / by(cell)),
            usd_per_million_tokens=(cell.usd_per_million_tokens or 0) * 4 / by(cell),
        )
        for cell in cells
    )


def changed(manifest: Manifest, **workload: object) -> Manifest:
    plan = manifest.plan.model_copy(update={"workload": Workload.model_validate(workload)})
    return manifest.model_copy(update={"plan": plan})


def by_article(manifest: Manifest) -> Manifest:
    plan = manifest.plan.model_copy(update={"profile": "article"})
    return manifest.model_copy(update={"plan": plan})


def closed_loop(seed: int, *, speed: float = 1.0) -> Samples:
    """Users who each ask again at once; times are log-normal about half a second."""
    random = np.random.default_rng(seed)
    each = int(30 * speed / REQUEST_SECONDS)
    taken = random.lognormal(np.log(REQUEST_SECONDS / speed), 0.3, (USERS, each))
    ends = 95.0 + taken.cumsum(axis=1)
    begins, ends, taken = (ends - taken).ravel(), ends.ravel(), taken.ravel()
    whole = np.zeros(len(begins), dtype=np.int64)
    made = some_samples(len(begins), tokens=64)
    return Samples(
        **{
            name: getattr(made, name)
            for name in made.__dataclass_fields__
            if name not in {"intended", "first_token", "last_token", "done", "outcome"}
        },
        intended=begins,
        first_token=begins + taken / 10,
        last_token=ends,
        done=ends,
        outcome=np.where(begins < WINDOW[1], whole + Outcome.OK, whole + Outcome.CUT),
    )


def cut(samples: Samples, speed: float = 1.0) -> compare.Cut:
    return compare.cut(samples, WINDOW, REQUEST_SECONDS / speed)


def point(blocks: Blocks) -> float:
    return float(blocks.numerators.sum() / blocks.denominators.sum())


def held_against(first: compare.Cut, other: compare.Cut, figure: str, seed: int) -> Ratio:
    value = point(other[figure]) / point(first[figure])
    return ratio(value, first[figure], other[figure], seed=seed)


def saved(root: Path, manifest: Manifest, speed: float) -> Loaded:
    """A run's folder with one cell and its requests."""
    folder = RunFolder(root / manifest.run_id)
    folder.create(manifest)
    samples = closed_loop(round(speed * 10), speed=speed)
    inside = (samples.intended >= WINDOW[0]) & (samples.intended < WINDOW[1])
    measured, rate = int(inside.sum()), point(cut(samples, speed)["throughput"])
    counts = Counts(sent=len(samples), measured=measured, succeeded=measured)
    cell = a_cell(
        8, USERS, window_seconds=20.0, counts=counts, request_throughput=rate,
        e2el=spread(REQUEST_SECONDS / speed), relative_half_width=None,
    )  # fmt: skip
    folder.add(cell)
    kept.write(folder.samples_file(cell.id), samples, cell=cell.id)
    return load(folder)
