"""A deployment whose wish cannot be read, as a server of a later version wrote it."""

from typing import Final

import pytest
from google.cloud.run_v2 import ServicesAsyncClient

from backends.cloud_run.service import get_service
from backends.cloud_run.site import SPEC_ANNOTATION
from tests.backends.cloud_run.sites import opened
from tests.conversation import agent_of
from tests.stories.conftest import Cloud

pytestmark = pytest.mark.anyio

ONE: Final = {"target": "cloud-run-l4", "name": "one"}
WISH: Final = {**ONE, "model": "google/gemma-4-E2B-it"}


async def test_it_is_asked_for_what_it_serves_and_loses_no_end_unsaid(cloud: Cloud) -> None:
    """Every answer says the same of it, and each call that is offered can be made."""
    async with agent_of(cloud.settings) as agent:
        made = await agent.call("deploy_vllm", **WISH, ttl_minutes=90, min_replicas=1)
        assert not made.failed, made
        await agent.settled(**ONE)
        await _written_by_a_later_version(cloud)
        ready = await agent.call("status_vllm", **ONE)
        assert (ready.state, ready.data["model"]) == ("ready", "not known")
        for step in ready.structured["next"]:
            assert not (await agent.call(step["tool"], **step["arguments"])).failed, step
        for tool in ("verify_model_health", "diagnose"):
            assert (await agent.call(tool, **ONE)).data["healthy"] is True
        details = await agent.call("get_model_details", **ONE)
        assert details.data["served_model_name"] == WISH["model"]
        where = await agent.call("get_endpoint", **ONE)
        assert where.structured["summary"].endswith(f" answers, as {WISH['model']}.")
        assert WISH["model"] in where.data["ask"]
        refused = await agent.call("deploy_vllm", **WISH)
        assert refused.code == "INVALID_ARGUMENT"
        assert "would lose the end that it has" in refused.structured["summary"]
        (step,) = refused.structured["next"]
        assert step["arguments"]["ttl_minutes"] in {88, 89}
        again = await agent.call(step["tool"], **step["arguments"])
        assert "gets its default" in again.text, again
        assert (await agent.settled(**ONE)).data["expires_at"]
        assert (await agent.call("destroy_vllm", **ONE)).data["gone"]


async def _written_by_a_later_version(cloud: Cloud) -> None:
    async with opened(cloud.controls.plane, cloud.project) as site:
        service = await get_service(site, "one")
        assert service
        service.annotations[SPEC_ANNOTATION] = '{"name": "one", "model": "x/y", "later": 1}'
        client = await site.clients.client(ServicesAsyncClient)
        await (await client.update_service(service=service)).result()
