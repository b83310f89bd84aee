"""Our blobs and those of Azurite, Microsoft's own emulator of storage, answer alike."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from azure.storage.blob.aio import BlobServiceClient

from backends.aca.site import Clients
from core.environment import ROOT, inherited_environment
from tests.simulators.azure.blob_story import story
from tests.simulators.azure.storage_roles import BLOBS_WRITER, give
from tests.simulators.azure.test_blobs import general_account

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


async def test_both_answer_alike(clients: Clients, tmp_path: Path) -> None:
    """What is asked, found and refused is the same, step by step."""
    await general_account(clients)
    await give(clients, BLOBS_WRITER)
    ours = await story(await clients.blobs())

    async with azurite(tmp_path) as service:
        theirs = await story(service)

    assert ours == theirs
