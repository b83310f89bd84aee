"""An endpoint that signs for itself: its certificate is trusted, and nothing else for it."""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, closing
from pathlib import Path

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from core.endpoint import Endpoint, trusted
from core.errors import BadReply, HostError, Unreachable
from core.records import Access
from simulators.common import certificates
from simulators.common.doors import loopback, start_web

pytestmark = pytest.mark.anyio


class Server:
    """Answers by TLS at 127.0.0.1 and counts who asks."""

    def __init__(self, url: str, certificate: str) -> None:
        self.url = url
        self.certificate = certificate

    def access(self, certificate: str | None) -> Access:
        return Access(base_url=self.url, certificate=certificate, protection="")


async def _models(_request: Request) -> JSONResponse:
    return JSONResponse({"data": [{"id": "m"}]})


async def serving(stack: AsyncExitStack, folder: Path, *addresses: str) -> Server:
    certificate = certificates.make(folder, "server", addresses)
    both = folder / certificates.BOTH
    listener = stack.enter_context(closing(loopback()))
    tasks = await stack.enter_async_context(anyio.create_task_group())
    app = Starlette(routes=[Route("/v1/models", _models)])
    server = Server(await start_web(tasks, listener, app, certificate=both), certificate)
    stack.callback(tasks.cancel_scope.cancel)
    return server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with AsyncExitStack() as stack:
        yield await serving(stack, tmp_path, "127.0.0.1")


async def asked(access: Access) -> None:
    async with aclosing(Endpoint(access)) as endpoint:
        await endpoint.models()


async def test_its_own_certificate_is_enough(server: Server) -> None:
    """No authority vouches for it."""
    await asked(server.access(server.certificate))


async def test_without_it_nothing_is_said(server: Server) -> None:
    """An authority would have to vouch for it."""
    with pytest.raises(Unreachable, match="another certificate"):
        await asked(server.access(None))


async def test_another_one_is_refused(server: Server, tmp_path: Path) -> None:
    """Though it is for the same address."""
    other = certificates.make(tmp_path / "other", "server", ("127.0.0.1",))
    with pytest.raises(Unreachable, match="another certificate"):
        await asked(server.access(other))


async def test_it_is_for_its_own_address_alone(tmp_path: Path) -> None:
    """A certificate that is trusted does not speak for another address."""
    async with AsyncExitStack() as stack:
        server = await serving(stack, tmp_path, "127.0.0.9")
        with pytest.raises(Unreachable, match="another certificate"):
            await asked(server.access(server.certificate))


def test_nobody_else_is_trusted_beside_it(tmp_path: Path) -> None:
    """The usual authorities are not: one of them could be made to sign for the address."""
    pem = certificates.make(tmp_path, "server", ("127.0.0.1",))
    context = trusted(pem)
    assert len(context.get_ca_certs()) == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert trusted(pem) is context
    assert len(trusted().get_ca_certs()) > 10


@pytest.mark.parametrize("text", ["", "trust me", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_is_no_certificate_is_said(text: str) -> None:
    """It came from a log, which others may write to."""
    with pytest.raises(BadReply, match="certificate"):
        trusted(text)


@pytest.fixture(autouse=True)
def _made_anew() -> Iterator[None]:
    trusted.cache_clear()
    yield
    trusted.cache_clear()


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_authorities_that_cannot_be_read_are_told_with_the_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    """A proxy's own authority is often set wrong: no traceback, but which variable it is."""
    file = tmp_path / "authorities.pem"
    if text:
        file.write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(HostError, match="SSL_CERT_FILE"):
        trusted()
