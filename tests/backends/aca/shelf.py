"""Models on shares of the simulated storage account."""

from collections.abc import Mapping
from pathlib import Path

from backends.aca.site import Site


async def store(site: Site, files: Mapping[str, bytes], share: str = "weights") -> None:
    """Put files on a share, by their paths, as the simulated Azure keeps them."""
    plane, ground = await site.clients.plane(), site.ground
    assert plane
    account = Path(plane.ca).parent / "storage" / ground.subscription / ground.storage_account
    for path, content in files.items():
        file = account / "file" / share / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
