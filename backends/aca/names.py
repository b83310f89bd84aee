"""What things are called on Azure's side."""

import hashlib
from typing import Final

from core.record import Record
from core.records import Target
from core.settings import Settings

MANAGED_BY: Final = "vllm-devops-agent"
"""The value of the tag `managed-by` on everything that is made here."""
TARGET_TAG: Final = "vllm-devops-target"
SPEC_TAG: Final = "vllm-devops-spec"
"""Its value is the spec's fingerprint."""
EXPIRES_TAG: Final = "vllm-devops-expires"
"""Its value is in seconds since 1970."""
JSON_TAG: Final = "vllm-devops-json"
"""The spec itself, cut to what a tag holds: `-0`, `-1` and so on follow."""
DEPLOYMENT_TAG: Final = "vllm-devops-deployment"
"""Of what was made for one deployment alone."""
GROUP_TAG: Final = "vllm-devops-group"
"""A vault may serve several groups: a deployment of the same name elsewhere has another key."""
OWN: Final = "vllm-devops"
"""What is made once is called so, with the region where there is one in each."""
CONTAINER: Final = "vllm"
KEY: Final = "api-key"
"""The app's name for the engine's key; it refers to the vault."""
HF_SECRET: Final = "hf-token"  # noqa: S105  the secret's name, in the vault and in apps
REGISTRY_SECRET: Final = "registry-password"  # noqa: S105  likewise
SHARE: Final = "weights"
"""The file share with weights, and the environment's link to it."""
CONSUMPTION: Final = "Consumption"
NO_SUBSCRIPTION: Final = "SUBSCRIPTION_ID"
"""Said in texts while no subscription is set."""
REHEARSED_SUBSCRIPTION: Final = "00000000-0000-4000-8000-000000000000"
DEFAULT_REGION: Final = "swedencentral"


class Ground(Record):
    """What every deployment of a target stands on; made once, by the set-up."""

    subscription: str
    resource_group: str
    region: str
    environment: str
    workspace: str
    identity: str
    """The user-assigned identity that apps run as."""
    vault: str
    storage_account: str

    @property
    def group_id(self) -> str:
        """The resource group's full id."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"

    @property
    def environment_id(self) -> str:
        """The managed environment's full id."""
        return f"{self.group_id}/providers/Microsoft.App/managedEnvironments/{self.environment}"

    @property
    def identity_id(self) -> str:
        """The identity's full id."""
        kind = "Microsoft.ManagedIdentity/userAssignedIdentities"
        return f"{self.group_id}/providers/{kind}/{self.identity}"

    @property
    def vault_id(self) -> str:
        """The vault's full id."""
        return f"{self.group_id}/providers/Microsoft.KeyVault/vaults/{self.vault}"

    @property
    def storage_id(self) -> str:
        """The storage account's full id."""
        kind = "Microsoft.Storage/storageAccounts"
        return f"{self.group_id}/providers/{kind}/{self.storage_account}"

    @property
    def workspace_id(self) -> str:
        """The workspace's full id."""
        kind = "Microsoft.OperationalInsights/workspaces"
        return f"{self.group_id}/providers/{kind}/{self.workspace}"

    @property
    def owner(self) -> str:
        """Whose secrets are meant in a vault of several groups."""
        return f"{self.subscription}/{self.resource_group}"

    def key_tags(self, deployment: str) -> dict[str, str]:
        """Give the tags of a deployment's key, beside the one that everything has."""
        return {DEPLOYMENT_TAG: deployment, GROUP_TAG: self.owner}

    def app_id(self, name: str) -> str:
        """Give an app's full id."""
        return f"{self.group_id}/providers/Microsoft.App/containerApps/{name}"


def ground_of(target: Target, settings: Settings, subscription: str) -> Ground:
    """Name everything; what Azure wants to be unique in the world is derived from whose it is."""
    group = settings.azure_resource_group or OWN
    region = (settings.azure_location or target.region or DEFAULT_REGION).lower().replace(" ", "")
    unique = hashlib.sha256(f"{subscription}/{group}".lower().encode()).hexdigest()[:12]
    return Ground(
        subscription=subscription,
        resource_group=group,
        region=region,
        environment=settings.azure_containerapps_environment or f"{OWN}-{region}",
        workspace=f"{OWN}-{region}",
        identity=OWN,
        vault=settings.azure_keyvault_name or f"vllm-{unique}",
        storage_account=settings.azure_storage_account or f"vllm{unique}",
    )


def key_secret(name: str) -> str:
    """Name the vault's secret with a deployment's key."""
    return f"vllm-devops-{name}-api-key"
