"""Models in buckets of Cloud Storage, who may read them, and Vertex AI's registry."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from google.api_core.exceptions import (
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from google.cloud.storage import Blob, Bucket
from requests.exceptions import RequestException

from backends.base import RegisteredModel, StoredModel
from backends.cloud_run.site import Site
from backends.common.concurrency import in_time
from backends.common.models import ENDINGS, MOST_FILES, File, limited, models_among
from backends.google.errors import denied, reading, strictly, translated, unknown_caller
from core.errors import CloudRefused, CloudUnavailable, NotConfigured
from core.reply import note

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import Model


T = TypeVar("T")

TIMEOUT: Final = 10.0
_DEADLINE: Final = 28.0
_FILES_OF_MODELS: Final = f"**.{{{','.join(ENDINGS)}}}"
_FIELDS: Final = "items(name,size),nextPageToken"
_LOGIN: Final = "Run `gcloud auth application-default login`."


async def models_in_bucket(site: Site, bucket: str | None) -> Sequence[StoredModel]:
    """Give every folder that holds weights, or a config that waits for them, in order of names."""
    name, under = parse_bucket(site, bucket)
    what = f"read the bucket {name}"
    with translated_refusal(name, what), deadline(what):
        return await models_among(await list_objects(site, name, under), f"gs://{name}")


def parse_bucket(site: Site, bucket: str | None) -> tuple[str, str]:
    """Give a bucket and the folder in it that are meant."""
    said = bucket or site.settings.bucket_name
    if not said:
        raise NotConfigured(
            "Which bucket?", fix="Name one, or set BUCKET_NAME to that which holds your weights."
        )
    name, _, under = said.removeprefix("gs://").strip("/").partition("/")
    return name, under


async def list_objects(site: Site, bucket: str, under: str) -> dict[str, File]:
    """List what models are made of by their paths, below a folder if one is given."""
    there = await open_bucket(site, bucket)

    def read() -> list["Blob"]:
        return list(
            there.list_blobs(
                prefix=f"{under}/" if under else None,
                match_glob=_FILES_OF_MODELS,
                max_results=MOST_FILES + 1,
                fields=_FIELDS,
                timeout=TIMEOUT,
                retry=None,
            )
        )

    found = {str(blob.name): _file(bucket, blob) for blob in await in_thread(read)}
    return limited(found, bucket)


async def open_bucket(site: Site, bucket: str) -> "Bucket":
    """Give a bucket without asking whether it is there."""
    return (await site.clients.storage()).bucket(bucket)


def _file(bucket: str, blob: "Blob") -> File:
    async def read(offset: int, length: int) -> bytes:
        what = f"read {blob.name} in the bucket {bucket}"
        with translated_refusal(bucket, what):
            return await in_thread(partial(_bytes_of, blob, offset, offset + length - 1))

    return File(int(blob.size or 0), read)


def _bytes_of(blob: "Blob", first: int, last: int) -> bytes:
    how: Any = {"timeout": TIMEOUT, "retry": None, "checksum": None}
    return bytes(blob.download_as_bytes(start=first, end=last, **how))


async def in_thread(work: Callable[[], T]) -> T:
    """Do what is not async; what comes too late is left alone, its own timeout ends it."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


@contextmanager
def deadline(what: str) -> Iterator[None]:
    """Stop waiting after half a minute."""
    with in_time("Google", what, _DEADLINE, fix="Name a folder in it."):
        yield


@contextmanager
def translated_refusal(bucket: str, what: str) -> Iterator[None]:
    """Turn what Cloud Storage says, which speaks HTTP and not gRPC, into our errors."""
    with translated(what):
        try:
            yield
        except NotFound as exc:
            raise CloudRefused(
                f"There is no bucket {bucket}.",
                cause=exc.message,
                fix=f"Correct its name, or make it: gcloud storage buckets create gs://{bucket}.",
            ) from exc
        except Forbidden as exc:
            raise denied(exc.message, what) from exc
        except Unauthorized as exc:
            raise unknown_caller(exc.message, _LOGIN) from exc
        except (ServerError, TooManyRequests) as exc:
            raise _unavailable(what, exc.message) from exc
        except RequestException as exc:
            raise _unavailable(what, type(exc).__name__) from exc


def _unavailable(what: str, words: str) -> CloudUnavailable:
    return CloudUnavailable(
        f"Cloud Storage is not to be reached: {what}.",
        cause=words,
        fix="Call the same tool again in a minute.",
    )


_MOST: Final = 200


async def models_in_registry(site: Site) -> Sequence[RegisteredModel]:
    """Give every model of the project in the region, as the registry orders them."""
    parent = site.clients.parent
    client = await site.clients.models()
    found: list[RegisteredModel] = []
    with strictly("list the models of Vertex AI's registry"):
        async for model in await client.list_models(parent=parent, **reading()):
            if len(found) == _MOST:
                note(f"There are more models than the {_MOST} shown.")
                break
            found.append(_read_registered(model))
    return found


def _read_registered(model: "Model") -> RegisteredModel:
    created: Any = model.version_create_time or model.create_time  # proto-plus: a datetime
    return RegisteredModel(
        name=model.name,
        display_name=model.display_name,
        version=model.version_id,
        created_at=created.isoformat() if created else "",
        artifact=model.artifact_uri,
    )
