"""What Azure refuses of a container app, each with its code, asked for by Microsoft's client."""

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.container_apps import NAME, code_of, created, refused, small

pytestmark = pytest.mark.anyio
NOWHERE = "/subscriptions/s/resourceGroups/g/providers/Microsoft.App/managedEnvironments/e"
STRANGER = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/x/y"


def scale(**fields: Any) -> M.Scale:
    return M.Scale(**{"min_replicas": 0, "max_replicas": 1, **fields})


def rule(requests: Any) -> M.ScaleRule:
    return M.ScaleRule(name="http", http=M.HttpScaleRule(metadata={"concurrentRequests": requests}))


def ingress(**fields: Any) -> M.Configuration:
    return M.Configuration(ingress=M.Ingress(**{"external": True, "target_port": 8000, **fields}))


def restricted(*rows: tuple[str, str, str]) -> M.Configuration:
    rules = [
        M.IpSecurityRestrictionRule(name=name, ip_address_range=addresses, action=action)
        for name, addresses, action in rows
    ]
    return ingress(ip_security_restrictions=rules)


def secret(**fields: Any) -> M.Configuration:
    return M.Configuration(secrets=[M.Secret(**fields)])


def resources(cpu: float, memory: str) -> M.ContainerResources:
    return M.ContainerResources(cpu=cpu, memory=memory)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an environment that is none": ({"environment": "e"}, "InvalidManagedEnvironmentId"),
    "an environment that is not there": ({"environment": NOWHERE}, "ManagedEnvironmentNotFound"),
    "a profile that is not the environment's": ({"profile": "gpu"}, "WorkloadProfileNameInvalid"),
    "a profile in other letters": ({"profile": "consumption"}, "WorkloadProfileNameInvalid"),
    "tags too long": ({"tags": {"a": "b" * 257}}, "InvalidTagValueLength"),
    "no image": ({"image": None}, "ContainerAppImageRequired"),
    "a container's name": ({"name": "A.B"}, "ContainerAppContainerInvalidName"),
    "too little memory": ({"resources": resources(1, "1Gi")}, "ContainerAppInvalidResourceTotal"),
    "too much": ({"resources": resources(8, "16Gi")}, "ContainerAppInvalidResourceTotal"),
    "no memory": ({"resources": resources(1, "much")}, "ContainerAppInvalidResourceTotal"),
    "less than the GPU's": (
        {"profile": "gpu-a100", "resources": resources(12, "110Gi")},
        "ContainerAppInvalidResourceTotal",
    ),
    "the other GPU's": (
        {"profile": "gpu-t4", "resources": resources(24, "220Gi")},
        "ContainerAppInvalidResourceTotal",
    ),
    "fewer at most than at least": (
        {"scale": scale(min_replicas=2)},
        "ContainerAppInvalidScale",
    ),
    "nothing at most": ({"scale": scale(max_replicas=0)}, "ContainerAppInvalidScale"),
    "too many": ({"scale": scale(max_replicas=1001)}, "ContainerAppInvalidScale"),
    "no cooldown": ({"scale": scale(cooldown_period=0)}, "ContainerAppInvalidScale"),
    "a number for requests": ({"scale": scale(rules=[rule(16)])}, "ContainerAppInvalidSchema"),
    "words for requests": ({"scale": scale(rules=[rule("many")])}, "ContainerAppInvalidScale"),
    "rules of one name": (
        {"scale": scale(rules=[rule("1"), rule("2")])},
        "ContainerAppInvalidScale",
    ),
    "a port": (
        {"configuration": ingress(target_port=65536)},
        "ContainerAppInvalidIngressTargetPort",
    ),
    "half the traffic": (
        {"configuration": ingress(traffic=[M.TrafficWeight(weight=50, latest_revision=True)])},
        "ContainerAppInvalidTrafficWeight",
    ),
    "a range that is none": (
        {"configuration": restricted(("a", "10.0.0.1/8", "Allow"))},
        "IpSecurityRestrictionInvalid",
    ),
    "rules that differ": (
        {"configuration": restricted(("a", "10.0.0.0/8", "Allow"), ("b", "11.0.0.0/8", "Deny"))},
        "IpSecurityRestrictionInvalid",
    ),
    "restrictions of one name": (
        {"configuration": restricted(("a", "10.0.0.0/8", "Allow"), ("a", "11.0.0.0/8", "Allow"))},
        "IpSecurityRestrictionInvalid",
    ),
    "an unknown transport": (
        {"configuration": ingress(transport="h3")},
        "ContainerAppInvalidSchema",
    ),
    "a secret without a value": ({"configuration": secret(name="s")}, "ContainerAppSecretInvalid"),
    "a secret's name": (
        {"configuration": secret(name="S_S", value="v")},
        "ContainerAppSecretInvalid",
    ),
    "secrets of one name": (
        {
            "configuration": M.Configuration(
                secrets=[M.Secret(name="s", value="v"), M.Secret(name="s", value="w")]
            )
        },
        "ContainerAppSecretInvalid",
    ),
    "a vault's address": (
        {"configuration": secret(name="s", key_vault_url="https://x.org/s", identity="system")},
        "ContainerAppSecretKeyVaultUrlInvalid",
    ),
    "an identity that the app lacks": (
        {
            "configuration": secret(
                name="s",
                key_vault_url="https://v.vault.azure.net/secrets/s",
                identity=STRANGER,
            )
        },
        "ContainerAppSecretIdentityInvalid",
    ),
    "an identity that is not there": (
        {
            "identity": M.ManagedServiceIdentity(
                type="UserAssigned", user_assigned_identities={STRANGER: M.UserAssignedIdentity()}
            )
        },
        "FailedIdentityOperation",
    ),
    "a variable of no secret": (
        {"env": [M.EnvironmentVar(name="S", secret_ref="s")]},
        "ContainerAppSecretRefNotFound",
    ),
    "a volume of no link": (
        {"volumes": [M.Volume(name="v", storage_type="AzureFile", storage_name="nowhere")]},
        "ManagedEnvironmentStorageNotFound",
    ),
    "a volume with a dot": (
        {"volumes": [M.Volume(name="v.v", storage_type="EmptyDir")]},
        "ContainerAppInvalidVolume",
    ),
    "a mount of no volume": (
        {"volume_mounts": [M.VolumeMount(volume_name="v", mount_path="/v")]},
        "ContainerAppInvalidVolumeMount",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_cannot_be_is_refused_by_its_own_code(
    controls: Controls, clients: Clients, why: str
) -> None:
    said, code = REFUSED[why]
    assert await refused(clients, small(clients, **said)) == code
    assert not [one for one in controls.get(clients.subscription)["resources"] if NAME in one]


def probe(kind: str, **fields: Any) -> M.ContainerAppProbe:
    asked = M.ContainerAppProbeHttpGet(path="/health", port=8000)
    return M.ContainerAppProbe(**{"type": kind, "http_get": asked, **fields})


PROBES: list[tuple[tuple[M.ContainerAppProbe, ...], str]] = [
    ((probe("Liveness", failure_threshold=31),), "ContainerAppProbeFailureThresholdOutOfRange"),
    ((probe("Readiness", failure_threshold=49),), "ContainerAppProbeFailureThresholdOutOfRange"),
    ((probe("Startup", failure_threshold=241),), "ContainerAppProbeFailureThresholdOutOfRange"),
    ((probe("Startup", failure_threshold=0),), "ContainerAppProbeFailureThresholdOutOfRange"),
    ((probe("Startup", period_seconds=241),), "ContainerAppProbePeriodSecondsOutOfRange"),
    ((probe("Startup", timeout_seconds=241),), "ContainerAppProbeTimeoutSecondsOutOfRange"),
    (
        (probe("Startup", initial_delay_seconds=61),),
        "ContainerAppProbeInitialDelaySecondsOutOfRange",
    ),
    ((probe("Liveness", success_threshold=2),), "ContainerAppProbeSuccessThresholdOutOfRange"),
    ((probe("Startup"), probe("Startup")), "ContainerAppProbeDuplicateType"),
    ((probe("Startup", http_get=None),), "ContainerAppProbeInvalidHandler"),
    (
        (probe("Startup", tcp_socket=M.ContainerAppProbeTcpSocket(port=8000)),),
        "ContainerAppProbeInvalidHandler",
    ),
    ((probe("Exec"),), "ContainerAppInvalidSchema"),
]


@pytest.mark.parametrize(("probes", "code"), PROBES)
async def test_probes_beyond_the_limits_are_refused(
    clients: Clients, probes: tuple[M.ContainerAppProbe, ...], code: str
) -> None:
    assert await refused(clients, small(clients, probes=list(probes))) == code


async def test_probes_within_the_limits_are_taken(clients: Clients) -> None:
    probes = [
        probe("Liveness", failure_threshold=30, period_seconds=240),
        probe("Readiness", failure_threshold=48, success_threshold=10),
        probe("Startup", failure_threshold=240, initial_delay_seconds=0, timeout_seconds=240),
    ]
    app = await created(clients, small(clients, probes=probes))
    assert [one.type for one in app.template.containers[0].probes] == [
        "Liveness", "Readiness", "Startup"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a", "1st", "two--dashes", "ends-", "Upper", "x" * 33])
async def test_a_name_that_cannot_be_is_refused(clients: Clients, name: str) -> None:
    assert await refused(clients, small(clients), name) == "ContainerAppInvalidName"


async def test_keys_that_no_model_knows_are_refused(clients: Clients) -> None:
    for path in ((), ("properties",), ("properties", "template")):
        app = small(clients)
        where: Any = app
        for key in path:
            where = where[key]
        where["gpu"] = 1
        assert await refused(clients, app) == "ContainerAppInvalidSchema"
    fitting = resources(0.5, "1Gi")
    fitting["gpu"] = 1
    assert await refused(clients, small(clients, resources=fitting)) == "ContainerAppInvalidSchema"


async def test_an_app_is_where_its_environment_is_and_stays_in_it(clients: Clients) -> None:
    elsewhere = small(clients)
    elsewhere.location = "eastus"
    assert await refused(clients, elsewhere) == "ContainerAppInvalidLocation"
    del elsewhere["location"]
    assert await refused(clients, elsewhere) == "LocationRequired"
    await created(clients, small(clients))
    assert await refused(clients, small(clients, environment=NOWHERE)) == (
        "ContainerAppEnvironmentIdChangeNotAllowed"
    )


async def test_a_secret_of_a_vault_must_be_readable_when_the_app_is_provisioned(
    clients: Clients,
) -> None:
    identity = clients.ground.identity_id
    configuration = secret(
        name="s", key_vault_url=f"{await clients.vault_url()}/secrets/nothing", identity=identity
    )
    app = small(
        clients,
        configuration=configuration,
        identity=M.ManagedServiceIdentity(
            type="UserAssigned", user_assigned_identities={identity: M.UserAssignedIdentity()}
        ),
    )
    with pytest.raises(HttpResponseError, match="unable to fetch secret") as failure:
        await created(clients, app)
    assert code_of(failure.value) == "ContainerAppOperationError"
    vault = await clients.secrets()
    await vault.set_secret("nothing", "value")
    apps = (await clients.apps()).container_apps
    await (await apps.begin_delete(clients.group, NAME)).result()
    await created(clients, app)
    told = (await apps.list_secrets(clients.group, NAME)).value
    assert [(one.name, one.value, one.identity) for one in told] == [("s", "value", identity)]
