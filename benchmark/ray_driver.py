"""`python -m benchmark.ray_driver`: places the load on a Ray cluster; spoken to over its pipes.

A process of its own: Ray writes to standard output, and ends its process when the head is gone.
Each line is JSON. The first one read is a `Cluster` with `base_url` and `patience_seconds`.
"""

import asyncio
import errno
import fcntl
import io
import ipaddress
import json
import logging
import math
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmark.node import SPARED, Node, Said, facts, unfit
from core.address import socket_of
from core.environment import ROOT

LOST_SECONDS: Final = 5.0
"""Without an answer a node is lost."""
_HEAR_SECONDS: Final = 2.0
_CALL_SECONDS: Final = 30.0
"""For starting an actor and its workers, which import NumPy."""
_PINGS: Final = 4
"""Before a cell, and after it: each costs 1.3 ms of CPU, as any call does (Ray 2.60)."""
_PROBE_SECONDS: Final = 5.0
_TRIES: Final = 4
_NOT_STARTED: Final = (
    "Starting Ray client server failed",
    "Proxy failed to Connect to backend",
    "has already been disconnected",
)
"""The first client of a head that is busy: its server starts, and is not found within 30 s (Ray
2.60, seen in its ray_client_server.err), or is not reached within 30 s (its proxier.py); the next
attempt takes 4 s. The last one is what Ray's client says in place of the others where it is slow:
the head's words, and the end of the connection that follows them at once, are then one to it."""
_REFRESH_SECONDS: Final = 1.0
_SHIPPED: Final = ("benchmark", "core")
_FILES: Final = ("credential_file", "ca_file", "dataset")


_log = logging.getLogger(__name__)


class RefusedError(Exception):
    """The cluster cannot put the load on; the words are a person's."""

    def __init__(self, summary: str, *, fix: str, cause: str = "") -> None:
        super().__init__(summary)
        self.words = {"summary": summary, "fix": fix, "cause": cause}


@dataclass(eq=False)
class Placed:
    """One node that takes part."""

    name: str
    node_id: str
    cores: int
    actor: Any
    workers: list[int] = field(default_factory=list)
    offset: float = 0.0
    """Seconds that its clock is ahead of ours."""
    bound: float = float("inf")
    round_trip: float = float("inf")
    listening: asyncio.Task[None] | None = None

    async def call(self, name: str, *arguments: Any, seconds: float = LOST_SECONDS) -> Any:
        ref = getattr(self.actor, name).remote(*arguments)
        return await asyncio.wait_for(asyncio.wrap_future(ref.future()), seconds)

    async def end(self) -> None:
        """End its workers and then itself; nothing of them stays."""
        with suppress(TimeoutError, ray.exceptions.RayError):
            await self.call("close")
        ray.kill(self.actor)

    async def set_clock(self) -> None:
        """Bound the offset of its clock by round trips: what all of them allow.

        A second time, what it moved since the first is in the bound.
        """
        low, high = -math.inf, math.inf
        for _ in range(_PINGS):
            before = time.perf_counter()
            there = await self.call("now")
            after = time.perf_counter()
            low, high = max(low, there - after), min(high, there - before)
            self.round_trip = min(self.round_trip, after - before)
        moved = 0.0 if self.bound == math.inf else abs((low + high) / 2 - self.offset)
        self.offset, self.bound = (low + high) / 2, abs(high - low) / 2 + moved


