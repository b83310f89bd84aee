"""The storage account with the share of weights, its files, and models among them."""

import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import anyio
from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.appcontainers.models import AzureFileProperties
from azure.mgmt.storage.models import (
    FileShare,
    StorageAccount,
    StorageAccountCheckNameAvailabilityParameters,
)
from azure.storage.blob.aio import ContainerClient
from azure.storage.fileshare.aio import ShareClient

from backends.aca import plan, resources
from backends.aca.container import link_of
from backends.aca.resources import Stand, is_made, or_none
from backends.aca.site import SHARE, Site, not_configured, reading, strictly, translated, writing
from backends.base import StoredModel, Upload
from backends.common.concurrency import in_time, side_by_side
from backends.common.models import (
    ENDINGS,
    MOST_FILES,
    Completeness,
    File,
    Files,
    folders,
    judge_whole,
    limited,
    models_among,
    sizes_of,
)
from core.errors import (
    CloudRefused,
    CloudUnavailable,
    ConcurrentChange,
    InvalidArgument,
    NextStep,
    OpsError,
    PermissionDenied,
)
from core.reply import note

FILES_ROLE: Final = "Storage File Data Privileged Reader"
BLOBS_ROLE: Final = "Storage Blob Data Reader"
_SECONDS: Final = 10
"""For one answer; the service wants a whole number."""
_DEADLINE: Final = 28.0


def read_limits() -> dict[str, Any]:
    """Give the limits of a call to files or blobs, which has other words for them than ARM."""
    return {
        "timeout": _SECONDS,
        "connection_timeout": _SECONDS,
        "read_timeout": _SECONDS,
        "retry_total": 2,
    }


@contextmanager
def translated_refusal(site: Site, what: str, *, store: str, role: str) -> Iterator[None]:
    """Turn what the storage account says into our errors; `store` is what is to be read.

    Raises:
        CloudRefused: It is not there.
        PermissionDenied: Whoever asks lacks the role, which is named.
    """
    try:
        with translated(what):
            yield
    except ResourceNotFoundError as exc:
        raise _missing(f"{store} is not there", site, exc.message) from exc
    except PermissionDenied as exc:
        given = resources.az_role(role, site.ground.storage_id, resources.ME, kind="User")
        raise PermissionDenied(
            exc.summary,
            cause=exc.cause,
            fix=f"Ask for the role '{role}' on the storage account: {given}; it takes effect after"
            " minutes.",
        ) from exc


@asynccontextmanager
async def deadline(site: Site, what: str, *, kind: Literal["file", "blob"]) -> AsyncIterator[None]:
    """Stop waiting after half a minute; an account that is not there has no address either.

    Raises:
        CloudTimeout: It took too long.
        CloudRefused: There is no such account, or it holds nothing of that kind.
    """
    try:
        with in_time("Azure", what, _DEADLINE, fix="Name a folder in it."):
            yield
    except CloudUnavailable as exc:
        why = await _why_silent(site, kind)
        if why:
            raise _missing(why, site, exc.cause) from exc
        raise


async def _why_silent(site: Site, kind: Literal["file", "blob"]) -> str:
    """Say why the account has no such address; empty where it has one, or that cannot be told."""
    ground = site.ground
    try:
        with translated("look for the storage account"):
            accounts = (await site.clients.storage()).storage_accounts
            there = await accounts.get_properties(
                ground.resource_group, ground.storage_account, **reading()
            )
    except ResourceNotFoundError:
        return "It is not there"
    except OpsError:
        return ""
    return "" if getattr(there.primary_endpoints, kind) else f"Nothing of the kind '{kind}' is"


def _missing(what: str, site: Site, cause: str) -> CloudRefused:
    target, account = site.target.name, site.ground.storage_account
    return CloudRefused(
        f"{what} in the storage account {account}.",
        cause=cause,
        fix="Correct its name, or call setup_target, which makes the account and its share.",
        next_steps=(NextStep("setup_target", {"target": target}),),
    )


_MODES: Final = {False: "ReadWrite", True: "ReadOnly"}
"""What apps may do through a link that is, or is not, for reading alone."""


class Link(NamedTuple):
    """One of the environment's links to a share."""

    share: str
    read_only: bool

    @property
    def name(self) -> str:
        """As the environment calls it."""
        return link_of(self.share, read_only=self.read_only)

    @property
    def mode(self) -> str:
        """As Azure calls it."""
        return _MODES[self.read_only]


