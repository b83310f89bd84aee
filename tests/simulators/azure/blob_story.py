"""What is done with blobs, told in a form that does not say whose they are."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final

from azure.core.exceptions import HttpResponseError
from azure.storage.blob.aio import BlobServiceClient, ContainerClient

CONTAINER: Final = "models"
_BLOBS: Final = {
    "small/config.json": b"{}",
    "small/model.safetensors": bytes(range(256)) * 16,
    "large/part 1 & 2.bin": b"x" * 10,
    "readme": b"",
}


async def story(service: BlobServiceClient) -> list[Any]:
    """Do everything, and give what was answered."""
    told: list[Any] = []
    container = service.get_container_client(CONTAINER)
    told.append(await _said(container.get_container_properties()))
    told.append(await _said(container.create_container()))
    told.append(await _said(container.create_container()))
    told.append(await _said(service.get_container_client("Not_A_Name").create_container()))
    for name, content in _BLOBS.items():
        told.append(await _said(container.upload_blob(name, content)))
    told.append(await _said(container.upload_blob("readme", b"again")))
    told.append(await _said(container.upload_blob("readme", b"again", overwrite=True)))
    told += await _listings(service, container)
    told += await _readings(container)
    told.append(await _said(container.delete_blob("readme")))
    told.append(await _said(container.delete_blob("readme")))
    told.append(await _said(container.delete_container()))
    return told


async def _listings(service: BlobServiceClient, container: ContainerClient) -> list[Any]:
    missing = service.get_container_client("missing")
    return [
        await _names(service.list_containers()),
        [(one.name, one.size, one.blob_type) async for one in container.list_blobs()],
        await _names(container.list_blobs(name_starts_with="small/", results_per_page=1)),
        await _names(container.list_blobs(name_starts_with="nothing")),
        sorted(await _names(container.walk_blobs())),
        sorted(await _names(container.walk_blobs(name_starts_with="small/", delimiter="/"))),
        await _said(_names(missing.list_blobs())),
    ]


async def _readings(container: ContainerClient) -> list[Any]:
    weights = container.get_blob_client("small/model.safetensors")
    properties = await weights.get_blob_properties()
    return [
        (properties.name, properties.size, properties.blob_type),
        await (await weights.download_blob()).readall(),
        await (await weights.download_blob(offset=250, length=20)).readall(),
        await (await weights.download_blob(offset=4090, length=99)).readall(),
        await _said(weights.download_blob(offset=5000, length=1)),
        await (await container.download_blob("readme")).readall(),
        await _said(container.download_blob("small")),
        await container.get_blob_client("small").exists(),
    ]


async def _names(pages: AsyncIterator[Any]) -> list[str]:
    return [one.name async for one in pages]


async def _said(call: Awaitable[Any]) -> tuple[int, str] | str:
    """Give status and code of what was refused; what was not, went well."""
    try:
        await call
    except HttpResponseError as exc:
        code = getattr(exc, "error_code", None)
        return exc.status_code or 0, str(getattr(code, "value", code))
    return "well"
