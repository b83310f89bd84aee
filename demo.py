"""The whole life of a deployment, as an agent's client sees it: `make demo`.

Starts `python server.py` over stdio, as an agent would, and shows each call and its answer.
"""

import os
import re
import shutil
import sys
import tempfile
import time
import webbrowser
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import platformdirs
import psutil
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport

from backends.local.install import installer
from backends.local.process import find_vllm
from core import PRODUCT
from core.environment import ROOT, inherited_environment
from core.errors import OpsError
from core.records import SIMULATED, TINY_MODEL
from core.settings import Settings

_SMALL: Final[dict[str, Any]] = {"max_model_len": 2048, "max_num_seqs": 64, "enforce_eager": True}
"""Boots the tiny model in a third of the time that vLLM's defaults take."""
_LOAD: Final[dict[str, Any]] = {
    "contexts": [256],
    "concurrencies": [1, 4],
    "output_tokens": 32,
    "cell_seconds": 8,
}
"""Short enough to wait for, and long enough that some figures count."""
_PAGE: Final = "report.html"
Agree = Callable[..., Awaitable[ElicitResult[dict[str, Any]]]]
"""Answers what a tool asks a person."""
_BOOT_SECONDS: Final = 300
_SETTLED: Final = frozenset({"ready", "asleep", "stopped", "failed"})
_STYLE: Final = re.compile(r"\033\[[0-9;]*m")


class Story:
    """One agent's session, printed as it goes."""

    def __init__(self, client: Client[Any]) -> None:
        self._client = client
        self.failed = 0
        self.calls = 0
        self.characters = 0
        """Of the text half of all answers."""

    async def call(self, tool: str, *, lines: int = 24, **arguments: Any) -> dict[str, Any]:
        """Call a tool; print the call, how long it took, and its answer as users see it."""
        said = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        _print(f"\n\033[1m▶ {tool}({said})\033[0m")
        began = time.perf_counter()
        reply = await self._client.call_tool(tool, arguments, raise_on_error=False)
        answer = "\n".join(getattr(block, "text", "") for block in reply.content)
        self.calls += 1
        self.characters += len(answer)
        text = answer.splitlines()
        _print("\n".join(f"  {line}" for line in text[:lines]))
        if len(text) > lines:
            _print(f"  … {len(text) - lines} more lines")
        _print(f"  \033[2m{(time.perf_counter() - began) * 1000:.0f} ms\033[0m")
        told: dict[str, Any] = reply.structured_content or {}
        self.failed += not told.get("ok")
        return told

    async def settled(self, *wanted: str, seconds: float, **where: Any) -> bool:
        """Watch a deployment until it stays as it is; return whether that is as wanted."""
        state = None
        with anyio.move_on_after(seconds):
            while state not in _SETTLED:
                answer = await self.call("status_vllm", lines=2, wait_s=45, **where)
                state = answer.get("data", {}).get("state")
                if not answer.get("ok"):
                    break
        return state in wanted


async def tell(state_dir: Path, engine: str) -> int:
    """Tell the story; return how many of its calls failed."""
    unset = dict.fromkeys(("VLLM_BASE_URL", "VLLM_TARGET", "MODEL_NAME", "REHEARSAL"), "")
    chosen = {
        "VLLM_DEVOPS_STATE_DIR": str(state_dir),
        "ENGINE": engine,
        "SIMULATED_ENGINE_TIME_SCALE": "1",  # as slow as a real one: figures that can be told apart
    }
    async with client_of(state_dir / "server.log", {**unset, **chosen}, say_yes) as client:
        story = Story(client)
        ready = await _live(story, engine)
        if not ready:
            await story.call("get_logs", lines=40)
        await story.call("destroy_vllm", target="local", name="demo")
        await story.call("list_deployments")
    left = [
        f"pid {process.info['pid']}"
        for process in psutil.process_iter(["pid", "cmdline"])
        if str(state_dir) in " ".join(process.info["cmdline"] or ())
    ]
    files = len(await anyio.to_thread.run_sync(os.listdir, state_dir))
    on_disk = f"{files} entries of a folder that is removed now"
    _print(f"\nLeft running: {', '.join(left) or 'nothing'}. Left on disk: {on_disk}.")
    return story.failed + len(left) + (not ready)


