"""The storage account with the share of weights, its files, and models among them."""

import math
import re
import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import anyio
from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.appcontainers import models as apps
from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient
from azure.mgmt.storage import models
from azure.mgmt.storage.aio import StorageManagementClient
from azure.storage.fileshare.aio import ShareClient

from backends.aca.container import Mount, rules
from backends.aca.ground import Grant, grant
from backends.aca.site import (
    OURS,
    READING,
    SHARE,
    Kind,
    Site,
    command,
    is_policy,
    not_configured,
    parts,
    provisioned,
    resource,
    strictly,
    translated,
)
from backends.base import StoredModel, Upload
from backends.common.concurrency import in_time, side_by_side
from backends.common.models import (
    ENDINGS,
    MOST_FILES,
    Completeness,
    File,
    folders,
    judge_whole,
    limited,
    models_among,
)
from backends.common.preflight import Answer
from backends.container import size_known
from backends.lifecycle import Resource, Status
from core import errors
from core.records import ModelShape
from core.reply import note
from planner.boot import file_bytes

ACCOUNTS: Final = Kind(
    "storage account",
    StorageManagementClient,
    "storage_accounts",
    "get_properties",
    "begin_create",
    "delete",
    "list",
)
FILE_SHARES: Final = Kind(
    "file share",
    StorageManagementClient,
    "file_shares",
    put="create",
    delete="delete",
    every="list",
    names=parts(4, 8, 12),
)
_LINKS: Final = Kind(
    "link to the share",
    ContainerAppsAPIClient,
    "managed_environments_storages",
    put="create_or_update",
    names=parts(4, 8, 10),
)
READS_SHARES: Final = Grant(
    "b8eda974-7b85-4f76-af95-65846b26df6d",
    "Storage File Data Privileged Reader",
    ("69566ab7-960f-475b-8e7c-b3118f30c6bd",),  # Storage File Data Privileged Contributor
)
SHARE_FIX: Final = (
    "If it forbids shared keys, give weights=hub:disk, or weights=baked with image=…; else set"
    " AZURE_STORAGE_ACCOUNT to one that is there, or ask its administrators for an exemption."
)


def base(site: Site, share: str = SHARE) -> Iterator[Resource]:
    """Return the account, who reads its shares, the share, and the environment's links to it.

    Our own share is written to by the Hub's first downloads; another is only read.
    """
    yield account(site)
    yield grant(site, READS_SHARES, site.ground.storage_id, to="you", after="account")
    yield share_of(site, share)
    if share == SHARE:
        yield _link(site, Mount(share=share, read_only=False))
    yield _link(site, Mount(share=share, read_only=True))


async def find_account(site: Site) -> Any:
    return await ACCOUNTS.find(site, site.ground.storage_id)


def account(site: Site) -> Resource:
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
        what = f"make the storage account {ground.storage_account}"
        try:
            await ACCOUNTS.send(site, ACCOUNTS.put, what, ground.storage_id, wanted)
        except errors.CloudRefused as exc:
            exc.fix = SHARE_FIX if is_policy(exc) else exc.fix
            raise

    return resource(
        site,
        ACCOUNTS,
        f"the storage account {ground.storage_account} for weights, on SSD",
        ground.storage_id,
        wanted,
        name="account",
        put=put,
        after=("group",),
        status=provisioned,
        command=command(site, "account", sku=sku),
    )


async def _find_share(site: Site, share: str = SHARE) -> Any:
    return await FILE_SHARES.find(site, share_id(site, share), expand="stats")


def share_id(site: Site, share: str = SHARE) -> str:
    return f"{site.ground.storage_id}/fileServices/default/shares/{share}"


def usd_per_month(gib: float) -> float:
    chosen = rules().share
    return round(gib / chosen.quota_gib * chosen.usd_per_month[-1], 4)


