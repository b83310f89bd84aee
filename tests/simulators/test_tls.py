"""The simulated engine speaks TLS as `vllm serve` does with --ssl-keyfile and --ssl-certfile."""

import re
import ssl
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx2
import pytest
import trustme

from simulators.engine.__main__ import main
from tests.simulators.test_command import command

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")


def _files(folder: Path) -> tuple[trustme.CA, tuple[str, ...]]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    files = ("--ssl-keyfile", folder / "key.pem", "--ssl-certfile", folder / "cert.pem")
    return authority, tuple(map(str, files))


async def test_it_answers_by_tls_alone(tmp_path: Path) -> None:
    """To whoever trusts its certificate; its log says https."""
    authority, flags = _files(tmp_path)
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trust)
    async with command("tiny/model", "--port", "0", *flags) as engine:
        url = await engine.hear(r"Starting vLLM server on (https://\S+)\n")
        async with httpx2.AsyncClient(base_url=url, verify=trust) as client:
            assert (await _until_it_listens(client)).status_code == 200
        plain = url.replace("https", "http")
        async with httpx2.AsyncClient(base_url=plain) as client:
            with pytest.raises(httpx2.TransportError):
                await client.get("/health")


async def _until_it_listens(client: httpx2.AsyncClient) -> httpx2.Response:
    while True:
        try:
            return await client.get("/health")
        except httpx2.ConnectError:
            await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda key: key.unlink(), "FileNotFoundError: [Errno 2]"),
        (lambda key: key.write_text("no key"), "ssl.SSLError: "),
    ],
    ids=["missing", "not a key"],
)
def test_a_key_that_cannot_be_read_ends_it_after_its_boot(
    spoil: Callable[[Path], object],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As vLLM, which looks at them last."""
    _authority, flags = _files(tmp_path)
    spoil(tmp_path / "key.pem")
    assert main(["serve", "tiny/model", "--port", "0", "--host", "127.0.0.1", *flags]) == 1
    said = capsys.readouterr()
    assert words in said.err
    assert re.search(r"Starting vLLM server on https://127\.0\.0\.1:\d+", said.out)
