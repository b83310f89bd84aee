"""What Azure refuses, each with its code: one table, asked inside this process."""

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import httpx2
import pytest

from core.settings import AzurePlane
from simulators.azure.admission import ARM, issue_token
from simulators.azure.ground import prepare
from simulators.azure.plane import secured_app
from simulators.azure.state import Knobs, Subscription, World

pytestmark = pytest.mark.anyio
SUB: Final = "6d1cf189-11a1-4b54-b51e-2e7b193dab96"
GROUPS: Final = f"/subscriptions/{SUB}/resourceGroups"
IN: Final = f"{GROUPS}/vllm-devops/providers"
ENVIRONMENT: Final = f"{IN}/Microsoft.App/managedEnvironments/vllm-devops-swedencentral"
NEW_ENVIRONMENT: Final = f"{IN}/Microsoft.App/managedEnvironments/e1"
APP: Final = f"{IN}/Microsoft.App/containerApps/gemma"
IDENTITY: Final = f"{IN}/Microsoft.ManagedIdentity/userAssignedIdentities"
VAULT: Final = f"{IN}/Microsoft.KeyVault/vaults/v-of-the-test"
ACCOUNT: Final = f"{IN}/Microsoft.Storage/storageAccounts"
ROLE: Final = f"{ENVIRONMENT}/providers/Microsoft.Authorization/roleAssignments"
READER: Final = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
WORKSPACE: Final = f"{IN}/Microsoft.OperationalInsights/workspaces"
TENANT: Final = Subscription(id=SUB).tenant
ROLES: Final = f"/subscriptions/{SUB}/providers/Microsoft.Authorization/roleDefinitions"
CALLER: Final = Subscription(id=SUB).caller
STRANGER: Final = f"{IDENTITY}/nobody"
VAULT_URL: Final = "https://v.vault.azure.net/secrets/s"
REGION: Final = {"location": "swedencentral"}
BODIES: Final[dict[str, Any]] = {
    "containerApps": {
        **REGION,
        "properties": {
            "environmentId": ENVIRONMENT,
            "configuration": {},
            "template": {
                "containers": [
                    {"name": "main", "image": "example.com/a:1",
                     "resources": {"cpu": 0.5, "memory": "1Gi"}}
                ],
                "scale": {"minReplicas": 0, "maxReplicas": 1},
            },
        },
    },
    "managedEnvironments": {
        **REGION,
        "properties": {
            "workloadProfiles": [{"name": "Consumption", "workloadProfileType": "Consumption"}]
        },
    },
    "storages": {
        "properties": {
            "azureFile": {"accountName": "a", "accountKey": "k", "shareName": "s",
                          "accessMode": "ReadOnly"}
        }
    },
    "vaults": {
        **REGION,
        "properties": {"tenantId": TENANT, "sku": {"family": "A", "name": "standard"}},
    },
    "storageAccounts": {**REGION, "kind": "StorageV2", "sku": {"name": "Standard_LRS"}},
    "shares": {"properties": {"shareQuota": 100}},
    "roleAssignments": {
        "properties": {
            "principalId": CALLER,
            "roleDefinitionId": f"/subscriptions/{SUB}/providers/Microsoft.Authorization"
            f"/roleDefinitions/{READER}",
        }
    },
    "workspaces": REGION,
    "userAssignedIdentities": REGION,
    "resourceGroups": REGION,
}  # fmt: skip
"""What is taken, by the last type of a path; rows change one thing."""
CONTAINER: Final = "properties.template.containers.0"
SCALE: Final = "properties.template.scale"
INGRESS: Final = "properties.configuration.ingress"
SECRETS: Final = "properties.configuration.secrets"


class Row(NamedTuple):
    """One call that is refused; a body without a change is what Azure takes."""

    why: str
    call: str
    code: str
    change: dict[str, Any] = {}
    knobs: dict[str, Any] = {}
    before: tuple[str, ...] = ()
    """Calls that are taken, of which each leaves something behind."""


