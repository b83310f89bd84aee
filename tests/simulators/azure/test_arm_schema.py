"""Every answer about Container Apps is one that Microsoft's schema, and its models, know."""

import ssl
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import SCOPE, Clients
from core.settings import AzurePlane
from simulators.azure.errors import Refused
from simulators.azure.serving import checked
from tests.backends.aca import armschema
from tests.simulators.azure.container_apps import NAME, created, small
from tests.vendor_azure import NEWER, READ_ONLY

pytestmark = pytest.mark.anyio


@pytest.fixture
async def told(azure: AzurePlane, clients: Clients) -> AsyncIterator[Any]:
    """Ask for what is below Microsoft.App in the group, and give the answer as it came."""
    trust = ssl.create_default_context(cafile=azure.ca)
    token = (await (await clients.credential()).get_token(SCOPE)).token
    base = f"{azure.arm}{clients.ground.group_id}/providers/Microsoft.App"
    async with httpx2.AsyncClient(verify=trust, trust_env=False) as raw:

        async def ask(path: str, *, method: str = "GET") -> Any:
            reply = await raw.request(
                method,
                f"{base}/{path}",
                params={"api-version": "2026-07-01"},
                headers={"Authorization": f"Bearer {token}"},
            )
            assert reply.is_success, reply.text
            return reply.json()

        yield ask


@pytest.fixture
async def app(clients: Clients) -> Any:
    """An app that has everything that a deployment's has."""
    own = {clients.ground.identity_id: M.UserAssignedIdentity()}
    probe = M.ContainerAppProbe(
        type="Startup", http_get=M.ContainerAppProbeHttpGet(path="/health", port=8000)
    )
    restriction = M.IpSecurityRestrictionRule(
        name="caller", ip_address_range="127.0.0.1/32", action="Allow"
    )
    asked = M.HttpScaleRule(metadata={"concurrentRequests": "16"})
    rule = M.ScaleRule(name="http", http=asked)
    configuration = M.Configuration(
        secrets=[M.Secret(name="s", value="v")],
        ingress=M.Ingress(external=True, target_port=8000, ip_security_restrictions=[restriction]),
    )
    return await created(
        clients,
        small(
            clients,
            configuration=configuration,
            identity=M.ManagedServiceIdentity(type="UserAssigned", user_assigned_identities=own),
            probes=[probe],
            env=[M.EnvironmentVar(name="S", secret_ref="s")],
            scale=M.Scale(min_replicas=1, max_replicas=1, rules=[rule]),
            volumes=[M.Volume(name="w", storage_type="AzureFile", storage_name="weights")],
            volume_mounts=[M.VolumeMount(volume_name="w", mount_path="/weights")],
        ),
    )


async def test_the_schema_is_looked_for_beside_the_project() -> None:
    """Where it is not, the next test is not collected, and the reason is written."""
    if not armschema.HERE:
        sys.stderr.write(f"{armschema.WHY_NOT}\n")
    assert armschema.WHY_NOT


if armschema.HERE:

    async def test_what_is_told_is_known_to_the_schema(
        clients: Clients, app: Any, told: Any
    ) -> None:
        """Made strict, but for what Azure alone writes."""
        environment = f"managedEnvironments/{clients.ground.environment}"
        for resource, path in (
            ("containerApps", f"containerApps/{app.name}"),
            ("managedEnvironments", environment),
            ("managedEnvironments_storages", f"{environment}/storages/weights"),
        ):
            faults = armschema.faults(resource, await told(path), only_read=READ_ONLY | NEWER)
            assert faults == []


async def test_what_is_told_is_known_to_the_models(clients: Clients, app: Any, told: Any) -> None:
    """Unknown keys and other types are refused, in what has no schema as well."""
    revision = f"containerApps/{NAME}/revisions/{app.latest_revision_name}"
    environment = f"managedEnvironments/{clients.ground.environment}"
    for model, path in (
        (M.ContainerApp, f"containerApps/{NAME}"),
        (M.Revision, revision),
        (M.ReplicaCollection, f"{revision}/replicas"),
        (M.ManagedEnvironment, environment),
        (M.ManagedEnvironmentStorage, f"{environment}/storages/weights"),
    ):
        checked(model, await told(path), patch=True)
    token = await told(f"containerApps/{NAME}/getAuthtoken", method="POST")
    checked(M.ContainerAppAuthToken, token, patch=True)
    secrets = await told(f"containerApps/{NAME}/listSecrets", method="POST")
    checked(M.SecretsCollection, secrets, patch=True)


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"properties": {"template": {"scale": {"minReplica": 0}}}},
        {"properties": {"template": {"scale": {"minReplicas": "0"}}}},
        {"properties": {"template": {"scale": {"minReplicas": True}}}},
        {"properties": {"template": {"containers": {}}}},
        {"properties": {"template": []}},
        {"properties": {"configuration": {"activeRevisionsMode": "Several"}}},
        {"tags": {"a": 1}},
    ],
)
def test_the_models_are_strict(change: dict[str, Any]) -> None:
    """What they are to find is found, wherever it is."""
    with pytest.raises(Refused) as refusal:
        checked(M.ContainerApp, {"location": "eastus", **change})
    assert refusal.value.status == 400


def test_what_only_azure_writes_and_what_is_null_is_left_out() -> None:
    """A word of an enumeration is written as Azure does, whatever its letters were."""
    body = {
        "id": "x",
        "location": "eastus",
        "tags": None,
        "properties": {
            "provisioningState": "Succeeded",
            "configuration": {"activeRevisionsMode": "single"},
        },
    }
    assert checked(M.ContainerApp, body) == {
        "location": "eastus",
        "properties": {"configuration": {"activeRevisionsMode": "Single"}},
    }
    assert checked(M.ContainerApp, {"tags": None}, patch=True) == {"tags": None}
    with pytest.raises(Refused, match="location"):
        checked(M.ContainerApp, {})
