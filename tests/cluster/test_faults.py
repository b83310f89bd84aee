"""Nodes, the head and the driver die, freeze and come late: `python -m benchmark run` says so."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from benchmark.folder import RunFolder
from benchmark.records import CellResult, CellState, Code, RunState
from benchmark.run import state_of
from core.environment import ROOT, inherited_environment
from tests.cluster.conftest import Raylets, ours, until

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

    def ended(self) -> tuple[CellResult, ...]:
        self.out, self.err = self.process.communicate(timeout=120)
        return self.folder.cells()


def a_run(url: str, *words: str) -> list[str]:
    cells = ["--contexts=16", "--concurrencies=6", "--output-tokens=4", "--cell-seconds=10"]
    return ["run", f"--url={url}", *cells, "--cluster=auto", *words]


def is_lost(how: str, raylets: Raylets, url: str, runs: Path) -> None:
    """Let the last of three nodes be lost in the window."""
    sweep = Sweep(runs, raylets, *a_run(url, "--nodes=3"))
    until(sweep.is_measuring, "the window")
    at = time.monotonic()
    raylets.do(f"{how} 2")
    until(lambda: not sweep.is_measuring(), "the loss to be seen")
    assert time.monotonic() - at < 12  # 5 s, and what a busy machine adds; Ray itself takes 15
    (cell,) = sweep.ended()
    assert not cell.valid
    assert Code.NODE_LOST in {verdict.code for verdict in cell.verdicts}
    assert [bool(node.lost) for node in cell.nodes].count(True) == 1
    assert cell.state is CellState.FAILED or (cell.counts and cell.counts.succeeded)
    if how == "freeze":
        raylets.do("thaw 2")
    until(lambda: not ours(), "nodes to be empty")
    if how == "freeze":
        raylets.do("kill 2")


def test_a_node_that_is_killed_is_noticed_and_spoils_its_cell(
    raylets: Raylets, engine: str, tmp_path: Path
) -> None:
    """In seconds; what the others had measured is kept, and nothing is left running."""
    is_lost("kill", raylets, engine, tmp_path)


def test_a_node_that_comes_late_is_waited_for_and_the_key_is_in_memory_alone(
    left: Raylets, engine: str, tmp_path: Path
) -> None:
    """Not in an environment or a command line of a node, a log, a report, or a file of Ray's."""
    nodes = len(left.nodes) + 1
    sweep = Sweep(tmp_path, left, *a_run(engine, f"--nodes={nodes}"), "--cell-seconds=3")
    until(lambda: any(tmp_path.glob("*/progress.json")), "the run")
    with ThreadPoolExecutor(
        1
    ) as aside:  # a cell may be over before Ray says that the node is there
        aside.submit(left.do, "add")
        until(sweep.is_measuring, "the window")
        for process in ours():
            assert KEY not in " ".join(process.cmdline())
            if "ray_driver" not in " ".join(process.cmdline()):
                assert KEY not in str(process.environ())
    (cell,) = sweep.ended()
    assert len(cell.nodes) == nodes
    assert cell.counts
    assert cell.counts.succeeded
    assert not cell.counts.errors
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    session = Path("/tmp/ray/session_latest").resolve()  # noqa: S108  where Ray keeps its logs
    kept += [path for path in session.rglob("*") if path.is_file()]
    assert [path for path in kept if KEY.encode() in path.read_bytes()] == []


def test_a_node_that_freezes_is_noticed_and_spoils_its_cell(
    raylets: Raylets, engine: str, tmp_path: Path
) -> None:
    """As soon as one that is killed, and it leaves nothing either when it goes on."""
    is_lost("freeze", raylets, engine, tmp_path)


def test_a_node_whose_disk_is_full_spoils_its_cell_and_says_so(
    left: Raylets, engine: str, tmp_path: Path
) -> None:
    """Its samples are gone, the others' are kept; the next cell has room again, and all nodes."""
    words = a_run(engine, f"--nodes={len(left.nodes)}")
    sweep = Sweep(tmp_path, left, *words, "--concurrencies=4,6", "--cell-seconds=3")
    until(lambda: sweep.doing() in {"warming up", "measuring"}, "the load")
    now = sweep.folder.progress()
    assert now
    temporary = Path(inherited_environment().get("TMPDIR", "/tmp"))  # noqa: S108  the nodes'
    scratch = max(temporary.glob("load.*"), key=lambda path: path.stat().st_mtime)
    for worker in range(len(left.nodes)):
        (scratch / f"{now.cell}.{worker}.npz").symlink_to("/dev/full")
    spoiled, sound = sweep.ended()
    assert not spoiled.valid
    assert Code.NODE_LOST in {verdict.code for verdict in spoiled.verdicts}
    (lost,) = (node.lost for node in spoiled.nodes if node.lost)
    assert "its disk is full" in lost
    assert "No space left on device" in lost
    assert spoiled.counts
    assert spoiled.counts.succeeded
    assert sound.state is CellState.MEASURED
    assert [node.lost for node in sound.nodes] == [None] * len(left.nodes)
    assert not scratch.exists()
    until(lambda: not ours(), "nodes to be empty")


def test_a_driver_that_is_killed_leaves_nothing_and_the_run_goes_on(
    left: Raylets, engine: str, tmp_path: Path
) -> None:
    words = a_run(engine, f"--nodes={len(left.nodes)}")
    sweep = Sweep(tmp_path, left, *words, "--cell-seconds=3")
    until(sweep.is_measuring, "the window")
    for process in psutil.Process(sweep.process.pid).children(recursive=True):
        process.kill()
    sweep.process.kill()
    assert sweep.ended() == ()
    assert state_of(sweep.folder).state is RunState.INTERRUPTED
    until(lambda: not ours(), "nodes to be empty")
    sweep.resume()
    (cell,) = sweep.ended()
    assert len(cell.nodes) == len(left.nodes)
    assert cell.state is CellState.MEASURED


def test_ctrl_c_ends_the_cell_and_leaves_the_nodes(
    left: Raylets, engine: str, tmp_path: Path
) -> None:
    sweep = Sweep(tmp_path, left, *a_run(engine))
    until(sweep.is_measuring, "the window")
    sweep.process.send_signal(signal.SIGINT)
    sweep.ended()
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
    until(sweep.is_measuring, "the window")
    open_cluster.do("kill 0")
    cells = sweep.ended()
    assert not any(cell.valid for cell in cells)
    state = state_of(sweep.folder)
    assert state.state in {RunState.FAILED, RunState.DONE}
    assert sweep.process.returncode == (1 if state.state is RunState.FAILED else 0)
    until(lambda: not ours(), "nodes to be empty")


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
