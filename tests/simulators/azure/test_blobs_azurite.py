"""Our blobs and those of Azurite, Microsoft's own emulator of storage, answer alike."""

import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from azure.core.exceptions import HttpResponseError
from azure.storage.blob.aio import BlobServiceClient

from core.environment import ROOT, inherited_environment
from core.settings import AzurePlane
from tests.backends.aca.shelf import BLOBS_WRITER, allowed, with_blobs

pytestmark = [pytest.mark.anyio, pytest.mark.azurite]
_PROGRAM: Final = ROOT / ".azurite" / "node_modules" / ".bin" / "azurite-blob"
_LONGEST_SECONDS: Final = 30.0
_ACCOUNT: Final = "ours"
_KEY: Final = "b3Vycw=="
"""Any base64 will do: Azurite is told who its accounts are."""


@asynccontextmanager
async def azurite(folder: Path) -> AsyncIterator[BlobServiceClient]:
    """Run Azurite until the end of the block."""
    argv = [
        str(_PROGRAM), "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry",
        "--silent", "--blobHost", "127.0.0.1", "--blobPort", "0",
    ]  # fmt: skip
    env = {**inherited_environment(), "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"}
    process = await anyio.open_process(argv, cwd=folder, env=env, stdin=-3, stderr=None)
    try:
        assert process.stdout
        with anyio.fail_after(_LONGEST_SECONDS):
            url = await _listening(TextReceiveStream(process.stdout))
        async with BlobServiceClient(f"{url}/{_ACCOUNT}", credential=_KEY) as service:
            yield service
    finally:
        process.terminate()
        with anyio.fail_after(_LONGEST_SECONDS):
            await process.wait()
        await process.aclose()


async def _listening(lines: TextReceiveStream) -> str:
    seen = ""
    async for some in lines:
        seen += some
        found = re.search(r"listens on (http://\S+)", seen)
        if found:
            return found.group(1)
    raise AssertionError(f"Azurite ended: {seen}")


async def test_both_answer_alike(azure: AzurePlane, subscription: str, tmp_path: Path) -> None:
    """What is asked, found and refused is the same, step by step."""
    async with with_blobs(azure, subscription) as site, allowed(site, BLOBS_WRITER):
        ours = await story(await site.clients.blobs())

    async with azurite(tmp_path) as service:
        theirs = await story(service)

    assert ours == theirs


_BLOBS: Final = {
    "small/config.json": b"{}",
    "small/model.safetensors": bytes(range(256)) * 16,
    "large/part 1 & 2.bin": b"x" * 10,
    "readme": b"",
}


async def story(service: BlobServiceClient) -> list[Any]:
    """Do everything that deployments do with blobs, and return what was answered."""
    container = service.get_container_client("models")
    told: list[Any] = [
        await _said(_names(container.list_blobs())),
        await _said(container.create_container()),
        await _said(container.create_container()),
        await _said(service.get_container_client("Not_A_Name").create_container()),
    ]
    for name, content in _BLOBS.items():
        told.append(await _said(container.upload_blob(name, content)))
    weights = container.get_blob_client("small/model.safetensors")
    return [
        *told,
        await _said(container.upload_blob("readme", b"again")),
        await _said(container.upload_blob("readme", b"again", overwrite=True)),
        [(one.name, one.size, one.blob_type) async for one in container.list_blobs()],
        await _names(container.list_blobs(name_starts_with="small/", results_per_page=1)),
        await _names(container.list_blobs(name_starts_with="nothing")),
        await (await weights.download_blob()).readall(),
        await (await weights.download_blob(offset=250, length=20)).readall(),
        await (await weights.download_blob(offset=4090, length=99)).readall(),
        await _said(weights.download_blob(offset=5000, length=1)),
        await (await container.download_blob("readme")).readall(),
        await _said(container.download_blob("small")),
        await container.get_blob_client("small").exists(),
    ]


async def _names(pages: AsyncIterator[Any]) -> list[str]:
    return [one.name async for one in pages]


async def _said(call: Awaitable[Any]) -> tuple[int, str] | str:
    """Give status and code of what was refused; what was not, went well."""
    try:
        await call
    except HttpResponseError as exc:
        code = getattr(exc, "error_code", None)
        return exc.status_code or 0, str(getattr(code, "value", code))
    return "well"