def links_of(share: str) -> tuple[Link, ...]:
    """Give those that are made: our own share is written to by the Hub's first downloads."""
    only_read = Link(share, read_only=True)
    return (Link(share, read_only=False), only_read) if share == SHARE else (only_read,)


async def find_account(site: Site) -> "StorageAccount | None":
    """Give the storage account, None if the group has none of that name."""
    client, ground = await site.clients.storage(), site.ground
    asked = client.storage_accounts.get_properties(
        ground.resource_group, ground.storage_account, **reading()
    )
    return await or_none("look for the storage account", asked)


async def account_stand(site: Site) -> Stand:
    """Say whether it is there."""
    found = await find_account(site)
    if found is None:
        return Stand.ABSENT
    return is_made(found.properties.provisioning_state if found.properties else None)


async def make_account(site: Site) -> None:
    """Begin to make it.

    Raises:
        CloudRefused: The name is another's.
    """
    client, ground = await site.clients.storage(), site.ground
    try:
        with strictly(f"make the storage account {ground.storage_account}"):
            await client.storage_accounts.begin_create(
                ground.resource_group,
                ground.storage_account,
                resources.storage_account_of(ground),
                **writing(),
            )
    except CloudRefused as exc:
        if plan.is_policy(exc):
            exc.fix = plan.SHARE_FIX
        raise
    except ConcurrentChange as exc:
        if "AlreadyTaken" not in exc.summary:
            raise
        raise CloudRefused(
            f"The name of the storage account {ground.storage_account} is taken.",
            cause=exc.cause,
            fix="Set AZURE_STORAGE_ACCOUNT to another name, or bring yours into"
            f" {ground.resource_group}.",
        ) from exc


async def share_stand(site: Site, share: str) -> Stand:
    """Say whether the account has the share."""
    client, ground = await site.clients.storage(), site.ground
    asked = client.file_shares.get(
        ground.resource_group, ground.storage_account, share, **reading()
    )
    return Stand.THERE if await or_none(f"look for the share {share}", asked) else Stand.ABSENT


async def make_share(site: Site, share: str) -> None:
    """Make our own.

    Raises:
        CloudRefused: Another is named, which ought to hold weights by now.
    """
    client, ground = await site.clients.storage(), site.ground
    if share != SHARE:
        raise CloudRefused(
            f"The storage account {ground.storage_account} has no share {share}.",
            fix="Correct the place of the weights: files://SHARE/FOLDER. list_bucket_models shows"
            " what there is.",
        )
    with strictly(f"make the share {share}"):
        await client.file_shares.create(
            ground.resource_group,
            ground.storage_account,
            share,
            resources.share_of(),
            **writing(),
        )


async def link_stand(site: Site, link: Link) -> Stand:
    """Say whether the environment has that link."""
    found = await _seen(site, link)
    return Stand.THERE if found and _leads(site, link, found) else Stand.ABSENT


async def make_link(site: Site, link: Link) -> None:
    """Make it, with the account's key, which is kept by Azure alone.

    Raises:
        CloudRefused: A link of that name leads elsewhere, and apps may use it.
    """
    client, ground = await site.clients.storage(), site.ground
    other = await link_elsewhere(site, link)
    if other:
        raise other
    with strictly(f"read the key of the storage account {ground.storage_account}"):
        answer = await client.storage_accounts.list_keys(
            ground.resource_group, ground.storage_account, **reading()
        )
    key = next((one.value for one in answer.keys_property or () if one.value), "")
    storages = (await site.clients.apps()).managed_environments_storages
    with strictly(f"link the share {link.share} to {ground.environment}"):
        await storages.create_or_update(
            ground.resource_group,
            ground.environment,
            link.name,
            resources.storage_link_of(
                ground.storage_account, link.share, read_only=link.read_only, key=key
            ),
            **writing(),
        )


async def link_elsewhere(site: Site, link: Link) -> CloudRefused | None:
    """Say where a link of that name leads if it is not to our share."""
    found, ground = await _seen(site, link), site.ground
    if found is None or _leads(site, link, found):
        return None
    return CloudRefused(
        f"The link {link.name} of {ground.environment} leads to {found.share_name} of"
        f" {found.account_name} ({found.access_mode}).",
        fix="Set AZURE_STORAGE_ACCOUNT to that account, or take the link away:"
        f" {resources.az_unlink(ground, link.name)}",
    )