async def _live(story: Story, engine: str) -> bool:
    await story.call("list_targets")
    deployed = await story.call("deploy_vllm", target="local", name="demo", **_SMALL)
    if not deployed.get("ok") or not await story.settled("ready", seconds=_BOOT_SECONDS):
        return False
    if engine == "real":
        _print(f"\n({TINY_MODEL} has random weights: its answers will make no sense. What is real")
        _print("is everything around them: vLLM, its API, its metrics and the time it takes.)")
    for tool in ("verify_model_health", "get_endpoint", "get_model_details"):
        await story.call(tool)
    prompt = "What is Gemma?"
    await story.call("query_gemma4", prompt=prompt, max_tokens=32)
    await story.call("query_gemma4_with_stats", prompt=prompt, max_tokens=64)
    measured = await story.call("run_benchmark", lines=40, **_LOAD, detail="full")
    while measured.get("data", {}).get("state") == "running":
        measured = await story.call("get_benchmark", lines=40, wait_s=40, detail="full")
    await story.call("get_metrics", lines=20)
    await story.call("get_system_status")
    await story.call("get_logs", lines=16, contains="KV cache size")
    return True


async def say_yes(message: str, *_rest: object) -> ElicitResult[dict[str, Any]]:
    """Agree to what a person would be asked, and show it."""
    _print(f"  \033[1m? {message}\033[0m yes")
    return ElicitResult(action="accept", content={"confirm": True})


def client_of(log: Path, chosen: dict[str, str], agree: Agree) -> Client[Any]:
    """Return a client of `python server.py` over stdio, with these settings beside our own."""
    server = StdioTransport(
        sys.executable,
        [str(ROOT / "server.py")],
        env={**inherited_environment(), "CONFIRM": "ask", **chosen},
        keep_alive=False,
        log_file=log,
    )
    return Client(server, elicitation_handler=agree, progress_handler=show_progress)


async def show_progress(_progress: float, _total: float | None, message: str | None) -> None:
    _print(f"  \033[2m… {message}\033[0m")


def keep_report(state_dir: Path) -> Path | None:
    """Copy the run's report to the user's state folder; return its page, None without one."""
    page = next(iter(state_dir.rglob(_PAGE)), None)
    if page is None:
        return None
    home = Settings().vllm_devops_state_dir or platformdirs.user_state_path(PRODUCT)
    folder = Path(home) / "demo"
    shutil.copytree(page.parent, folder, dirs_exist_ok=True)
    return folder / _PAGE


def _print(text: str) -> None:
    print(text if sys.stdout.isatty() else _STYLE.sub("", text), flush=True)


async def choose_engine() -> str:
    """Install the real engine if it is missing; give `simulated` where that cannot be done."""
    settings = Settings()
    if settings.engine == "simulated":
        return "simulated"
    if find_vllm(settings.vllm_executable, ROOT) is None:
        try:
            await installer().install()
        except OpsError as exc:
            _print(f"\n{exc.code}: {exc.summary}\n{exc.fix}")
            return "simulated"
    return "real"


def main(*words: str) -> int:
    """Run the demo in a state folder of its own; return 0 if every call succeeded."""
    engine = anyio.run(choose_engine)
    if engine == "simulated":
        _print(f"!! {SIMULATED}")
    with tempfile.TemporaryDirectory(prefix="vllm-devops-demo-") as folder:
        failed = anyio.run(tell, Path(folder), engine)
        page = keep_report(Path(folder))
    if page:
        _print(f"The benchmark's report: {page}")
        if "--open" in words:
            webbrowser.open(page.as_uri())
    _print("Every call succeeded." if not failed else f"{failed} calls failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