def _timed(**metadata: str) -> dict[str, Any]:
    """Return a rule of KEDA's cron scaler, with another value for some of its metadata."""
    usual = {"timezone": "UTC", "start": "0 6 * * *", "end": "0 20 * * *", "desiredReplicas": "1"}
    return {"name": "t", "custom": {"type": "cron", "metadata": {**usual, **metadata}}}


def app(why: str, code: str, change: dict[str, Any], **more: Any) -> Row:
    """Change one thing of an app."""
    return Row(why, f"PUT {APP}", f"ContainerApp{code}", change, **more)


def probe(why: str, code: str, kind: str, **said: Any) -> Row:
    """Give an app one probe; `said` replaces what it asks."""
    probes = [{"type": kind, "httpGet": {"path": "/", "port": 80}, **said}]
    return app(why, f"Probe{code}", {f"{CONTAINER}.probes": probes})


def rules(*rows: tuple[str, str, str]) -> dict[str, Any]:
    """Restrict an app's ingress."""
    keys = ("name", "ipAddressRange", "action")
    return {INGRESS: {"external": True, "ipSecurityRestrictions":
            [dict(zip(keys, row, strict=True)) for row in rows]}}  # fmt: skip


def requests(*numbers: Any) -> dict[str, Any]:
    """Scale an app by requests, in rules of one name."""
    return {f"{SCALE}.rules": [
        {"name": "http", "http": {"metadata": {"concurrentRequests": one}}} for one in numbers
    ]}  # fmt: skip


