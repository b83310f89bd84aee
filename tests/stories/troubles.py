"""What stories of trouble on Container Apps share: one wish, and what may not be left."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from backends.aca import status
from backends.aca.backend import AcaBackend
from tests.backends.aca.deployed import impatient
from tests.conversation import SETTLED, Agent, Reply
from tests.soon import soon
from tests.stories.conftest import Azure

ONE: Final = {"target": "aca-a100", "name": "one"}
WISH: Final = {**ONE, "model": "google/gemma-4-E2B-it", "max_model_len": 4096}
APP: Final = "Microsoft.App/containerApps"
PUT: Final = f"PUT {APP}"


@pytest.fixture
def trouble(ready_azure: Azure, monkeypatch: pytest.MonkeyPatch) -> Azure:
    """A subscription that is set up, whose changes are looked at often."""
    impatient(monkeypatch)
    monkeypatch.setattr("backends.aca.site._TRY_AGAIN_SECONDS", 0.01)
    return ready_azure


@pytest.fixture
def bare_trouble(bare_azure: Azure, monkeypatch: pytest.MonkeyPatch) -> Azure:
    """The same of a subscription in which nothing was ever made."""
    impatient(monkeypatch)
    monkeypatch.setattr("backends.aca.site._TRY_AGAIN_SECONDS", 0.01)
    return bare_azure


@pytest.fixture
def slow_environment(trouble: Azure, monkeypatch: pytest.MonkeyPatch) -> Azure:
    """All is there but an environment, which is made once `environment_seconds` is 0."""
    monkeypatch.setattr(AcaBackend, "apply_seconds", 0)
    trouble.set(environment_seconds=3600)
    newer = trouble.settings.model_copy(update={"azure_containerapps_environment": "newer"})
    return trouble._replace(settings=newer)


def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take any wait for a GPU host for one that somebody has to decide about."""
    monkeypatch.setattr(status, "PATIENCE", timedelta(0))


async def asked(agent: Agent, tool: str, **more: Any) -> Reply:
    """Call a tool for the deployment and see that it went well."""
    reply = await agent.call(tool, **{**ONE, **more})
    assert not reply.failed, reply
    return reply


async def refused(agent: Agent, tool: str, code: str, **more: Any) -> Reply:
    """Call a tool for the deployment and see that it says no, and what to do."""
    reply = await agent.call(tool, **{**ONE, **more})
    assert reply.code == code, reply
    assert reply.structured["fix"], reply
    return reply


async def deploys(agent: Agent, **more: Any) -> Reply:
    """Deploy what is wished for."""
    return await asked(agent, "deploy_vllm", **{**WISH, **more})


async def settled(agent: Agent) -> Reply:
    """Watch it until its state stays."""
    return await seen(agent, lambda reply: reply.state in SETTLED)


async def seen(agent: Agent, fits: Callable[[Reply], bool]) -> Reply:
    """Look until what is told fits."""
    return await soon(lambda: asked(agent, "status_vllm", wait_s=1), fits, every=0.1)


async def becomes(agent: Agent, state: str) -> Reply:
    """Watch it until its state stays, and is this one."""
    reply = await settled(agent)
    assert reply.state == state, reply
    return reply


async def called(azure: Azure, method: str) -> None:
    """Wait until Azure was asked for something."""

    async def asked_for() -> bool:
        return method in azure.get()["calls"]

    await soon(asked_for, waiting_for=method)


async def destroyed(agent: Agent, azure: Azure) -> Reply:
    """Take it away, and see that nothing of it is left and that what bills is named."""
    gone = await asked(agent, "destroy_vllm")
    assert gone.data["gone"], gone
    assert not [one for one in gone.structured["warnings"] if "bills" in one or "hour" in one], gone
    assert orphans(azure) == []
    return gone


def orphans(azure: Azure) -> list[str]:
    """Name every app, every replica and every key that there is."""
    there = azure.get()
    apps = [one for one in there["resources"] if one.rpartition("/")[0].endswith("containerapps")]
    running = [str(one["name"]) for one in there["replicas"]]
    keys = [key for vault in there["secrets"].values() for key in vault if "api-key" in key]
    return [*apps, *running, *keys]


def named(azure: Azure, kind: str) -> list[str]:
    """Name every resource of a type such as `/fileservices/default/shares/`."""
    resources: list[str] = azure.get()["resources"]
    return [one for one in resources if kind.lower() in one]
