"""What others do to a deployment on Container Apps, as an agent hears of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx2
import pytest
from azure.mgmt.appcontainers import models

from backends.aca import replicas
from backends.aca.site import Site
from tests.backends.aca.deployed import app_of_name
from tests.backends.aca.sites import opened
from tests.conversation import Agent, Reply, agent_of
from tests.soon import HANGS
from tests.stories.conftest import Azure
from tests.stories.troubles import (
    ONE,
    PUT,
    WISH,
    asked,
    becomes,
    called,
    deploys,
    destroyed,
    refused,
    seen,
    settled,
    trouble,
)

__all__ = ["trouble"]

PUT_ENVIRONMENT: Final = "PUT Microsoft.App/managedEnvironments"

pytestmark = pytest.mark.anyio

THEIRS: Final = "theirs"
ELSEWHERE: Final = "203.0.113.9"


async def test_a_secret_of_somebody_else_outlives_our_changes(trouble: Azure) -> None:
    """Azure shows no values, and what is sent without one is lost; a PUT of ours sends them all."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
        async with outside(trouble) as site:
            await _put(site, _with_a_secret)
            await asked(agent, "update_vllm_scaling", min_replicas=0, max_replicas=2)
            await becomes(agent, "ready")
            assert await _values(site) == {THEIRS: "sesame", "api-key": await _key(site)}
            await deploys(agent, max_model_len=2048)
            await becomes(agent, "ready")
            assert await _values(site) == {THEIRS: "sesame", "api-key": await _key(site)}
        await destroyed(agent, trouble)


async def test_a_key_that_somebody_elses_put_has_lost_is_put_back(trouble: Azure) -> None:
    """Without it the engine answers everybody: that is said, and deploying again ends it."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        url = (await becomes(agent, "ready")).data["url"]
        async with outside(trouble) as site:
            await _put(site, _without_secrets)
            await settled(agent)
            assert (await _models(url)) == 200
            opened_up = await asked(agent, "get_endpoint")
            assert "no key" in opened_up.text
            await deploys(agent)
            await becomes(agent, "ready")
            assert (await _models(url)) == 401
            assert await _values(site) == {"api-key": await _key(site)}
        await _answers(agent)
        await destroyed(agent, trouble)


async def test_a_former_revision_that_runs_again_is_told_with_its_cost_and_ended(
    trouble: Azure,
) -> None:
    """Whoever says "stopped" has counted every revision."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, min_replicas=1)
        await becomes(agent, "ready")
        former = await _newest(trouble)
        await asked(agent, "update_vllm_scaling", min_replicas=1, max_replicas=2)
        await seen(agent, lambda reply: reply.state == "ready" and "former" not in reply.text)
        async with outside(trouble) as site:
            revisions = (await site.clients.apps()).container_apps_revisions
            await revisions.activate_revision(site.ground.resource_group, "one", former)
        told = await seen(agent, lambda reply: former in reply.text)
        assert f"The former revision {former} holds 1 replica(s), at $6.35 an hour." in told.text
        stopping = await asked(agent, "stop_vllm")
        assert stopping.state != "stopped" or f"{former} holds" not in stopping.text, stopping
        stopped = await becomes(agent, "stopped")
        assert (stopped.data["replicas"], trouble.get()["replicas"]) == (0, [])
        async with outside(trouble) as site:
            revision = await revisions_of(site, former)
        assert not revision.active
        await destroyed(agent, trouble)


