"""A deployment's whole life on a simulated cloud, told by an agent's client: `make rehearse`.

Every call goes through the MCP server and the cloud's own SDK, to a control plane of this machine.
"""

import sys
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from fastmcp import Client

from backends.aca.site import REHEARSED_SUBSCRIPTION
from core.settings import AzurePlane, GooglePlane, Settings
from demo import Story, client_of, say_yes
from operations.runtime import Stage

_NAME: Final = "rehearsed"
_MODELS: Final = {"vllm": "google/gemma-4-E2B-it", "ollama": "gemma3:4b"}
_IMAGES: Final = {"aca-t4": "docker.io/you/vllm-sm75:v0.32.0"}
"""The published vLLM cannot serve Gemma 4 on a T4: this stands for one with smaller tiles."""
_SETTLED: Final = frozenset({"ready", "asleep", "stopped", "failed"})
_SMALL: Final[dict[str, Any]] = {
    "contexts": [64],
    "concurrencies": [1, 4],
    "output_tokens": 16,
    "cell_seconds": 2,
}
_STORY_SECONDS: Final = 900
_PERSON: Final = {"identity_kind": "user", "identity": "you@example.com"}
_LOGINS: Final[dict[str, dict[str, Any]]] = {
    "": {"identity_kind": "service_account", "identity": "", "gcloud": ""},
    "person": {**_PERSON, "gcloud": "you@example.com"},
    "person-without-gcloud": {**_PERSON, "gcloud": ""},
}
"""Of whoever calls Google; usually it is a machine's service account."""
_STRICT: Final = "strict"
_POLICIES: Final[dict[str, dict[str, Any]]] = {
    "aca": {"organisation_forbids": ["shared-keys", "public-ingress"]},
    "cloud-run": {"constraints": ["run.allowedIngress"]},
    "tpu": {"constraints": ["compute.vmExternalIpAccess"]},
}
"""What a strict organisation forbids, by the first word of a target."""
_FORBIDDEN: Final = "CLOUD_REFUSED"
_NO_TOKEN: Final = {"person-without-gcloud": {"NOT_AUTHENTICATED"}}
"""The code with which a login that could not call what it deploys is refused."""
_ALLOWED: Final = {"aca": {"access": "internal", "weights": "hub:disk"}}
"""What can be had there all the same."""
_REAL_TIME: Final[dict[str, Any]] = {"probe_scale": 1, "cooldown_scale": 1}
"""Of Azure: a boot that takes as long as a real one needs the real patience of probes."""


class Rehearsal(Story):
    """The same story as the demo's, with what only a cloud has."""

    def __init__(self, client: Client[Any], target: str, engine: str, refusals: set[str]) -> None:
        super().__init__(client)
        self._target = target
        self._refusals = refusals
        self._engine = engine
        self._where: dict[str, Any] = {"target": target, "name": _NAME}

    async def tell(self) -> None:
        """From an empty project to an empty project."""
        await self.call("list_targets")
        await self.call("setup_target", target=self._target, lines=60)
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
        await self.call("check_gpu_quotas", target=self._target)
        if self._is_tpu:
            await self.call("get_zones_with_available_quota", lines=40, target=self._target)
        deploy: dict[str, Any] = {**what, "name": _NAME, "engine": self._engine, "ttl_minutes": 60}
        told = await self.call("deploy_vllm", lines=60, **deploy)
        if told.get("code") in self._refusals:
            self.failed -= 1  # which is what should happen, before anything bills
            allowed = of_cloud(_ALLOWED, self._target)
            if allowed and told["code"] == _FORBIDDEN:
                await self.call("deploy_vllm", lines=60, **deploy, **allowed)
                await self._settled("ready")
            return False  # nobody from here can ask it anything
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

    @property
    def _is_tpu(self) -> bool:
        return self._target.startswith("tpu")

    async def _queued(self) -> None:
        """A chip is not scaled: it is looked at where it stands, and given back as a whole."""
        await self.call("list_queued_resources", target=self._target)
        await self.call("manage_queued_resource", action="describe", **self._where)

    async def _operated(self) -> None:
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
        """Watch it until it stays as it is; whether that is as wanted."""
        while True:
            told = await self.call("status_vllm", wait_s=45, lines=2, **self._where)
            state = told.get("data", {}).get("state")
            if not told.get("ok") or state in _SETTLED:
                self.failed += state not in wanted
                return state in wanted


