"""Nodes, the head and the driver die, freeze and come late: `python -m benchmark run` says so."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil
import pytest

from benchmark.folder import RunFolder
from benchmark.node import FOLDERS
from benchmark.records import CellResult, CellState, Code, RunState
from benchmark.run import state_of
from core.environment import ROOT, inherited_environment
from tests.cluster.conftest import Raylets, of_three, ours, started, until

pytestmark = pytest.mark.cluster
MODEL = "google/gemma-4-E4B-it"
KEY = "sk-only-for-the-actors-17"


@contextmanager
def engine_on_a_free_port() -> Iterator[str]:
    """Run a simulated vLLM that wants a key; its address is given."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "simulators.engine", "serve", MODEL, f"--port={port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**inherited_environment(), "VLLM_API_KEY": KEY},
    )

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    until(listens, "the engine")
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with engine_on_a_free_port() as url:
        yield url


class Sweep:
    """One run of the command line, in a folder of its own."""

    def __init__(self, runs: Path, raylets: Raylets, *words: str) -> None:
        self._runs = runs
        self._env = {**inherited_environment(), **raylets.environment, "VLLM_API_KEY": KEY}
        self.process = self._start(*words)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmark", *words, f"--folder={self._runs}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=self._env,
            text=True,
        )

    def resume(self) -> None:
        self.process = self._start("resume", self.folder.path.name)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(next(self._runs.glob("*")))

    def doing(self) -> str | None:
        progress = self.folder.progress() if any(self._runs.glob("*/progress.json")) else None
        return progress.doing if progress else None

    def is_measuring(self) -> bool:
        return self.doing() == "measuring"

    def measures_cell(self, number: int) -> None:
        """Wait for the window of a cell; a run that is past it, or over, is not waited for."""

        def is_there() -> bool:
            over = self.process.poll() is not None
            progress = self.folder.progress() if any(self._runs.glob("*/progress.json")) else None
            cells = self.folder.cells() if progress else ()
            if over or len(cells) >= number:
                log = self.folder.log_file.read_text(encoding="utf-8") if progress else ""
                pytest.fail(f"The window of cell {number} was not seen: {progress!r} {log}")
            # For an instant a cell that is kept is still told as the one that is measured.
            is_next = progress is not None and progress.cell not in {cell.id for cell in cells}
            return len(cells) == number - 1 and is_next and self.is_measuring()

        until(is_there, f"the window of cell {number}")

    def ended(self) -> tuple[CellResult, ...]:
        self.out, self.err = self.process.communicate(timeout=120)
        return self.folder.cells()


def a_run(url: str, *words: str) -> list[str]:
    cells = ["--contexts=16", "--concurrencies=6", "--output-tokens=4", "--cell-seconds=10"]
    return ["run", f"--url={url}", *cells, "--cluster=auto", *words]


class Harm(NamedTuple):
    """What a run saw of which each cell met a fault."""

    joining: str
    """Its log, once all nodes were there."""
    waited_for: str
    cells: tuple[CellResult, ...]
    holding_key: list[Path]
    scratch: Path
    """Where a node kept the samples that had no room."""


@pytest.fixture(scope="module")
def harm(_cluster: Raylets, engine: str, tmp_path_factory: pytest.TempPathFactory) -> Harm:
    """One run of four cells on three nodes, of which one dies while it joins and one comes late.

    In the first cell a node's disk is full, nothing happens to the second, in the third a node is
    killed and in the fourth one freezes.
    """
    raylets, runs = of_three(_cluster), tmp_path_factory.mktemp("harm")
    raylets.do("freeze 2")  # it takes the order for an actor, and makes none
    words = a_run(engine, "--nodes=3", "--cell-seconds=3", "--concurrencies=3,4,5,6")
    sweep = Sweep(runs, raylets, *words)
    until(lambda: len(started("ray::Node")) == 2, "two nodes to join")
    raylets.do("kill 2")
    # A node takes seconds to be there, as a cell does: one that joins, and one in reserve.
    with ThreadPoolExecutor(1) as aside:
        adding = [aside.submit(raylets.do, "add") for _ in range(2)]
        until(lambda: sweep.doing() in {"warming up", "measuring"}, "the first cell")
        joining = sweep.folder.log_file.read_text(encoding="utf-8")
        scratch = fill_the_disk(sweep)
        sweep.measures_cell(2)
        for process in ours():
            assert KEY not in " ".join(process.cmdline())
            if "ray_driver" not in " ".join(process.cmdline()):
                assert KEY not in str(process.environ())
        for one in adding:
            one.result()
        sweep.measures_cell(3)
    is_lost("kill", raylets, sweep)
    sweep.measures_cell(4)
    is_lost("freeze", raylets, sweep)
    raylets.do("thaw 2")
    cells = sweep.ended()
    until(lambda: not ours(), "nodes to be empty")
    raylets.do("kill 2")
    session = Path("/tmp/ray/session_latest").resolve()  # noqa: S108  where Ray keeps its logs
    files = (path for root in (runs, session) for path in root.rglob("*") if path.is_file())
    holding = [path for path in files if KEY.encode() in path.read_bytes()]
    return Harm(joining, sweep.err, cells, holding, scratch)


