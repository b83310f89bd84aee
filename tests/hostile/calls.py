"""Every tool that reads an endpoint, called while it misbehaves: a process whose memory is its own.

Prints one JSON line for each call, and a last one with the most memory that it ever took.
"""

import asyncio
import json
import resource
import selectors
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import psutil

from backends.local.process import Folder, Made, simulated
from core.journal import utc_now
from core.records import DeploymentSpec
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.hostile.endpoint import NAMES
from tests.soon import HANGS
from tests.tools.calls import CLOUD, EVERY, MODEL, OLD
from tools.surface import TOOLS

FEW: Final = frozenset(("get_metrics", "query_gemma4", "verify_model_health"))
"""Tools that between them ask for everything but what only details and benchmarks ask for."""
Reader = tuple[str, dict[str, Any]]
"""A tool that reads an endpoint, and what it is given."""
SPEED: Final = int(sys.argv[1]) if __name__ == "__main__" else 1
"""Seconds of this process's loop in one of the world: with 8, a wait of 40 s takes 5."""
_AT_ONCE: Final = 4
_NO_END: Final = HANGS * SPEED
"""Of its seconds: a call ends at 45, and a busy machine takes longer to say so."""
_BEYOND: Final = {"contexts": [4_000_000], "concurrencies": [1], "wait_s": 0}
"""What is begun once the endpoint was looked at, and has nothing to measure but a report."""


class _Selector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout / SPEED if timeout else timeout)


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop whose clock runs faster than the world's."""

    def __init__(self) -> None:
        super().__init__(_Selector())

    def time(self) -> float:
        """Return its own time, in seconds."""
        return super().time() * SPEED


def arguments(tool: str) -> Iterator[dict[str, Any]]:
    """Give each way in which a tool may come to ask the endpoint."""
    right = {**EVERY, **CLOUD, **OLD}[tool]
    if tool in {"run_benchmark", "run_vllm_benchmark"}:
        right = _BEYOND
    known = TOOLS[tool].parameters
    here = {"target": "endpoint"} if "target" in known else {}
    here = {name: value for name, value in {**right, **here}.items() if name != "name"}
    yield here
    if "deep" in known:
        yield {**here, "deep": True}
    if "raw" in known:
        yield {**here, "raw": "*"}
    if tool in {"analyze_cloud_logging", "analyze_gpu_logs", "suggest_sre_remediation"}:
        yield {"target": "local", "name": "one"}


def plant_failed(state_dir: Path) -> None:
    """Make a deployment on this machine whose log a model is asked to read."""
    folder = Folder(state_dir / "real" / "local" / "one")
    spec = DeploymentSpec(name="one", model=MODEL)
    made = Made(
        spec=spec, engine=simulated(("x",)), argv=("x",), env={}, port=9, created_at=utc_now()
    )
    folder.path.mkdir(parents=True, mode=0o700)
    folder.make(made)
    folder.write("wanted", "running")
    folder.log.write_text("ERROR EngineCore failed to start.\nValueError: no\n" * 20, "utf-8")


def settings_at(url: str, state_dir: Path) -> Settings:
    return Settings(
        vllm_base_url=url,
        analyst_base_url=url,
        analyst_model=MODEL,
        vllm_devops_state_dir=state_dir,
        engine="simulated",
        toolsets=("all",),
        confirm="never",
    )


async def called(agent: Agent, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """Call a tool; the process that measures is killed once it answered: none looks at its run."""
    with anyio.move_on_after(_NO_END):
        reply = await agent.client.call_tool(tool, given, raise_on_error=False)
        told = reply.structured_content or {}
        if tool == "run_benchmark" and told.get("ok"):
            kill_children(told["data"]["run"])
        text = "\n".join(getattr(block, "text", "") for block in reply.content)
        return {"structured": reply.structured_content, "text": text}
    return {"structured": {"code": "NO_END"}, "text": ""}


def kill_children(run: str = "") -> None:
    """Kill what measures one run, or whatever this process has started."""
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if run in " ".join(one.cmdline()):
                one.kill()
                one.wait(_NO_END)


def meeting(where: str, name: str, readers: Sequence[Reader]) -> Iterator[Reader]:
    """Give the calls that meet a behaviour at first sight (all) or later.

    Each tool meets each behaviour; those of `FEW`, which read all that is ever read, both ways.
    """
    for number, (tool, given) in enumerate(readers):
        first = (number + NAMES.index(name)) % 2 == 0
        if tool in FEW or first is (where == "all"):
            yield tool, given


async def _all_calls(url: str, wanted: list[str], readers: list[Reader]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder)
        plant_failed(state_dir)
        limit = anyio.CapacityLimiter(_AT_ONCE)

        async def call(agent: Agent, tool: str, given: dict[str, Any], here: list[str]) -> None:
            async with limit:
                said = await called(agent, tool, given)
            print(json.dumps({"behaviour": here, "tool": tool, "given": given, **said}))

        async def behave(where: str, name: str) -> None:
            there = f"{url}/{where}/{NAMES.index(name)}"
            # A client that asks for the era first gives up where the loop is busy for 10 s.
            async with (
                agent_of(settings_at(there, state_dir), mode="2026-07-28") as agent,
                anyio.create_task_group() as group,
            ):
                for tool, given in meeting(where, name, readers):
                    group.start_soon(call, agent, tool, given, [where, name])

        rooms = anyio.CapacityLimiter(4)

        async def in_turn(where: str, name: str) -> None:
            async with rooms:
                await behave(where, name)

        async with anyio.create_task_group() as group:
            for name in wanted:
                for where in ("all", "later"):
                    group.start_soon(in_turn, where, name)
        kill_children()  # a run that began once its call was given up
    print(json.dumps({"peak_mib": _peak_mib()}))


def _peak_mib() -> float:
    """Return the most memory that this program took; `ru_maxrss` counts also who started it."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text("ascii").splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    anyio.run(
        _all_calls,
        *json.load(sys.stdin),
        backend_options={"loop_factory": QuickLoop},
    )