class Driver:
    def __init__(self, wanted: dict[str, Any], out: io.BufferedWriter) -> None:
        self.wanted = wanted
        self._out = out
        self._placed: list[Placed] = []
        self._parts = Path()
        self._key: tuple[Path, int] | None = None
        self._declined: dict[str, str] = {}
        """Why nodes that are free did not join, by their names."""

    def say(self, **words: Any) -> None:
        self._out.write(json.dumps(words).encode() + b"\n")
        self._out.flush()

    async def follow(self, commands: asyncio.StreamReader) -> None:
        """Do what each line says until there is none."""
        renewing = asyncio.create_task(self._renew())
        try:
            while line := await commands.readline():
                said = json.loads(line)
                try:
                    await getattr(self, f"_{said.pop('do')}")(**said)
                except RefusedError as exc:
                    self.say(refused=exc.words)
        finally:
            renewing.cancel()
            while self._placed:
                one = self._placed.pop()
                if one.listening is not None:
                    one.listening.cancel()
                await one.end()

    async def _hire(self, workers: int) -> None:
        """Place so many workers, evenly; a node that is lost meanwhile has another in its place."""
        deadline = time.monotonic() + self.wanted["patience_seconds"]
        self._declined.clear()
        while True:
            await self._gather_nodes(deadline)
            there = len(self._placed)
            cores = sum(one.cores for one in self._placed)
            wanted = max(there, min(workers, cores))
            for place, one in enumerate(self._placed):
                one.workers = list(range(place, wanted, there))
            await self._each(lambda one: one.call("start", one.workers, seconds=_CALL_SECONDS))
            if len(self._placed) == there:
                break
        self.say(hired=[{"node": one.name, "workers": one.workers} for one in self._placed])

    async def _gather_nodes(self, deadline: float) -> None:
        """Have as many nodes as are wanted; wait for those that are busy or not there yet."""
        nodes = self.wanted["nodes"]
        waiting = False
        while True:
            async with _alone():
                wanted = None if nodes is None else nodes - len(self._placed)
                free = (await self._free())[:wanted]
                for one in await asyncio.gather(*map(self._join, free)):
                    if one is not None:
                        self._placed.append(one)
                        one.listening = asyncio.create_task(self._listen(one))
            if len(self._placed) >= (nodes or 1):
                break
            if time.monotonic() >= deadline:
                declined = (f" {name} did not join: {why}" for name, why in self._declined.items())
                raise RefusedError(
                    f"{len(self._placed)} nodes of the cluster are free, {nodes or 1} wanted.",
                    fix="Start more, wait until other runs on it are over, or give fewer `nodes`.",
                    cause=f"Alive: {', '.join(_names().values()) or 'none'}.{''.join(declined)}",
                )
            if not waiting:
                waiting = True
                most = f"{self.wanted['patience_seconds']:.0f} s at most"
                found = f"{len(self._placed)} of {nodes or 1} nodes are free"
                self.say(waiting=f"Waiting {most} for nodes of the cluster: {found}.")
            await asyncio.sleep(1)
        self._placed.sort(key=lambda one: (one.name, one.node_id))

    async def _free(self) -> list[dict[str, Any]]:
        """Give the nodes that nobody uses, those of the most cores first.

        Ray takes 15 s to see that one is gone, and as long would an actor for it be waited for.
        """
        taken, available = {one.node_id for one in self._placed}, _available()
        free = [
            node
            for node in _nodes()
            if node["Alive"]
            and node["NodeID"] not in taken
            and (cores := node["Resources"].get("CPU", 0)) >= 1
            and available.get(node["NodeID"], {}).get("CPU", 0) >= cores
        ]
        there = await asyncio.gather(*map(_listens, free))
        free = [node for node, listens in zip(free, there, strict=True) if listens]
        return sorted(free, key=lambda node: -node["Resources"]["CPU"])

    async def _join(self, node: dict[str, Any]) -> Placed | None:
        """Make the actor there, alone on its cores; None where another run was faster.

        Raises:
            RefusedError: The node has another Python, or lacks what a worker needs.
        """
        name = _names().get(node["NodeID"], node["NodeManagerAddress"])
        cores = int(node["Resources"]["CPU"])
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        kind: Any = ray.remote(Node)
        actor = kind.options(num_cpus=cores, max_concurrency=4, scheduling_strategy=where).remote()
        one = Placed(name, node["NodeID"], cores, actor)
        try:
            there = await _while_it_listens(node, one.call("facts", seconds=_CALL_SECONDS))
            await one.set_clock()
        except (TimeoutError, ray.exceptions.RayError) as exc:
            _log.warning("%s did not join: %r", name, exc)
            self._declined[name] = _last_line(exc)
            ray.kill(one.actor)
            return None
        self._declined.pop(name, None)
        odd = unfit(there, facts())
        if odd:
            await one.end()
            raise RefusedError(
                f"The node {name} cannot put load on: {', '.join(odd)}.",
                fix="Give it this machine's Python, and `pip install -r requirements-ray.txt`.",
            )
        if _is_here(self.wanted["base_url"]) and node["NodeManagerAddress"] not in _addresses():
            await one.end()
            raise RefusedError(
                f"{self.wanted['base_url']} is another machine on the node {name} than here.",
                fix="Give the endpoint's address as the nodes reach it.",
            )
        return one

    async def _prepare(self, job: dict[str, Any]) -> None:
        self._parts = Path(job["samples_file"])
        files = {name: _content(job[name]) for name in _FILES}
        key = job["credential_file"]
        self._key = (Path(key), _age(Path(key))) if key else None
        held = ray.put(files)
        for one in self._placed:
            one.bound = one.round_trip = float("inf")
        await self._each(Placed.set_clock)
        await self._each(lambda one: one.call("prepare", job, one.workers, held))

    async def _order(self, workers: list[int], order: dict[str, Any]) -> None:
        """Give an order whose times are ours to nodes that have their own."""
        named = set(workers)

        async def tell(one: Placed) -> None:
            times = {name: order[name] + one.offset for name in ("at", "begin", "end")}
            await one.call("tell", [n for n in one.workers if n in named], order | times)

        await self._each(tell)

    async def _clocks(self) -> None:
        """Bound the clocks once more after a cell, so that what they drifted is in the bound."""
        await self._each(Placed.set_clock)
        told = ((one.name, one.round_trip, one.bound) for one in self._placed)
        fields = ("node", "round_trip_seconds", "clock_bound_seconds")
        self.say(clocks=[dict(zip(fields, one, strict=True)) for one in told])

    async def _listen(self, one: Placed) -> None:
        try:
            while True:
                heard: list[Said] = await one.call("hear", _HEAR_SECONDS, seconds=LOST_SECONDS)
                for said in heard:
                    if full := self._pass_on(one, said):
                        await one.call("close")  # what was written would stay there
                        self._lose(one, f"its disk is full: {full}")
                        return
        except (TimeoutError, ray.exceptions.RayError) as exc:
            self._lose(one, _why(exc))

    def _pass_on(self, one: Placed, said: Said) -> str | None:
        """Tell what a worker said; return why its samples had no room on the node, if so."""
        if said.line is None:
            self.say(worker=said.worker, died=said.last_words or "it said nothing")
            return None
        report = json.loads(said.line)
        if report["disk_full"]:
            return str(report["because"])
        if said.rows:
            file = self._parts / f"{said.worker}.npz"
            try:
                file.write_bytes(said.rows)
                report |= {"file": str(file), "ahead_seconds": one.offset}
            except OSError as exc:
                full = exc.errno in {errno.ENOSPC, errno.EDQUOT}
                failed = {"is_": "failed", "health": None, "file": "", "disk_full": full}
                report |= {**failed, "because": f"{exc}, for samples"}
        if report["because"]:
            report["because"] = f"{report['because']} (node {one.name})"
        self.say(worker=said.worker, report=report)
        return None

    def _lose(self, one: Placed, why: str) -> None:
        if one not in self._placed:
            return
        self._placed.remove(one)
        _log.warning("%s is lost: %s", one.name, why)
        self.say(lost=one.name, workers=one.workers, why=why)
        ray.kill(one.actor)

    async def _each(self, do: Callable[[Placed], Awaitable[Any]]) -> None:
        """Do it on all nodes at once; one that cannot any more is lost."""

        async def quietly(one: Placed) -> None:
            try:
                await do(one)
            except (TimeoutError, ray.exceptions.RayError) as exc:
                if one.listening is not None:
                    one.listening.cancel()
                self._lose(one, _why(exc))

        await asyncio.gather(*map(quietly, tuple(self._placed)))

    async def _renew(self) -> None:
        """Hand a key on that was renewed; say every second that somebody is there."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            self.say(alive=True)
            if self._key is None or _age(self._key[0]) == self._key[1]:
                continue
            self._key = (self._key[0], _age(self._key[0]))
            held = ray.put({"credential_file": _content(str(self._key[0]))})
            await self._each(lambda one: one.call("renew", held))  # noqa: B023  awaited here


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    """Let no other run of this checkout take nodes meanwhile: both would take the same."""
    held = os.open(__file__, os.O_RDONLY)
    try:
        await asyncio.to_thread(fcntl.flock, held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _why(exc: Exception) -> str:
    """Say why a node is lost whose call ended so."""
    if isinstance(exc, TimeoutError):
        return f"it has not answered for {LOST_SECONDS:g} s"
    if isinstance(exc, ray.exceptions.RayTaskError):
        return _last_line(exc)
    return f"its process or its machine is gone ({type(exc).__name__})"


def _last_line(exc: Exception) -> str:
    return str(exc).strip().rpartition("\n")[2] or type(exc).__name__


def _nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()
    return nodes


async def _listens(node: dict[str, Any]) -> bool:
    """Whether a node's raylet can be reached, as far as we can see: a client cannot."""
    if ray.util.client.ray.is_connected():
        return True
    where = node["NodeManagerAddress"], node["NodeManagerPort"]
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(*where), _HEAR_SECONDS)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _while_it_listens(node: dict[str, Any], doing: Awaitable[Any]) -> Any:
    """Wait for what a node does.

    Raises:
        TimeoutError: It takes too long, or the node is gone, which Ray takes 15 s to see.
    """
    task = asyncio.ensure_future(doing)
    while not (await asyncio.wait([task], timeout=_REFRESH_SECONDS))[0]:
        if not await _listens(node):
            task.cancel()
            raise TimeoutError("its machine is gone")
    return await task


