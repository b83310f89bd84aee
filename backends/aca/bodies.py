"""What deployments stand on, as Azure's SDK types it."""

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from backends.aca.names import CONSUMPTION, MANAGED_BY, Ground
from backends.aca.rules import rules
from backends.aca.tags import MANAGED_TAG
from backends.common import slim

if TYPE_CHECKING:
    from azure.mgmt.appcontainers import models as apps
    from azure.mgmt.authorization.v2022_04_01 import models as roles
    from azure.mgmt.keyvault import models as vaults
    from azure.mgmt.loganalytics import models as workspaces
    from azure.mgmt.msi.v2024_11_30 import models as identities
    from azure.mgmt.resource.resources import models as resources
    from azure.mgmt.storage import models as storage

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
    slim.opened("azure.mgmt.resource.resources")
    from azure.mgmt.resource.resources import models

    return models.ResourceGroup(location=ground.region, tags=dict(OURS))


def workspace_of(ground: Ground) -> "workspaces.Workspace":
    """Type the Log Analytics workspace."""
    slim.opened("azure.mgmt.loganalytics")
    from azure.mgmt.loganalytics import models

    return models.Workspace(
        location=ground.region,
        tags=dict(OURS),
        properties=models.WorkspaceProperties(
            sku=models.WorkspaceSku(name="PerGB2018"), retention_in_days=_RETENTION_DAYS
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
    slim.opened("azure.mgmt.appcontainers")
    from azure.mgmt.appcontainers import models

    wanted = {CONSUMPTION: CONSUMPTION, **profiles}
    return models.ManagedEnvironment(
        location=ground.region,
        tags=dict(OURS),
        properties=models.ManagedEnvironmentProperties(
            workload_profiles=[
                models.WorkloadProfile(name=name, workload_profile_type=kind)
                for name, kind in wanted.items()
            ],
            app_logs_configuration=models.AppLogsConfiguration(
                destination="log-analytics",
                log_analytics_configuration=models.LogAnalyticsConfiguration(
                    customer_id=workspace_guid, shared_key=key
                ),
            ),
        ),
    )


def identity_of(ground: Ground) -> "identities.Identity":
    """Type the identity that apps read the vault with."""
    slim.opened("azure.mgmt.msi.v2024_11_30")
    from azure.mgmt.msi.v2024_11_30 import models

    return models.Identity(location=ground.region, tags=dict(OURS))


def vault_of(
    ground: Ground, tenant_id: str, *, recover: bool = False
) -> "vaults.VaultCreateOrUpdateParameters":
    """Type the Key Vault; `recover` takes back one of that name that was deleted."""
    slim.opened("azure.mgmt.keyvault")
    from azure.mgmt.keyvault import models

    return models.VaultCreateOrUpdateParameters(
        location=ground.region,
        tags=dict(OURS),
        properties=models.VaultProperties(
            tenant_id=tenant_id,
            sku=models.Sku(family="A", name="standard"),
            enable_rbac_authorization=True,
            soft_delete_retention_in_days=DELETED_DAYS,
            create_mode="recover" if recover else None,
        ),
    )


def role_of(
    scope: str, role: str, principal: str, *, kind: str | None = None
) -> "roles.RoleAssignmentCreateParameters":
    """Type a role assignment; `kind`, left out, is found by Azure."""
    slim.opened("azure.mgmt.authorization.v2022_04_01")
    from azure.mgmt.authorization.v2022_04_01 import models

    subscription = scope.split("/")[2]
    kinds = "/providers/Microsoft.Authorization/roleDefinitions"
    return models.RoleAssignmentCreateParameters(
        role_definition_id=f"/subscriptions/{subscription}{kinds}/{role}",
        principal_id=principal,
        principal_type=kind,  # type: ignore[arg-type]  # None: nothing is sent, which it takes
    )


def assignment_name(scope: str, role: str, principal: str) -> str:
    """Name a role assignment so that the same one has the same name."""
    return str(uuid.uuid5(_NAMES, f"{scope}|{role}|{principal}".lower()))


def storage_account_of(ground: Ground) -> "storage.StorageAccountCreateParameters":
    """Type the storage account for shares on SSD, whose throughput is provisioned."""
    slim.opened("azure.mgmt.storage")
    from azure.mgmt.storage import models

    return models.StorageAccountCreateParameters(
        sku=models.Sku(name=rules().share.sku),
        kind="FileStorage",
        location=ground.region,
        tags=dict(OURS),
        properties=models.StorageAccountPropertiesCreateParameters(
            enable_https_traffic_only=True,
            minimum_tls_version="TLS1_2",
            allow_blob_public_access=False,
            allow_shared_key_access=True,  # a mount has nothing else to log in with
        ),
    )


def share_of() -> "storage.FileShare":
    """Type the share for weights."""
    slim.opened("azure.mgmt.storage")
    from azure.mgmt.storage import models

    chosen = rules().share
    return models.FileShare(
        file_share_properties=models.FileShareProperties(
            share_quota=chosen.quota_gib,
            provisioned_bandwidth_mibps=chosen.mib_per_second,
            enabled_protocols="SMB",
        )
    )


def storage_link_of(
    account: str, share: str, *, read_only: bool, key: str | None = None
) -> "apps.ManagedEnvironmentStorage":
    """Type an environment's link to a share; `key` is None where the body is only shown."""
    slim.opened("azure.mgmt.appcontainers")
    from azure.mgmt.appcontainers import models

    return models.ManagedEnvironmentStorage(
        properties=models.ManagedEnvironmentStorageProperties(
            azure_file=models.AzureFileProperties(
                account_name=account,
                account_key=key,
                share_name=share,
                access_mode="ReadOnly" if read_only else "ReadWrite",
            )
        )
    )


def restrictions_of(addresses: Iterable[str]) -> "list[apps.IpSecurityRestrictionRule]":
    """Type who may call: these addresses, and then nobody else."""
    slim.opened("azure.mgmt.appcontainers")
    from azure.mgmt.appcontainers import models

    return [
        models.IpSecurityRestrictionRule(
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
