"""Google's clients that Cloud Run's deployments need beside those of all its clouds."""

from typing import TYPE_CHECKING, cast

from backends.google.clients import GoogleClients

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import ModelServiceAsyncClient
    from google.cloud.artifactregistry_v1 import ArtifactRegistryAsyncClient
    from google.cloud.devtools.cloudbuild_v1 import CloudBuildAsyncClient
    from google.cloud.run_v2 import RevisionsAsyncClient, ServicesAsyncClient


class Clients(GoogleClients):
    """One project and region; opened without any I/O."""

    async def run(self) -> "ServicesAsyncClient":
        """Services of Cloud Run."""
        return cast(
            "ServicesAsyncClient",
            await self.client("google.cloud.run_v2", "services", "ServicesAsyncClient"),
        )

    async def revisions(self) -> "RevisionsAsyncClient":
        """Revisions of those services."""
        return cast(
            "RevisionsAsyncClient",
            await self.client("google.cloud.run_v2", "revisions", "RevisionsAsyncClient"),
        )

    async def build(self) -> "CloudBuildAsyncClient":
        """Images built in the cloud."""
        return cast(
            "CloudBuildAsyncClient",
            await self.client(
                "google.cloud.devtools.cloudbuild_v1", "cloud_build", "CloudBuildAsyncClient"
            ),
        )

    async def repositories(self) -> "ArtifactRegistryAsyncClient":
        """Repositories of images."""
        return cast(
            "ArtifactRegistryAsyncClient",
            await self.client(
                "google.cloud.artifactregistry_v1",
                "artifact_registry",
                "ArtifactRegistryAsyncClient",
            ),
        )

    async def models(self) -> "ModelServiceAsyncClient":
        """Vertex AI's registry of models, which has an address for each region."""
        from google.api_core.client_options import ClientOptions

        return cast(
            "ModelServiceAsyncClient",
            await self.client(
                "google.cloud.aiplatform_v1",
                "model_service",
                "ModelServiceAsyncClient",
                ClientOptions(api_endpoint=f"{self.region}-aiplatform.googleapis.com"),
            ),
        )
