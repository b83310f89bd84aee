"""How far a run is, as its files and its lock tell anybody who looks."""

from typing import Final

from benchmark.folder import RunFolder
from benchmark.runs import Progress, RunState

_TRIES: Final = 40


def state_of(folder: RunFolder) -> Progress:
    """Say how far a run is; one whose process is gone is interrupted, whatever it wrote last.

    Raises:
        NotFound: This is no run's folder.
    """
    seen = folder.progress()
    for _ in range(_TRIES):
        measured, before, seen = folder.is_measured_now(), seen, folder.progress()
        if seen == before:  # else it began or ended while we looked
            break
    known = seen or _not_begun(folder)
    if measured:
        return known.model_copy(update={"state": RunState.RUNNING, "reason": None})
    if known.state is not RunState.RUNNING:
        return known
    lost = {"state": RunState.INTERRUPTED, "doing": None, "eta_seconds": None}
    return known.model_copy(update={**lost, "reason": "Its process is gone; `resume` goes on."})


def _not_begun(folder: RunFolder) -> Progress:
    return Progress(
        state=RunState.RUNNING,
        cells_done=len(folder.cells()),
        elapsed_seconds=0.0,
        updated_at=folder.manifest().created_at,
    )
