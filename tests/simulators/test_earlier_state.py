"""A simulated cloud that was left by an earlier version of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulators.azure import state as azure
from simulators.google import state as google


@pytest.mark.parametrize(
    ("world", "named"),
    [
        (google.World, google.World.project),
        (azure.World, azure.World.subscription),
    ],
    ids=["google", "azure"],
)
def test_what_an_earlier_version_kept_begins_anew_and_the_rest_is_known(
    tmp_path: Path, world: Callable[..., Any], named: Callable[[Any, str], Any]
) -> None:
    """A file with what is not known any more would keep the cloud from starting."""
    before = world(folder=tmp_path, tasks=None)
    for name in ("old", "new"):
        before.keep(named(before, name))
    (old,) = tmp_path.rglob("old.json")
    old.write_text(json.dumps({**json.loads(old.read_bytes()), "fleets": {}}))
    after = world(folder=tmp_path, tasks=None)
    assert list(after.customers) == ["new"]
