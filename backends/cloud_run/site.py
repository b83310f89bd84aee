"""What every part of the backend is handed: clients, names, ID tokens and the target."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from google.api_core.client_options import ClientOptions
from google.cloud.artifactregistry_v1 import ArtifactRegistryAsyncClient
from google.cloud.devtools.cloudbuild_v1 import CloudBuildAsyncClient
from google.cloud.run_v2 import RevisionsAsyncClient, ServicesAsyncClient

from backends.cloud_run.identity import IdentityTokens
from backends.google.clients import GoogleClients, GoogleSite

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import ModelServiceAsyncClient

SPEC_ANNOTATION: Final = "vllm-devops/spec"
REPOSITORY: Final = "vllm-devops"
BUILDER_ID: Final = "vllm-devops-builder"
"""Of the account that images are built as."""


def builder_account(project: str) -> str:
    """Name the account that images are built as."""
    return f"{BUILDER_ID}@{project}.iam.gserviceaccount.com"


class Clients(GoogleClients):
    """One project and region; opened without any I/O."""

    async def run(self) -> ServicesAsyncClient:
        """Services of Cloud Run."""
        return await self.client(ServicesAsyncClient)

    async def revisions(self) -> RevisionsAsyncClient:
        """Revisions of those services."""
        return await self.client(RevisionsAsyncClient)

    async def build(self) -> CloudBuildAsyncClient:
        """Images built in the cloud."""
        return await self.client(CloudBuildAsyncClient)

    async def repositories(self) -> ArtifactRegistryAsyncClient:
        """Repositories of images."""
        return await self.client(ArtifactRegistryAsyncClient)

    async def models(self) -> "ModelServiceAsyncClient":
        """Vertex AI's registry of models, which has an address for each region."""
        from google.cloud.aiplatform_v1 import ModelServiceAsyncClient

        options = ClientOptions(api_endpoint=f"{self.region}-aiplatform.googleapis.com")
        return await self.client(ModelServiceAsyncClient, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(GoogleSite):
    """One target, opened."""

    clients: Clients
    identity: IdentityTokens
    answered: set[str] = field(default_factory=set)
    """Names of revisions whose model has answered: they need not be asked, and so kept awake."""
    woken: dict[str, datetime] = field(default_factory=dict)
    """When a deployment last answered us: readings of its instances may be older than that."""