async def account_name_problem(site: Site) -> tuple[bool, str]:
    """Say whether the account's name can be taken, and Azure's words if it cannot."""
    client, name = await site.clients.storage(), site.ground.storage_account

    asked = StorageAccountCheckNameAvailabilityParameters(name=name)
    with strictly(f"see whether the name {name} is free"):
        answer = await client.storage_accounts.check_name_availability(asked, **reading())
    return bool(answer.name_available), answer.message or ""


async def _seen(site: Site, link: Link) -> "AzureFileProperties | None":
    storages, ground = (await site.clients.apps()).managed_environments_storages, site.ground
    asked = storages.get(ground.resource_group, ground.environment, link.name, **reading())
    found = await or_none("look for the environment's link to the share", asked)
    return found.properties.azure_file if found and found.properties else None


def _leads(site: Site, link: Link, found: "AzureFileProperties") -> bool:
    to = (found.account_name or "").lower(), found.share_name, found.access_mode
    return to == (site.ground.storage_account.lower(), link.share, link.mode)


_AT_ONCE: Final = 8
_MOST_FOLDERS: Final = 400
HUB_CACHE: Final = "models--"
"""What the Hub's library begins a folder with that it keeps a model in."""


class _Listed(NamedTuple):
    folders: list[str]
    files: dict[str, File]


async def list_files(site: Site, share: str, under: str) -> dict[str, File]:
    """List what models are made of by their paths, below a folder if one is given.

    Below a folder of the Hub's own cache every file counts: the names there say nothing.

    Raises:
        CloudRefused: There is no such share or folder.
        PermissionDenied, CloudTimeout, CloudUnavailable: It cannot be read.
    """
    client = (await site.clients.files()).get_share_client(share)
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    found: dict[str, File] = {}
    waiting, seen = [under], 0

    async def look(folder: str) -> _Listed:
        async with limiter:
            return await _folder(site, client, share, folder)

    while waiting and seen < _MOST_FOLDERS and len(found) <= MOST_FILES:
        these = waiting[: _MOST_FOLDERS - seen]
        waiting, seen = waiting[len(these) :], seen + len(these)
        for one in await side_by_side([partial(look, folder) for folder in these]):
            waiting += one.folders
            found |= one.files
    if waiting and len(found) <= MOST_FILES:
        note(f"{share} holds more than {_MOST_FOLDERS} folders; only these were looked at.")
    return limited(found, share)


async def _folder(site: Site, client: "ShareClient", share: str, folder: str) -> _Listed:
    folders: list[str] = []
    files: dict[str, File] = {}
    store = f"The share {share}" if not folder else f"The folder {folder} of the share {share}"
    with translated_refusal(site, f"list {share}/{folder}", store=store, role=FILES_ROLE):
        there = client.get_directory_client(folder)
        async for one in there.list_directories_and_files(**read_limits()):
            path = f"{folder}/{one.name}".lstrip("/")
            if one.is_directory:
                folders += [] if one.name.startswith(".") else [path]
            elif _matters(path):
                files[path] = File(int(one["size"] or 0), _reader_files(site, client, path))
    return _Listed(folders, files)


def _matters(path: str) -> bool:
    return path.rpartition(".")[2] in ENDINGS or HUB_CACHE in path


def _reader_files(
    site: Site, client: "ShareClient", path: str
) -> Callable[[int, int], Awaitable[bytes]]:
    async def read(offset: int, length: int) -> bytes:
        with translated_refusal(site, f"read {path}", store=f"The file {path}", role=FILES_ROLE):
            got = await client.get_file_client(path).download_file(offset, length, **read_limits())
            return bytes(await got.readall())

    return read


async def list_blobs(site: Site, container: str, under: str) -> dict[str, File]:
    """List what models are made of by their names, below a folder if one is given.

    Raises:
        CloudRefused: There is no such container.
        PermissionDenied, CloudTimeout, CloudUnavailable: It cannot be read.
    """
    client = (await site.clients.blobs()).get_container_client(container)
    begin = f"{under}/" if under else None
    found: dict[str, File] = {}
    store = f"The container {container}"
    with translated_refusal(site, f"list the blobs of {container}", store=store, role=BLOBS_ROLE):
        async for one in client.list_blobs(name_starts_with=begin, **read_limits()):
            if one.name.rpartition(".")[2] in ENDINGS:
                found[one.name] = File(int(one.size or 0), _reader_blobs(site, client, one.name))
            if len(found) > MOST_FILES:
                break
    return limited(found, container)


