"""What is on the file shares of the simulated Azure."""

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.storage.fileshare.aio import ShareClient

from backends.aca.site import Clients
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.sites import fault
from tests.simulators.azure.asking import asked, token_of
from tests.simulators.azure.storage_roles import FILES_WRITER, give

pytestmark = pytest.mark.anyio


@pytest.fixture
async def share(clients: Clients) -> ShareClient:
    """The share for weights, which the caller may write to."""
    await give(clients, FILES_WRITER)
    return (await clients.files()).get_share_client("weights")


def code_of(error: HttpResponseError) -> str:
    """Give Azure's own code, which the SDK puts beside the error."""
    return str(getattr(error, "error_code", ""))


async def test_a_file_is_read_as_it_was_written(share: ShareClient) -> None:
    """In parts as well, and the last part ends where the file does."""
    content = bytes(range(256)) * 20
    await share.create_directory("model")
    file = share.get_file_client("model/config.json")

    await file.upload_file(content)

    assert await (await file.download_file()).readall() == content
    assert await (await file.download_file(offset=250, length=20)).readall() == content[250:270]
    assert await (await file.download_file(offset=5110, length=99)).readall() == content[5110:]
    assert (await file.get_file_properties()).size == len(content)


async def test_a_large_file_takes_no_room(share: ShareClient) -> None:
    """It is full of nothing until ranges are written."""
    file = share.get_file_client("large.safetensors")
    await file.create_file(60 * 1024**3)

    await file.upload_range(b"head", offset=8, length=4)

    assert await (await file.download_file(offset=6, length=8)).readall() == b"\0\0head\0\0"
    assert (await file.get_file_properties()).size == 60 * 1024**3


async def test_an_empty_file_is_empty(share: ShareClient) -> None:
    """There is no range in it to ask for."""
    file = share.get_file_client("empty")
    await file.create_file(0)

    assert await (await file.download_file()).readall() == b""


async def test_a_folder_lists_what_is_in_it(share: ShareClient) -> None:
    """Files with their sizes, folders without; page by page."""
    for folder in ("a & b", "a & b/inner"):
        await share.create_directory(folder)
    for number in range(5):
        await share.get_file_client(f"a & b/file-{number}").upload_file(b"x" * number)

    inside = share.get_directory_client("a & b").list_directories_and_files(results_per_page=2)
    found = {one.name: None if one.is_directory else one["size"] async for one in inside}

    assert found == {"inner": None, **{f"file-{number}": number for number in range(5)}}
    top = [one.name async for one in share.list_directories_and_files()]
    assert top == ["a & b"]
    begun = share.list_directories_and_files("a & b", name_starts_with="file-4")
    assert [one.name async for one in begun] == ["file-4"]


async def test_folders_and_files_are_deleted(share: ShareClient) -> None:
    """A folder when it is empty."""
    folder = await share.create_directory("model")
    file = share.get_file_client("model/file")
    await file.upload_file(b"x")
    with pytest.raises(ResourceExistsError) as told:
        await folder.delete_directory()
    assert code_of(told.value) == "DirectoryNotEmpty"

    await file.delete_file()
    await folder.delete_directory()

    assert not [one async for one in share.list_directories_and_files()]


async def test_what_was_deleted_with_its_group_does_not_come_back(
    clients: Clients, share: ShareClient, controls: Controls
) -> None:
    """The same names stand for new things."""
    await share.get_file_client("file").upload_file(b"x")
    groups = (await clients.resources()).resource_groups
    await (await groups.begin_delete(clients.group)).wait()
    controls.set(clients.subscription, prepared=False)
    await (await clients.vaults()).vaults.begin_purge_deleted(clients.ground.vault, clients.region)

    controls.set(clients.subscription, prepared=True)

    assert not [one async for one in share.list_directories_and_files()]


async def test_what_is_missing_is_named(clients: Clients, share: ShareClient) -> None:
    """The share, the folder around, the file."""
    other = (await clients.files()).get_share_client("other")
    nothing = share.get_directory_client("none")
    for code, call in (
        ("ShareNotFound", other.get_file_client("file").download_file()),
        ("ParentNotFound", share.get_file_client("none/file").download_file()),
        ("ResourceNotFound", share.get_file_client("file").download_file()),
        ("ParentNotFound", share.get_file_client("none/file").create_file(1)),
        ("ResourceNotFound", nothing.get_directory_properties()),
    ):
        with pytest.raises(ResourceNotFoundError) as told:
            await call
        assert code_of(told.value) == code
    with pytest.raises(ResourceNotFoundError):
        _ = [one async for one in nothing.list_directories_and_files()]


