"""A target opened on a simulated Google Cloud, as a server would open it."""

import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from backends.base import World
from backends.tpu.backend import TpuBackend
from backends.tpu.backend import opened as open_site
from backends.tpu.site import Site
from core.environment import ROOT
from core.records import Target
from core.settings import GooglePlane, Settings

_TARGETS: Final = tomllib.loads((ROOT / "backends" / "targets.toml").read_text(encoding="utf-8"))
NAMES: Final = tuple(name for name, row in _TARGETS.items() if row["backend"] == "tpu")
MODEL: Final = "google/gemma-4-E4B-it"


def target_of(name: str) -> Target:
    """Give `tpu-v6e-1` or another as a server knows it."""
    return Target.model_validate({"name": name, **_TARGETS[name]})


@asynccontextmanager
async def opened(
    plane: GooglePlane,
    project: str,
    target: str = "tpu-v6e-1",
    *,
    folder: Path | None = None,
    **said: Any,
) -> AsyncIterator[Site]:
    """Give a site; a second one of the same project is another server.

    `folder` is what a server remembers; one of its own, which nobody finds again, if None.
    """

    async def google() -> GooglePlane:
        return plane

    settings = Settings(rehearsal=True, google_cloud_project=project, **said)
    with TemporaryDirectory() as own:
        site = open_site(target_of(target), World(settings, folder or Path(own), (), google))
        try:
            yield site
        finally:
            await site.clients.aclose()


def on(site: Site) -> TpuBackend:
    """Return what works on a site; another call for the same site is another server."""
    backend = TpuBackend(site.target, World(site.settings, site.shared.parent, ()))
    backend.stand_on(site)
    return backend


def offline(target: str = "tpu-v6e-1", project: str = "proj", **said: Any) -> Site:
    """Give a site whose cloud nobody asks."""
    settings = Settings(google_cloud_project=project, **said)
    return open_site(target_of(target), World(settings, Path("/nonexistent"), ()))


def fault(method: str, status: str = "UNAVAILABLE", **more: Any) -> Mapping[str, Any]:
    """Let a method such as `Tpu/CreateQueuedResource` or `compute.instances.insert` fail."""
    return {"method": f"*{method}", "status": status, **more}
