"""A server on a world in memory, whose clouds can do all that any cloud can."""

from functools import partial
from pathlib import Path

import pytest

from backends.registry import BACKENDS
from operations import runtime
from tests.tools.recorded_cloud import RecordedCloud, RecordedQueue
from tests.tools.recorded_world import ROWS, Kept

__all__ = ["Kept", "every_cloud", "recorded"]


def recorded(patch: pytest.MonkeyPatch, path: Path) -> Kept:
    """Let the targets of the server be few, one of each kind, and all of this world."""
    path.write_text(
        "\n".join(
            f'[{name}]\nbackend = "{backend}"\ndescription = "{name}"\nusd_per_hour = {usd}\n'
            for name, (backend, usd) in ROWS.items()
        ),
        encoding="utf-8",
    )
    patch.setattr(runtime, "_TARGETS", path)
    return every_cloud(patch, "http://127.0.0.1:9")


def every_cloud(patch: pytest.MonkeyPatch, url: str) -> Kept:
    """Let every target there is be of this world; its models answer at `url`."""
    kept = Kept(url)
    for backend, _ in ROWS.values():
        kind = RecordedQueue if backend == "tpu" else RecordedCloud
        made = partial(kind, kept=kept)
        patch.setitem(BACKENDS, backend, lambda made=made: made)  # type: ignore[misc]
    return kept