async def test_what_cannot_be_is_refused(share: ShareClient) -> None:
    """A folder that is there, a name with other letters, bytes beyond the end."""
    await share.create_directory("model")
    with pytest.raises(ResourceExistsError):
        await share.create_directory("model")
    with pytest.raises(ResourceExistsError):
        await share.get_file_client("model").create_file(1)
    with pytest.raises(HttpResponseError):
        await share.create_directory("what?")
    file = share.get_file_client("file")
    await file.create_file(4)

    for first, length in ((2, 4), (9, 1)):
        with pytest.raises(HttpResponseError) as told:
            await file.upload_range(b"x" * length, offset=first, length=length)
        assert told.value.status_code == 416
    with pytest.raises(HttpResponseError):
        await (await file.download_file(offset=4, length=1)).readall()


async def test_reading_needs_a_role_and_writing_a_larger_one(clients: Clients) -> None:
    """The set-up gives the one; an owner has neither."""
    share = (await clients.files()).get_share_client("weights")
    assert not [one async for one in share.list_directories_and_files()]
    assert [one.name async for one in (await clients.files()).list_shares()] == ["weights"]
    with pytest.raises(HttpResponseError) as told:
        await share.create_directory("model")
    assert told.value.status_code == 403
    roles = (await clients.roles()).role_assignments
    async for one in roles.list_for_scope(clients.ground.storage_id, filter="atScope()"):
        await roles.delete(clients.ground.storage_id, one.name or "")

    with pytest.raises(HttpResponseError) as told:
        _ = [one async for one in share.list_directories_and_files()]

    assert told.value.status_code == 403


async def test_a_login_must_say_that_it_goes_past_permissions(
    azure: AzurePlane, clients: Clients
) -> None:
    """And it must be one for storage."""
    url = f"{azure.storage}/file/{clients.ground.storage_account}/weights"
    listing, intent = f"{url}?restype=directory&comp=list", {"x-ms-file-request-intent": "backup"}
    storage = await token_of(clients, "https://storage.azure.com/.default")

    without = await asked(azure, "GET", listing, storage)
    nobody = await asked(azure, "GET", listing, headers=intent)
    elsewhere = await asked(azure, "GET", listing, await token_of(clients), headers=intent)

    assert (without.status_code, without.headers["x-ms-error-code"]) == (
        400,
        "MissingRequiredHeader",
    )
    assert (nobody.status_code, elsewhere.status_code) == (401, 401)
    assert (await asked(azure, "GET", listing, storage, headers=intent)).status_code == 200
    up = await asked(azure, "GET", f"{url}/%2E%2E/secret", storage, headers=intent)
    assert up.status_code in {400, 404}


async def test_a_part_says_where_it_ends(
    azure: AzurePlane, clients: Clients, share: ShareClient
) -> None:
    """Which is where the file ends, whatever was asked for."""
    await share.get_file_client("file").upload_file(b"0123456789")
    url = f"{azure.storage}/file/{clients.ground.storage_account}/weights/file"
    token = await token_of(clients, "https://storage.azure.com/.default")

    reply = await asked(
        azure,
        "GET",
        url,
        token,
        headers={"x-ms-file-request-intent": "backup", "x-ms-range": "bytes=8-99"},
    )

    assert (reply.status_code, reply.content) == (206, b"89")
    assert reply.headers["content-range"] == "bytes 8-9/10"


async def test_a_fault_meets_whoever_lists(
    clients: Clients, share: ShareClient, controls: Controls
) -> None:
    """Only so many times."""
    controls.set(clients.subscription, faults=[fault("GET directories", 503)])

    with pytest.raises(HttpResponseError):
        _ = [one async for one in share.list_directories_and_files(retry_total=0)]

    assert not [one async for one in share.list_directories_and_files(retry_total=0)]
    assert "GET directories" in controls.get(clients.subscription)["calls"]