def share_of(site: Site, share: str = SHARE) -> Resource:
    """Return a share; another than our own ought to hold weights, and is never made."""
    chosen, account = rules().share, site.ground.storage_account
    properties = models.FileShareProperties(
        share_quota=chosen.quota_gib,
        provisioned_bandwidth_mibps=chosen.mib_per_second,
        enabled_protocols="SMB",
    )

    async def refuse() -> None:
        raise errors.CloudRefused(
            f"The storage account {account} has no share {share}.",
            fix="Correct the place of the weights: files://SHARE/FOLDER. list_bucket_models"
            " shows what there is.",
        )

    def bill(found: Any) -> tuple[str, float]:
        gib = found.share_quota or chosen.quota_gib
        what = f"the share {share} of {account} ({gib} GiB, billed whether it is read or not)"
        return what, usd_per_month(gib)

    never: dict[str, Any] = {} if share == SHARE else {"put": refuse}
    return resource(
        site,
        FILE_SHARES,
        f"the share {share} of {account} ({chosen.quota_gib} GiB)",
        share_id(site, share),
        models.FileShare(file_share_properties=properties),
        name="share",
        get=partial(_find_share, site, share),
        delete=None,  # it goes with its account
        after=("account",),
        usd_per_month=chosen.usd_per_month[-1],
        bill=bill,
        command=_share_command(site, share),
        **never,
    )


def _share_command(site: Site, share: str) -> str:
    size = {"gib": rules().share.quota_gib, "mib_per_second": rules().share.mib_per_second}
    return command(site, "share", share=share, **size)


async def account_key(site: Site) -> str:
    """Return what opens every share of the account; it is kept nowhere and never shown."""
    account, list_keys = site.ground.storage_account, await ACCOUNTS.call(site, "list_keys")
    with strictly(f"read the key of the storage account {account}"):
        said = await list_keys(site.ground.resource_group, account, **READING)
    return next((one.value for one in said.keys_property or () if one.value), "")


def _link(site: Site, wanted: Mount) -> Resource:
    """Return an environment's link to a share, made with the account's key, which Azure keeps."""
    ground, id_ = site.ground, _link_id(site, wanted)

    def body(key: str | None = None) -> Any:
        files = apps.AzureFileProperties(
            account_name=ground.storage_account,
            account_key=key,
            share_name=wanted.share,
            access_mode=wanted.mode,
        )
        properties = apps.ManagedEnvironmentStorageProperties(azure_file=files)
        return apps.ManagedEnvironmentStorage(properties=properties)

    async def put() -> None:
        await refuse_link_elsewhere(site, wanted)
        key = await account_key(site)
        await _LINKS.send(site, _LINKS.put, f"link {wanted.share}", id_, body(key))

    return Resource(
        name=f"link {wanted.link}",
        title=f"the environment's link {wanted.link} to the share {wanted.share} ({wanted.mode})",
        body={"id": id_, **body().as_dict()},
        get=partial(_linked, site, wanted),
        put=put,
        after=("share", "environment"),
        status=lambda found: Status.READY if _leads(site, wanted, found) else Status.STALE,
        scope="shared",
        command=command(site, "link", link=wanted.link, share=wanted.share, mode=wanted.mode),
    )


def _link_id(site: Site, wanted: Mount) -> str:
    return f"{site.ground.environment_id}/storages/{wanted.link}"


async def _linked(site: Site, wanted: Mount) -> Any:
    found = await _LINKS.find(site, _link_id(site, wanted))
    return found.properties.azure_file if found and found.properties else None


def _leads(site: Site, wanted: Mount, found: Any) -> bool:
    to = (found.account_name or "").lower(), found.share_name, found.access_mode
    return bool(to == (site.ground.storage_account.lower(), wanted.share, wanted.mode))


async def refuse_link_elsewhere(site: Site, wanted: Mount) -> None:
    found, ground = await _linked(site, wanted), site.ground
    if found is None or _leads(site, wanted, found):
        return
    raise errors.CloudRefused(
        f"The link {wanted.link} of {ground.environment} leads to {found.share_name} of"
        f" {found.account_name} ({found.access_mode}).",
        fix=f"Set AZURE_STORAGE_ACCOUNT to that account, or take the link away:"
        f" {command(site, 'link-remove', link=wanted.link)}",
    )


