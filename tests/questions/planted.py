"""Runs that were measured before anybody asks, by the known law of `tests.benchmark.made`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.folder import RunFolder
from benchmark.records import CellResult, Progress, RunState
from tests.benchmark.comparable import faster
from tests.benchmark.made import WHEN, a_grid, a_manifest

CONTEXTS, LOADS = (8, 512, 4096), (1, 8, 32, 128)


def measured(
    state_dir: Path,
    run: str,
    *,
    model: str,
    target: str,
    times: float = 1.0,
    cells: Sequence[CellResult] | None = None,
    **provenance: Any,
) -> RunFolder:
    """Keep a run of so many `times` the law's speed; cells given are taken as they are."""
    spec = {"name": "one", "model": model}
    ground = {"target": target, "deployment": "one", "deployment_spec": spec} | provenance
    manifest = a_manifest(run, CONTEXTS, LOADS, **ground)
    subject = manifest.subject.model_copy(update={"model": model})
    folder = RunFolder(state_dir / "real" / "benchmarks" / run)
    folder.create(manifest.model_copy(update={"subject": subject}))
    grid = cells or faster(a_grid(CONTEXTS, LOADS), lambda _: times)
    folder.cells_file.write_text("".join(f"{cell.model_dump_json()}\n" for cell in grid))
    folder.tell(
        Progress(
            state=RunState.DONE,
            cells_done=len(grid),
            cells_total=len(grid),
            elapsed_seconds=84.0,
            updated_at=WHEN,
        )
    )
    return folder
