"""The blobs of a container, as the files of models that they may be."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from backends.aca.site import Site
from backends.aca.storage import BLOBS_ROLE, looking, refused
from backends.common.models import ENDINGS, MOST_FILES, File, limited

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient


async def listing(site: Site, container: str, under: str) -> dict[str, File]:
    """List what models are made of by their names, below a folder if one is given.

    Raises:
        CloudRefused: There is no such container.
        PermissionDenied, CloudTimeout, CloudUnavailable: It cannot be read.
    """
    client = (await site.clients.blobs()).get_container_client(container)
    begin = f"{under}/" if under else None
    found: dict[str, File] = {}
    store = f"The container {container}"
    with refused(site, f"list the blobs of {container}", store=store, role=BLOBS_ROLE):
        async for one in client.list_blobs(name_starts_with=begin, **looking()):
            if one.name.rpartition(".")[2] in ENDINGS:
                found[one.name] = File(int(one.size or 0), _reader(site, client, one.name))
            if len(found) > MOST_FILES:
                break
    return limited(found, container)


def _reader(
    site: Site, client: "ContainerClient", name: str
) -> Callable[[int, int], Awaitable[bytes]]:
    async def read(offset: int, length: int) -> bytes:
        with refused(site, f"read {name}", store=f"The blob {name}", role=BLOBS_ROLE):
            got = await client.get_blob_client(name).download_blob(offset, length, **looking())
            return bytes(await got.readall())

    return read