async def check_share(site: Site, model: ModelShape, mount: Mount) -> Answer | str:
    if await find_account(site) is None:
        return "The storage account will be made."
    await refuse_link_elsewhere(site, mount)
    if mount.read_only or not size_known(model):
        return "The storage account is there."
    return has_room(site, await _find_share(site), file_bytes(model))


def has_room(site: Site, share: Any, wanted: int) -> Answer:
    """Say whether so many bytes are free on the share, or will be on the one that is made."""
    gib = (share.share_quota if share else None) or rules().share.quota_gib
    used = (share.share_usage_bytes if share else None) or 0
    said = (
        f"It has {gib} GiB, of which {used / 2**30:.1f} are taken; {wanted / 2**30:.1f} are wanted"
    )
    if used + wanted <= gib * 2**30:
        return Answer(passed=True, detail=f"{said}.")
    more = math.ceil((used + wanted) / 2**30 * 1.1)
    larger = command(site, "share-larger", share=SHARE, gib=more)
    fix = (
        f"`{larger}`, which costs more a month; or remove models from it, among them what"
        " weights=hub keeps there in folders models--…."
    )
    if wanted > gib * 2**30:
        return Answer(passed=False, detail=f"{said}.", fix=fix)
    return Answer(passed=None, detail=f"{said}, unless they lie there already.", fix=fix)


_SECONDS: Final = 10
"""For one answer; the service wants a whole number."""
_DEADLINE: Final = 28.0
_AT_ONCE: Final = 8
_MOST_FOLDERS: Final = 400
_HUB_CACHE: Final = "models--"
"""What the Hub's library begins a folder with that it keeps a model in: weights=hub reads it."""


LIMITS: Final[dict[str, Any]] = {
    "timeout": _SECONDS,
    "connection_timeout": _SECONDS,
    "read_timeout": _SECONDS,
    "retry_total": 2,
}
"""Of a call to files, which has other words for them than ARM."""


@asynccontextmanager
async def _looking_into(site: Site, place: "Place") -> AsyncIterator[None]:
    """Stop waiting after half a minute; an account that is not there has no address either."""
    what, fix = f"look into the share {place.share}", "Name a folder in it."
    try:
        with in_time("Azure", what, _DEADLINE, fix=fix):
            yield
    except errors.CloudUnavailable as exc:
        try:
            there = await find_account(site)
        except errors.OpsError:
            raise exc from None
        if there is None:
            raise _missing("It is not there", site, exc.cause) from exc
        raise
    except errors.PermissionDenied as exc:
        needed = READS_SHARES.title
        given = command(site, "role-of-you", role=needed, scope=site.ground.storage_id)
        exc.fix = f"Ask for '{needed}' on the storage account: {given}; it counts after minutes."
        raise


@contextmanager
def _reading(site: Site, store: str) -> Iterator[None]:
    """Turn what the storage account says into our errors; `store` is what is to be read."""
    try:
        with translated(f"read {store}"):
            yield
    except ResourceNotFoundError as exc:
        raise _missing(f"T{store[1:]} is not there", site, exc.message) from exc


def _missing(what: str, site: Site, cause: str) -> errors.CloudRefused:
    return errors.CloudRefused(
        f"{what} in the storage account {site.ground.storage_account}.",
        cause=cause,
        fix="Correct its name, or call setup_target, which makes the account and its share.",
        next_steps=(errors.NextStep("setup_target", {"target": site.target.name}),),
    )


async def _list_files(site: Site, share: str, under: str) -> dict[str, File]:
    client = (await site.clients.files()).get_share_client(share)
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    found: dict[str, File] = {}
    waiting, seen = [under], 0

    async def look(folder: str) -> list[str]:
        async with limiter:
            return await _list_folder(site, client, folder, found)

    while waiting and seen < _MOST_FOLDERS and len(found) <= MOST_FILES:
        these = waiting[: _MOST_FOLDERS - seen]
        waiting, seen = waiting[len(these) :], seen + len(these)
        for below in await side_by_side([partial(look, folder) for folder in these]):
            waiting += below
    if waiting and len(found) <= MOST_FILES:
        note(f"{share} holds more than {_MOST_FOLDERS} folders; only these were looked at.")
    return limited(found, share)