def _reader_blobs(
    site: Site, client: "ContainerClient", name: str
) -> Callable[[int, int], Awaitable[bytes]]:
    async def read(offset: int, length: int) -> bytes:
        with translated_refusal(site, f"read {name}", store=f"The blob {name}", role=BLOBS_ROLE):
            got = await client.get_blob_client(name).download_blob(offset, length, **read_limits())
            return bytes(await got.readall())

    return read


_LOCATION: Final = re.compile(
    r"(?:(?P<kind>files|blob)://)?(?P<store>[a-z0-9](?:-?[a-z0-9]){2,62})"
    r"(?:/(?P<folder>[^\x00-\x1f\\:*?\"<>|]*))?"
)
"""Shares and containers have the same rule: 3 to 63 lower-case letters, digits, single hyphens."""
_CACHED: Final = re.compile(rf"(?P<folder>(?:.*/)?{HUB_CACHE}(?P<model>[^/]+))/.+")
_NO_MOUNT: Final = (
    "Container Apps mount no blobs: copy it to the share (see"
    " get_huggingface_model_copy_instructions)."
)
_THE_HUBS: Final = (
    "The Hub's own cache, for weights=hub: a boot reads it, and loads what is missing."
)
_CUT_OFF: Final = "A download is under way, or was cut off."


class Place(NamedTuple):
    """A folder of a share, or of a container of blobs."""

    kind: Literal["files", "blob"]
    store: str
    folder: str

    @property
    def service(self) -> Literal["file", "blob"]:
        """The storage account's own name of the kind."""
        return "blob" if self.kind == "blob" else "file"

    @property
    def root(self) -> str:
        """What locations in it begin with."""
        return f"{self.kind}://{self.store}"


async def list_models(site: Site, bucket: str | None) -> Sequence[StoredModel]:
    """Give every folder that holds weights, or a config that waits for them, in order of names.

    `bucket` is SHARE, files://SHARE/FOLDER or blob://CONTAINER/FOLDER; left out, the share that
    the set-up makes.

    Raises:
        InvalidArgument: It is none of these.
        CloudRefused: There is no such share, container, folder or account.
        PermissionDenied, CloudTimeout, CloudUnavailable: It cannot be read.
    """
    place = parse_location(bucket or SHARE)
    what = f"read the {'share' if place.kind == 'files' else 'container'} {place.store}"
    async with deadline(site, what, kind=place.service):
        if place.kind == "blob":
            found = await models_among(await _listing(site, place), place.root)
            return [_not_to_be_mounted(one) for one in found]
        there = await _listing(site, place)
        cached = {path: file for path, file in there.items() if _CACHED.fullmatch(path)}
        rest = {path: file for path, file in there.items() if path not in cached}
        return [*await models_among(rest, place.root), *_of_the_hub(cached, place.root)]


async def judge_model(site: Site, location: str) -> Completeness:
    """Judge the model at a location, each file by its own header.

    Raises:
        InvalidArgument, CloudRefused, PermissionDenied, CloudTimeout, CloudUnavailable: As above.
    """
    async with deadline(site, f"look into {location}", kind=parse_location(location).service):
        return await judge_whole(await _of_one_folder(site, location))


async def model_size(site: Site, location: str) -> int:
    """Give the bytes of the model at a location.

    Raises:
        InvalidArgument, CloudRefused, PermissionDenied, CloudTimeout, CloudUnavailable: As above.
    """
    async with deadline(site, f"add up {location}", kind=parse_location(location).service):
        return sum(sizes_of(await _of_one_folder(site, location)).values())


def parse_location(location: str) -> Place:
    """Read what a person calls a place.

    >>> parse_location("files://weights/gemma")
    Place(kind='files', store='weights', folder='gemma')
    >>> parse_location("weights").root
    'files://weights'

    Raises:
        InvalidArgument: It can be none.
    """
    found = _LOCATION.fullmatch(location.rstrip("/"))
    folder = (found["folder"] or "").strip("/") if found else ".."
    if not found or any(part in {"", ".", ".."} for part in folder.split("/") if folder):
        raise InvalidArgument(
            f"{location[:100]!r} is no place that Azure keeps weights in.",
            fix="Give SHARE, files://SHARE/FOLDER or blob://CONTAINER/FOLDER.",
        )
    return Place("blob" if found["kind"] == "blob" else "files", found["store"], folder)


