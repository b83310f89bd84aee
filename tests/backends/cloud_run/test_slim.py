"""Google's clients without what nobody asks for."""

import json
import sys

import pytest

from core.environment import ROOT, inherited_environment
from core.processes import run

pytestmark = pytest.mark.anyio

_FIRST_CALL = """
import json, sys
import server
from backends.google.clients import client_class
client_class("google.cloud.run_v2", "services", "ServicesAsyncClient")
client_class("google.cloud.run_v2", "revisions", "RevisionsAsyncClient")
client_class("google.cloud.monitoring_v3", "metric_service", "MetricServiceAsyncClient")
from google.cloud.run_v2 import Condition, Service
from google.cloud import run_v2
assert run_v2.Service is Service
print(json.dumps(sorted(sys.modules)))
"""


async def test_a_first_call_loads_neither_other_services_nor_aiohttp() -> None:
    """They would take longer than the call; `python -m tests.measure_imports` tells how long."""
    done = await run((sys.executable, "-c", _FIRST_CALL), cwd=ROOT, env=inherited_environment())
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert "google.cloud.run_v2.services.services.async_client" in loaded
    others = ("jobs", "executions", "tasks", "worker_pools", "builds")
    assert not {f"google.cloud.run_v2.services.{each}" for each in others} & set(loaded)
    assert not [name for name in loaded if name.split(".")[0] == "aiohttp"]


_WHOLE = """
from backends.google.clients import client_class
client_class("google.cloud.run_v2", "services", "ServicesAsyncClient")
from google.cloud.run_v2 import JobsClient, Service, types
from google.cloud import run_v2
assert run_v2.JobsClient is JobsClient
assert run_v2.types.Service is Service is types.Service
"""


async def test_who_imports_an_opened_package_afterwards_gets_the_whole() -> None:
    done = await run((sys.executable, "-c", _WHOLE), cwd=ROOT, env=inherited_environment())
    assert done.returncode == 0, done.stderr