async def _list_folder(
    site: Site, client: ShareClient, folder: str, found: dict[str, File]
) -> list[str]:
    below: list[str] = []
    share = f"the share {client.share_name}"
    with _reading(site, f"the folder {folder} of {share}" if folder else share):
        there = client.get_directory_client(folder)
        async for one in there.list_directories_and_files(**LIMITS):
            path = f"{folder}/{one.name}".lstrip("/")
            if one.is_directory:
                below += [] if one.name.startswith((".", _HUB_CACHE)) else [path]
            elif path.rpartition(".")[2] in ENDINGS:
                found[path] = File(int(one["size"] or 0), partial(_read, site, client, path))
    return below


async def _read(site: Site, client: ShareClient, path: str, offset: int, length: int) -> bytes:
    with _reading(site, f"the file {path}"):
        got = await client.get_file_client(path).download_file(offset, length, **LIMITS)
        return bytes(await got.readall())


_LOCATION: Final = re.compile(
    r"(?:files://)?(?P<share>[a-z0-9](?:-?[a-z0-9]){2,62})"
    r"(?:/(?P<folder>[^\x00-\x1f\\:*?\"<>|]*))?"
)
"""A share has 3 to 63 lower-case letters, digits, single hyphens."""


class Place(NamedTuple):
    share: str
    folder: str

    @property
    def root(self) -> str:
        return f"files://{self.share}"


async def list_models(site: Site, bucket: str | None) -> Sequence[StoredModel]:
    """Return every folder that holds weights, or a config that waits for them, in order of names.

    `bucket` is SHARE or files://SHARE/FOLDER; left out, the share that the set-up makes.

    Raises:
        InvalidArgument: It is none of these.
        CloudRefused: There is no such share, folder or account.
    """
    place = parse_location(bucket or SHARE)
    async with _looking_into(site, place):
        return await models_among(await _list_files(site, *place), place.root)


async def judge_model(site: Site, location: str) -> Completeness:
    place = parse_location(location)
    async with _looking_into(site, place):
        files = await _list_files(site, *place)
        return await judge_whole(folders(files).get(place.folder, {}))


def parse_location(location: str) -> Place:
    """Read what a person calls a place.

    >>> parse_location("files://weights/gemma")
    Place(share='weights', folder='gemma')
    >>> parse_location("weights").root
    'files://weights'

    Raises:
        InvalidArgument: It can be none.
    """
    found = _LOCATION.fullmatch(location.rstrip("/"))
    folder = (found["folder"] or "").strip("/") if found else ".."
    if not found or any(part in {"", ".", ".."} for part in folder.split("/") if folder):
        raise errors.InvalidArgument(
            f"{location[:100]!r} is no place that Azure keeps weights in.",
            fix="Give SHARE or files://SHARE/FOLDER.",
        )
    return Place(found["share"], folder)


_NOTES: Final = (
    (
        "Whoever is logged in (`az login`) needs 'Storage File Data Privileged Contributor' on the"
        " storage account."
    ),
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
    folder, account = place.folder or folder, site.ground.storage_account
    if not (site.clients.configured or site.settings.azure_storage_account):
        raise not_configured()  # the account is named after the subscription
    url = f"https://{account}.file.core.windows.net/{place.share}/{quote(folder)}"
    copied = ["azcopy", "copy", f"{here}/*", url, "--recursive", "--exclude-path=.cache"]
    listed = ["az", "storage", "file", "list", "--account-name", account]
    listed += ["--share-name", place.share, "--path", folder, "--auth-mode", "login"]
    listed += ["--enable-file-backup-request-intent", "--output", "table"]
    return Upload(
        location=f"{place.root}/{folder}",
        bucket=place.root,
        steps=(
            ("Make the share if it is not there.", _share_command(site, place.share)),
            ("Copy the folder.", f"AZCOPY_AUTO_LOGIN_TYPE=AZCLI {shlex.join(copied)}"),
            ("See what is there.", shlex.join(listed)),
        ),
        notes=_NOTES,
    )
