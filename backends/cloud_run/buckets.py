"""Models in a bucket of Cloud Storage: which folders hold one, and whether it is whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from backends.cloud_abilities import StoredModel
from backends.cloud_run import completeness
from backends.cloud_run.failing import denied, translated, unknown_caller
from backends.cloud_run.side_by_side import side_by_side
from backends.cloud_run.site import Site
from core.cloud_errors import CloudRefused, CloudTimeout, CloudUnavailable, NotConfigured
from core.reply import note
from planner.folders import parse_json

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket

T = TypeVar("T")

Files = Mapping[str, "Blob"]
"""Of one folder, by their names within it."""

_TIMEOUT: Final = 10.0
_DEADLINE: Final = 28.0
_MOST_FILES: Final = 5000
_MOST_MODELS: Final = 50
_MOST_JSON_BYTES: Final = 20_000_000
_FILES_OF_MODELS: Final = "**.{safetensors,gguf,json,model,txt,jinja,tiktoken}"
_FIELDS: Final = "items(name,size),nextPageToken"
_WEIGHTS: Final = (".safetensors", ".gguf")
_LOGIN: Final = "Run `gcloud auth application-default login`."


async def models(site: Site, bucket: str | None) -> Sequence[StoredModel]:
    """Give every folder that holds weights, or a config that waits for them, in order of names.

    Raises:
        NotConfigured: Neither the call nor a setting names a bucket.
        CloudRefused: There is no such bucket.
        PermissionDenied, CloudTimeout, CloudUnavailable: It cannot be read.
    """
    name, under = named(site, bucket)
    what = f"read the bucket {name}"
    with refused(name, what), in_time(what):
        files = await listing(site, name, under)
        found = sorted(
            (one for one in folders(files).items() if _is_model(one[1])), key=itemgetter(0)
        )
        if len(found) > _MOST_MODELS:
            note(f"{name} holds {len(found)} models; the first {_MOST_MODELS} are shown.")
        works = [partial(_stored, name, *one) for one in found[:_MOST_MODELS]]
        return await side_by_side(works)


def named(site: Site, bucket: str | None) -> tuple[str, str]:
    """Give a bucket and the folder in it that are meant.

    Raises:
        NotConfigured: Nothing names one.
    """
    said = bucket or site.settings.bucket_name
    if not said:
        raise NotConfigured(
            "Which bucket?", fix="Name one, or set BUCKET_NAME to that which holds your weights."
        )
    name, _, under = said.removeprefix("gs://").strip("/").partition("/")
    return name, under


async def listing(site: Site, bucket: str, under: str) -> list["Blob"]:
    """List what models are made of, below a folder if one is given."""
    there = await opened(site, bucket)

    def read() -> list["Blob"]:
        return list(
            there.list_blobs(
                prefix=f"{under}/" if under else None,
                match_glob=_FILES_OF_MODELS,
                max_results=_MOST_FILES + 1,
                fields=_FIELDS,
                timeout=_TIMEOUT,
                retry=None,
            )
        )

    found = await in_thread(read)
    if len(found) > _MOST_FILES:
        note(f"{bucket} holds more than {_MOST_FILES} such files; only these were looked at.")
    return found[:_MOST_FILES]


async def opened(site: Site, bucket: str) -> "Bucket":
    """Give a bucket without asking whether it is there."""
    return (await site.clients.storage()).bucket(bucket)


async def json_of(files: Files, name: str) -> Mapping[str, Any] | None:
    """Read a small JSON object, None where there is none or it is something else."""
    blob = files.get(name)
    if blob is None or (blob.size or 0) > _MOST_JSON_BYTES:
        return None
    try:
        said = parse_json(await in_thread(partial(bytes_of, blob)))
    except ValueError:
        return None
    return said if isinstance(said, Mapping) else None


def bytes_of(blob: "Blob", start: int | None = None, end: int | None = None) -> bytes:
    """Read a file, or of its bytes those from `start` to `end`, both counted."""
    return bytes(
        blob.download_as_bytes(start=start, end=end, timeout=_TIMEOUT, retry=None, checksum=None)
    )


async def in_thread(work: Callable[[], T]) -> T:
    """Do what is not async; what comes too late is left alone, its own timeout ends it."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Stop waiting after half a minute.

    Raises:
        CloudTimeout: Then.
    """
    try:
        with anyio.fail_after(_DEADLINE):
            yield
    except TimeoutError as exc:
        raise CloudTimeout(
            f"Google did not answer within {_DEADLINE:.0f} s: {what}.", fix="Name a folder in it."
        ) from exc


@contextmanager
def refused(bucket: str, what: str) -> Iterator[None]:
    """Turn what Cloud Storage says, which speaks HTTP and not gRPC, into our errors."""
    from google.api_core.exceptions import (
        Forbidden,
        NotFound,
        ServerError,
        TooManyRequests,
        Unauthorized,
    )
    from requests.exceptions import RequestException

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


def folders(files: Sequence["Blob"]) -> dict[str, dict[str, "Blob"]]:
    """Sort files by the folder that they lie in."""
    found: dict[str, dict[str, Blob]] = {}
    for blob in files:
        folder, _, name = str(blob.name).rpartition("/")
        found.setdefault(folder, {})[name] = blob
    return found


def _is_model(names: Iterable[str]) -> bool:
    return any(name == completeness.CONFIG or name.endswith(_WEIGHTS) for name in names)


async def _stored(bucket: str, folder: str, files: Files) -> StoredModel:
    config = await json_of(files, completeness.CONFIG)
    index = await json_of(files, completeness.INDEX)
    sizes = {name: int(blob.size or 0) for name, blob in files.items()}
    verdict = completeness.judge(sizes, index)
    return StoredModel(
        location=f"gs://{bucket}/{folder}".rstrip("/"),
        model=completeness.model_of(config),
        files=len(files),
        size_bytes=sum(sizes.values()),
        complete=verdict.complete,
        detail=verdict.detail,
    )
