"""An agent measures from a cluster: the same tools, two parameters more."""

from pathlib import Path

import pytest

from tests.cluster.conftest import Raylets, ours, until
from tests.cluster.test_faults import KEY, engine_on_a_free_port
from tests.tools.world import agent_at

pytestmark = [pytest.mark.anyio, pytest.mark.cluster]


async def test_an_agent_measures_from_three_nodes(
    raylets: Raylets, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in raylets.environment.items():
        monkeypatch.setenv(name, value)
    with engine_on_a_free_port() as url:
        async with agent_at(url, state_dir, KEY, confirm="never") as agent:
            words = {"contexts": [16], "concurrencies": [6], "cell_seconds": 2}
            reply = await agent.call("run_benchmark", **words, cluster="auto", nodes=3, wait_s=0)
            while reply.structured["data"]["state"] == "running":
                reply = await agent.call("get_benchmark", wait_s=20, detail="full")
            assert reply.structured["data"]["state"] == "done", reply.text
            folder = next((state_dir / "real" / "benchmarks").iterdir())
            assert (folder / "cells.jsonl").read_text().count('"clock_bound_seconds"') == 3
    until(lambda: not ours(), "nodes to be empty")