async def _listing(site: Site, place: Place) -> dict[str, File]:
    look = list_blobs if place.kind == "blob" else list_files
    return await look(site, place.store, place.folder)


async def _of_one_folder(site: Site, location: str) -> Files:
    place = parse_location(location)
    return folders(await _listing(site, place)).get(place.folder, {})


def _not_to_be_mounted(one: StoredModel) -> StoredModel:
    detail = f"{one.detail} {_NO_MOUNT}".strip()
    return one.model_copy(update={"detail": detail, "servable": False})


def _of_the_hub(cached: Files, root: str) -> list[StoredModel]:
    """Give one row for each model of the Hub's cache: links there hide which files are whole."""
    held: dict[tuple[str, str], dict[str, File]] = {}
    for path, file in cached.items():
        found = _CACHED.fullmatch(path)
        assert found
        held.setdefault((found["folder"], found["model"]), {})[path] = file
    return [
        _cached(f"{root}/{folder}", name.replace("--", "/", 1), its)
        for (folder, name), its in sorted(held.items())
    ]


def _cached(location: str, model: str, its: Files) -> StoredModel:
    cut_off = any(path.endswith(".incomplete") for path in its)
    return StoredModel(
        location=location,
        model=model,
        files=sum(path.rpartition(".")[2] in ENDINGS for path in its),
        size_bytes=sum(sizes_of(its).values()),
        complete=False if cut_off else None,
        detail=f"{_CUT_OFF} {_THE_HUBS}" if cut_off else _THE_HUBS,
        servable=False,
    )


_ROLE: Final = "Storage File Data Privileged Contributor"
_NOTES: Final = (
    f"Whoever is logged in (`az login`) needs the role '{_ROLE}' on the storage account.",
    "setup_target makes account and share, and links them to the environment.",
    "azcopy begins each file anew when it was cut off: repeat it, or `azcopy jobs resume`.",
)


def upload_commands(site: Site, folder: str, here: str, bucket: str | None) -> Upload:
    """Say how `here` gets to where deployments read it; `folder` where the bucket names none.

    Flags: Microsoft's reference of `azcopy copy`, read 2026-11.

    Raises:
        InvalidArgument: It is no share.
        NotConfigured: It is not known whose storage account is meant.
    """
    place = parse_location(bucket or SHARE)
    if place.kind == "blob":
        raise InvalidArgument(
            "Container Apps mount no blobs.", fix="Give SHARE or files://SHARE/FOLDER."
        )
    folder = place.folder or folder
    if not (site.clients.configured or site.settings.azure_storage_account):
        raise not_configured()  # the account is named after the subscription
    return Upload(
        location=f"{place.root}/{folder}",
        bucket=place.root,
        steps=tuple(_steps(site, place.store, folder, here)),
        notes=_NOTES,
    )


def _steps(site: Site, share: str, folder: str, here: str) -> list[tuple[str, str]]:
    ground = site.ground
    url = f"https://{ground.storage_account}.file.core.windows.net/{share}/{quote(folder)}"
    copied = ["azcopy", "copy", f"{here}/*", url, "--recursive", "--exclude-path=.cache"]
    listed = ["az", "storage", "file", "list", "--account-name", ground.storage_account]
    listed += ["--share-name", share, "--path", folder, "--auth-mode", "login"]
    listed += ["--enable-file-backup-request-intent", "--output", "table"]
    return [
        ("Make the share if it is not there.", resources.az_share(ground, share)),
        ("Copy the folder.", f"AZCOPY_AUTO_LOGIN_TYPE=AZCLI {shlex.join(copied)}"),
        ("See what is there.", shlex.join(listed)),
    ]


async def find_share(site: Site) -> "FileShare | None":
    """Give the share with weights; None if there is none.

    Raises:
        CloudError: Azure cannot be asked.
    """
    if await find_account(site) is None:
        return None
    client, ground = await site.clients.storage(), site.ground

    try:
        with translated("look for the share of weights"):
            return await client.file_shares.get(
                ground.resource_group, ground.storage_account, SHARE, expand="stats", **reading()
            )
    except ResourceNotFoundError:
        return None