def is_lost(how: str, raylets: Raylets, sweep: Sweep) -> None:
    """Let the last of three nodes be lost in the window."""
    at = time.monotonic()
    raylets.do(f"{how} 2")
    until(lambda: not sweep.is_measuring(), "the loss to be seen")
    assert time.monotonic() - at < 12  # 5 s, and what a busy machine adds; Ray itself takes 15


def fill_the_disk(sweep: Sweep) -> Path:
    """Let no sample of this cell have room on one node; its folder is given."""
    now = sweep.folder.progress()
    assert now
    open_files = Path(f"/proc/{started('ray::Node')[0].pid}/fd").iterdir()
    (scratch,) = (path.resolve() for path in open_files if FOLDERS in str(path.resolve()))
    for worker in range(3):
        (scratch / f"{now.cell}.{worker}.npz").symlink_to("/dev/full")
    return scratch


def spoiled(cell: CellResult) -> str:
    """See that a cell lost one node and keeps what the others had measured; give the node's end."""
    assert not cell.valid
    assert Code.NODE_LOST in {verdict.code for verdict in cell.verdicts}
    (lost,) = (node.lost for node in cell.nodes if node.lost)
    assert len(cell.nodes) == 3
    assert cell.state is CellState.FAILED or (cell.counts and cell.counts.succeeded)
    return lost


def test_a_node_that_dies_while_it_joins_is_not_waited_for(harm: Harm) -> None:
    """Ray sees it 15 s later than the run, which asks whether its machine is there."""
    assert "did not join" in harm.joining
    assert "its machine is gone" in harm.joining


def test_a_node_that_comes_late_is_waited_for_and_the_key_is_in_memory_alone(harm: Harm) -> None:
    """Not in an environment or a command line of a node, a log, a report, or a file of Ray's."""
    # On a busy machine a second one needs another try.
    waited = r"Waiting 120 s at most for nodes of the cluster: [12] of 3 nodes are free\."
    assert any(re.fullmatch(waited, said) for said in harm.waited_for.splitlines())
    sound = harm.cells[1]
    assert len(sound.nodes) == 3
    assert sound.counts
    assert sound.counts.succeeded
    assert not sound.counts.errors
    assert harm.holding_key == []


def test_a_node_whose_disk_is_full_spoils_its_cell_and_says_so(harm: Harm) -> None:
    """Its samples are gone, the others' are kept; the next cell has room again, and all nodes."""
    lost, sound = spoiled(harm.cells[0]), harm.cells[1]
    assert "its disk is full" in lost
    assert "No space left on device" in lost
    assert harm.cells[0].counts
    assert harm.cells[0].counts.succeeded
    assert sound.state is CellState.MEASURED
    assert [node.lost for node in sound.nodes] == [None] * 3
    assert not harm.scratch.exists()


def test_a_node_that_is_killed_is_noticed_and_spoils_its_cell(harm: Harm) -> None:
    """In seconds; what the others had measured is kept, and nothing is left running."""
    assert "gone" in spoiled(harm.cells[2])


def test_a_node_that_freezes_is_noticed_and_spoils_its_cell(harm: Harm) -> None:
    """As soon as one that is killed, and it leaves nothing either when it goes on."""
    assert "has not answered for 5 s" in spoiled(harm.cells[3])


def test_a_driver_that_is_killed_leaves_nothing_and_the_run_goes_on(
    left: Raylets, engine: str, tmp_path: Path
) -> None:
    """Until Ctrl-C ends its next cell, and leaves the nodes."""
    words = a_run(engine, f"--nodes={len(left.nodes)}")
    sweep = Sweep(tmp_path, left, *words, "--cell-seconds=3", "--concurrencies=4,6,8")
    sweep.measures_cell(1)
    for process in psutil.Process(sweep.process.pid).children(recursive=True):
        process.kill()
    sweep.process.kill()
    assert sweep.ended() == ()
    assert state_of(sweep.folder).state is RunState.INTERRUPTED
    until(lambda: not ours(), "nodes to be empty")
    sweep.resume()
    sweep.measures_cell(2)
    sweep.process.send_signal(signal.SIGINT)
    cell = sweep.ended()[0]
    assert len(cell.nodes) == len(left.nodes)
    assert cell.state is CellState.MEASURED
    assert state_of(sweep.folder).state is RunState.STOPPED
    until(lambda: not ours(), "nodes to be empty")


