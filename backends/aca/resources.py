"""What deployments stand on, as the SDK types it, as `az` commands, and as steps."""

import json
import shlex
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Any, Final, Literal, NamedTuple, TypeVar

from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.appcontainers import models as apps
from azure.mgmt.authorization.v2022_04_01 import models as roles
from azure.mgmt.keyvault import models as vaults
from azure.mgmt.loganalytics import models as workspaces
from azure.mgmt.msi.v2024_11_30 import models as identities
from azure.mgmt.resource.resources import models as resources
from azure.mgmt.storage import models as storage
from pydantic import ValidationError

from backends.aca.container import rules
from backends.aca.site import (
    CONSUMPTION,
    EXPIRES_TAG,
    JSON_TAG,
    MANAGED_BY,
    SHARE,
    SPEC_TAG,
    TARGET_TAG,
    Ground,
    translated,
)
from core.errors import ApiDisabled, InvalidArgument
from core.records import DeploymentSpec

MANAGED_TAG: Final = "managed-by"


def tags_of(target: str, spec: DeploymentSpec) -> dict[str, str]:
    """Give the tags of an app.

    Raises:
        InvalidArgument: What is asked for is too long for tags.
    """
    return {
        MANAGED_TAG: MANAGED_BY,
        TARGET_TAG: target,
        SPEC_TAG: spec.fingerprint,
        **{f"{JSON_TAG}-{number}": part for number, part in enumerate(_parts(spec))},
    }


def is_ours(tags: Mapping[str, str] | None) -> bool:
    """Whether a thing was made here."""
    return _lower(tags).get(MANAGED_TAG) == MANAGED_BY


def target_in(tags: Mapping[str, str] | None) -> str | None:
    """Give the target that a thing was made for."""
    return _lower(tags).get(TARGET_TAG)


def fingerprint_in(tags: Mapping[str, str] | None) -> str | None:
    """Give the fingerprint of what was asked for."""
    return _lower(tags).get(SPEC_TAG)


def expires_in(tags: Mapping[str, str] | None) -> int | None:
    """Give when its time ends, in seconds since 1970; None where nobody said."""
    said = _lower(tags).get(EXPIRES_TAG, "")
    return int(said) if said.isdecimal() else None


def spec_from_tags(tags: Mapping[str, str] | None) -> DeploymentSpec | None:
    """Give what was asked for; None where the tags do not say it, or were changed since."""
    held = _lower(tags)
    count, colon, first = held.get(f"{JSON_TAG}-0", "").partition(":")
    if not (colon and count.isdecimal()):
        return None
    rest = [held.get(f"{JSON_TAG}-{number}", "") for number in range(1, int(count))]
    try:
        return DeploymentSpec.model_validate_json("".join((first, *rest)))
    except ValidationError:
        return None


