"""What is planned, an Azure that refuses what the real one refuses takes."""

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from backends.aca.app import app_of, blueprint
from backends.aca.site import SHARE, writing
from core.settings import AzurePlane
from planner.model import read_model
from tests.azure_plane import Controls
from tests.backends.aca.planned import A100, CALLERS, DENSE_31B, PATCHED, SMALL, T4, spec
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio

_WISHES: dict[str, dict[str, Any]] = {
    "hub": {"model": SMALL.model},
    "folder": {"model": SMALL.model, "weights": f"files://{SHARE}/gemma", "access": "public"},
    "baked": {"model": SMALL.model, "weights": "baked", "image": PATCHED, "access": "internal"},
    "large": {"model": DENSE_31B, "image": PATCHED, "min_replicas": 1, "max_replicas": 2},
    "long": {"model": SMALL.model, "engine_args": ("--chat-template", "it's {% x %} " * 60)},
}


@pytest.mark.parametrize("target", [A100, T4])
@pytest.mark.parametrize("wish", _WISHES)
async def test_every_plan_is_taken(
    azure: AzurePlane, subscription: str, target: str, wish: str
) -> None:
    """Probes, sizes, names, tags, links and the profile are such that an app is made of them."""
    async with opened(azure, subscription, target) as there:
        wanted = spec(**_WISHES[wish])
        shape = SMALL if wanted.model == SMALL.model else read_model(wanted.model)
        made = blueprint(there, wanted, shape)
        app = app_of(made, kept_at=await there.clients.secrets_url(), addresses=CALLERS)
        client = (await there.clients.apps()).container_apps
        group = there.ground.resource_group
        await client.begin_create_or_update(group, wanted.name, app, **writing())
        kept = await client.get(group, wanted.name)
    assert kept.tags == dict(app.tags or {})
    assert kept.properties
    assert kept.properties.workload_profile_name == made.profile


async def test_what_is_not_ours_to_choose_is_refused(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """The same app with a smaller pair is not taken: the simulated Azure does look."""
    async with opened(azure, subscription) as there:
        made = blueprint(there, spec(SMALL.model), SMALL).model_copy(update={"cpu": 12})
        app = app_of(made, kept_at=await there.clients.secrets_url(), addresses=CALLERS)
        client = (await there.clients.apps()).container_apps
        with pytest.raises(HttpResponseError):
            await client.begin_create_or_update(
                there.ground.resource_group, "gemma", app, **writing()
            )
    assert "containerapps/gemma" not in str(controls.get(subscription)["resources"]).lower()
