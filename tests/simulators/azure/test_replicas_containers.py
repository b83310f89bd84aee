"""What a container is given: secrets by its identity, weights from a mounted share."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from azure.core.exceptions import HttpResponseError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.apps import KEY, Apps, caller, url_of, wanted
from tests.simulators.azure.storage_roles import FILES_WRITER, give
from tests.simulators.models import write_tiny_model

pytestmark = pytest.mark.anyio

_SECRET: Final = "vllm-devops-one-api-key"
_REF: Final = M.EnvironmentVar(name="VLLM_API_KEY", secret_ref="api-key")


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


async def _keyed(apps: Apps, *, identity: str = "") -> Any:
    """An app whose engine has its key from the vault."""
    app = wanted(apps.clients, container={"env": [_REF]})
    url = f"{await apps.clients.vault_url()}/secrets/{_SECRET}"
    app.properties.configuration.secrets = [
        M.Secret(
            name="api-key",
            key_vault_url=url,
            identity=identity or apps.clients.ground.identity_id,
        )
    ]
    return app


async def test_the_engine_has_its_key_from_the_vault(apps: Apps) -> None:
    """By the app's identity, which may read it; without the key nobody is answered."""
    await (await apps.clients.secrets()).set_secret(_SECRET, KEY)
    url = url_of(await apps.ready(await _keyed(apps)))
    async with caller() as http:
        assert (await http.get(f"{url}/v1/models")).status_code == 401
        headers = {"Authorization": f"Bearer {KEY}"}
        assert (await http.get(f"{url}/v1/models", headers=headers)).status_code == 200
    told = apps.controls.get(apps.subscription)
    assert not any(KEY in line for line in told["log"])


async def test_a_secret_that_is_not_there_fails_the_change(apps: Apps) -> None:
    """The words name the secret and the identity that asked."""
    with pytest.raises(HttpResponseError) as refused:
        await apps.put(await _keyed(apps))
    assert "Unable to get value using Managed identity" in refused.value.message
    assert "SecretNotFound" in refused.value.message
    assert apps.controls.get(apps.subscription)["replicas"] == []


async def test_a_secret_that_the_identity_may_not_read_fails_the_change(apps: Apps) -> None:
    """Owning the vault's subscription is no right to read it."""
    await (await apps.clients.secrets()).set_secret(_SECRET, KEY)
    roles = (await apps.clients.roles()).role_assignments
    scope = apps.clients.ground.vault_id.removeprefix("/")
    identity = await (await apps.clients.identities()).user_assigned_identities.get(
        apps.clients.group, apps.clients.ground.identity
    )
    async for one in roles.list_for_scope(scope):
        if one.principal_id == identity.principal_id:
            await roles.delete_by_id(str(one.id))
    with pytest.raises(HttpResponseError, match="ForbiddenByRbac"):
        await apps.put(await _keyed(apps))


def _mounted(apps: Apps) -> Any:
    app = wanted(
        apps.clients,
        container={"volume_mounts": [M.VolumeMount(volume_name="w", mount_path="/weights")]},
        volumes=[M.Volume(name="w", storage_type="AzureFile", storage_name="weights-ro")],
    )
    app.properties.template.containers[0].args[0] = "/weights/tiny"
    return app


async def _upload(clients: Clients, files: Mapping[str, bytes]) -> None:
    await give(clients, FILES_WRITER)
    share = (await clients.files()).get_share_client("weights")
    await share.create_directory("tiny")
    for name, content in files.items():
        await share.get_file_client(f"tiny/{name}").upload_file(content)


def _tiny(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in write_tiny_model(folder).iterdir()}


async def test_a_mounted_folder_is_what_the_engine_serves(apps: Apps, tmp_path: Path) -> None:
    """Its config is read; the log says where it is in the container, not where it is here."""
    files = _tiny(tmp_path / "tiny")
    longest = json.loads(files["config.json"])["max_position_embeddings"]
    await _upload(apps.clients, files)
    apps.set(engine_environment={"SIMULATED_ENGINE_ACCELERATOR": ""})  # for weights of no weight
    wanted_app = _mounted(apps)
    args = wanted_app.properties.template.containers[0].args
    args[args.index("--max-model-len") + 1] = str(longest)
    url = url_of(await apps.ready(wanted_app))
    async with caller() as http:
        reply = await http.get(f"{url}/v1/models")
    assert reply.json()["data"][0]["max_model_len"] == longest
    log = "\n".join(apps.controls.get(apps.subscription)["log"])
    assert "model   /weights/tiny" in log
    assert apps.clients.ground.storage_account not in log


async def test_a_share_that_is_gone_cannot_be_mounted(apps: Apps) -> None:
    """The container is not made, and the words name the share."""
    shares = (await apps.clients.storage()).file_shares
    ground = apps.clients.ground
    await shares.delete(apps.clients.group, ground.storage_account, "weights")
    apps.set(probe_scale=0.001)
    await apps.put(_mounted(apps))
    await apps.until_event("ContainerCreateFailed")
    log = apps.controls.get(apps.subscription)["log"]
    assert any(f"{ground.storage_account}.file.core.windows.net/weights" in one for one in log)