def _parts(spec: DeploymentSpec) -> list[str]:
    """Cut its JSON; later parts of a longer one that stood there before are not counted."""
    limits = rules().limits
    said = json.dumps(spec.model_dump(mode="json", exclude_defaults=True), separators=(",", ":"))
    # ASCII without spaces: nothing is counted twice, and no part is trimmed at its ends.
    text = said.replace(" ", "\\u0020")
    room = limits.tag_characters
    count = -(-(len(text) + len(f"{limits.json_tags}:")) // room)
    if count > limits.json_tags:
        raise InvalidArgument(
            f"What is asked for takes {len(text):,} characters, more than an app's tags hold.",
            fix="Shorten engine_args, or keep long values in a file of the image.",
        )
    whole = f"{count}:{text}"
    return [whole[start : start + room] for start in range(0, len(whole), room)]


def _lower(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Azure keeps the case of a tag's name, and does not mind it."""
    return {name.lower(): value for name, value in (tags or {}).items()}


OURS: Final = {MANAGED_TAG: MANAGED_BY}
SECRETS_USER: Final = "4633458b-17de-408a-b874-0445c86b69e6"
"""Key Vault Secrets User: reads secrets."""
SECRETS_OFFICER: Final = "b86a8fe4-44ce-4948-aee5-eccb2c155cd7"
"""Key Vault Secrets Officer: reads and keeps secrets."""
PROVIDERS: Final = (
    "Microsoft.App",
    "Microsoft.OperationalInsights",
    "Microsoft.ManagedIdentity",
    "Microsoft.KeyVault",
)
STORAGE_PROVIDER: Final = "Microsoft.Storage"
"""Needed with a share alone."""
_NAMES: Final = uuid.UUID("5b1f3c4a-5a4e-4d0e-9d63-9a0f6a1f0c11")
_RETENTION_DAYS: Final = 30
DELETED_DAYS: Final = 7
"""The least that a vault keeps what was deleted: its name is taken for so long."""


def group_of(ground: Ground) -> "resources.ResourceGroup":
    """Type the resource group."""
    return resources.ResourceGroup(location=ground.region, tags=dict(OURS))


def workspace_of(ground: Ground) -> "workspaces.Workspace":
    """Type the Log Analytics workspace."""
    return workspaces.Workspace(
        location=ground.region,
        tags=dict(OURS),
        properties=workspaces.WorkspaceProperties(
            sku=workspaces.WorkspaceSku(name="PerGB2018"), retention_in_days=_RETENTION_DAYS
        ),
    )


def environment_of(
    ground: Ground, profiles: Mapping[str, str], workspace_guid: str, key: str | None = None
) -> "apps.ManagedEnvironment":
    """Type the managed environment.

    Args:
        ground: The names.
        profiles: Types of workload profiles by their names, beside `Consumption`.
        workspace_guid: Of the workspace that gets the logs.
        key: That workspace's key; None where the body is only shown.
    """
    wanted = {CONSUMPTION: CONSUMPTION, **profiles}
    return apps.ManagedEnvironment(
        location=ground.region,
        tags=dict(OURS),
        properties=apps.ManagedEnvironmentProperties(
            workload_profiles=[
                apps.WorkloadProfile(name=name, workload_profile_type=kind)
                for name, kind in wanted.items()
            ],
            app_logs_configuration=apps.AppLogsConfiguration(
                destination="log-analytics",
                log_analytics_configuration=apps.LogAnalyticsConfiguration(
                    customer_id=workspace_guid, shared_key=key
                ),
            ),
        ),
    )


def identity_of(ground: Ground) -> "identities.Identity":
    """Type the identity that apps read the vault with."""
    return identities.Identity(location=ground.region, tags=dict(OURS))


def vault_of(
    ground: Ground, tenant_id: str, *, recover: bool = False
) -> "vaults.VaultCreateOrUpdateParameters":
    """Type the Key Vault; `recover` takes back one of that name that was deleted."""
    return vaults.VaultCreateOrUpdateParameters(
        location=ground.region,
        tags=dict(OURS),
        properties=vaults.VaultProperties(
            tenant_id=tenant_id,
            sku=vaults.Sku(family="A", name="standard"),
            enable_rbac_authorization=True,
            soft_delete_retention_in_days=DELETED_DAYS,
            create_mode="recover" if recover else None,
        ),
    )


def role_of(
    scope: str, role: str, principal: str, *, kind: str | None = None
) -> "roles.RoleAssignmentCreateParameters":
    """Type a role assignment; `kind`, left out, is found by Azure."""
    subscription = scope.split("/")[2]
    kinds = "/providers/Microsoft.Authorization/roleDefinitions"
    return roles.RoleAssignmentCreateParameters(
        role_definition_id=f"/subscriptions/{subscription}{kinds}/{role}",
        principal_id=principal,
        principal_type=kind,  # type: ignore[arg-type]  # None: nothing is sent, which it takes
    )


def assignment_name(scope: str, role: str, principal: str) -> str:
    """Name a role assignment so that the same one has the same name."""
    return str(uuid.uuid5(_NAMES, f"{scope}|{role}|{principal}".lower()))


def storage_account_of(ground: Ground) -> "storage.StorageAccountCreateParameters":
    """Type the storage account for shares on SSD, whose throughput is provisioned."""
    return storage.StorageAccountCreateParameters(
        sku=storage.Sku(name=rules().share.sku),
        kind="FileStorage",
        location=ground.region,
        tags=dict(OURS),
        properties=storage.StorageAccountPropertiesCreateParameters(
            enable_https_traffic_only=True,
            minimum_tls_version="TLS1_2",
            allow_blob_public_access=False,
            allow_shared_key_access=True,  # a mount has nothing else to log in with
        ),
    )


def share_of() -> "storage.FileShare":
    """Type the share for weights."""
    chosen = rules().share
    return storage.FileShare(
        file_share_properties=storage.FileShareProperties(
            share_quota=chosen.quota_gib,
            provisioned_bandwidth_mibps=chosen.mib_per_second,
            enabled_protocols="SMB",
        )
    )


def storage_link_of(
    account: str, share: str, *, read_only: bool, key: str | None = None
) -> "apps.ManagedEnvironmentStorage":
    """Type an environment's link to a share; `key` is None where the body is only shown."""
    return apps.ManagedEnvironmentStorage(
        properties=apps.ManagedEnvironmentStorageProperties(
            azure_file=apps.AzureFileProperties(
                account_name=account,
                account_key=key,
                share_name=share,
                access_mode="ReadOnly" if read_only else "ReadWrite",
            )
        )
    )


def restrictions_of(addresses: Iterable[str]) -> "list[apps.IpSecurityRestrictionRule]":
    """Type who may call: these addresses, and then nobody else."""
    return [
        apps.IpSecurityRestrictionRule(
            name=f"caller-{number}", ip_address_range=address, action="Allow"
        )
        for number, address in enumerate(addresses)
    ]


def as_sent(model: Any) -> dict[str, Any]:
    """Give a typed body as it goes over the wire, without what is unset."""
    # The older of Azure's packages have models of another kind.
    older = hasattr(model, "serialize")
    sent: dict[str, Any] = model.serialize() if older else model.as_dict(exclude_readonly=True)
    return sent


TAGS: Final = ("--tags", f"{MANAGED_TAG}={MANAGED_BY}")
_TEXT: Final = ("--output", "tsv")
_LOGS: Final = ("az", "monitor", "log-analytics", "workspace")
_ENVIRONMENT: Final = ("az", "containerapp", "env")
_KEPT: Final = ("az", "keyvault", "secret")
ME: Final = "$(az ad signed-in-user show --query id --output tsv)"
"""The object id of whoever is logged in, for a shell; it knows people, not service principals."""


def az_unless(*seen: str, made: str) -> str:
    """Do `made` where `seen` finds nothing.

    `az … create` puts a whole new body: an environment of somebody's would lose its other profiles,
    a group its tags, and a share that was enlarged its size.
    """
    return f"{shlex.join((*seen, '--output', 'none'))} 2>/dev/null || {made}"


def az_providers(ground: Ground, names: tuple[str, ...]) -> str:
    """Register resource providers; ends when they are."""
    made = ("az", "provider", "register", *_of(ground), "--wait", "--namespace")
    return "\n".join(shlex.join((*made, name)) for name in names)


def az_group(ground: Ground) -> str:
    """Make the resource group."""
    named = ("--name", ground.resource_group, *_of(ground))
    made = shlex.join(("az", "group", "create", *named, "--location", ground.region, *TAGS))
    return az_unless("az", "group", "show", *named, made=made)


def az_workspace(ground: Ground) -> str:
    """Make the workspace for logs."""
    named = ("--workspace-name", ground.workspace)
    made = shlex.join((*_LOGS, "create", *_there(ground), *named, *TAGS))
    return az_unless(*_LOGS, "show", *_in(ground), *named, made=made)


def az_environment(ground: Ground, profile: str, kind: str, guid: str | None = None) -> str:
    """Make the environment with the GPU's profile; `guid` is of a workspace of somebody's own."""
    named = ("--name", ground.environment, *_in(ground))
    logs = (*_in(ground), "--workspace-name", ground.workspace)
    key = (*_LOGS, "get-shared-keys", *logs, "--query", "primarySharedKey", *_TEXT)
    found = shlex.join((*_LOGS, "show", *logs, "--query", "customerId", *_TEXT))
    made = (*_ENVIRONMENT, "create", *named, "--location", ground.region, *TAGS)
    flags = ("--enable-workload-profiles", "true", "--logs-workspace-key", "@-")
    said = shlex.quote(guid) if guid else f'"$({found})"'
    source = "printenv WORKSPACE_KEY" if guid else shlex.join(key)
    created = f"{source} | {shlex.join((*made, *flags))} --logs-workspace-id {said}"
    profiles, one = (*_ENVIRONMENT, "workload-profile"), ("--workload-profile-name", profile)
    added = shlex.join((*profiles, "add", *named, *one, "--workload-profile-type", kind))
    return "\n".join(
        (
            az_unless(*_ENVIRONMENT, "show", *named, made=created),
            az_unless(*profiles, "show", *named, *one, made=added),
        )
    )


def az_identity(ground: Ground) -> str:
    """Make the identity that apps read the vault with."""
    named = ("--name", ground.identity)
    made = shlex.join(("az", "identity", "create", *named, *_there(ground), *TAGS))
    return az_unless("az", "identity", "show", *named, *_in(ground), made=made)


def az_vault(ground: Ground) -> str:
    """Make the vault, read by roles."""
    named = ("--name", ground.vault)
    flags = ("--enable-rbac-authorization", "true", "--retention-days", str(DELETED_DAYS))
    made = shlex.join(("az", "keyvault", "create", *named, *_there(ground), *flags, *TAGS))
    return az_unless("az", "keyvault", "show", *named, *_in(ground), made=made)


def az_by_roles(ground: Ground) -> str:
    """Let a vault go by roles."""
    changed = ("az", "keyvault", "update", "--name", ground.vault, *_in(ground))
    return shlex.join((*changed, "--enable-rbac-authorization", "true"))


def az_role(role: str, scope: str, whose: str, *, kind: Literal["User", "ServicePrincipal"]) -> str:
    """Give a role to `whose`, which a shell reads, on a scope; twice is harmless."""
    made = ("az", "role", "assignment", "create", "--role", role, "--scope", scope)
    more = ("--assignee-principal-type", kind, "--subscription", scope.split("/")[2])
    return f'{shlex.join((*made, *more))} --assignee-object-id "{whose}"'


def az_principal(ground: Ground) -> str:
    """Give the identity's principal, for a shell."""
    found = ("az", "identity", "show", "--name", ground.identity, *_in(ground))
    return f"$({shlex.join((*found, '--query', 'principalId', *_TEXT))})"


def az_storage_account(ground: Ground) -> str:
    """Make the storage account for shares on SSD."""
    named = ("--name", ground.storage_account)
    kind = ("--kind", "FileStorage", "--sku", rules().share.sku, "--https-only", "true")
    safe = ("--min-tls-version", "TLS1_2", "--allow-blob-public-access", "false")
    flags = (*kind, *safe, "--allow-shared-key-access", "true", *TAGS)
    made = shlex.join(("az", "storage", "account", "create", *named, *_there(ground), *flags))
    return az_unless("az", "storage", "account", "show", *named, *_in(ground), made=made)


def az_share(ground: Ground, name: str = SHARE) -> str:
    """Make the share for weights."""
    chosen, shares = rules().share, ("az", "storage", "share-rm")
    named = ("--name", name, *_in(ground), "--storage-account", ground.storage_account)
    size = ("--quota", str(chosen.quota_gib), "--enabled-protocols", "SMB")
    fast = ("--provisioned-bandwidth-mibps", str(chosen.mib_per_second))
    made = shlex.join((*shares, "create", *named, *size, *fast))
    return az_unless(*shares, "show", *named, made=made)


def az_enlarge_share(ground: Ground, gib: int) -> str:
    """Enlarge the share for weights."""
    named = ("--name", SHARE, *_in(ground), "--storage-account", ground.storage_account)
    return shlex.join(("az", "storage", "share-rm", "update", *named, "--quota", str(gib)))


def az_unlink(ground: Ground, name: str) -> str:
    """Take a link of the environment away; it asks first."""
    named = ("--name", ground.environment, *_in(ground), "--storage-name", name)
    return shlex.join((*_ENVIRONMENT, "storage", "remove", *named))


def az_link(ground: Ground, name: str, share: str, *, read_only: bool) -> str:
    """Link the environment to the share; the account's key goes through a pipe."""
    account = ("--account-name", ground.storage_account)
    keys = ("az", "storage", "account", "keys", "list", *account, *_in(ground))
    made = (*_ENVIRONMENT, "storage", "set", "--name", ground.environment)
    named = ("--storage-name", name, "--azure-file-account-name", ground.storage_account)
    how = ("--access-mode", "ReadOnly" if read_only else "ReadWrite")
    files = ("--azure-file-share-name", share, "--azure-file-account-key", "@-")
    return (
        f"{shlex.join((*keys, '--query', '[0].value', *_TEXT))}"
        f" | {shlex.join((*made, *_in(ground), *named, *files, *how))}"
    )


def az_keep_secret(ground: Ground, name: str, *tags: str) -> str:
    """Keep what comes through a pipe as a secret; it is in no file, argument or variable."""
    kept = (*_KEPT, "set", *_secret(ground, name))
    given = ("--file", "/dev/stdin", "--encoding", "utf-8", "--output", "none")
    return shlex.join((*kept, *given, *TAGS, *tags))


def az_keep_secret_if_none(ground: Ground, name: str, source: str, *tags: str) -> str:
    """Keep what `source` writes as a secret unless one of that name is kept."""
    seen = (*_KEPT, "show", *_secret(ground, name))
    return az_unless(*seen, made=f"{source} | {az_keep_secret(ground, name, *tags)}")


def az_app(ground: Ground, name: str) -> str:
    """Create or replace an app from the YAML that is written to it."""
    made = ("az", "containerapp", "create", "--name", name, *_in(ground))
    return shlex.join((*made, "--yaml", "/dev/stdin"))


def az_show_app(ground: Ground, name: str) -> str:
    """Show an app."""
    named = ("--name", name, *_in(ground))
    return shlex.join(("az", "containerapp", "show", *named, "--output", "yaml"))


def az_secret_value(ground: Ground, name: str) -> str:
    """Write what a secret holds."""
    return shlex.join((*_KEPT, "show", *_secret(ground, name), "--query", "value", *_TEXT))


def az_secret_tags(ground: Ground, name: str) -> str:
    """Show a secret's tags."""
    return shlex.join((*_KEPT, "show", *_secret(ground, name), "--query", "tags"))


def az_delete_secret(ground: Ground, name: str) -> str:
    """Delete a secret."""
    return shlex.join((*_KEPT, "delete", *_secret(ground, name)))


def az_list_secrets(ground: Ground) -> str:
    """List the vault's secrets, without what they hold."""
    return shlex.join((*_KEPT, "list", "--vault-name", ground.vault, *_of(ground)))


def _secret(ground: Ground, name: str) -> tuple[str, ...]:
    return "--vault-name", ground.vault, "--name", name, *_of(ground)


def _of(ground: Ground) -> tuple[str, ...]:
    """Name the subscription: whoever pastes a command may have chosen another one."""
    return "--subscription", ground.subscription


def _in(ground: Ground) -> tuple[str, ...]:
    return "--resource-group", ground.resource_group, *_of(ground)


def _there(ground: Ground) -> tuple[str, ...]:
    return (*_in(ground), "--location", ground.region)


T = TypeVar("T")

REGISTERING: Final = "registering providers"
ENVIRONMENT: Final = "creating the environment"
ROLE: Final = "waiting for a role to take effect"
PREPARING: Final = "creating what deployments stand on"
"""Group, workspace, identity, vault and storage: each takes seconds."""
PHASES: Final = frozenset({REGISTERING, ENVIRONMENT, ROLE, PREPARING})
"""Everything that a deployment may wait for before it has an app."""


class Stand(Enum):
    """What there is of it."""

    THERE = auto()
    UNDER_WAY = auto()
    ABSENT = auto()


class Step(NamedTuple):
    """One thing that is needed once."""

    name: str
    what: str
    command: str
    """As a person would type it."""
    look: Callable[[], Awaitable[Stand]]
    make: Callable[[], Awaitable[object]]
    """Begins it, and does not wait; harmless when it is done already."""
    after: tuple[str, ...] = ()
    """Names of those that must be there before."""
    phase: str = PREPARING
    """What is waited for until it is there."""
    usd_per_month: float = 0.0


async def stand_of(step: Step) -> Stand:
    """Look at one; where its provider is not registered, it is not there."""
    try:
        return await step.look()
    except ApiDisabled:
        return Stand.ABSENT


async def or_none(what: str, asked: Awaitable[T]) -> T | None:
    """Give what is asked for; None if there is none."""
    try:
        with translated(what):
            return await asked
    except ResourceNotFoundError:
        return None


def is_made(state: str | None) -> Stand:
    """Read a provisioning state; what failed is not there, for it is made anew.

    >>> is_made("Succeeded"), is_made(None), is_made("Creating").name, is_made("Failed").name
    (<Stand.THERE: 1>, <Stand.THERE: 1>, 'UNDER_WAY', 'ABSENT')
    """
    if state is None or state.lower() == "succeeded":
        return Stand.THERE
    return Stand.ABSENT if state.lower() in {"failed", "canceled"} else Stand.UNDER_WAY
