"""What is served over HTTP, and to whom."""

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import trustme
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport
from mcp.types import Implementation

from tests.conversation import calling
from tests.over_http import DISCOVER, HEADERS, TOKEN, posted, served, settings_of
from tests.tools.asked import mode
from tests.tools.world import operations_of, plant, snapshot, still_engine

__all__ = ["mode"]

pytestmark = pytest.mark.anyio


async def test_it_lists_and_calls_its_tools(state_dir: Path, mode: str) -> None:
    """The same tools as over standard input, in either protocol."""
    async with served(settings_of(state_dir)) as url, calling(url, mode) as agent:
        assert len(await agent.client.list_tools()) > 20
        assert (await agent.call("get_help")).structured["ok"]


@pytest.mark.parametrize("says", ["accept", "decline"])
async def test_a_human_is_asked_over_http(
    state_dir: Path, mode: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question goes out within the call; its answer comes back in another request."""
    still_engine(monkeypatch)
    folder = plant(state_dir)
    before = snapshot(folder.path)
    async with (
        served(settings_of(state_dir)) as url,
        calling(url, mode, lambda _question: says) as agent,
    ):
        reply = await agent.call("destroy_vllm")
    assert len(agent.asked) == 1
    assert "Delete one on local" in agent.asked[0]
    if says == "accept":
        assert reply.data["gone"] is True
        assert not folder.path.exists()
    else:
        assert reply.code == "CANCELLED"
        assert snapshot(folder.path) == before


async def test_clients_do_not_wait_for_each_other(
    state_dir: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thinks about its question while another calls; the journal knows them apart."""
    still_engine(monkeypatch)
    plant(state_dir)
    async with served(settings_of(state_dir)) as url, calling(url, mode) as other:
        thinking, thought = anyio.Event(), anyio.Event()

        async def handler(*_question: Any) -> ElicitResult[dict[str, Any]]:
            thinking.set()
            await thought.wait()
            return ElicitResult(action="decline", content=None)

        async def destroyed() -> None:
            thinker = Implementation(name="thinker", version="2")
            async with Client(
                url, mode=mode, elicitation_handler=handler, client_info=thinker
            ) as client:
                told = await client.call_tool("destroy_vllm", {}, raise_on_error=False)
                assert told.structured_content
                assert told.structured_content["code"] == "CANCELLED"

        async with anyio.create_task_group() as group:
            group.start_soon(destroyed)
            await thinking.wait()
            assert (await other.call("list_deployments")).structured["ok"]
            assert (await other.call("destroy_vllm")).code == "CONFIRMATION_REQUIRED"
            thought.set()
    written = {(row.client, row.result) for row in operations_of(state_dir)}
    assert ("thinker 2 (from 127.0.0.1)", "CANCELLED") in written
    assert ("fastmcp", "CONFIRMATION_REQUIRED") in {(who.split()[0], code) for who, code in written}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:80"}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_a_web_page_cannot_call_it(
    state_dir: Path, headers: dict[str, str], status: int
) -> None:
    """A page whose name is rebound to this machine is told by its Host, any other by its Origin."""
    async with served(settings_of(state_dir)) as url:
        assert (await posted(url, **headers)).status_code == status


async def test_names_of_a_proxy_are_let_in_where_they_are_set(state_dir: Path) -> None:
    """They, and no others; and only with the token, since others than this machine call."""
    settings = settings_of(
        state_dir, mcp_allowed_hosts=("mcp.example.com",), mcp_bearer_token=TOKEN
    )
    async with served(settings) as url:
        told = {
            host: (await posted(url, Host=host, Authorization=f"Bearer {TOKEN}")).status_code
            for host in ("mcp.example.com", "other.example.com")
        }
    assert told == {"mcp.example.com": 200, "other.example.com": 421}


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (None, 401),
        ("Bearer", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN}0", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("Bearer \u00fc".encode(), 401),
    ],
)
async def test_only_the_token_opens(
    state_dir: Path, shown: str | bytes | None, status: int
) -> None:
    """The refusal says what to send and never what was wanted."""
    headers = {} if shown is None else {"Authorization": shown}
    async with served(settings_of(state_dir, mcp_bearer_token=TOKEN)) as url:
        told = await posted(url, **headers)
    assert told.status_code == status
    assert TOKEN[:-1] not in told.text
    if status == 401:
        assert told.headers["WWW-Authenticate"].startswith("Bearer")
        assert "Authorization: Bearer" in told.json()["error_description"]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["", "/", "/../x"])
async def test_without_the_token_nothing_is_answered(
    state_dir: Path, method: str, path: str
) -> None:
    """Whatever is asked, and wherever: not even whether it is there."""
    settings = settings_of(state_dir, mcp_bearer_token=TOKEN)
    async with served(settings) as url, httpx2.AsyncClient() as client:
        told = await client.request(method, url + path)
    assert told.status_code == 401


async def test_a_client_with_the_token_is_served(state_dir: Path, mode: str) -> None:
    """As clients are configured: a header beside the URL."""
    async with served(settings_of(state_dir, mcp_bearer_token=TOKEN)) as url:
        transport = StreamableHttpTransport(url, headers={"Authorization": f"Bearer {TOKEN}"})
        async with Client(transport, mode=mode) as client:
            told = await client.call_tool("get_help", {})
    assert TOKEN not in json.dumps(told.structured_content)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_huge_request_is_refused(state_dir: Path, *, announced: bool) -> None:
    """Whether its length is announced or only seen when it comes."""
    huge = b" " * (4 * 1024 * 1024 + 1)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(huge), 65_536):
            yield huge[start : start + 65_536]

    async with served(settings_of(state_dir)) as url, httpx2.AsyncClient() as client:
        told = await client.post(url, content=huge if announced else pieces(), headers=HEADERS)
        assert told.status_code == 413
        assert (await posted(url)).status_code == 200


async def test_with_a_certificate_it_speaks_tls(state_dir: Path, tmp_path: Path) -> None:
    """And nothing else on that port."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    files = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with served(settings_of(state_dir), *files) as url:
        assert url.startswith("https://127.0.0.1:")
        async with httpx2.AsyncClient(verify=trusting) as client:
            assert (await client.post(url, json=DISCOVER, headers=HEADERS)).status_code == 200
        with pytest.raises(httpx2.TransportError):
            await posted(url.replace("https", "http"))
