"""Without the key nobody computes on a deployment whose engine's key is its wall."""

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import pytest
import yaml

from simulators.common.doors import UNVERIFIED_TLS
from tests.conversation import Agent, agent_of
from tests.guarded import SPELLINGS, raw
from tests.stories.conftest import Azure, Cloud
from tests.stories.life import Life

pytestmark = pytest.mark.anyio

COMPUTES: Final = (
    *("/invocations", "/generative_scoring", "/tokenize", "/detokenize", "/render", "/pooling"),
    *("/classify", "/score", "/rerank", "/v2/rerank", "/v2/embed", "/inference/v1/generate"),
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
    *("/scale_elastic_ep", "/is_scaling_elastic_ep", "/sleep", "/wake_up", "/reset_prefix_cache"),
    *("/collective_rpc", "/v1/load_lora_adapter", "/abort_requests", "/update_weights"),
    *("/metrics", "/load", "/version", "/server_info", "/kv_event_sources", "/docs", "/redoc"),
    *("/openapi.json", "/", *SPELLINGS),
)
"""What vLLM 0.32 serves, or has served, and other spellings of it."""
ASKED: Final = '{"prompt": "Hi", "max_tokens": 1, "messages": [{"role": "user", "content": ""}]}'


@pytest.fixture
async def google(cloud: Cloud) -> AsyncIterator[Agent]:
    async with agent_of(cloud.settings) as agent:
        yield agent


@pytest.fixture
async def azure_agent(ready_azure: Azure) -> AsyncIterator[Agent]:
    async with agent_of(ready_azure.settings) as agent:
        yield agent


async def test_a_public_service_of_cloud_run(google: Agent) -> None:
    """Its proxy finds nothing but what clients need, and that with the key alone."""
    life = Life(google, "cloud-run-l4")
    await life.begins(access="public", max_model_len=4096)
    await refuses_all_without_the_key(life)


@pytest.mark.parametrize("access", ["private", "public"])
async def test_a_container_app(azure_agent: Agent, access: str) -> None:
    """Also from an address that its ingress lets in: behind that the key is all there is."""
    life = Life(azure_agent, "aca-a100")
    await life.begins(access=access, max_model_len=4096)
    await refuses_all_without_the_key(life)


@pytest.mark.parametrize("access", ["private", "public"])
async def test_a_tpu_vm(google: Agent, cloud: Cloud, access: str) -> None:
    """Whoever its firewall lets in has the key, or computes nothing."""
    cloud.set(tpu_clock=6000)
    life = Life(google, "tpu-v6e-1", at="https://127.77.")
    await life.begins(access=access, max_model_len=4096, zones=["us-east5-b"])
    await refuses_all_without_the_key(life)


async def refuses_all_without_the_key(life: Life) -> None:
    """Ask for everything without a key; then see that with it nothing is missing."""
    url = str((await life.call("status_vllm")).data["url"])
    answered = {}
    for method in ("GET", "POST"):
        for path in COMPUTES:
            status, answer = await raw(url, path, method=method, body=ASKED)
            if status not in {400, 401, 403, 404, 405}:
                answered[f"{method} {path}"] = answer[:80]
    assert answered == {}
    async with httpx2.AsyncClient(base_url=url, verify=UNVERIFIED_TLS) as client:
        seen = {path: (await client.get(path)).status_code for path in ("/health", "/metrics")}
    assert seen == {"/health": 200, "/metrics": 401}
    assert (await life.call("verify_model_health")).data["healthy"]
    assert (await life.call("get_metrics")).data["metrics"]["requests_running"] == 0
    endpoint = await life.call("get_endpoint")
    assert "/invocations" not in endpoint.text
    rules = (await life.call("get_alert_rules")).data
    [scrape] = yaml.safe_load(rules["scrape_config"])["scrape_configs"]
    file = scrape["authorization"]["credentials_file"]
    shown, _, where = rules["steps"][0]["command"].partition(" > ")
    assert (scrape["metrics_path"], where) == ("/metrics", file)
    assert f'-H "Authorization: Bearer $({shown})"' in endpoint.text
    said: dict[str, Any] = (await life.call("query_vllm", prompt="Hi", max_tokens=4)).data
    assert said["completion_tokens"] == 4