ROWS: Final = (
    Row("no such type", f"GET {IN}/Microsoft.App/pods/p", "InvalidResourceType"),
    Row("a verb that it has not", f"PATCH {VAULT}", "HttpMethodNotAllowed"),
    Row("nothing by that name", f"GET {APP}", "ResourceNotFound"),
    Row("a part of nothing", f"GET {APP}/revisions", "ResourceNotFound"),
    Row("no group", f"PUT {APP.replace('vllm-devops/', 'g/')}", "ResourceGroupNotFound"),
    Row("no location", f"PUT {IDENTITY}/one", "LocationRequired", {"location": None}),
    Row("another location", f"PUT {IDENTITY}/vllm-devops", "InvalidResourceLocation",
        {"location": "eastus"}),
    Row("a patch without the location", f"PATCH {ENVIRONMENT}", "LocationRequired",
        {"location": None}),
    Row("tags too long", f"PUT {IDENTITY}/one", "InvalidTagValueLength",
        {"tags": {"a": "b" * 257}}),
    Row("too many tags", f"PUT {IDENTITY}/one", "InvalidTags",
        {"tags": {str(one): "" for one in range(51)}}),
    Row("a tag that is no text", f"PUT {IDENTITY}/one", "InvalidRequestContent",
        {"tags": {"a": 1}}),
    Row("an unknown key", f"PUT {WORKSPACE}/logs", "InvalidRequestContent", {"gpu": 1}),
    Row("what the caller may not", f"PUT {IDENTITY}/one", "AuthorizationFailed",
        knobs={"denied_actions": ["*identities/write"]}),
    Row("a group alone registers nothing",
        f"POST /subscriptions/{SUB}/providers/Microsoft.App/register", "AuthorizationFailed",
        knobs={"group_alone": True}),
    Row("an unknown provider", f"POST /subscriptions/{SUB}/providers/Micro.App/register",
        "InvalidResourceNamespace"),
    Row("an operation of long ago",
        f"GET /subscriptions/{SUB}/providers/Microsoft.App/locations/swedencentral"
        "/managedEnvironmentOperationResults/one", "OperationNotFound"),
    Row("an environment's name", f"PUT {NEW_ENVIRONMENT[:-2]}1st", "ManagedEnvironmentInvalidName"),
    Row("two dashes", f"PUT {NEW_ENVIRONMENT}--b", "ManagedEnvironmentInvalidName"),
    Row("a GPU that the region lacks", f"PUT {NEW_ENVIRONMENT}", "WorkloadProfileTypeNotSupported",
        {"location": "westeurope", "properties.workloadProfiles.0.workloadProfileType":
         "Consumption-GPU-NC24-A100"}),
    Row("a GPU in an old one", f"PUT {ENVIRONMENT}", "WorkloadProfileTypeNotSupported",
        {"properties.workloadProfiles.0": {"name": "more", "workloadProfileType":
         "Consumption-GPU-NC24-A100"}}, {"old_environment": True}),
    Row("a workspace without its key", f"PUT {NEW_ENVIRONMENT}",
        "InvalidRequestParameterWithDetails",
        {"properties.appLogsConfiguration": {"destination": "log-analytics",
         "logAnalyticsConfiguration": {"customerId": "c"}}}),
    Row("a change of what is being made", f"PUT {NEW_ENVIRONMENT}",
        "ManagedEnvironmentOperationInProgress", before=(f"PUT {NEW_ENVIRONMENT}",)),
    Row("an environment with an app", f"DELETE {ENVIRONMENT}",
        "ManagedEnvironmentHasContainerApps", before=(f"PUT {APP}",)),
    Row("where there are no environments",
        f"GET /subscriptions/{SUB}/providers/Microsoft.App/locations/nowhere"
        "/availableManagedEnvironmentsWorkloadProfileTypes", "NoRegisteredProviderFound"),
    Row("a link's name", f"PUT {ENVIRONMENT}/storages/dots.in",
        "ManagedEnvironmentStorageInvalidName"),
    Row("a link without a key", f"PUT {ENVIRONMENT}/storages/more",
        "ManagedEnvironmentStorageInvalid", {"properties.azureFile.accountKey": None}),
    Row("a link of no environment", f"GET {NEW_ENVIRONMENT}/storages", "ResourceNotFound"),
    *(Row(f"an app named {name}", f"PUT {APP[:-5]}{name}", "ContainerAppInvalidName")
      for name in ("a", "1st", "two--dashes", "ends-", "Upper", "x" * 33)),
    *(app(f"an unknown key {where}", "InvalidSchema", {f"{where}gpu": 1})
      for where in ("", "properties.", "properties.template.", f"{CONTAINER}.resources.")),
    Row("no environment", f"PUT {APP}", "InvalidManagedEnvironmentId",
        {"properties.environmentId": "e"}),
    Row("an environment that is missing", f"PUT {APP}", "ManagedEnvironmentNotFound",
        {"properties.environmentId": NEW_ENVIRONMENT}),
    Row("an environment that is being made", f"PUT {APP}", "ManagedEnvironmentNotProvisioned",
        {"properties.environmentId": NEW_ENVIRONMENT}, before=(f"PUT {NEW_ENVIRONMENT}",)),
    app("another location than its environment", "InvalidLocation", {"location": "eastus"}),
    app("a change of what is being changed", "OperationInProgress", {}, before=(f"PUT {APP}",)),
    Row("a profile that is not there", f"PUT {APP}", "WorkloadProfileNameInvalid",
        {"properties.workloadProfileName": "consumption"}),
    Row("no linked action", f"PUT {APP}", "LinkedAuthorizationFailed",
        knobs={"denied_actions": ["*/managedEnvironments/join/action"]}),
    Row("a policy", f"PUT {APP}", "RequestDisallowedByPolicy", {INGRESS: {"external": True}},
        {"organisation_forbids": ["public-ingress"]}),
    app("no containers", "ContainersRequired", {"properties.template.containers": []}),
    *(app(f"{cpu} and {memory} on {profile}", "InvalidResourceTotal",
          {f"{CONTAINER}.resources": {"cpu": cpu, "memory": memory},
           "properties.workloadProfileName": profile})
      for cpu, memory, profile in (
          (1, "1Gi", "Consumption"), (8, "16Gi", "Consumption"), (1, "much", "Consumption"),
          (12, "110Gi", "gpu-a100"), (24, "220Gi", "gpu-t4"))),
    app("fewer at most than at least", "InvalidScale", {f"{SCALE}.minReplicas": 2}),
    *(
        app(f"a time without {what}", "InvalidScale", {f"{SCALE}.rules": [_timed(**metadata)]})
        for what, metadata in {
            "a zone": {"timezone": ""},
            "a number": {"desiredReplicas": ""},
            "a length": {"end": "0 6 * * *"},
            "five fields": {"start": "0 6 * *"},
            "a zone that there is": {"timezone": "Europe/Berlim"},
        }.items()
    ),
    app("nothing at most", "InvalidScale", {f"{SCALE}.maxReplicas": 0}),
    app("too many", "InvalidScale", {f"{SCALE}.maxReplicas": 1001}),
    app("a number for requests", "InvalidSchema", requests(16)),
    app("an unknown transport", "InvalidSchema", {INGRESS: {"transport": "h3"}}),
    *(Row(f"addresses {at}", f"PUT {APP}", "IpSecurityRestrictionInvalid", change)
      for at, change in enumerate((
          rules(("a", "10.0.0.1/8", "Allow")),
          rules(("a", "10.0.0.0/8", "Allow"), ("b", "11.0.0.0/8", "Deny"))))),
    app("a secret without a value", "SecretInvalid", {SECRETS: [{"name": "s"}]}),
    app("an identity that the app lacks", "SecretIdentityInvalid",
        {SECRETS: [{"name": "s", "keyVaultUrl": VAULT_URL, "identity": STRANGER}]}),
    Row("an identity that is missing", f"PUT {APP}", "FailedIdentityOperation",
        {"identity": {"type": "UserAssigned", "userAssignedIdentities": {STRANGER: {}}}}),
    app("a variable of no secret", "SecretRefNotFound",
        {f"{CONTAINER}.env": [{"name": "S", "secretRef": "s"}]}),
    Row("a volume of no link", f"PUT {APP}", "ManagedEnvironmentStorageNotFound",
        {"properties.template.volumes":
         [{"name": "v", "storageType": "AzureFile", "storageName": "nowhere"}]}),
    probe("liveness", "FailureThresholdOutOfRange", "Liveness", failureThreshold=31),
    probe("readiness", "FailureThresholdOutOfRange", "Readiness", failureThreshold=49),
    probe("startup", "FailureThresholdOutOfRange", "Startup", failureThreshold=241),
    probe("no failures", "FailureThresholdOutOfRange", "Startup", failureThreshold=0),
    probe("period", "PeriodSecondsOutOfRange", "Startup", periodSeconds=241),
    probe("timeout", "TimeoutSecondsOutOfRange", "Startup", timeoutSeconds=241),
    probe("delay", "InitialDelaySecondsOutOfRange", "Startup", initialDelaySeconds=61),
    app("a kind of probe", "InvalidSchema", {f"{CONTAINER}.probes": [{"type": "Exec"}]}),
    Row("a vault's name", f"PUT {VAULT}--x", "VaultNameNotValid"),
    Row("a vault's tenant", f"PUT {VAULT}", "BadRequest", {"properties.tenantId": SUB}),
    Row("a vault to recover", f"PUT {VAULT}", "SoftDeletedVaultDoesNotExist",
        {"properties.createMode": "recover"}),
    Row("a deleted vault's name", f"PUT {VAULT}", "ConflictError",
        before=(f"PUT {VAULT}", f"DELETE {VAULT}")),
    Row("a vault's name elsewhere", f"PUT {VAULT.replace('vllm-devops', 'g')}",
        "VaultAlreadyExists", before=(f"PUT {VAULT}", f"DELETE {VAULT}", f"PUT {GROUPS}/g")),
    Row("a vault that is not deleted",
        f"GET /subscriptions/{SUB}/providers/Microsoft.KeyVault/locations/swedencentral"
        "/deletedVaults/v-of-the-test", "DeletedVaultNotFound", before=(f"PUT {VAULT}",)),
    Row("an account's name", f"PUT {ACCOUNT}/with-hyphen", "AccountNameInvalid"),
    Row("shared keys", f"PUT {ACCOUNT}/one1", "RequestDisallowedByPolicy",
        knobs={"organisation_forbids": ["shared-keys"]}),
    Row("a share's name", f"PUT {ACCOUNT}/one1/fileServices/default/shares/a--b",
        "InvalidResourceName", before=(f"PUT {ACCOUNT}/one1",)),
    Row("no share", f"GET {ACCOUNT}/one1/fileServices/default/shares/abc", "ShareNotFound",
        before=(f"PUT {ACCOUNT}/one1",)),
    Row("no role", f"PUT {ROLE}/{SUB}", "RoleDefinitionDoesNotExist",
        {"properties.roleDefinitionId": "x"}),
    Row("nobody", f"PUT {ROLE}/{SUB}", "PrincipalNotFound", {"properties.principalId": SUB}),
    Row("the same role again", f"PUT {ROLE}/{SUB}", "RoleAssignmentExists",
        before=(f"PUT {ROLE}/{READER}",)),
    Row("a role of nothing", f"PUT {ROLE.replace('devops-sweden', 'x')}/{SUB}",
        "ResourceNotFound"),
)  # fmt: skip