async def test_stopped_is_said_once_every_replica_has_ended(
    trouble: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure calls an app stopped while a replica of it still answers, and bills."""
    monkeypatch.setattr(replicas, "REFUSAL_SECONDS", 0.05)
    trouble.set(engine_environment={"SIMULATED_ENGINE_TIME_SCALE": "8"}, grace_seconds=3600)
    async with agent_of(trouble.settings) as agent, anyio.create_task_group() as tasks:
        await deploys(agent)
        await becomes(agent, "ready")
        long = {**ONE, "prompt": "Tell me.", "max_tokens": 3000}
        tasks.start_soon(lambda: agent.call("query_vllm", **long))
        await called(trouble, "POST app/one/v1/chat/completions")
        stopping = await asked(agent, "stop_vllm")
        assert (stopping.state, stopping.data["replicas"]) == ("stopping", 1)
        assert stopping.data["phase"]["name"] == "waiting for its replicas to end"
        tasks.cancel_scope.cancel()
    async with agent_of(trouble.settings) as agent:
        await seen(agent, lambda reply: reply.state == "stopped")
        assert trouble.get()["replicas"] == []
        await destroyed(agent, trouble)


async def test_lines_that_log_analytics_gives_in_part_are_told_as_a_part(trouble: Azure) -> None:
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
        await asked(agent, "stop_vllm")
        await becomes(agent, "stopped")
        whole = await asked(agent, "get_logs", lines=200)
        trouble.set(partial_queries=True)
        part = await asked(agent, "get_logs", lines=200)
        assert "only a part of the lines" in part.text
        assert "only a part of the lines" not in whole.text
        assert part.data["lines"]
        assert len(part.data["lines"]) < len(whole.data["lines"])
        await destroyed(agent, trouble)


@pytest.mark.parametrize(
    ("method", "slow", "environment"),
    [(PUT, "operation_seconds", ""), (PUT_ENVIRONMENT, "environment_seconds", "newer")],
)
async def test_a_login_that_ends_while_azure_is_at_work_goes_on_with_the_next(
    trouble: Azure, method: str, slow: str, environment: str
) -> None:
    """What Azure took it goes on with; nothing is made twice, nothing is lost."""
    trouble.set(token_seconds=60, **{slow: 3600})
    named = {"azure_containerapps_environment": environment} if environment else {}
    replies: list[Reply] = []
    async with agent_of(trouble.settings.model_copy(update=named)) as agent:

        async def deploy() -> None:
            replies.append(await agent.call("deploy_vllm", **WISH))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deploy)
            await called(trouble, method)
            trouble.set(login="expired")
        assert replies[0].code == "NOT_AUTHENTICATED", replies[0]
        assert "az login" in replies[0].structured["fix"]
        await refused(agent, "status_vllm", "NOT_AUTHENTICATED")
        await refused(agent, "destroy_vllm", "NOT_AUTHENTICATED")
        trouble.set(login="ok", **{slow: 0})
        await deploys(agent)
        await becomes(agent, "ready")
        assert trouble.get()["calls"].count(method) == 1
        await _answers(agent)
        await destroyed(agent, trouble)


async def test_an_address_that_the_ingress_refuses_is_let_in_by_deploying_again(
    trouble: Azure,
) -> None:
    """Nothing boots anew for it, and no key is asked for before."""
    away = {"azure_allowed_addresses": (ELSEWHERE,)}
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
        trouble.set(caller_address=ELSEWHERE)
        no = await refused(agent, "query_vllm", "ADDRESS_NOT_ALLOWED", prompt="Hello")
        assert "deploy_vllm" in no.structured["fix"]
    before = await _newest(trouble)
    async with agent_of(trouble.settings.model_copy(update=away)) as agent:
        told = await seen(agent, lambda reply: bool(reply.data.get("failure")))
        why = told.data["failure"]
        assert why["code"] == "ADDRESS_NOT_ALLOWED"
        assert "127.0.0.1/32" in why["cause"]
        assert f"deploy_vllm again, which lets in {ELSEWHERE}/32" in why["fix"]
        await deploys(agent)
        await becomes(agent, "ready")
        await _answers(agent)
        assert await _newest(trouble) == before
        await destroyed(agent, trouble)


@asynccontextmanager
async def outside(azure: Azure) -> AsyncIterator[Site]:
    """Be somebody else, with the same rights."""
    async with opened(azure.controls.plane, azure.subscription) as site:
        yield site


async def revisions_of(site: Site, name: str) -> Any:
    """Read one revision of the deployment."""
    revisions = (await site.clients.apps()).container_apps_revisions
    return await revisions.get_revision(site.ground.resource_group, "one", name)


async def _put(site: Site, edit: Callable[[Any], None]) -> None:
    """Put what was read, with an edit: Azure shows no value of a secret."""
    app: Any = await app_of_name(site, "one")
    edit(app.properties)
    apps = (await site.clients.apps()).container_apps
    await (await apps.begin_create_or_update(site.ground.resource_group, "one", app)).wait()


def _with_a_secret(properties: Any) -> None:
    kept = properties.configuration.secrets
    properties.configuration.secrets = [*kept, models.Secret(name=THEIRS, value="sesame")]


def _without_secrets(properties: Any) -> None:
    properties.configuration.secrets = None
    container = properties.template.containers[0]
    container.env = [one for one in container.env if not one.secret_ref]
    properties.template.revision_suffix = None


async def _values(site: Site) -> dict[str, str]:
    apps = (await site.clients.apps()).container_apps
    found = await apps.list_secrets(site.ground.resource_group, "one")
    return {str(one.name): str(one.value) for one in found.value or ()}


async def _key(site: Site) -> str:
    vault = await site.clients.secrets()
    return str((await vault.get_secret("vllm-devops-one-api-key")).value)


async def _models(url: str) -> int:
    """Ask as somebody who has no key."""
    async with httpx2.AsyncClient(trust_env=False, timeout=HANGS) as client:
        return (await client.get(f"{url}/v1/models")).status_code


async def _answers(agent: Agent) -> None:
    answer = await asked(agent, "query_vllm", prompt="Hello", max_tokens=2)
    assert answer.data["completion_tokens"] == 2


async def _newest(azure: Azure) -> str:
    async with outside(azure) as site:
        app = await app_of_name(site, "one")
    assert app.properties
    return str(app.properties.latest_revision_name)
