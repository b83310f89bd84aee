"""An app made and replaced as it was asked for, and changes that Azure goes on with alone."""

import json
import stat
import time
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from azure.core.polling._utils import _decode_continuation_token
from azure.mgmt.appcontainers import models

from backends.aca import deployment, replicas, secrets
from backends.aca.app import (
    app_of,
    copy_template,
    find_app,
    patch_of,
    replacement,
    spec_in,
)
from backends.aca.site import KEY, SPEC_TAG, Site, key_secret
from backends.lease import EXPIRES
from core.errors import CloudRefused
from core.reply import collecting_notes
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import (
    PATCH,
    PUT,
    SERVED,
    app_of_name,
    deployed,
    foreign_app,
    impatient,
    make,
    put_key,
    revisions,
    stopped,
    wanted,
)
from tests.backends.aca.planned import CALLERS, drawn, site, small, typed
from tests.backends.aca.sites import fault, opened
from tests.soon import soon

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(controls: Controls, subscription: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controls.set(subscription, rollout="never")
    impatient(monkeypatch)


async def test_a_deployment_is_an_app_with_its_key_and_what_was_asked_for(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """The image is pinned, the key is the vault's, and the tags say all of it."""
    async with opened(azure, subscription) as site:
        await make(site, ttl_minutes=5)
        app = await app_of_name(site)
        spec = wanted(site, ttl_minutes=5).spec
        assert await secrets.exists(site, key_secret("gemma"))
    assert spec_in(app.tags) == spec
    assert (app.tags or {})[SPEC_TAG] == spec.fingerprint
    assert abs(int((app.tags or {})[EXPIRES]) - time.time() - 300) < 60
    assert "@sha256:" in str((app.properties.template.containers or [])[0].image)
    (kept,) = app.properties.configuration.secrets or []
    assert (kept.name, kept.value) == (KEY, None)
    assert controls.get(subscription)["calls"].count(PUT) == 1


async def test_another_number_of_replicas_is_no_replacement(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """The app is scaled as it is, and its tags stay true."""
    async with opened(azure, subscription) as site:
        await make(site, **SERVED)
        await make(site, max_replicas=2, **SERVED)
        app, spec = await app_of_name(site), wanted(site, max_replicas=2, **SERVED).spec
    assert spec_in(app.tags) == spec
    assert (app.tags or {})[SPEC_TAG] == spec.fingerprint
    calls = controls.get(subscription)["calls"]
    assert (calls.count(PUT), calls.count(PATCH)) == (1, 1)


async def test_what_is_stopped_is_started(azure: AzurePlane, subscription: str) -> None:
    """Whoever deploys wants it to run."""
    async with opened(azure, subscription) as site:
        await make(site)
        await deployment.stop(site, "gemma")
        assert await stopped(site)
        await make(site)
        assert not await stopped(site)


async def test_an_app_whose_creation_failed_is_made_anew(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Azure changes it no more: it is deleted first, which is said; its key stays."""
    controls.set(subscription, rollout="image-missing")
    async with opened(azure, subscription) as site:
        await make(site, **SERVED)
        key = await secrets.read(site, key_secret("gemma"))
        controls.set(subscription, rollout="ok", boot_seconds=0.05)
        with collecting_notes() as notes:
            await deployed(site)
        assert await secrets.read(site, key_secret("gemma")) == key
    assert any("made anew" in note for note in notes)


async def test_a_revision_that_failed_is_tried_anew_although_nothing_differs(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """The same template again would make none."""
    controls.set(subscription, rollout="ok", boot_seconds=0.05)
    async with opened(azure, subscription) as site:
        await deployed(site)
        controls.set(subscription, rollout="image-missing")
        await make(site, max_model_len=2048, **SERVED)
        before = len(await revisions(site))
        controls.set(subscription, rollout="ok")
        await deployed(site, max_model_len=2048)
        assert len(await revisions(site)) == before + 1


async def test_an_image_that_there_is_not_is_refused_before_the_app_is_made(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Its registry is asked; the key is taken back."""
    async with opened(azure, subscription) as site:
        with pytest.raises(CloudRefused):
            await make(site, image="vllm/vllm-openai:nonsense")
        assert not await secrets.exists(site, key_secret("gemma"))
    assert PUT not in controls.get(subscription)["calls"]


THEIRS = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/x/theirs"


def _app(**said: Any) -> Any:
    """What is sent for a deployment, as if it had been read."""
    return models.ContainerApp(typed(**small(**said)).as_dict())


async def test_a_replacement_keeps_identities_registries_and_references_of_others() -> None:
    """What is kept in a vault is sent as it is: nobody has to read it."""
    now = _app()
    own = set(now.identity.user_assigned_identities)
    now.identity.user_assigned_identities[THEIRS] = models.UserAssignedIdentity()
    now.properties.configuration.registries = [models.RegistryCredentials(server="theirs.io")]
    now.properties.configuration.secrets = [
        *(now.properties.configuration.secrets or ()),
        models.Secret(name="theirs", key_vault_url="https://v/secrets/theirs", identity="system"),
    ]
    body: Any = await replacement(site(), _app(max_model_len=2048), now)
    assert set(body.identity.user_assigned_identities or {}) == {*own, THEIRS}
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


MISSING: Final = "MANIFEST_UNKNOWN"


async def test_a_change_that_fails_after_its_server_died_is_told_by_the_next(
    azure: AzurePlane, subscription: str, controls: Controls, tmp_path: Path
) -> None:
    """It is asked by the token that was kept; until then nothing is said to have failed."""
    async with opened(azure, subscription, folder=tmp_path) as site:
        await foreign_app(site)
        controls.set(subscription, rollout="image-missing", operation_seconds=3600)
        assert not await _begin(site)
        assert await replicas.failure_of(site, "gemma") is None
    controls.set(subscription, operation_seconds=0)
    async with opened(azure, subscription, folder=tmp_path) as site:
        failure = await soon(lambda: replicas.failure_of(site, "gemma"), waiting_for="the failure")
        assert failure
        assert MISSING in failure.cause
        calls = len(controls.get(subscription)["calls"])
        assert await replicas.failure_of(site, "gemma") == failure
    assert len(controls.get(subscription)["calls"]) == calls


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
async def test_a_look_that_fails_says_nothing_of_the_change(
    azure: AzurePlane, subscription: str, controls: Controls, status: int
) -> None:
    """It is noted, and what is true is read from the app."""
    controls.set(subscription, faults=[fault("GET operations", status, times=-1)])
    async with opened(azure, subscription) as site:
        with collecting_notes() as notes:
            await make(site)
        assert any("does not say how it goes" in note for note in notes)
        assert await find_app(site, "gemma")
        assert await replicas.failure_of(site, "gemma") is None


async def test_what_is_kept_holds_no_secret(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Neither whoever asked nor a value; and it is for this user only."""
    controls.set(subscription, operation_seconds=3600)
    async with opened(azure, subscription) as site:
        await put_key(site, "gemma")
        key = (await secrets.read(site, key_secret("gemma"))).get_secret_value()
        await replicas.begin(site, "gemma", "create_or_update", "create", await _body(site))
        (file,) = (site.folder / "changes").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        held = _unpacked(json.loads(file.read_text()))
    assert "operationStatuses".lower() in held.lower()
    for text in (key, "bearer", "authorization"):
        assert text.lower() not in held.lower()


async def test_a_server_that_only_reads_writes_nothing_down(
    azure: AzurePlane, subscription: str, controls: Controls, tmp_path: Path
) -> None:
    """It asks each time."""
    async with opened(azure, subscription, folder=tmp_path) as site:
        await foreign_app(site)
        controls.set(subscription, operation_seconds=3600)
        assert not await _begin(site)
    controls.set(subscription, operation_seconds=0)
    (file,) = (site.folder / "changes").iterdir()
    before = file.read_text()
    async with opened(azure, subscription, folder=tmp_path, read_only=True) as site:
        await soon(lambda: _settled(site), waiting_for="the change")
        assert await replicas.failure_of(site, "gemma") is None
    assert file.read_text() == before


async def _begin(site: Site) -> bool:
    """Change it, and watch no longer than once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "REFUSAL_SECONDS", 0.0)
        return await _revise(site)


async def _settled(site: Site) -> bool:
    app = await find_app(site, "gemma")
    return bool(app and app.properties and app.properties.provisioning_state == "Succeeded")


async def _body(site: Site) -> Any:
    vault = await site.clients.secrets_url()
    return app_of(site, drawn(site, **small()), kept_at=vault, addresses=CALLERS)


async def _revise(site: Site) -> bool:
    """Change what a replica runs."""
    app = await find_app(site, "gemma")
    assert app
    body = patch_of(app, template=copy_template(app))
    change = await replicas.begin(site, "gemma", "update", "revise gemma", body)
    return await replicas.watch(site, "gemma", change)


def _unpacked(kept: Mapping[str, Any]) -> str:
    """Give everything that is kept, what is wrapped up in the token as well."""
    state = _decode_continuation_token(kept["token"])
    content = b64decode(state["response"]["content"]).decode()
    return f"{json.dumps(state)} {content} {json.dumps({**kept, 'token': ''})}"
