"""Changes that Azure goes on with alone: how they went is read from the body, by any process."""

import json
import stat
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from azure.core.polling._utils import _decode_continuation_token

from backends.aca import replicas, secrets
from backends.aca.app import app_of, copy_template, find_app, patch_of
from backends.aca.site import Site, key_secret
from core.errors import CloudError
from core.reply import collecting_notes
from core.settings import AzurePlane
from core.waiting import wait_until
from tests.azure_plane import Controls
from tests.backends.aca.deployed import foreign_app, impatient, make, put_key
from tests.backends.aca.planned import CALLERS, drawn, small
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio
MISSING: Final = "MANIFEST_UNKNOWN"


@pytest.fixture(autouse=True)
def _quick(controls: Controls, subscription: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controls.set(subscription, rollout="never")
    impatient(monkeypatch)


async def test_a_change_that_fails_says_why_with_the_words_of_its_body(
    azure: AzurePlane, subscription: str, controls: Controls, tmp_path: Path
) -> None:
    """Azure answers it with status 200; a later process is told the same."""
    async with opened(azure, subscription, folder=tmp_path) as site:
        await foreign_app(site)
        controls.set(subscription, rollout="image-missing")
        with pytest.raises(CloudError) as caught:
            await _revise(site)
        assert MISSING in caught.value.cause
    async with opened(azure, subscription, folder=tmp_path) as site:
        failure = await replicas.failure_of(site, "gemma")
    assert failure
    assert MISSING in failure.cause
    assert failure.fix


async def test_a_change_that_fails_after_its_server_died_is_told_by_the_next(
    azure: AzurePlane, subscription: str, controls: Controls, tmp_path: Path
) -> None:
    """It is asked by the token that was kept; until then nothing is said to have failed."""
    async with opened(azure, subscription, folder=tmp_path) as site:
        await foreign_app(site)
        controls.set(subscription, rollout="image-missing", operation_seconds=0.4)
        assert not await _begin(site)
        assert await replicas.failure_of(site, "gemma") is None

    async with opened(azure, subscription, folder=tmp_path) as site:
        failure = await wait_until(
            lambda: replicas.failure_of(site, "gemma"),
            bool,
            waiting_for="the failure",
            every=0.05,
            timeout=20,
        )
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
        controls.set(subscription, operation_seconds=0.4)
        assert not await _begin(site)
    (file,) = (site.folder / "changes").iterdir()
    before = file.read_text()
    async with opened(azure, subscription, folder=tmp_path, read_only=True) as site:
        await wait_until(
            lambda: _settled(site), bool, waiting_for="the change", every=0.05, timeout=20
        )
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
    return app_of(drawn(site, **small()), kept_at=vault, addresses=CALLERS)


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
