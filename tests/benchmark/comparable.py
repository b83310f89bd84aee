"""Runs that can be set side by side, made by a known law."""

from collections.abc import Callable, Sequence

from benchmark.records import CellResult, Manifest, Workload
from tests.benchmark.made import a_cell, a_manifest, spread


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