def test_a_cluster_without_a_token_is_refused(
    open_cluster: Raylets, engine: str, tmp_path: Path
) -> None:
    """Anybody in its network could read the endpoint's key."""
    sweep = Sweep(tmp_path, open_cluster, *a_run(engine))
    assert sweep.ended() == ()
    assert sweep.process.returncode == 1
    assert "takes callers without a token" in sweep.out + sweep.err


def test_the_head_of_an_open_cluster_that_was_asked_for_dies_and_ends_the_run_in_words(
    open_cluster: Raylets, engine: str, tmp_path: Path
) -> None:
    """It is another cluster than the other tests': there is none without a head."""
    words = a_run(engine, "--nodes=2", "--insecure-cluster")
    sweep = Sweep(tmp_path, open_cluster, *words)
    sweep.measures_cell(1)
    open_cluster.do("kill 0")
    cells = sweep.ended()
    assert not any(cell.valid for cell in cells)
    state = state_of(sweep.folder)
    assert state.state in {RunState.FAILED, RunState.DONE}
    measured = any(cell.state is CellState.MEASURED for cell in cells)
    assert sweep.process.returncode == (0 if state.state is RunState.DONE and measured else 1)
    until(lambda: not ours(), "nodes to be empty")


def test_a_cluster_ends_with_what_a_raylet_that_died_by_itself_has_left() -> None:
    """Its agents try for minutes to tell a head that is gone; a raylet goes 60 s after its head."""
    cluster = Raylets(1)
    started = cluster.processes()
    died = [one for one in started if one.name() in {"raylet", "gcs_server"}]
    for one in died:
        one.kill()
    assert len(died) == 2
    assert len(started) > len(died)
    cluster.end()
    assert [one for one in started if one.is_running()] == []


@contextmanager
def a_busy_head() -> Iterator[tuple[str, list[object]]]:
    """Answer as the client port of a head whose servers do not start (Ray 2.60, its proxier.py).

    Its connection ends with the refusal, which Ray's client does not always hear for that. Gives
    its address, and who has asked for a server.
    """
    from ray.core.generated import ray_client_pb2 as words  # noqa: PLC0415  this tier alone has Ray

    asked: list[object] = []

    def begin(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        first = next(requests)
        asked.append(context.invocation_metadata())
        said = "RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err"
        refusal = words.InitResponse(ok=False, msg=said)
        yield words.DataResponse(req_id=first.req_id, init=refusal)

    def log(requests: Iterator[Any], _: grpc.ServicerContext) -> Iterator[Any]:
        yield from (words.LogData() for _ in requests)

    def one(name: str, answer: Any) -> Any:
        read = getattr(words, f"{name}Request").FromString
        return grpc.unary_unary_rpc_method_handler(
            lambda *_: answer, read, type(answer).SerializeToString
        )

    calls = {
        "ClusterInfo": one("ClusterInfo", words.ClusterInfoResponse(json="{}")),
        "KVExists": one("KVExists", words.KVExistsResponse(exists=True)),
        "PinRuntimeEnvURI": one("ClientPinRuntimeEnvURI", words.ClientPinRuntimeEnvURIResponse()),
    }
    path = grpc.stream_stream_rpc_method_handler(
        begin, words.DataRequest.FromString, words.DataResponse.SerializeToString
    )
    logs = grpc.stream_stream_rpc_method_handler(
        log, words.LogSettingsRequest.FromString, words.LogData.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("ray.rpc.RayletDriver", calls),
            grpc.method_handlers_generic_handler("ray.rpc.RayletDataStreamer", {"Datapath": path}),
            grpc.method_handlers_generic_handler("ray.rpc.RayletLogStreamer", {"Logstream": logs}),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"ray://127.0.0.1:{port}", asked
    server.stop(None).wait()


def test_a_head_that_is_too_busy_for_its_client_is_asked_four_times_and_then_told_as_such(
    left: Raylets, engine: str, tmp_path: Path
) -> None:
    with a_busy_head() as (address, asked):
        sweep = Sweep(tmp_path, left, *a_run(engine), f"--cluster={address}", "--insecure-cluster")
        assert sweep.ended() == ()
    assert sweep.process.returncode == 1
    assert len(asked) == 4
    told = sweep.out + sweep.err
    assert "was asked 4 times, and has started no server for this client" in told
    assert "Its machine is busy or short of memory" in told
