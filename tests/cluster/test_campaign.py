"""A campaign's runs on a cluster: side by side, each from a node of its own."""

import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from benchmark.campaign import standing_of
from benchmark.folder import RunFolder
from core.environment import ROOT, inherited_environment
from tests.benchmark.test_campaign import a_door, a_file
from tests.cluster.conftest import Raylets, ours
from tests.simulators.conftest import Simulate
from tests.simulators.conftest import simulate as simulate  # noqa: PLC0414  a fixture
from tests.simulators.conftest import tiny_model as tiny_model  # noqa: PLC0414  the same
from tests.soon import until

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]


async def test_runs_are_at_once_on_nodes_of_their_own(
    raylets: Raylets, simulate: Simulate, tmp_path: Path
) -> None:
    """Both are under way and have a cell; an interrupt ends both, and the nodes are empty."""
    async with AsyncExitStack() as held:
        doors = []
        for target in ("cloud-run-l4", "aca-a100"):
            engine = await held.enter_async_context(simulate(step_ms=2))
            url = await held.enter_async_context(engine.on_a_port())
            doors.append(a_door(target, url))
        file = a_file(tmp_path, *doors)
        text = file.read_text(encoding="utf-8")
        many = text.replace("[8]", "[8, 12, 16, 24, 32, 64]")
        long = many.replace("seconds = 0.25", "seconds = 3")
        file.write_text(long, encoding="utf-8")
        words = ("--cluster=auto", f"--folder={tmp_path / 'runs'}")
        process = await anyio.open_process(
            [sys.executable, "-m", "benchmark", "campaign", str(file), *words],
            cwd=ROOT,
            env={**inherited_environment(), **raylets.environment},
        )

        def runs() -> list[RunFolder]:
            (folder,) = (tmp_path / "runs").glob("*-places")
            members = standing_of(folder).members
            return [RunFolder(folder.parent / each.run) for each in members if each.run]

        def are_under_way() -> bool:
            if not [*(tmp_path / "runs").glob("*-places/campaign.json")]:
                return False
            return [run.is_measured_now() and len(run.cells()) > 0 for run in runs()] == [True] * 2

        await until(are_under_way)
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(60):
            assert await process.wait() == 3
        await process.aclose()
        one, two = ([node.node for node in run.cells()[0].nodes] for run in runs())
        assert len(one) == len(two) == 1
        assert one != two
        await until(lambda: not ours())
