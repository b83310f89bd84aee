"""Models in buckets of Cloud Storage, and Vertex AI's registry."""

from collections.abc import Sequence
from typing import Any, Final

from google.cloud.storage import Blob

from backends.base import RegisteredModel, StoredModel
from backends.cloud_run.site import Site
from backends.common.models import ENDINGS, MOST_FILES, File, limited, models_among
from backends.google.buckets import HOW, in_thread, looking_into
from backends.google.errors import reading, strictly
from core.errors import NotConfigured
from core.reply import note

_MOST_REGISTERED: Final = 200


async def models_in_bucket(site: Site, bucket: str | None) -> Sequence[StoredModel]:
    """Return every folder that holds weights, or a config that waits for them, by name."""
    name, under = parse_bucket(site, bucket)
    with looking_into(name, f"read the bucket {name}"):
        return await models_among(await list_objects(site, name, under), f"gs://{name}")


def parse_bucket(site: Site, bucket: str | None) -> tuple[str, str]:
    """Return a bucket and the folder in it that are meant."""
    said = bucket or site.settings.bucket_name
    if not said:
        raise NotConfigured(
            "Which bucket?", fix="Name one, or set BUCKET_NAME to that which holds your weights."
        )
    name, _, under = said.removeprefix("gs://").strip("/").partition("/")
    return name, under


async def list_objects(site: Site, bucket: str, under: str) -> dict[str, File]:
    """List what models are made of by their paths, below a folder if one is given."""
    there = (await site.clients.storage()).bucket(bucket)

    def read() -> list[Blob]:
        found = there.list_blobs(
            prefix=f"{under}/" if under else None,
            match_glob=f"**.{{{','.join(ENDINGS)}}}",
            max_results=MOST_FILES + 1,
            fields="items(name,size),nextPageToken",
            **HOW,
        )
        return list(found)

    found = {str(blob.name): _file(bucket, blob) for blob in await in_thread(read)}
    return limited(found, bucket)


def _file(bucket: str, blob: Blob) -> File:
    async def read(offset: int, length: int) -> bytes:
        def part() -> bytes:
            last = offset + length - 1
            return bytes(blob.download_as_bytes(start=offset, end=last, checksum=None, **HOW))

        with looking_into(bucket, f"read {blob.name} in the bucket {bucket}"):
            return await in_thread(part)

    return File(int(blob.size or 0), read)


async def models_in_registry(site: Site) -> Sequence[RegisteredModel]:
    """Return every model of the project in the region, as the registry orders them."""
    client = await site.clients.models()
    found: list[RegisteredModel] = []
    with strictly("list the models of Vertex AI's registry"):
        async for model in await client.list_models(parent=site.clients.parent, **reading()):
            if len(found) == _MOST_REGISTERED:
                note(f"There are more models than the {_MOST_REGISTERED} shown.")
                break
            created: Any = model.version_create_time or model.create_time  # proto-plus: a datetime
            row = RegisteredModel(
                name=model.name,
                display_name=model.display_name,
                version=model.version_id,
                created_at=created.isoformat() if created else "",
                artifact=model.artifact_uri,
            )
            found.append(row)
    return found
