"""First calls to Google for a TPU load what they need; `tests.measure_imports` times them."""

import json
import sys
from typing import Final

import anyio

from core.environment import ROOT
from core.processes import run

_STORY: Final = """
import json, sys
import anyio
from tests.backends.tpu import first_calls

told = []
for call in sys.argv[1:]:
    anyio.run(getattr(first_calls, call))
    told.append([name for name, it in sys.modules.items() if getattr(it, "__file__", None)])
print(json.dumps(told))
"""
_COMPUTE: Final = "google.cloud.compute_v1"
_QUEUE: Final = "google.cloud.tpu_v2"


def _loaded(*calls: str) -> list[set[str]]:
    """Give what is loaded after each of a process's first calls."""
    done = anyio.run(lambda: run((sys.executable, "-c", _STORY, *calls), cwd=ROOT))
    assert done.returncode == 0, done.stderr
    return [set(each) for each in json.loads(done.stdout)]


def _services(loaded: set[str]) -> set[str]:
    """Give which services of Compute Engine are loaded."""
    start = f"{_COMPUTE}.services."
    return {name.split(".")[4] for name in loaded if name.startswith(start)}


def test_first_calls_load_the_services_that_are_asked() -> None:
    """The queue needs nothing of Compute Engine, whose types alone take longer than all of it."""
    queued, both = _loaded("queued", "compute")
    assert f"{_QUEUE}.services.tpu.async_client" in queued
    assert f"{_COMPUTE}.types" not in queued
    assert _services(both) <= {"firewalls", "global_operations", "instances", "zone_operations"}


def test_a_search_that_goes_on_after_a_restart_loads_one_service() -> None:
    """What it asks first is what became of its request; there are 130 services."""
    (loaded,) = _loaded("outcome")
    assert _services(loaded) == {"zone_operations"}
    assert f"{_QUEUE}.types" not in loaded
