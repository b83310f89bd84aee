"""Deployments on the simulated Azure, made as the product makes them, and others beside them."""

from typing import TYPE_CHECKING, Any, Final

import pytest

from backends.aca import deployment, operations, replicas
from backends.aca.app import app_of, get_app
from backends.aca.replicas import RevisionReplicas
from backends.aca.site import Site
from backends.common import concurrency
from core.records import Plan
from core.waiting import wait_until
from tests.backends.aca.planned import CALLERS, E2B, drawn, planned, small

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

NAME: Final = "gemma"
PUT: Final = "PUT Microsoft.App/containerApps"
PATCH: Final = "PATCH Microsoft.App/containerApps"
SERVED: Final[dict[str, Any]] = {"model": E2B, "shape": None}
"""A model that the simulated engine knows."""
_LONGEST_SECONDS: Final = 20.0


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and wait for nothing that does not come in a rehearsal."""
    monkeypatch.setattr(operations, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(operations, "_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(deployment, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(deployment, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(concurrency, "_LOOK_SECONDS", 0.01)


def wanted(site: Site, name: str = NAME, **said: Any) -> Plan:
    """Plan a model that needs no share."""
    return planned(site, **small(name=name, **said))


async def make(site: Site, name: str = NAME, **said: Any) -> None:
    """Apply such a plan."""
    await deployment.apply(site, wanted(site, name, **said))


async def deployed(site: Site, name: str = NAME, **said: Any) -> None:
    """Apply the plan of a model that is really served, and wait until its replica is ready."""
    await make(site, name, **SERVED, **said)
    await ready(site, name)


async def ready(site: Site, name: str = NAME) -> None:
    """Wait until the newest revision serves."""
    await wait_until(
        lambda: get_app(site, name),
        lambda app: bool(
            app.properties
            and app.properties.latest_revision_name
            and app.properties.latest_ready_revision_name == app.properties.latest_revision_name
        ),
        waiting_for="the rollout",
        every=0.05,
        timeout=_LONGEST_SECONDS,
    )


async def failed(site: Site, name: str = NAME) -> None:
    """Wait until Azure has given it up."""

    async def look() -> bool:
        return await deployment.failed(site, await get_app(site, name))

    await wait_until(look, bool, waiting_for="a failure", every=0.05, timeout=_LONGEST_SECONDS)


async def app_of_name(site: Site, name: str = NAME) -> "ContainerApp":
    """Read an app; every part that it always has is there."""
    app = await get_app(site, name)
    assert app.properties
    assert app.properties.configuration
    assert app.properties.template
    return app


async def revisions(site: Site, name: str = NAME) -> tuple[RevisionReplicas, ...]:
    """Read its revisions with their replicas."""
    return await replicas.read_revisions(site, name)


async def stopped(site: Site, name: str = NAME) -> bool:
    """Whether it is stopped."""
    return deployment.is_stopped(await app_of_name(site, name))


async def foreign_app(site: Site, name: str = NAME, **tags: str) -> None:
    """Make an app that is not ours, or of whom its tags say."""
    vault = await site.clients.vault_url()
    app = app_of(drawn(site, **small(name=name)), vault_url=vault, addresses=CALLERS)
    app.tags = tags
    assert app.properties
    assert app.properties.configuration
    assert app.properties.template
    assert app.properties.template.containers
    app.properties.configuration.secrets = None
    app.properties.template.containers[0].env = None
    apps = (await site.clients.apps()).container_apps
    await (await apps.begin_create_or_update(site.clients.group, name, app)).wait()
