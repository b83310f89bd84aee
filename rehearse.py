"""A deployment's whole life on a simulated cloud, told by an agent's client: `make rehearse`.

Every call goes through the MCP server and the cloud's own SDK, to a control plane of this machine.
"""

import sys
from typing import Any, Final

import anyio
from fastmcp import Client

from core.settings import Settings
from demo import Story, client_of, say_yes
from operations.runtime import Stage

_NAME: Final = "rehearsed"
_MODELS: Final = {"vllm": "google/gemma-4-E2B-it", "ollama": "gemma3:4b"}
_IMAGES: Final = {"aca-t4": "docker.io/you/vllm-sm75:v0.32.0"}
"""The published vLLM cannot serve Gemma 4 on a T4: this stands for one with smaller tiles."""
_SMALL: Final[dict[str, Any]] = {
    "contexts": [64],
    "concurrencies": [1, 4],
    "output_tokens": 16,
    "cell_seconds": 2,
}
_STORY_SECONDS: Final = 900


class Rehearsal(Story):
    """The same story as the demo's, with what only a cloud has."""

    def __init__(self, client: Client[Any], target: str, engine: str) -> None:
        super().__init__(client)
        self._target = target
        self._engine = engine
        self._is_tpu = target.startswith("tpu")
        self._is_local = target == "local"
        self._where: dict[str, Any] = {"target": target, "name": _NAME}

    async def tell(self) -> None:
        """From an empty project to an empty project."""
        await self.call("list_targets")
        if not self._is_local:
            done = await self.call("setup_target", target=self._target, lines=60)
            if done.get("code") == "TARGET_NOT_FOUND":
                return
        if await self._deployed():
            await self._looked_at()
            await (self._queued() if self._is_tpu else self._operated())
        await self.call("destroy_vllm", **self._where)
        await self.call("list_deployments")

    async def _deployed(self) -> bool:
        what: dict[str, Any] = {"model": _MODELS[self._engine], "target": self._target}
        if self._target in _IMAGES:
            what |= {"image": _IMAGES[self._target], "max_model_len": 4096}
        if self._engine == "vllm":
            planned = await self.call("plan_deployment", **what, layout="concurrency", check=True)
            if not planned.get("ok"):
                return False
            what["layout"] = "concurrency"
        if not self._is_local:
            await self.call("check_gpu_quotas", target=self._target)
        if self._is_tpu:
            await self.call("get_zones_with_available_quota", lines=40, target=self._target)
        deploy: dict[str, Any] = {**what, "name": _NAME, "engine": self._engine, "ttl_minutes": 60}
        told = await self.call("deploy_vllm", lines=60, **deploy)
        return bool(told.get("ok")) and await self._settled("ready")

    async def _looked_at(self) -> None:
        for tool in ("verify_model_health", "get_endpoint"):
            await self.call(tool, **self._where)
        if self._engine == "vllm":
            for tool in ("get_model_details", "get_metrics"):
                await self.call(tool, **self._where)
        asked: dict[str, Any] = {**self._where, "prompt": "What is Gemma?", "max_tokens": 48}
        await self.call("query_gemma4_with_stats", **asked)
        if self._engine == "vllm":
            await self.call("run_benchmark", lines=40, wait_s=40, **self._where, **_SMALL)
        await self.call("get_logs", lines=12, **self._where)

    async def _queued(self) -> None:
        """A chip is not scaled: it is looked at where it stands, and given back as a whole."""
        await self.call("list_queued_resources", target=self._target)
        await self.call("manage_queued_resource", action="describe", **self._where)

    async def _operated(self) -> None:
        if not self._is_local:
            more: dict[str, Any] = {"min_replicas": 0, "max_replicas": 2}
            await self.call("update_vllm_scaling", **self._where, **more)
            await self._settled("ready", "asleep")
        await self.call("stop_vllm", **self._where)
        await self._settled("stopped")
        await self.call("start_vllm", **self._where)
        if await self._settled("asleep", "ready"):
            await self._woken()

    async def _woken(self) -> None:
        """A question that does not say so wakes nothing."""
        asked: dict[str, Any] = {**self._where, "prompt": "And now?", "max_tokens": 16}
        refused = await self.call("query_gemma4", **asked)
        self.failed -= refused.get("code") == "ASLEEP"  # which is what should happen
        await self.call("query_gemma4", wake=True, **asked)

    async def _settled(self, *wanted: str) -> bool:
        as_wanted = await self.settled(*wanted, seconds=_STORY_SECONDS, **self._where)
        self.failed += not as_wanted
        return as_wanted


async def _rehearse(target: str, engine: str) -> int:
    folder = Stage(Settings(rehearsal=True)).folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    chosen = {"REHEARSAL": "1", "TOOLSETS": "all", "VLLM_TARGET": "", "VLLM_BASE_URL": ""}
    client = client_of(folder / "server.log", chosen, say_yes)
    story = Rehearsal(client, target, engine)
    async with client:
        with anyio.move_on_after(_STORY_SECONDS) as limit:
            await story.tell()
    print(f"{story.calls} calls, answered with {story.characters // 4:,} tokens.")
    return story.failed + limit.cancelled_caught


def main(arguments: list[str]) -> int:
    """Tell it for `TARGET [ollama]`, or `clean`; return the status."""
    if arguments == ["clean"]:
        existed = Stage(Settings(rehearsal=True)).forget_rehearsal()
        print("The rehearsal's clouds are gone." if existed else "There was no rehearsal.")
        return 0
    target = arguments[0] if arguments else "cloud-run-l4"
    failed = anyio.run(_rehearse, target, "ollama" if "ollama" in arguments[1:] else "vllm")
    print("The rehearsal succeeded." if not failed else f"{failed} things went wrong.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
