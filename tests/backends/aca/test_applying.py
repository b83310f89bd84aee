"""A plan made true: whole, once, and left alone when it stands."""

import time

import pytest
from azure.mgmt.appcontainers import models
from pydantic import SecretStr

from backends.aca import deployment, secrets
from backends.aca.app import copy_ingress, copy_template, get_spec, patch_of, spec_in
from backends.aca.site import EXPIRES_TAG, HF_SECRET, KEY, SPEC_TAG, key_secret
from core.errors import CloudRefused, NotOurs
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
    revisions,
    stopped,
    wanted,
)
from tests.backends.aca.sites import opened

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
    assert app.properties
    assert app.properties.template
    assert app.properties.configuration
    assert spec_in(app.tags) == spec
    assert (app.tags or {})[SPEC_TAG] == spec.fingerprint
    assert abs(int((app.tags or {})[EXPIRES_TAG]) - time.time() - 300) < 60
    assert "@sha256:" in str((app.properties.template.containers or [])[0].image)
    (kept,) = app.properties.configuration.secrets or []
    assert (kept.name, kept.value) == (KEY, None)
    assert controls.get(subscription)["calls"].count(PUT) == 1


async def test_what_stands_is_left_alone(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Twice is harmless: nothing is written, and the key is the first one."""
    async with opened(azure, subscription) as site:
        await make(site, **SERVED)
        key, before = await secrets.read(site, key_secret("gemma")), _written(controls, site)
        await make(site, **SERVED)
        assert await secrets.read(site, key_secret("gemma")) == key
    assert _written(controls, site) == before


async def test_an_app_of_an_older_version_is_given_its_proxy(
    azure: AzurePlane, subscription: str
) -> None:
    """The same wish again replaces it."""

    def without_proxy(app: models.ContainerApp) -> models.ContainerApp:
        template, ingress = copy_template(app), copy_ingress(app)
        assert template.containers
        assert ingress
        whole_profile = models.ContainerResources(cpu=24.0, memory="220Gi")
        template.containers, ingress.target_port = template.containers[:1], 8000
        template.containers[0].resources = whole_profile
        return patch_of(app, template=template, ingress=ingress)

    async with opened(azure, subscription) as site:
        await make(site, **SERVED)
        apps = (await site.clients.apps()).container_apps
        body = without_proxy(await app_of_name(site))
        await (await apps.begin_update(site.ground.resource_group, "gemma", body)).wait()
        await make(site, **SERVED)
        app = await app_of_name(site)
    ingress = copy_ingress(app)
    assert ingress
    assert ingress.target_port == 8080


async def test_another_spec_replaces_what_runs(azure: AzurePlane, subscription: str) -> None:
    """With a revision of its own, under the same key."""
    async with opened(azure, subscription) as site:
        await make(site)
        key = await secrets.read(site, key_secret("gemma"))
        await make(site, max_model_len=2048)
        spec = await get_spec(site, "gemma")
        assert spec
        assert spec.max_model_len == 2048
        assert await secrets.read(site, key_secret("gemma")) == key
        assert len(await revisions(site)) == 2


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


async def test_an_app_of_somebody_else_is_left_alone(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Neither is it changed nor is a key made for it; another target's neither."""
    async with (
        opened(azure, subscription) as site,
        opened(azure, subscription, target="aca-t4") as other,
    ):
        await foreign_app(site, "stranger")
        await make(other, "theirs")
        before = _written(controls, site)
        for name in ("stranger", "theirs"):
            with pytest.raises(NotOurs):
                await make(site, name)
        assert _written(controls, site) == before


async def test_a_replacement_keeps_what_others_have_put_into_the_app(
    azure: AzurePlane, subscription: str
) -> None:
    """A secret that is sent without its value would be gone."""
    async with opened(azure, subscription) as site:
        await make(site)
        app = await app_of_name(site)
        assert app.properties
        assert app.properties.configuration
        own = app.properties.configuration.secrets or []
        theirs = models.Secret(name="theirs", value="s3cret")
        body = models.ContainerApp(
            location=app.location,
            tags={**(app.tags or {}), "cost-center": "42"},
            properties=models.ContainerAppProperties(
                configuration=models.Configuration(secrets=[*own, theirs])
            ),
        )
        apps = (await site.clients.apps()).container_apps
        await (await apps.begin_update(site.ground.resource_group, "gemma", body)).wait()
        await make(site, max_model_len=2048)
        now = await app_of_name(site)
        held = await apps.list_secrets(site.ground.resource_group, "gemma")
    assert (now.tags or {})["cost-center"] == "42"
    assert {one.name: one.value for one in held.value}["theirs"] == "s3cret"


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


async def test_the_token_of_the_settings_is_kept_for_the_hub(
    azure: AzurePlane, subscription: str
) -> None:
    """Without one the app refers to none."""
    async with opened(azure, subscription) as site:
        await make(site, "open")
        assert _secrets(await app_of_name(site, "open")) == {KEY}
    async with opened(azure, subscription, hf_token="hf_abcdefgh") as site:
        await make(site)
        assert await secrets.read(site, HF_SECRET) == SecretStr("hf_abcdefgh")
        assert _secrets(await app_of_name(site)) == {KEY, HF_SECRET}


async def test_an_image_that_there_is_not_is_refused_before_the_app_is_made(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Its registry is asked; the key is taken back."""
    async with opened(azure, subscription) as site:
        with pytest.raises(CloudRefused):
            await make(site, image="vllm/vllm-openai:nonsense")
        assert not await secrets.exists(site, key_secret("gemma"))
    assert PUT not in controls.get(subscription)["calls"]


def _written(controls: Controls, site: object) -> list[str]:
    subscription = site.ground.subscription  # type: ignore[attr-defined]
    calls = controls.get(subscription)["calls"]
    ends = ("/stop", "/start")
    return [
        call
        for call in calls
        if (call.startswith(("P", "DELETE")) and call[:4] != "POST") or call.endswith(ends)
    ]


def _let_in(app: object) -> list[str]:
    rules = app.properties.configuration.ingress.ip_security_restrictions  # type: ignore[attr-defined]
    return [rule.ip_address_range for rule in rules or ()]


def _secrets(app: object) -> set[str]:
    return {one.name for one in app.properties.configuration.secrets}  # type: ignore[attr-defined]