@asynccontextmanager
async def cloud(
    folder: Path, knobs: dict[str, Any], scope: str = ARM
) -> AsyncIterator[httpx2.AsyncClient]:
    """Open a prepared subscription in which nothing ever ends, with its caller's token."""
    async with anyio.create_task_group() as tasks:
        world = World(folder=folder, tasks=tasks)
        here = "https://127.0.0.1"
        world.urls = AzurePlane(arm=here, logs=here, vaults=here, storage=here, http=here, ca="",
                                pid=0)  # fmt: skip
        transport = httpx2.ASGITransport(secured_app(world))
        sub = world.subscription(SUB)
        prepare(world, sub)
        sub.knobs = Knobs(operation_seconds=3600, environment_seconds=3600, **knobs)
        token, _ = issue_token(world, sub, [scope])
        async with httpx2.AsyncClient(
            transport=transport, base_url=here, headers={"Authorization": f"Bearer {token}"}
        ) as http:
            yield http
        tasks.cancel_scope.cancel()


async def ask(http: httpx2.AsyncClient, call: str, change: dict[str, Any]) -> httpx2.Response:
    """Make a call with the body of its type, changed in places such as `a.0.b`."""
    method, path = call.split(" ")
    body: Any = copy.deepcopy(BODIES.get(path.split("/")[-2], {}))
    for place, value in change.items():
        *way, last = place.split(".")
        at = body
        for word in way:
            at = at[int(word)] if isinstance(at, list) else at.setdefault(word, {})
        at[int(last) if isinstance(at, list) else last] = value
    content = body if method in {"PUT", "PATCH"} else None
    version = "&" if "?" in path else "?"
    return await http.request(method, f"{path}{version}api-version=2026-07-01", json=content)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.why)
