"""Targets on the simulated Azure, and models on its shares."""

import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from backends.aca.backend import AcaBackend
from backends.aca.site import Site
from backends.base import World
from core.environment import ROOT
from core.records import Target
from core.settings import AzurePlane, Settings

_TARGETS: Final = tomllib.loads((ROOT / "backends" / "targets.toml").read_text(encoding="utf-8"))


def target_of(name: str) -> Target:
    """Give `aca-a100` or `aca-t4` as a server knows it."""
    return Target.model_validate({"name": name, **_TARGETS[name]})


@asynccontextmanager
async def opened(
    plane: AzurePlane,
    subscription: str,
    target: str = "aca-a100",
    *,
    folder: Path | None = None,
    **said: Any,
) -> AsyncIterator[Site]:
    """Give a site; a second one of the same subscription is another server.

    `folder` is what a server remembers; one of its own, which nobody finds again, if None.
    """

    async def azure() -> AzurePlane:
        return plane

    found = target_of(target)
    settings = Settings(rehearsal=True, azure_subscription_id=subscription, **said)
    with TemporaryDirectory() as own:
        world = World(settings, folder or Path(own), (), None, azure)
        backend = AcaBackend(found, world)
        _backends[id(backend.site)] = backend
        try:
            yield backend.site
        finally:
            del _backends[id(backend.site)]
            await backend.aclose()


_backends: Final[dict[int, AcaBackend]] = {}


def backend_of(site: Site) -> AcaBackend:
    """Return the backend that a site was opened by."""
    return _backends[id(site)]


def fault(method: str, status: int = 503, **more: Any) -> Mapping[str, Any]:
    """Let a method such as `PUT Microsoft.App/containerApps` fail."""
    return {"method": method, "status": status, **more}


async def store(site: Site, files: Mapping[str, bytes], share: str = "weights") -> None:
    """Put files on a share, by their paths, as the simulated Azure keeps them."""
    plane, ground = await site.clients.plane(), site.ground
    assert plane
    account = Path(plane.ca).parent / "storage" / ground.subscription / ground.storage_account
    for path, content in files.items():
        file = account / "file" / share / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
