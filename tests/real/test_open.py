"""What a real vLLM on this machine computes without its key: exactly what the product says."""

from collections.abc import Mapping
from typing import Any, Final

import httpx2
import pytest

from backends.local import plan
from tests.real.conftest import NAME, Served, engine_of
from tests.soon import soon

pytestmark = [pytest.mark.anyio, pytest.mark.vllm, pytest.mark.xdist_group("life")]

BODIES: Final[Mapping[str, Any]] = {
    "/invocations": {"prompt": "Hello", "max_tokens": 2},
    "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [300, 301]},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [300]},
}
"""What a route takes; the others are asked with nothing."""


async def test_every_route_is_asked_without_a_key(life: Served) -> None:
    """Whatever makes the engine read a prompt is named by the endpoint."""
    port, _ = engine_of(life)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

        async def read() -> float:
            page = (await client.get("/metrics")).text
            lines = [x for x in page.splitlines() if x.startswith("vllm:prompt_tokens_total{")]
            return sum(float(line.rpartition(" ")[2]) for line in lines)

        computing = set()
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert len(paths) > 15
        for path, does in paths.items():
            for method in does:
                before = await read()
                reply = await client.request(method, path, json=BODIES.get(path, {}))
                if reply.status_code == 200 and path in BODIES and "token" not in path:
                    await soon(read, before.__lt__)
                if await read() > before:
                    computing.add(path)
                if path.startswith("/v1"):
                    assert reply.status_code == 401, path
    assert computing == set(plan.KEYLESS)
    endpoint = await life.call("get_endpoint", target="local", name=NAME)
    assert all(f"POST {path}" in endpoint.text for path in computing), endpoint