async def test_what_azure_refuses_is_refused_by_its_own_code(row: Row, tmp_path: Path) -> None:
    """What differs from it in one thing alone is taken."""
    async with cloud(tmp_path, row.knobs) as http:
        for call in row.before:
            assert (await ask(http, call, {})).is_success, call
        refused = await ask(http, row.call, row.change)
    assert not refused.is_success
    assert refused.json()["error"]["code"] == row.code


async def test_what_is_in_the_table_is_taken_unchanged(tmp_path: Path) -> None:
    """So that each row is refused for its one change."""
    taken = (
        f"PUT {NEW_ENVIRONMENT}", f"PUT {APP}", f"PUT {ENVIRONMENT}/storages/more", f"PUT {VAULT}",
        f"PUT {ACCOUNT}/one1", f"PUT {ACCOUNT}/one1/fileServices/default/shares/abc",
        f"PUT {ROLE}/{SUB}", f"PUT {WORKSPACE}/logs", f"PUT {IDENTITY}/one", f"PUT {GROUPS}/g",
    )  # fmt: skip
    async with cloud(tmp_path, {}) as http:
        for call in taken:
            reply = await ask(http, call, {})
            assert reply.is_success, reply.text


@pytest.mark.parametrize(
    ("headers", "query", "status", "code"),
    [
        ({"Authorization": ""}, "?api-version=2026-07-01", 401, "AuthenticationFailed"),
        ({"Authorization": "Bearer a.b.c"}, "?api-version=2026-07-01", 401,
         "InvalidAuthenticationToken"),
        ({}, "", 400, "MissingApiVersionParameter"),
        ({}, "?api-version=new", 400, "InvalidApiVersionParameter"),
    ],
)  # fmt: skip
async def test_every_call_says_who_asks_in_which_version(
    headers: dict[str, str], query: str, status: int, code: str, tmp_path: Path
) -> None:
    """Before anything is looked at."""
    async with cloud(tmp_path, {}) as http:
        refused = await http.get(f"{ENVIRONMENT}{query}", headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert ("www-authenticate" in refused.headers) is (status == 401)


@pytest.mark.parametrize("after", [0, 3600])
async def test_a_role_opens_what_it_is_for_once_it_takes_effect(after: int, tmp_path: Path) -> None:
    """Secrets and files alike; an owner has no such role by being one."""
    vault, account = (
        f"{VAULT}/providers/Microsoft.Authorization/roleAssignments/{SUB}",
        f"{ACCOUNT}/one1/providers/Microsoft.Authorization/roleAssignments/{READER}",
    )
    roles = {
        vault: "4633458b-17de-408a-b874-0445c86b69e6",
        account: "b8eda974-7b85-4f76-af95-65846b26df6d",
    }
    shares = f"{ACCOUNT}/one1/fileServices/default/shares/abc"
    looks = {
        "https://vault.azure.net": "/vaults/v-of-the-test/secrets/key?api-version=7.6",
        "https://storage.azure.com": "/storage/file/one1/abc?restype=directory&comp=list",
    }
    for given in (False, True):
        for scope, look in looks.items():
            folder = tmp_path / f"{given}-{scope[8:13]}"
            async with cloud(folder, {"role_seconds": after}) as http:
                for call in (VAULT, f"{ACCOUNT}/one1", shares):
                    assert (await ask(http, f"PUT {call}", {})).is_success
                for where, role in roles.items() if given else ():
                    named = {"properties.roleDefinitionId": f"{ROLES}/{role}"}
                    assert (await ask(http, f"PUT {where}", named)).is_success
            async with cloud(folder, {}, scope) as http:
                reply = await http.get(look, headers={"x-ms-file-request-intent": "backup"})
            opened = given and not after
            assert (reply.status_code == 403) is not opened, reply.text


async def test_what_is_secret_is_written_and_never_told(tmp_path: Path) -> None:
    """An app's secrets, a workspace's key and an account's; whoever changes one says it anew."""
    linked = {"customerId": "c", "sharedKey": "hush"}
    logs = {"destination": "log-analytics", "logAnalyticsConfiguration": linked}
    calls: dict[str, dict[str, Any]] = {
        APP: {SECRETS: [{"name": "s", "value": "hush"}]},
        NEW_ENVIRONMENT: {"properties.appLogsConfiguration": logs},
        f"{ENVIRONMENT}/storages/more": {"properties.azureFile.accountKey": "hush"},
    }
    async with cloud(tmp_path, {}) as http:
        for path, change in calls.items():
            made = await ask(http, f"PUT {path}", change)
            found = await ask(http, f"GET {path}", {})
            assert made.is_success
            assert found.is_success
            assert "hush" not in made.text + found.text
