"""Azure's async SDK clients, each opened when it is first needed; or those of a rehearsal."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backends.aca.failing import not_configured, translated
from backends.aca.identified import object_id
from backends.aca.names import (
    NO_SUBSCRIPTION,
    REHEARSED_SUBSCRIPTION,
    Ground,
    ground_of,
)
from backends.aca.remembered import RememberedCredential
from backends.base import World
from backends.common.slim import opened
from core.records import Target
from core.rehearsal import AzurePlane

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.keyvault.secrets.aio import SecretClient
    from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient
    from azure.mgmt.authorization.v2022_04_01.aio import AuthorizationManagementClient
    from azure.mgmt.keyvault.aio import KeyVaultManagementClient
    from azure.mgmt.loganalytics.aio import LogAnalyticsManagementClient
    from azure.mgmt.msi.v2024_11_30.aio import ManagedServiceIdentityClient
    from azure.mgmt.resource.resources.aio import ResourceManagementClient
    from azure.mgmt.storage.aio import StorageManagementClient
    from azure.monitor.query.aio import LogsQueryClient
    from azure.monitor.querymetrics.aio import MetricsClient
    from azure.storage.blob.aio import BlobServiceClient
    from azure.storage.fileshare.aio import ShareServiceClient

C = TypeVar("C")

SCOPE: Final = "https://management.azure.com/.default"
_INTENT: Final = "backup"
"""What a login, rather than an account's key, must say of itself to read a share."""
_TRY_AGAIN_SECONDS: Final = 0.2
_WAIT: Final[Any] = {"initial_backoff": 0.2, "increment_base": 0, "random_jitter_range": 0}
"""The same for storage, whose clients would else wait 15 s."""
_POLL_SECONDS: Final = 3.0
_POLL_SECONDS_REHEARSED: Final = 0.1


