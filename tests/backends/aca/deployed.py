"""Deployments on the simulated Azure and what they stand on, and others beside them."""

from collections import Counter
from typing import Any, Final

import pytest

from backends.aca import deployment, replicas, secrets
from backends.aca.app import app_of, get_app
from backends.aca.backend import AcaBackend
from backends.aca.plan import base as ground
from backends.aca.replicas import RevisionReplicas
from backends.aca.site import SHARE, Site
from backends.common import concurrency
from backends.lifecycle import advance
from core.records import Deleted, Plan
from tests.azure_plane import Controls
from tests.backends.aca.planned import CALLERS, E2B, drawn, planned, small
from tests.backends.aca.sites import backend_of
from tests.soon import soon

NAME: Final = "gemma"
PUT: Final = "PUT Microsoft.App/containerApps"
PATCH: Final = "PATCH Microsoft.App/containerApps"
SERVED: Final[dict[str, Any]] = {"model": E2B, "shape": None}
"""A model that the simulated engine knows."""


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and wait for nothing that does not come in a rehearsal."""
    monkeypatch.setattr(replicas, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(deployment, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(deployment, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(concurrency, "_LOOK_SECONDS", 0.01)


def wanted(site: Site, name: str = NAME, **said: Any) -> Plan:
    """Plan a model that needs no share."""
    return planned(site, **small(name=name, **said))


async def make(site: Site, name: str = NAME, **said: Any) -> None:
    """Apply such a plan."""
    plan = wanted(site, name, **said)
    await apply(site, plan)


async def deployed(site: Site, name: str = NAME, **said: Any) -> None:
    """Apply the plan of a model that is really served, and wait until its replica is ready."""
    await make(site, name, **SERVED, **said)
    await ready(site, name)


async def ready(site: Site, name: str = NAME) -> None:
    """Wait until the newest revision serves."""
    await soon(
        lambda: get_app(site, name),
        lambda app: bool(
            app.latest_revision_name and app.latest_ready_revision_name == app.latest_revision_name
        ),
        waiting_for="the rollout",
    )


async def failed(site: Site, name: str = NAME) -> None:
    """Wait until Azure has given it up."""

    async def look() -> bool:
        return await deployment.failed(site, await get_app(site, name))

    await soon(look, waiting_for="a failure")


async def app_of_name(site: Site, name: str = NAME) -> Any:
    """Read an app."""
    return await get_app(site, name)


async def revisions(site: Site, name: str = NAME) -> tuple[RevisionReplicas, ...]:
    """Read its revisions with their replicas."""
    return await replicas.read_revisions(site, name)


async def stopped(site: Site, name: str = NAME) -> bool:
    """Whether it is stopped."""
    return deployment.is_stopped(await app_of_name(site, name))


async def foreign_app(site: Site, name: str = NAME, **tags: str) -> None:
    """Make an app that is not ours, or of whom its tags say."""
    vault = await site.clients.secrets_url()
    app: Any = app_of(site, drawn(site, **small(name=name)), kept_at=vault, addresses=CALLERS)
    app.tags = tags
    app.properties.configuration.secrets = None
    app.properties.template.containers[0].env = None
    apps = (await site.clients.apps()).container_apps
    await (await apps.begin_create_or_update(site.ground.resource_group, name, app)).wait()


async def apply(site: Site, plan: Plan) -> None:
    """Apply a plan."""
    await backend_of(site).apply(plan)


async def delete(site: Site, name: str = NAME) -> Deleted:
    """Delete a deployment."""
    return await backend_of(site).delete(name)


async def purge(site: Site, name: str = NAME) -> tuple[str, ...]:
    """Delete what it stood on."""
    return await backend_of(site).purge(name)


async def go_on(site: Site, name: str = NAME) -> None:
    """Take the next step of a pending deployment."""
    await backend_of(site).go_on(name)


async def put_key(site: Site, name: str = NAME) -> None:
    """Make a deployment's key."""
    await advance([secrets.key(site, name)], seconds=1)


def patient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Wait so long for what is under way."""
    monkeypatch.setattr(AcaBackend, "apply_seconds", seconds)
    monkeypatch.setattr(AcaBackend, "go_on_seconds", seconds)
    monkeypatch.setattr(AcaBackend, "set_up_seconds", seconds)


AT_ONCE: Final = {"environment_seconds": 0, "operation_seconds": 0, "registration_seconds": 0}
"""Nothing has to be waited for."""
CHANGES: Final = ("PUT", "PATCH", "DELETE", "POST")
READS: Final = {
    "POST Microsoft.OperationalInsights/workspaces/sharedKeys",
    "POST Microsoft.Storage/storageAccounts/listKeys",
    "POST Microsoft.PolicyInsights/checkPolicyRestrictions",
}
"""What is asked with POST and changes nothing."""
MADE: Final = {
    "POST Microsoft.Resources/subscriptions/providers/register": 5,
    "PUT Microsoft.Resources/resourceGroups": 1,
    "PUT Microsoft.OperationalInsights/workspaces": 1,
    "PUT Microsoft.App/managedEnvironments": 1,
    "PUT Microsoft.ManagedIdentity/userAssignedIdentities": 1,
    "PUT Microsoft.KeyVault/vaults": 1,
    "PUT Microsoft.Authorization/roleAssignments": 3,
    "PUT Microsoft.Storage/storageAccounts": 1,
    "PUT Microsoft.Storage/storageAccounts/fileServices/shares": 1,
    "PUT Microsoft.App/managedEnvironments/storages": 2,
}
"""Every change that a bare subscription needs, and how often."""


def changes(controls: Controls, subscription: str) -> Counter[str]:
    """Count the calls that changed something, or tried to."""
    calls = controls.get(subscription)["calls"]
    return Counter(one for one in calls if one.startswith(CHANGES) and one not in READS)


def resources(controls: Controls, subscription: str) -> list[str]:
    """Give the ids of everything that is there, in lower case."""
    found: list[str] = controls.get(subscription)["resources"]
    return found


async def go(site: Site, *, share: str | None = SHARE) -> str | None:
    """Make what is missing; the phase that is waited for, None when all is there."""
    waiting = await advance(ground(site, share), seconds=AcaBackend.go_on_seconds)
    return waiting.phase if waiting else None


async def stands(site: Site, share: str | None = SHARE) -> None:
    """Go on until everything is there."""

    async def look() -> str | None:
        return await go(site, share=share)

    await soon(look, lambda seen: seen is None, waiting_for="it")
