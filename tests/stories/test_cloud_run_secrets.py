"""No secret of a deployment on Cloud Run is said, written or kept where it does not belong."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest
from fastmcp import Client

from backends.cloud_run import access
from backends.cloud_run.service import get_service
from backends.google import secrets
from backends.google.clients import HF_SECRET
from tests.backends.cloud_run.sites import opened
from tests.conversation import Agent, Reply, agent_of
from tests.stories.conftest import Cloud
from tests.tools.calls import CHANGING, CLOUD, KEEPING, LOOKING, MEASURING, OF_TPUS, OLD
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

HUB_TOKEN: Final = "hf_" + "SentinelOfTheHub" * 2 + "xy"
ONE: Final = {"target": "cloud-run-l4", "name": "one"}
ID_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")
CALLS: Final[dict[str, dict[str, Any]]] = {
    **LOOKING,
    **CLOUD,
    **KEEPING,
    "save_hf_token": {"token": HUB_TOKEN, "target": "cloud-run-l4"},
    "run_benchmark": {**MEASURING["run_benchmark"], "wait_s": 40},
    **{tool: {} for tool in CHANGING},
    "update_vllm_scaling": {"min_replicas": 0, "max_replicas": 2},
    "deploy_vllm": {"model": "google/gemma-4-E2B-it", "max_model_len": 4096},
    "query_vllm": {"prompt": "Hello", "max_tokens": 2, "wake": True},
}
LIFE: Final = (
    ("save_hf_token", "deploy_vllm"),
    (*LOOKING, *CLOUD, "run_benchmark", "get_benchmark", *KEEPING, "update_vllm_scaling"),
    ("stop_vllm", "get_logs", "get_vllm_deployment_config"),
    ("start_vllm", "get_endpoint"),
    ("query_vllm", "get_logs"),
    ("destroy_vllm", "list_deployments"),
)
"""After each part it is watched until it has settled."""


class Known(NamedTuple):
    """The secrets, and what Google keeps of the deployment in the open."""

    key: str
    identity: str
    hub: str
    service: str


def calls_on(target: str) -> dict[str, dict[str, Any]]:
    """Return the arguments of each tool, where they name a target: this one."""
    return {
        tool: {key: target if key == "target" else said for key, said in arguments.items()}
        for tool, arguments in CALLS.items()
    }


class Listener(Agent):
    """Remembers every word of every answer about one deployment."""

    def __init__(
        self,
        client: Client[Any],
        one: Mapping[str, str] = ONE,
        calls: Mapping[str, Mapping[str, Any]] = CALLS,
    ) -> None:
        super().__init__(client, [])
        self._one, self._calls = one, calls
        self.words: list[str] = []
        self.answered: set[str] = set()

    async def call(self, tool: str, /, **arguments: Any) -> Reply:
        reply = await super().call(tool, **arguments)
        self.words += [reply.text, json.dumps(reply.structured, ensure_ascii=False)]
        self.answered |= set() if reply.failed else {tool}
        return reply

    async def does(self, tool: str) -> Reply:
        """Call a tool for the deployment, as far as it is about one."""
        takes = TOOLS[tool].parameters
        said = self._calls[tool]
        meant = {key: value for key, value in self._one.items() if key in takes}
        if tool in {"list_deployments", "list_targets", "list_models"} or "target" in said:
            meant = {}
        return await self.call(tool, **{**meant, **said})


async def known(cloud: Cloud) -> Known:
    """Look behind the server's back."""
    async with opened(cloud.controls.plane, cloud.project) as site:
        given = await access.access(site, "one")
        hub = await secrets.read(site, HF_SECRET)
        service = await get_service(site, "one")
    assert given.api_key
    assert given.identity_token
    return Known(
        given.api_key.get_secret_value(),
        given.identity_token.get_secret_value(),
        hub.get_secret_value(),
        str(service),
    )


async def test_no_secret_is_found_anywhere(
    cloud: Cloud, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Answers, files, log lines and the service itself, over a whole life with every tool.

    Some seconds: an engine is started twice and measured once.
    """
    caplog.set_level("INFO")
    logged: set[str] = set()
    async with agent_of(cloud.settings) as plain:
        agent, told = Listener(plain.client), None
        for part in LIFE:
            for tool in part:
                await agent.does(tool)
            await agent.settled("one", target=ONE["target"])
            told = told or await known(cloud)
            logged |= set(cloud.set()["log"])
    assert told is not None
    assert (told.hub, bool(ID_TOKEN.search(told.identity))) == (HUB_TOKEN, True)
    assert set(CALLS) == set(TOOLS) - set(OLD) == {*agent.answered, *_fails()}
    places = {
        "an answer": "\n".join(agent.words),
        "the service": told.service,
        "its log": "\n".join(logged),
        "the server's log": "".join(capfd.readouterr()) + caplog.text,
        **_written(cloud),
    }
    assert any(name.endswith("journal.db") for name in places)
    for where, text in places.items():
        for secret in (told.key, told.identity, told.hub):
            assert secret not in text, where
        assert not ID_TOKEN.search(text), where
    assert "vllm-devops-one-api-key" in told.service


def _fails() -> set[str]:
    return {"list_bucket_models", "stop_benchmark", "compare_benchmarks", *OF_TPUS}


def _written(cloud: Cloud) -> dict[str, str]:
    """Every file of the server's; the cloud's own are elsewhere."""
    folder = cloud.settings.vllm_devops_state_dir
    assert folder
    return {
        str(path): path.read_bytes().decode("latin-1")
        for path in folder.rglob("*")
        if path.is_file()
    }
