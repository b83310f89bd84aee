"""Cells that three nodes measure are those of one machine with as many workers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark.client import Fleet
from benchmark.cluster import ClusterFleet, joined
from benchmark.loads import Job
from benchmark.records import Arrivals, Cluster, Load, Measured
from benchmark.workload import bodies
from core.errors import ClusterError
from tests import our_client
from tests.cluster.conftest import Raylets, of_three, ours, started, until
from tests.truth.claims import Errors, compare
from tests.truth.serving import Mock, serving

pytestmark = [pytest.mark.anyio, pytest.mark.cluster]
WORKERS = 3
RATE = 200.0


@pytest.fixture(autouse=True)
def _known(raylets: Raylets, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in raylets.environment.items():
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def a_crew(
    url: str, folder: Path, cluster: Cluster | None = None
) -> AsyncIterator[ClusterFleet]:
    wanted = cluster or Cluster(address="auto", nodes=3)
    async with joined(wanted, url, folder / "log", patience_seconds=20) as crew:
        yield crew


async def measured_by(fleet: ClusterFleet | Fleet, job: Job) -> Measured:
    return await fleet.measure(job, enough=lambda _: False, tell=lambda _: None, stop=lambda: False)


def a_job(url: str, folder: Path, load: Load) -> Job:
    job = our_client.a_job(url, load.concurrency or 1, folder, seconds=2.0)
    return replace(job, ramp_seconds=0.2, **load.model_dump(mode="json"))


async def true(measured: Measured, mock: Mock, job: Job) -> Errors:
    body = bodies(job)
    return compare(measured, await mock.truth(), body)


def begins(measured: Measured) -> dict[int, float]:
    """When each request was due, after the first one."""
    rows = measured.samples
    first = rows.intended.min()
    return dict(zip(rows.request.tolist(), (rows.intended - first).tolist(), strict=True))


@pytest.fixture(scope="module")
async def seen(_cluster: Raylets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one join of three nodes measured, and one machine with as many workers."""
    folder = tmp_path_factory.mktemp("seen")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in of_three(_cluster).environment.items():
            patch.setenv(name, value)
        async with serving(folder, ttft_ms=30, itl_ms=5) as mock:
            async with a_crew(mock.base_url, folder) as crew, serving(folder) as another:
                await crew.hire(WORKERS)
                poisson = Load(arrivals=Arrivals.POISSON, requests_per_second=RATE)
                job = a_job(another.base_url, folder, poisson)
                opened = await measured_by(crew, job)
                async with Fleet(WORKERS, folder / "log") as fleet:
                    alone = await measured_by(fleet, job)
                closed_job = a_job(mock.base_url, folder, Load(concurrency=12))
                closed = await measured_by(crew, closed_job)
            errors = await true(closed, mock, closed_job)
    return {"job": job, "open": opened, "alone": alone, "closed": closed, "errors": errors}


async def test_an_open_loop_of_three_nodes_has_the_schedule_of_one_machine(
    seen: dict[str, Any],
) -> None:
    """Each request is due when it would be there: to what the clocks' bounds allow."""
    job, cluster, alone = seen["job"], seen["open"], seen["alone"]
    assert cluster.failed is None
    assert {len(node.workers) for node in cluster.nodes} == {1}
    bound = max(node.clock_bound_seconds or 1.0 for node in cluster.nodes)
    assert bound < job.ramp_seconds
    both = begins(cluster).keys() & begins(alone).keys()
    assert len(both) > RATE * 2.0
    apart = [begins(cluster)[number] - begins(alone)[number] for number in both]
    assert np.abs(apart).max() <= 2 * bound + 1e-6
    first = job.first_request
    for number in range(WORKERS):  # none is missing, none is sent twice
        sent = np.sort(cluster.samples.request[cluster.samples.worker == number]) - first
        assert sent.tolist() == list(range(number, number + WORKERS * len(sent), WORKERS))


async def test_figures_of_three_nodes_are_the_endpoints_own_truth(seen: dict[str, Any]) -> None:
    """No answer is lost, no token miscounted, the best tenth exact: as of one machine."""
    cluster, found = seen["closed"], seen["errors"]
    assert found.complete, found.words()
    assert found.unbiased, found.words()
    if cluster.client.cpu_share < 0.9:
        assert found.beyond(cluster.client.error_bounds) == []
    assert {node.client.workers for node in cluster.nodes if node.client} == {1}
    assert set(cluster.samples.worker.tolist()) == {0, 1, 2}


async def test_a_second_run_gets_the_nodes_that_the_first_one_left(
    raylets: Raylets, tmp_path: Path
) -> None:
    """Whole nodes: two runs on one core would measure each other."""
    most = len(raylets.nodes) - 1
    async with (
        serving(tmp_path) as mock,
        a_crew(mock.base_url, tmp_path, Cluster(address="auto", nodes=most)) as first,
    ):
        await first.hire(most)
        (tmp_path / "second").mkdir()
        async with joined(
            Cluster(address="auto", nodes=2),
            mock.base_url,
            tmp_path / "second" / "log",
            patience_seconds=2,
        ) as second:
            with pytest.raises(ClusterError, match="1 nodes of the cluster are free, 2 wanted"):
                await second.hire(2)
    until(lambda: not ours(), "nodes to be empty")


async def test_a_node_that_dies_as_its_workers_start_has_another_in_its_place(
    raylets: Raylets, tmp_path: Path
) -> None:
    """A cell would else be measured by fewer nodes than were asked for, and nobody told."""
    most = len(raylets.nodes) - 1
    wanted = Cluster(address="auto", nodes=most)
    async with serving(tmp_path) as mock, a_crew(mock.base_url, tmp_path, wanted) as crew:
        await crew.hire(WORKERS)
        started("ray::Node")[0].kill()
        await crew.hire(WORKERS)
        cell = await measured_by(crew, a_job(mock.base_url, tmp_path, Load(concurrency=6)))
    assert cell.failed is None
    assert [node.lost for node in cell.nodes] == [None] * most


async def test_a_cluster_is_reached_by_its_clients_port(
    raylets: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a machine that does not belong to it."""
    async with serving(tmp_path, ttft_ms=20, itl_ms=2) as mock:
        job = a_job(mock.base_url, tmp_path, Load(concurrency=6))
        monkeypatch.delenv("RAY_ADDRESS")
        wanted = Cluster(address=raylets.client, nodes=3)
        async with a_crew(mock.base_url, tmp_path, wanted) as crew:
            await crew.hire(WORKERS)
            cluster = await measured_by(crew, job)
        assert (await true(cluster, mock, job)).complete


async def test_a_wrong_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("f" * 64)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(wrong))
    with pytest.raises(ClusterError, match="cannot be joined"):
        async with a_crew("http://127.0.0.1:9", tmp_path):
            pass
