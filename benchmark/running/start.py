"""A run's folder, made from what is wanted; the sweep then goes by nothing else."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmark.folder import RunFolder
from benchmark.running import host
from benchmark.runs import Manifest, Provenance, RunPlan, Subject
from core.errors import DiskFull, InvalidArgument

_LONGEST_NAME: Final = 40
_NO_PROVENANCE: Final = Provenance()


def make(
    runs: Path,
    *,
    base_url: str,
    plan: RunPlan,
    subject: Subject,
    provenance: Provenance = _NO_PROVENANCE,
) -> RunFolder:
    """Make a new run's folder below `runs`, with its manifest; nothing is measured yet.

    Raises:
        InvalidArgument: It must stop at a cost, and nobody knows the price.
        DiskFull: It cannot be written.
    """
    if plan.max_cost_usd is not None and provenance.usd_per_hour is None:
        raise InvalidArgument(
            "A run cannot stop at a cost where no price is known.",
            fix="Say what an hour costs, or give max_minutes instead.",
        )
    now = datetime.now(UTC)
    named = provenance.deployment or subject.model.rsplit("/", 1)[-1]
    path = _claim(runs, f"{now:%Y%m%d-%H%M%S}-{plan.profile}-{_slug(named)}")
    folder = RunFolder(path)
    folder.create(
        Manifest(
            run_id=path.name,
            created_at=now,
            base_url=base_url,
            plan=plan,
            subject=subject,
            provenance=provenance,
            host=host.describe(),
        )
    )
    return folder


def _claim(runs: Path, name: str) -> Path:
    """Make the folder: of two that begin in the same second, only one gets the name."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            path = runs / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as exc:
        raise DiskFull(
            f"{runs} cannot be written.", fix="Make room there, or name another.", cause=str(exc)
        ) from exc
    raise InvalidArgument(f"{runs} has a thousand runs of this second.", fix="Name another folder.")


def _slug(text: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return words[:_LONGEST_NAME].strip("-") or "model"
