"""A Ray cluster of several nodes on this machine: `python -m simulators.cluster NODES CORES`.

Prints a line of JSON for what it began with (`address`, `client`, `token_file`, `nodes`), and its
nodes after each command that it read from stdin: `add`, `kill N`, `freeze N`, `thaw N`; a node that
is killed is not among them. It ends, with all nodes, when stdin does or says `end`.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from core.address import free_port

_MIB: Final = 2**20
_PR_SET_CHILD_SUBREAPER: Final = 36
"""Of Linux' prctl(2): what loses its parent becomes a child of this process, not of the first."""
SPARED: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}
"""What a cluster for load needs nothing of (docs/scale.md): Ray 2.60 reads it where nodes start."""


def serve(nodes: int, cores: int, *, open_to_all: bool) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(os.urandom(32).hex(), encoding="ascii")
        os.environ["RAY_AUTH_MODE"] = "disabled" if open_to_all else "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
        os.environ.update(SPARED)
        os.environ.pop("RAY_ADDRESS", None)
        cluster = _Raylets(nodes, cores)
        words: dict[str, Any] = {
            "address": cluster.address,
            "client": f"ray://127.0.0.1:{cluster.client_port}",
            "token_file": str(token),
        }
        print(json.dumps({**words, "nodes": cluster.ids()}), file=out, flush=True)
        for line in sys.stdin:
            command, _, place = line.strip().partition(" ")
            if command == "end":
                break
            cluster.do(command, int(place or 0))
            print(json.dumps({"nodes": cluster.ids()}), file=out, flush=True)
        cluster.end()


class _Raylets:
    def __init__(self, nodes: int, cores: int) -> None:
        from ray.cluster_utils import Cluster  # noqa: PLC0415  after its token is in the environment

        # The agents of a raylet that died live on for minutes, where the head is gone too.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.client_port: Final = free_port()
        self._each = {"num_cpus": cores, "object_store_memory": 80 * _MIB}
        self._added = 0
        head = {
            **self._each,
            "include_dashboard": False,
            "include_log_monitor": False,
            "no_monitor": True,
            "ray_client_server_port": self.client_port,
        }
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._nodes: list[Any] = [self._cluster.head_node]
        for _ in range(nodes - 1):
            self.do("add", 0)

    def ids(self) -> list[str]:
        return [node.node_id for node in self._nodes]

    def do(self, command: str, place: int) -> None:
        if command == "add":
            self._added += 1
            # Each unpacks a run's code anew as it comes: no other node may read it there meanwhile.
            own = {"runtime_env_dir_name": f"runtime_resources_{self._added}"}
            self._nodes.append(self._cluster.add_node(**self._each, **own))
            return
        kind = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}[command]
        for process in self._processes(place):
            with suppress(psutil.NoSuchProcess):  # it ended with another one
                process.send_signal(kind)
        if command == "kill":
            del self._nodes[place]

    def end(self) -> None:
        """End all that was started from here, also what a node left that died by itself."""
        while left := psutil.Process().children(recursive=True):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, 10)

    def _processes(self, place: int) -> list[psutil.Process]:
        """Give all of a node's processes: raylet, agents, actors, and what those started."""
        own = [one for many in self._nodes[place].all_processes.values() for one in many]
        known: list[psutil.Process] = []
        for one in own:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(one.process.pid)
                known += [process, *process.children(recursive=True)]
        return known


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), open_to_all="--open" in sys.argv)
