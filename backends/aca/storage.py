"""The storage account with the share of weights, its files, and models among them."""

import math
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import anyio
from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.appcontainers import models as apps
from azure.mgmt.appcontainers.models import AzureFileProperties
from azure.mgmt.storage import models
from azure.mgmt.storage.models import FileShare, StorageAccountCheckNameAvailabilityParameters
from azure.storage.fileshare.aio import ShareClient

from backends.aca.container import Mount, link_of, rules
from backends.aca.identity import ME, Grant, grant, grant_command
from backends.aca.resources import (
    OURS,
    TAGS,
    TEXT,
    body,
    by_state,
    create_unless_there,
    here,
    is_policy,
    or_none,
    was_made_here,
)
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
from backends.common.preflight import Answer
from backends.container import size_known
from backends.lifecycle import Resource, Status
from core.errors import (
    CloudRefused,
    CloudUnavailable,
    ConcurrentChange,
    InvalidArgument,
    NextStep,
    OpsError,
    PermissionDenied,
)
from core.records import ModelShape
from core.reply import note
from planner.boot import file_bytes

READS_SHARES: Final = Grant(
    "b8eda974-7b85-4f76-af95-65846b26df6d",
    "Storage File Data Privileged Reader",
    ("69566ab7-960f-475b-8e7c-b3118f30c6bd",),  # Storage File Data Privileged Contributor
)
READS_BLOBS: Final = "Storage Blob Data Reader"
SHARE_FIX: Final = (
    "If it forbids shared keys, with which a file share is mounted, give weights=hub:disk (the"
    " container's own disk) or an image with the weights (weights=baked, image=…); else set"
    " AZURE_STORAGE_ACCOUNT to one that is there, or ask its administrators for an exemption of"
    " this resource group."
)
_SECONDS: Final = 10
"""For one answer; the service wants a whole number."""
_DEADLINE: Final = 28.0


def read_limits() -> dict[str, Any]:
    """Return the limits of a call to files or blobs, which has other words for them than ARM."""
    return {
        "timeout": _SECONDS,
        "connection_timeout": _SECONDS,
        "read_timeout": _SECONDS,
        "retry_total": 2,
    }


