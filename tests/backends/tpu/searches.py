"""Searches on scripted control planes, carried on as a server does, or as the next one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from backends.base import World
from backends.tpu import search
from backends.tpu.backend import opened as open_site
from backends.tpu.site import ControlPlane, Inventory, Place, PlaneKind, Search, Site
from backends.tpu.vm import blueprint
from core.errors import OpsError
from core.records import DeploymentSpec, Plan
from core.settings import GooglePlane, Settings
from planner.model import catalog_shape
from tests.backends.tpu.fake_planes import Cloud, FakePlane, Killed
from tests.backends.tpu.sites import MODEL, opened, target_of

A: Final = Place("us-east5-a", "compute")
B: Final = Place("us-east5-a", "queued")
C: Final = Place("us-east5-b", "compute")
D: Final = Place("us-east5-b", "queued")
PLACES: Final = (A, B, C, D)
WAIT_SECONDS: Final = 600


def site_on(cloud: Cloud, folder: Path, target: str = "tpu-v6e-1", **said: Any) -> Site:
    """Open a site before two scripted planes; one of the same folder is another server."""
    settings = Settings.model_validate({"google_cloud_project": "proj", **said})
    site = open_site(target_of(target), World(settings, folder, ()))
    return replace(site, planes=_planes(cloud), inventory=Inventory(), now=lambda: cloud.now)


def at(site: Site, moment: datetime) -> Site:
    """Return the same site at another time."""
    return replace(site, now=lambda: moment)


def _planes(cloud: Cloud) -> dict[PlaneKind, ControlPlane]:
    return {"queued": FakePlane(cloud, "queued"), "compute": FakePlane(cloud, "compute")}


@asynccontextmanager
async def before(
    plane: GooglePlane, project: str, cloud: Cloud, folder: Path | None = None, **said: Any
) -> AsyncIterator[Site]:
    """Open a site with scripted control planes, whose secrets and firewall are the simulator's.

    Time is the real one: a script that is to do something later never does.
    """
    own = {"google_allowed_addresses": ("127.0.0.1",), **said}
    async with opened(plane, project, folder=folder, **own) as site:
        cloud.now = datetime.now(UTC)
        yield replace(site, planes=_planes(cloud))


def planned(site: Site, **said: Any) -> Plan:
    """Plan without a single step: what it is made of is asked of the spec alone."""
    values = {"name": "gemma", "model": MODEL, "zones": ("us-east5-a", "us-east5-b"), **said}
    spec = DeploymentSpec.model_validate(values)
    return Plan(spec=spec, target=site.target, model=catalog_shape(MODEL), steps=())


def wanted(site: Site, cloud: Cloud, places: Sequence[Place] = PLACES, **said: Any) -> Search:
    """Write down a search through some places."""
    plan = planned(site, **said)
    made = blueprint(site, plan.spec, plan.model, hf_token=False)
    changed = {"places": tuple(places), "wait_seconds": WAIT_SECONDS}
    kept = Search(
        spec=made.spec,
        model=plan.model,
        where=site.records.where,
        since=cloud.now,
        blueprint=made.model_copy(update=changed),
        grounded=True,
    )
    site.records.keep(kept)
    return kept


def of(site: Site) -> Search:
    """Read what is written down of it."""
    kept: Search | None = site.records.get("gemma")
    assert kept is not None
    return kept


async def carried_on(site: Site, cloud: Cloud, *, every: float = 15) -> Search:
    """Take step after step, as a server that dies and comes back, until it is over."""
    while not (kept := of(site)).at_rest:
        try:
            after = await search.carry_on(site, kept, (), seconds=0)
        except (Killed, BaseExceptionGroup):
            continue
        except OpsError as exc:
            if not exc.retryable:
                raise
            cloud.wait(every)
            continue
        assert after == of(site), "It was not written down."
        if after is kept:
            cloud.wait(every)
    return kept


def outcomes(kept: Search) -> list[tuple[Place, str]]:
    """Give what came of every place that was asked."""
    return [(one.place, one.outcome) for one in kept.attempts]
