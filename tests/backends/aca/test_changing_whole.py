"""Bodies of changes: they say where the app is, and lose nothing that others have put there."""

from typing import Any

import pytest
from azure.mgmt.appcontainers import models

from backends.aca.app import is_guarded, replacement
from tests.backends.aca.planned import A100, drawn, site, small, typed

pytestmark = pytest.mark.anyio
THEIRS = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/x/theirs"


def _app(**said: Any) -> models.ContainerApp:
    """What is sent for a deployment, as if it had been read."""
    return models.ContainerApp(typed(**small(**said)).as_dict())


async def test_a_replacement_keeps_identities_registries_and_references_of_others() -> None:
    """What is kept in a vault is sent as it is: nobody has to read it."""
    now = _app()
    assert now.identity
    assert now.identity.user_assigned_identities
    assert now.properties
    assert now.properties.configuration
    own = set(now.identity.user_assigned_identities)
    now.identity.user_assigned_identities[THEIRS] = models.UserAssignedIdentity()
    now.properties.configuration.registries = [models.RegistryCredentials(server="theirs.io")]
    now.properties.configuration.secrets = [
        *(now.properties.configuration.secrets or ()),
        models.Secret(name="theirs", key_vault_url="https://v/secrets/theirs", identity="system"),
    ]
    body = await replacement(site(), _app(max_model_len=2048), now)
    assert body.identity
    assert set(body.identity.user_assigned_identities or {}) == {*own, THEIRS}
    assert body.properties
    assert body.properties.configuration
    held = {one.name: one.key_vault_url for one in body.properties.configuration.secrets or ()}
    assert held["theirs"] == "https://v/secrets/theirs"
    assert len(held) == 2
    (registry,) = body.properties.configuration.registries or [models.RegistryCredentials()]
    assert registry.server == "theirs.io"


async def test_of_our_own_tags_none_is_kept_that_is_not_said_again() -> None:
    """A deployment without an end must not have that of the former."""
    now = _app()
    now.tags = {**(now.tags or {}), "vllm-devops-expires": "1", "cost-center": "42"}
    body = await replacement(site(), _app(), now)
    assert body.tags == {**(_app().tags or {}), "cost-center": "42"}


@pytest.mark.parametrize("lost", ["secrets", "env"])
def test_an_app_that_lost_its_key_no_longer_is_guarded_it(lost: str) -> None:
    """Whoever puts what Azure shows, without the parts that he does not know, loses them."""
    app, wanted = _app(), drawn(A100, **small()).container.secrets
    assert is_guarded(app, wanted)
    assert app.properties
    assert app.properties.configuration
    assert app.properties.template
    assert app.properties.template.containers
    if lost == "secrets":
        app.properties.configuration.secrets = None
    else:
        app.properties.template.containers[0].env = []
    assert not is_guarded(app, wanted)