@contextmanager
def translated_refusal(site: Site, what: str, *, store: str, needs: str) -> Iterator[None]:
    """Turn what the storage account says into our errors; `store` is what is to be read.

    Raises:
        CloudRefused: It is not there.
        PermissionDenied: Whoever asks lacks what is named.
    """
    try:
        with translated(what):
            yield
    except ResourceNotFoundError as exc:
        raise _missing(f"{store} is not there", site, exc.message) from exc
    except PermissionDenied as exc:
        given = grant_command(needs, site.ground.storage_id, ME)
        raise PermissionDenied(
            exc.summary,
            cause=exc.cause,
            fix=f"Ask for '{needs}' on the storage account: {given}; it takes effect after"
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
        return "ReadOnly" if self.read_only else "ReadWrite"


def base(site: Site, share: str = SHARE) -> Iterator[Resource]:
    """Return the account, who reads its shares, the share, and the environment's links to it.

    Our own share is written to by the Hub's first downloads; another is only read.
    """
    yield account(site)
    yield grant(site, READS_SHARES, site.ground.storage_id, to="you", after="account")
    yield share_of(site, share)
    if share == SHARE:
        yield link(site, Link(share, read_only=False))
    yield link(site, Link(share, read_only=True))


async def find_account(site: Site) -> models.StorageAccount | None:
    """Return the storage account, None if the group has none of that name."""
    client, ground = await site.clients.storage(), site.ground
    asked = client.storage_accounts.get_properties(
        ground.resource_group, ground.storage_account, **reading()
    )
    return await or_none("look for the storage account", asked)


def account(site: Site) -> Resource:
    """Return the storage account for shares on SSD, whose throughput is provisioned."""
    ground, sku = site.ground, rules().share.sku
    wanted = models.StorageAccountCreateParameters(
        sku=models.Sku(name=sku),
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

    async def put() -> None:
        client = (await site.clients.storage()).storage_accounts
        try:
            with strictly(f"make the storage account {ground.storage_account}"):
                await client.begin_create(
                    ground.resource_group, ground.storage_account, wanted, **writing()
                )
        except CloudRefused as exc:
            if is_policy(exc):
                exc.fix = SHARE_FIX
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

    async def delete() -> None:
        client = (await site.clients.storage()).storage_accounts
        with strictly(f"delete the storage account {ground.storage_account}"):
            await client.delete(ground.resource_group, ground.storage_account, **writing())

    named = ("--name", ground.storage_account, *here(ground))
    kind = ("--kind", "FileStorage", "--sku", sku, "--https-only", "true")
    safe = ("--min-tls-version", "TLS1_2", "--allow-blob-public-access", "false")
    flags = ("--location", ground.region, *kind, *safe, "--allow-shared-key-access", "true", *TAGS)
    return Resource(
        name="account",
        title=f"the storage account {ground.storage_account} for weights, on SSD",
        body=body(ground.storage_id, wanted),
        get=partial(find_account, site),
        put=put,
        delete=delete,
        after=("group",),
        status=by_state,
        scope="shared",
        command=create_unless_there("storage account", named, *flags),
    )


async def find_share(site: Site, share: str = SHARE) -> FileShare | None:
    """Return a share with what it holds, None if there is none."""
    client, ground = await site.clients.storage(), site.ground
    asked = client.file_shares.get(
        ground.resource_group, ground.storage_account, share, expand="stats", **reading()
    )
    return await or_none(f"look for the share {share}", asked)


def share_of(site: Site, share: str = SHARE) -> Resource:
    """Return a share; another than our own ought to hold weights, and is never made."""
    ground, chosen = site.ground, rules().share
    wanted = FileShare(
        file_share_properties=models.FileShareProperties(
            share_quota=chosen.quota_gib,
            provisioned_bandwidth_mibps=chosen.mib_per_second,
            enabled_protocols="SMB",
        )
    )

    async def put() -> None:
        if share != SHARE:
            raise CloudRefused(
                f"The storage account {ground.storage_account} has no share {share}.",
                fix="Correct the place of the weights: files://SHARE/FOLDER. list_bucket_models"
                " shows what there is.",
            )
        client = (await site.clients.storage()).file_shares
        with strictly(f"make the share {share}"):
            await client.create(
                ground.resource_group, ground.storage_account, share, wanted, **writing()
            )

    return Resource(
        name="share",
        title=f"the share {share} of {ground.storage_account} ({chosen.quota_gib} GiB)",
        body=body(f"{ground.storage_id}/fileServices/default/shares/{share}", wanted),
        get=partial(find_share, site, share),
        put=put,
        after=("account",),
        scope="shared",
        usd_per_month=chosen.usd_per_month[-1],
        command=share_command(site, share),
    )


def share_command(site: Site, share: str) -> str:
    """Write how a person makes a share."""
    chosen, ground = rules().share, site.ground
    named = ("--name", share, *here(ground), "--storage-account", ground.storage_account)
    size = ("--quota", str(chosen.quota_gib), "--enabled-protocols", "SMB")
    fast = ("--provisioned-bandwidth-mibps", str(chosen.mib_per_second))
    return create_unless_there("storage share-rm", named, *size, *fast)


def link_body(site: Site, wanted: Link, key: str | None = None) -> apps.ManagedEnvironmentStorage:
    """Type an environment's link to a share; `key` is None where the body is only shown."""
    return apps.ManagedEnvironmentStorage(
        properties=apps.ManagedEnvironmentStorageProperties(
            azure_file=apps.AzureFileProperties(
                account_name=site.ground.storage_account,
                account_key=key,
                share_name=wanted.share,
                access_mode=wanted.mode,
            )
        )
    )


def link(site: Site, wanted: Link) -> Resource:
    """Return an environment's link to a share, made with the account's key, which Azure keeps."""
    ground = site.ground

    async def put() -> None:
        if other := await link_elsewhere(site, wanted):
            raise other
        accounts = (await site.clients.storage()).storage_accounts
        with strictly(f"read the key of the storage account {ground.storage_account}"):
            said = await accounts.list_keys(
                ground.resource_group, ground.storage_account, **reading()
            )
        key = next((one.value for one in said.keys_property or () if one.value), "")
        storages = (await site.clients.apps()).managed_environments_storages
        with strictly(f"link the share {wanted.share} to {ground.environment}"):
            await storages.create_or_update(
                ground.resource_group,
                ground.environment,
                wanted.name,
                link_body(site, wanted, key),
                **writing(),
            )

    account = ("--account-name", ground.storage_account, *here(ground))
    keys = ("az", "storage", "account", "keys", "list", *account, "--query", "[0].value", *TEXT)
    made = ("az", "containerapp", "env", "storage", "set", "--name", ground.environment)
    named = ("--storage-name", wanted.name, "--azure-file-account-name", ground.storage_account)
    files = ("--azure-file-share-name", wanted.share, "--azure-file-account-key", "@-")
    linked = (*made, *here(ground), *named, *files, "--access-mode", wanted.mode)
    return Resource(
        name=f"link {wanted.name}",
        title=f"the environment's link {wanted.name} to the share {wanted.share} ({wanted.mode})",
        body=body(f"{ground.environment_id}/storages/{wanted.name}", link_body(site, wanted)),
        get=partial(_linked, site, wanted),
        put=put,
        after=("share", "environment"),
        status=lambda found: Status.READY if _leads(site, wanted, found) else Status.STALE,
        scope="shared",
        command=f"{shlex.join(keys)} | {shlex.join(linked)}",
    )


async def link_elsewhere(site: Site, wanted: Link) -> CloudRefused | None:
    """Say where a link of that name leads if it is not to our share."""
    found, ground = await _linked(site, wanted), site.ground
    if found is None or _leads(site, wanted, found):
        return None
    removed = ("az", "containerapp", "env", "storage", "remove", "--name", ground.environment)
    return CloudRefused(
        f"The link {wanted.name} of {ground.environment} leads to {found.share_name} of"
        f" {found.account_name} ({found.access_mode}).",
        fix="Set AZURE_STORAGE_ACCOUNT to that account, or take the link away:"
        f" {shlex.join((*removed, *here(ground), '--storage-name', wanted.name))}",
    )


async def _linked(site: Site, wanted: Link) -> AzureFileProperties | None:
    storages, ground = (await site.clients.apps()).managed_environments_storages, site.ground
    asked = storages.get(ground.resource_group, ground.environment, wanted.name, **reading())
    found = await or_none("look for the environment's link to the share", asked)
    return found.properties.azure_file if found and found.properties else None


def _leads(site: Site, wanted: Link, found: AzureFileProperties) -> bool:
    to = (found.account_name or "").lower(), found.share_name, found.access_mode
    return to == (site.ground.storage_account.lower(), wanted.share, wanted.mode)


def left_account(site: Site) -> Resource:
    """Return the storage account as something that stays."""
    title = f"the storage account {site.ground.storage_account} with all weights"
    return replace(account(site), title=title, is_ours=was_made_here)


def left_share(site: Site) -> Resource:
    """Return our own share as something that stays, and goes with its account."""
    chosen = rules().share

    def bill(found: FileShare) -> tuple[str, float]:
        gib = found.share_quota or chosen.quota_gib
        what = (
            f"the share {SHARE} of {site.ground.storage_account} ({gib} GiB, billed whether it is"
        )
        usd = round(gib / chosen.quota_gib * chosen.usd_per_month[-1], 2)
        return f"{what} read or not)", usd

    return replace(share_of(site), bill=bill)


async def share_answer(site: Site, model: ModelShape, mount: Mount) -> Answer:
    """Say whether the share can be used, or made, and has room for the model."""
    if await find_account(site) is None:
        client, name = await site.clients.storage(), site.ground.storage_account
        asked = StorageAccountCheckNameAvailabilityParameters(name=name)
        with strictly(f"see whether the name {name} is free"):
            said = await client.storage_accounts.check_name_availability(asked, **reading())
        if said.name_available:
            return Answer(passed=True, detail="The storage account will be made.")
        fix = "Set AZURE_STORAGE_ACCOUNT to another name."
        return Answer(passed=False, detail=said.message or "Its name is taken.", fix=fix)
    if other := await link_elsewhere(site, Link(mount.share, mount.read_only)):
        return Answer(passed=False, detail=other.summary, fix=other.fix)
    if mount.read_only or not size_known(model):
        return Answer(passed=True, detail="The storage account is there.")
    return has_room(site, await find_share(site), file_bytes(model))


def has_room(site: Site, share: FileShare | None, wanted: int) -> Answer:
    """Say whether so many bytes are free on the share, or will be on the one that is made."""
    gib = (share.share_quota if share else None) or rules().share.quota_gib
    used = (share.share_usage_bytes if share else None) or 0
    said = (
        f"It has {gib} GiB, of which {used / 2**30:.1f} are taken; {wanted / 2**30:.1f} are wanted"
    )
    if used + wanted <= gib * 2**30:
        return Answer(passed=True, detail=f"{said}.")
    named = ("--name", SHARE, *here(site.ground), "--storage-account", site.ground.storage_account)
    quota = ("--quota", str(math.ceil((used + wanted) / 2**30 * 1.1)))
    larger = shlex.join(("az", "storage", "share-rm", "update", *named, *quota))
    fix = f"`{larger}`, which costs more a month; or remove models from it."
    if wanted > gib * 2**30:
        return Answer(passed=False, detail=f"{said}.", fix=fix)
    return Answer(passed=None, detail=f"{said}, unless they lie there already.", fix=fix)


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
    with translated_refusal(site, f"list {share}/{folder}", store=store, needs=READS_SHARES.title):
        there = client.get_directory_client(folder)
        async for one in there.list_directories_and_files(**read_limits()):
            path = f"{folder}/{one.name}".lstrip("/")
            if one.is_directory:
                folders += [] if one.name.startswith(".") else [path]
            elif _matters(path):
                open_file = client.get_file_client(path).download_file
                read = _reader(site, open_file, f"The file {path}", READS_SHARES.title)
                files[path] = File(int(one["size"] or 0), read)
    return _Listed(folders, files)


def _matters(path: str) -> bool:
    return path.rpartition(".")[2] in ENDINGS or HUB_CACHE in path


def _reader(
    site: Site, download: Callable[..., Awaitable[Any]], store: str, needs: str
) -> Callable[[int, int], Awaitable[bytes]]:
    async def read(offset: int, length: int) -> bytes:
        what = f"read {store[4:]}"
        with translated_refusal(site, what, store=store, needs=needs):
            got = await download(offset, length, **read_limits())
            return bytes(await got.readall())

    return read


async def list_blobs(site: Site, container: str, under: str) -> dict[str, File]:
    """List what models are made of by their names, below a folder if one is given.

    Raises:
        CloudRefused: There is no such container.
    """
    client = (await site.clients.blobs()).get_container_client(container)
    begin = f"{under}/" if under else None
    found: dict[str, File] = {}
    store = f"The container {container}"
    with translated_refusal(site, f"list the blobs of {container}", store=store, needs=READS_BLOBS):
        async for one in client.list_blobs(name_starts_with=begin, **read_limits()):
            if one.name.rpartition(".")[2] in ENDINGS:
                open_blob = client.get_blob_client(one.name).download_blob
                read = _reader(site, open_blob, f"The blob {one.name}", READS_BLOBS)
                found[one.name] = File(int(one.size or 0), read)
            if len(found) > MOST_FILES:
                break
    return limited(found, container)


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
    """Return every folder that holds weights, or a config that waits for them, in order of names.

    `bucket` is SHARE, files://SHARE/FOLDER or blob://CONTAINER/FOLDER; left out, the share that
    the set-up makes.

    Raises:
        InvalidArgument: It is none of these.
        CloudRefused: There is no such share, container, folder or account.
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
    """Judge the model at a location, each file by its own header."""
    async with deadline(site, f"look into {location}", kind=parse_location(location).service):
        return await judge_whole(await _of_one_folder(site, location))


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
    """Return one row for each model of the Hub's cache: links there hide which files are whole."""
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


_WRITES_SHARES: Final = "Storage File Data Privileged Contributor"
_NOTES: Final = (
    f"Whoever is logged in (`az login`) needs '{_WRITES_SHARES}' on the storage account.",
    "setup_target makes account and share, and links them to the environment.",
    "azcopy begins each file anew when it was cut off: repeat it, or `azcopy jobs resume`.",
)


def upload_commands(site: Site, folder: str, here: str, bucket: str | None) -> Upload:
    """Say how `here` gets to where deployments read it; `folder` where the bucket names none.

    Flags: Microsoft's reference of `azcopy copy`, read 2026-11.

    Raises:
        InvalidArgument: It is no share.
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
        ("Make the share if it is not there.", share_command(site, share)),
        ("Copy the folder.", f"AZCOPY_AUTO_LOGIN_TYPE=AZCLI {shlex.join(copied)}"),
        ("See what is there.", shlex.join(listed)),
    ]
