"""Models in buckets of the simulated Cloud Storage."""

from collections.abc import Mapping

import anyio

from backends.cloud_run.site import Site
from tests.backends.shelf import INDEX, ONE, TWO, below, model, safetensors

__all__ = ["INDEX", "ONE", "TWO", "below", "model", "safetensors", "store"]


async def store(site: Site, bucket: str, files: Mapping[str, bytes]) -> None:
    """Make a bucket with files by their paths."""
    client = await site.clients.storage()

    def write() -> None:
        made = client.create_bucket(bucket)
        made.iam_configuration.uniform_bucket_level_access_enabled = True
        made.patch()
        for path, content in files.items():
            made.blob(path).upload_from_string(content)

    await anyio.to_thread.run_sync(write)