def of_cloud(rows: dict[str, dict[str, Any]], target: str) -> dict[str, Any]:
    """Return the row of a target's cloud, empty where there is none."""
    return next((row for kind, row in rows.items() if target.startswith(kind)), {})


def _google(folder: Path, login: str, policies: dict[str, Any]) -> None:
    """Say who calls Google, and what their organisation forbids."""
    plane = GooglePlane.model_validate_json((folder / "google" / "plane.json").read_bytes())
    url = f"{plane.http}/rehearsal/projects/{Settings().google_cloud_project or 'rehearsal'}"
    httpx2.put(url, json={**_LOGINS[login], **policies}).raise_for_status()
    if login:
        print(f"\n(Who calls is a {login.replace('-', ' ')}.)", flush=True)


def _azure(folder: Path, boot_seconds: float | None, policies: dict[str, Any]) -> None:
    """Let boots take as long as they are to, and policies forbid what they do."""
    plane = AzurePlane.model_validate_json((folder / "azure" / "plane.json").read_bytes())
    whose = Settings().azure_subscription_id or REHEARSED_SUBSCRIPTION
    url = f"{plane.http}/rehearsal/subscriptions/{whose}"
    slow = {"boot_seconds": boot_seconds, **_REAL_TIME} if boot_seconds else {}
    httpx2.put(url, json={**slow, **policies}).raise_for_status()
    if boot_seconds:
        print(f"\n(Every boot takes {boot_seconds:g} s.)", flush=True)


async def _rehearse(target: str, words: set[str], boot_seconds: float | None, login: str) -> int:
    engine, is_strict = "ollama" if "ollama" in words else "vllm", _STRICT in words
    policies = of_cloud(_POLICIES, target) if is_strict else {}
    folder = Stage(Settings(rehearsal=True)).folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    chosen = {"REHEARSAL": "1", "TOOLSETS": "all", "VLLM_TARGET": "", "VLLM_BASE_URL": ""}
    client = client_of(folder / "server.log", chosen, say_yes)
    refusals = {*([_FORBIDDEN] if is_strict else []), *_NO_TOKEN.get(login, ())}
    story = Rehearsal(client, target, engine, refusals)
    async with client:
        await story.call("list_deployments")  # which starts the simulated clouds
    if not target.startswith("aca"):
        _google(folder, login, policies)
    elif boot_seconds or policies:
        _azure(folder, boot_seconds, policies)
    if policies:
        print(f"\n(The organisation forbids {', '.join(*policies.values())}.)", flush=True)
    async with client:  # a server that logs in now
        with anyio.move_on_after(_STORY_SECONDS + 4 * (boot_seconds or 0)) as limit:
            await story.tell()
    print(f"{story.calls} calls, answered with {story.characters // 4:,} tokens.")
    return story.failed + limit.cancelled_caught


def main(arguments: list[str]) -> int:
    """Tell it for `TARGET [ollama] [strict] [LOGIN] [SECONDS]`, or `clean`; return the status."""
    if arguments == ["clean"]:
        existed = Stage(Settings(rehearsal=True)).forget_rehearsal()
        print("The rehearsal's clouds are gone." if existed else "There was no rehearsal.")
        return 0
    target = arguments[0] if arguments else "cloud-run-l4"
    words = {"ollama", _STRICT} & {*arguments[1:]}
    login = next((one for one in arguments[1:] if one in _LOGINS), "")
    numbers = [float(one) for one in arguments[1:] if one not in {*words, *_LOGINS}]
    failed = anyio.run(_rehearse, target, words, numbers[0] if numbers else None, login)
    print("The rehearsal succeeded." if not failed else f"{failed} things went wrong.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
