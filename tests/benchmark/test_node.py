"""One machine of a cluster without the cluster: its workers, their orders, what is left of them."""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from benchmark import worker
from benchmark.client import CellRun
from benchmark.loads import Job
from benchmark.node import Node, facts, unfit
from benchmark.worker import Order
from core.environment import ROOT, inherited_environment
from tests.benchmark import faulty
from tests.benchmark.driven import a_job, paced
from tests.benchmark.made import known, some_samples
from tests.processes import load_workers, variables_of, words_of

KEY = "sk-in-memory-alone"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    node = Node()
    yield node
    node.close()


def kept_in(folder: Path) -> list[Path]:
    """Give the files that hold the key."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if KEY.encode() in path.read_bytes()]


def there_in(folder: Path) -> set[Path]:
    return set(folder.iterdir())


def measured_on(node: Node, job: Job) -> CellRun:
    """Let a cell be played by two workers of the node."""
    run = CellRun(job, workers=2, enough=lambda _: True, tell=lambda _: None)
    ordered = {**asdict(job), "workers": 2}
    files = {"credential_file": f"{KEY}\n".encode(), "ca_file": None, "dataset": None}
    node.prepare(ordered, [0, 1], files)
    while not run.over:
        for said in node.hear(5.0):
            if said.line is None:
                orders = run.died(said.worker, said.last_words)
            else:
                report = worker.report(said.line)
                if said.rows:
                    Path(report.file).write_bytes(said.rows)
                orders = run.hear(said.worker, report, stop=lambda: False)
            for number, order in orders.items():
                node.tell([number], asdict(order))
    return run


@pytest.mark.anyio
async def test_a_node_plays_a_cell_with_a_key_that_is_in_no_file(
    node: Node, tmp_path: Path
) -> None:
    async with faulty.faulty(lambda _: paced()) as server:
        job = a_job(server.base_url, tmp_path)
        run = await anyio.to_thread.run_sync(measured_on, node, job)
        assert run.measured().failed is None
        assert {b"Bearer " + KEY.encode() in head for head in server.heads} == {True}
    assert kept_in(tmp_path) == []
    assert not any(KEY in words_of(one) + variables_of(one) for one in load_workers())


def test_a_worker_that_dies_is_told_with_its_last_words(node: Node) -> None:
    node.start([0, 1])
    assert len(load_workers()) == 2
    load_workers()[0].kill()
    (said,) = node.hear(10.0)
    assert (said.worker, said.line) == (0, None)
    node.start([0, 1])
    assert len(load_workers()) == 2


def test_nothing_is_left_when_a_node_closes(node: Node, tmp_path: Path) -> None:
    node.start([0, 1, 2])
    node.tell([0], asdict(Order(do="cut")))
    node.close()
    assert load_workers() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
async def test_what_a_killed_node_has_left_goes_with_the_next_one(
    node: Node, tmp_path: Path
) -> None:
    """Not what one that lives holds, and nothing of another name."""
    (tmp_path / "load.of-another-program").mkdir()
    others = there_in(tmp_path)
    async with await anyio.open_process(
        [sys.executable, "-c", "from benchmark.node import Node; Node(); print(); input()"],
        env={**inherited_environment(), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    ) as killed:
        await known(killed.stdout).receive()
        killed.kill()
    assert len(there_in(tmp_path) - others) == 1
    Node().close()
    assert there_in(tmp_path) == others


def test_a_machine_without_room_for_samples_is_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so before a cell, and leaves nothing of its attempt."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            Node()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_machine_of_another_kind_is_refused_by_name() -> None:
    here = facts()
    assert unfit(here, here) == []
    there = {**here, "python": "3.9", "uvloop": None}
    assert unfit(there, here) == [f"python 3.9, here {here['python']}", "no uvloop"]


def test_rows_of_a_clock_that_is_ahead_come_onto_ours() -> None:
    """Moments move, durations do not."""
    theirs = some_samples(3)
    ours = theirs.on_our_clock(3600.0)
    for moment in ("intended", "sent", "headers", "first_token", "last_token", "done"):
        apart = getattr(theirs, moment) - getattr(ours, moment)
        assert apart == pytest.approx([3600.0] * 3)
    assert ours.connect_seconds is theirs.connect_seconds
    assert ours.gaps is theirs.gaps


def test_its_clock_is_the_workers_own(node: Node) -> None:
    before = time.perf_counter()
    assert before <= node.now() <= time.perf_counter()