def _available() -> dict[str, dict[str, float]]:
    """Give what nobody has reserved, by node; a client's connection lets a task look."""
    if ray.util.client.ray.is_connected():
        look: Any = ray.remote(num_cpus=0)(_available)
        seen: dict[str, dict[str, float]] = ray.get(look.remote(), timeout=_CALL_SECONDS)
        return seen
    from ray._private.state import available_resources_per_node  # noqa: PLC0415  no public name

    return dict(available_resources_per_node())


def _names() -> dict[str, str]:
    """Name each node that is alive by its address; where several share one, by their ids too."""
    alive = {node["NodeID"]: node["NodeManagerAddress"] for node in _nodes() if node["Alive"]}
    several = Counter(alive.values())
    return {
        node: address if several[address] == 1 else f"{address}#{node[:4]}"
        for node, address in alive.items()
    }


def _is_here(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or socket_of(base_url) is not None


def _addresses() -> set[str]:
    return {one.address for many in psutil.net_if_addrs().values() for one in many}


def _content(file: str | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()


def _age(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_mtime_ns
    return 0


def connect(wanted: dict[str, Any], package: Path) -> None:
    """Join the cluster that is named, with a token unless an open one is taken.

    Raises:
        RefusedError: It is out of reach, refuses the token, or takes callers without one.
    """
    address = wanted["address"]
    if address == "auto" and (address := os.environ.get("RAY_ADDRESS", "")) in {"", "auto"}:
        address = _head_here()
    is_client = address.startswith("ray://")
    method = "RayletDriver/ClusterInfo" if is_client else "NodeInfoGcsService/GetClusterId"
    asks = _asks_for_a_token(address.removeprefix("ray://"), f"/ray.rpc.{method}")
    if not (asks or wanted["insecure"]):
        raise RefusedError(
            f"The Ray cluster at {address} takes callers without a token: anybody in its network"
            " may run code there and read the endpoint's key.",
            fix="Start it with RAY_AUTH_MODE=token (docs/scale.md), or pass --insecure-cluster.",
        )
    # Nodes on one machine share the folder that Ray unpacks, and the first run to end removes it.
    (package / "run").write_text(uuid.uuid4().hex, encoding="ascii")
    for name in _SHIPPED:
        ignored = shutil.ignore_patterns("__pycache__", "templates")
        shutil.copytree(ROOT / name, package / name, ignore=ignored)
    for attempt in range(1, _TRIES + 1):
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                runtime_env={"working_dir": str(package), "env_vars": SPARED},
            )
            break
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as exc:
            if any(words in str(exc) for words in _NOT_STARTED):
                if attempt < _TRIES:
                    continue
                raise RefusedError(
                    f"The head of the Ray cluster {address} was asked {_TRIES} times, and has "
                    "started no server for this client.",
                    fix="Its machine is busy or short of memory: try again when it is not, or give "
                    "it more. `ray_client_server*.err` in its /tmp/ray/session_latest/logs has "
                    "Ray's words.",
                    cause=_last_line(exc)[:500],
                ) from exc
            raise RefusedError(
                f"The Ray cluster {address} cannot be joined.",
                fix="See that it runs, has this machine's Python and Ray, and that its token is in "
                "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token.",
                cause=str(exc).strip()[:500],
            ) from exc


def _head_here() -> str:
    """Return the address of the cluster that this machine belongs to.

    Raises:
        RefusedError: There is none, or several.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die  # noqa: PLC0415  the same

    try:
        return str(canonicalize_bootstrap_address_or_die("auto"))
    except ConnectionError as exc:
        raise RefusedError(
            "This machine belongs to no Ray cluster, or to several.",
            fix="Give the address of its head: ray://HOST:10001.",
            cause=str(exc)[:300],
        ) from exc


def _asks_for_a_token(address: str, method: str) -> bool:
    """Ask without a token: whoever is answered may run any code there, and read the key.

    Raises:
        RefusedError: Nobody answers.
    """
    with grpc.insecure_channel(address) as channel:
        try:
            ask: Any = channel.unary_unary(method)
            ask(b"", timeout=_PROBE_SECONDS)
        except grpc.RpcError as exc:
            if exc.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                raise RefusedError(
                    f"No Ray cluster answers at {address}.",
                    fix="Give the address of its head: ray://HOST:10001.",
                    cause=str(exc.details()),
                ) from exc
            return exc.code() is grpc.StatusCode.UNAUTHENTICATED
    return False


async def main(out: io.BufferedWriter) -> None:
    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    driver = Driver(json.loads(await reader.readline()), out)
    with tempfile.TemporaryDirectory() as package:
        try:
            await asyncio.to_thread(connect, driver.wanted, Path(package))
        except RefusedError as exc:
            driver.say(refused=exc.words)
            return
        driver.say(joined=ray.__version__)
        await driver.follow(reader)
    ray.shutdown()


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Ray prints is for the log
    asyncio.run(main(pipe))