class Clients:
    """One subscription, resource group and region; opened without any I/O."""

    def __init__(self, target: Target, world: World) -> None:
        self._target = target
        self._world = world
        self._open: dict[str, Any] = {}
        self._plane: AzurePlane | None = None
        self._credential: AsyncTokenCredential | None = None
        self._connections: ClientSession | None = None

    @property
    def configured(self) -> bool:
        """Whether it is known whose cloud is meant."""
        return bool(self._world.azure or self._world.settings.azure_subscription_id)

    @property
    def subscription(self) -> str:
        """Its id.

        Raises:
            NotConfigured: No setting names it.
        """
        named = self._world.settings.azure_subscription_id
        if named:
            return named
        if self._world.azure:
            return REHEARSED_SUBSCRIPTION
        raise not_configured()

    @property
    def ground(self) -> Ground:
        """The names of what deployments stand on; without a subscription its name is a word."""
        whose = self.subscription if self.configured else NO_SUBSCRIPTION
        return ground_of(self._target, self._world.settings, whose)

    @property
    def region(self) -> str:
        """Where everything is made."""
        return self.ground.region

    @property
    def group(self) -> str:
        """The name of the resource group."""
        return self.ground.resource_group

    async def plane(self) -> AzurePlane | None:
        """Give the simulated cloud, None in the real world."""
        if self._plane is None and self._world.azure:
            self._plane = await self._world.azure()
        return self._plane

    async def credential(self) -> "AsyncTokenCredential":
        """Give whoever asks; who that is, is only known when a token is fetched."""
        plane = await self.plane()  # before: of two who ask at once, each would make its own
        if self._credential is None:
            if plane:
                from backends.aca.rehearsed import RehearsedCredential

                self._credential = RehearsedCredential(plane, self.subscription)
            else:
                from azure.identity.aio import DefaultAzureCredential

                self._credential = RememberedCredential(DefaultAzureCredential())
        return self._credential

    async def caller(self) -> str:
        """Give the object id of whoever asks, as their token says it.

        Raises:
            NotAuthenticated: Nobody is logged in.
        """
        credential = await self.credential()
        with translated("log in"):
            token = (await credential.get_token(SCOPE)).token
        return object_id(token)

    async def apps(self) -> "ContainerAppsAPIClient":
        """Apps, revisions, replicas, managed environments, and their quotas."""
        package = "azure.mgmt.appcontainers"
        found: ContainerAppsAPIClient = await self._arm(
            "apps", package, "aio._client", "ContainerAppsAPIClient"
        )
        return found

    async def resources(self) -> "ResourceManagementClient":
        """Resource groups and providers."""
        package = "azure.mgmt.resource.resources"
        found: ResourceManagementClient = await self._arm(
            "resources", package, "aio._client", "ResourceManagementClient"
        )
        return found

    async def workspaces(self) -> "LogAnalyticsManagementClient":
        """Log Analytics workspaces."""
        package = "azure.mgmt.loganalytics"
        found: LogAnalyticsManagementClient = await self._arm(
            "workspaces", package, "aio", "LogAnalyticsManagementClient"
        )
        return found

    async def identities(self) -> "ManagedServiceIdentityClient":
        """User-assigned identities."""
        package = "azure.mgmt.msi.v2024_11_30"
        found: ManagedServiceIdentityClient = await self._arm(
            "identities", package, "aio", "ManagedServiceIdentityClient"
        )
        return found

    async def roles(self) -> "AuthorizationManagementClient":
        """Role assignments."""
        package = "azure.mgmt.authorization.v2022_04_01"
        found: AuthorizationManagementClient = await self._arm(
            "roles", package, "aio", "AuthorizationManagementClient"
        )
        return found

    async def storage(self) -> "StorageManagementClient":
        """Storage accounts and their shares."""
        package = "azure.mgmt.storage"
        found: StorageManagementClient = await self._arm(
            "storage", package, "aio._client", "StorageManagementClient"
        )
        return found

    async def vaults(self) -> "KeyVaultManagementClient":
        """Key Vaults themselves."""
        package = "azure.mgmt.keyvault"
        found: KeyVaultManagementClient = await self._arm(
            "vaults", package, "aio._client", "KeyVaultManagementClient"
        )
        return found

    async def vault_url(self) -> str:
        """Give the address of the target's vault."""
        plane, name = await self.plane(), self.ground.vault
        return f"{plane.vaults}/{name}" if plane else f"https://{name}.vault.azure.net"

    async def secrets(self) -> "SecretClient":
        """The secrets of the target's vault."""
        url, more = await self.vault_url(), await self._shared()
        if self._plane:
            more["verify_challenge_resource"] = False

        def make() -> "SecretClient":
            from azure.keyvault.secrets.aio import SecretClient

            return SecretClient(url, **more)

        return self._kept("secrets", make)

    async def queries(self) -> "LogsQueryClient":
        """Log Analytics."""
        more = await self._shared()
        if self._plane:
            more["endpoint"] = self._plane.logs

        def make() -> "LogsQueryClient":
            from azure.monitor.query.aio import LogsQueryClient

            return LogsQueryClient(**more)

        return self._kept("queries", make)

    async def metrics(self) -> "MetricsClient":
        """Azure Monitor's figures of resources in the region."""
        more = await self._shared()
        url = self._plane.arm if self._plane else f"https://{self.region}.metrics.monitor.azure.com"

        def make() -> "MetricsClient":
            from azure.monitor.querymetrics.aio import MetricsClient

            return MetricsClient(url, **more)

        return self._kept("metrics", make)

    async def blobs(self) -> "BlobServiceClient":
        """The blobs of the target's storage account."""
        url, more = await self._storage_url("blob"), await self._shared()

        def make() -> "BlobServiceClient":
            from azure.storage.blob.aio import BlobServiceClient

            return BlobServiceClient(url, **more, **_WAIT)

        return self._kept("blobs", make)

    async def files(self) -> "ShareServiceClient":
        """The file shares of the target's storage account."""
        url, more = await self._storage_url("file"), await self._shared()

        def make() -> "ShareServiceClient":
            from azure.storage.fileshare.aio import ShareServiceClient

            return ShareServiceClient(url, token_intent=_INTENT, **more, **_WAIT)

        return self._kept("files", make)

    async def aclose(self) -> None:
        """Close every connection."""
        for client in self._open.values():
            await client.close()
        if self._credential is not None:
            await self._credential.close()
        if self._connections is not None:
            await self._connections.close()
        self._open, self._credential, self._connections = {}, None, None

    async def _storage_url(self, kind: str) -> str:
        plane, account = await self.plane(), self.ground.storage_account
        if plane:
            return f"{plane.storage}/{kind}/{account}"
        return f"https://{account}.{kind}.core.windows.net"

    async def _arm(self, name: str, package: str, module: str, kind: str) -> Any:
        from backends.aca.unregistered import NoRegistration

        more = await self._shared()
        more["per_retry_policies"] = [NoRegistration()]
        if self._plane:
            more |= {"base_url": self._plane.arm, "credential_scopes": [SCOPE]}
        more["polling_interval"] = _POLL_SECONDS_REHEARSED if self._plane else _POLL_SECONDS

        def make() -> Any:
            opened(package)
            found = getattr(importlib.import_module(f"{package}.{module}"), kind)
            return found(subscription_id=self.subscription, **more)

        return self._kept(name, make)

    async def _shared(self) -> dict[str, Any]:
        """What every client is given."""
        credential, plane = await self.credential(), await self.plane()
        more = {"credential": credential, "retry_backoff_factor": _TRY_AGAIN_SECONDS}
        return {**more, "transport": self._rehearsed(plane)} if plane else more

    def _rehearsed(self, plane: AzurePlane) -> Any:
        from azure.core.pipeline.transport import AioHttpTransport

        from backends.aca.rehearsed import connections_to

        self._connections = self._connections or connections_to(plane)
        return AioHttpTransport(session=self._connections, session_owner=False)

    def _kept(self, name: str, make: Callable[[], C]) -> C:
        found: C = self._open.get(name) or make()
        self._open[name] = found
        return found
